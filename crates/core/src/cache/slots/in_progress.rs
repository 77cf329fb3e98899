//! The prompts of live sequences, in lexicographic order.
//!
//! The prompt that shares the longest prefix with a given one is a neighbour of the place
//! where that one would be inserted. Each prompt stores how much it shares with the next, as
//! in a suffix array (Manber and Myers). An insertion point is thus found by reading each
//! token of the given prompt once, however much the live prompts share.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::trie::common_prefix;
use motet_protocol::PrefixKey;
use motet_protocol::{SequenceId, TokenId};

/// The live sequences by prompt.
#[derive(Debug, Default)]
pub(super) struct InProgressPrompts {
    by_key: BTreeMap<PrefixKey, Vec<Live>>,
}

#[derive(Debug)]
struct Live {
    tokens: Arc<[TokenId]>,
    sequence: SequenceId,
    /// Length of the prefix shared with the next prompt; 0 for the last.
    shared_with_next: usize,
}

/// The insertion point of a prompt: before all that are equal or greater.
#[derive(Clone, Copy, Debug)]
struct InsertionPoint {
    at: usize,
    /// Length of the prefix shared with the prompt before it.
    shared_before: usize,
    /// Length of the prefix shared with the prompt at that place.
    shared_after: usize,
}

impl InProgressPrompts {
    pub(super) fn insert(
        &mut self,
        key: &PrefixKey,
        tokens: &Arc<[TokenId]>,
        sequence: SequenceId,
    ) {
        if !self.by_key.contains_key(key) {
            self.by_key.insert(key.clone(), Vec::new());
        }
        let prompts = self
            .by_key
            .get_mut(key)
            .expect("the entry was just inserted");
        let mut insertion_point = insertion_point(prompts, tokens);
        // Among equal prompts, the older sequence comes first.
        let older = |live: &Live| live.sequence < sequence && live.tokens == *tokens;
        while prompts.get(insertion_point.at).is_some_and(older) {
            insertion_point.shared_before = tokens.len();
            insertion_point.shared_after = prompts[insertion_point.at].shared_with_next;
            insertion_point.at += 1;
        }
        if let Some(before) = insertion_point.at.checked_sub(1) {
            prompts[before].shared_with_next = insertion_point.shared_before;
        }
        let live = Live {
            tokens: Arc::clone(tokens),
            sequence,
            shared_with_next: insertion_point.shared_after,
        };
        prompts.insert(insertion_point.at, live);
    }

    pub(super) fn remove(&mut self, key: &PrefixKey, sequence: SequenceId) {
        let prompts = self.by_key.get_mut(key).expect("a live prompt is listed");
        let at = prompts.iter().position(|live| live.sequence == sequence);
        let at = at.expect("a live prompt is listed");
        let gone = prompts.remove(at);
        if let Some(before) = at.checked_sub(1) {
            let shared = &mut prompts[before].shared_with_next;
            *shared = gone.shared_with_next.min(*shared);
        }
        if prompts.is_empty() {
            self.by_key.remove(key);
        }
    }

    /// The live sequences that share a prefix with `tokens`, and its length, longest first.
    pub(super) fn nearest(
        &self,
        key: &PrefixKey,
        tokens: &[TokenId],
    ) -> impl Iterator<Item = (SequenceId, usize)> + '_ {
        let prompts = self.by_key.get(key).map_or(&[][..], Vec::as_slice);
        let insertion_point = insertion_point(prompts, tokens);
        let (mut below, mut above) = (insertion_point.at, insertion_point.at);
        let (mut shared_below, mut shared_above) =
            (insertion_point.shared_before, insertion_point.shared_after);
        std::iter::from_fn(move || {
            let before = below.checked_sub(1).map(|at| &prompts[at]);
            let after = prompts.get(above);
            let older = |one: &Live, other: &Live| one.sequence < other.sequence;
            let takes_before = match (before, after) {
                (Some(before), Some(after)) if shared_below == shared_above => older(before, after),
                (Some(_), Some(_)) => shared_below > shared_above,
                (before, _) => before.is_some(),
            };
            let (live, shared) = if takes_before {
                (before?, shared_below)
            } else {
                (after?, shared_above)
            };
            if takes_before {
                below -= 1;
                let next = below.checked_sub(1).map(|at| &prompts[at]);
                shared_below = next.map_or(0, |next| next.shared_with_next.min(shared_below));
            } else {
                above += 1;
                shared_above = live.shared_with_next.min(shared_above);
            }
            (shared > 0).then_some((live.sequence, shared))
        })
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.values().map(Vec::len).sum()
    }

    /// Panics unless the order and the shared lengths are correct.
    pub(super) fn check_integrity(&self) {
        for pair in self.by_key.values().flat_map(|prompts| prompts.windows(2)) {
            let [one, next] = pair else { continue };
            assert!(one.tokens <= next.tokens, "live prompts are in order");
            let shared = common_prefix(&one.tokens, &next.tokens);
            assert_eq!(
                one.shared_with_next, shared,
                "the shared length of neighbours is correct"
            );
        }
    }
}

fn insertion_point(prompts: &[Live], tokens: &[TokenId]) -> InsertionPoint {
    // Length of the prefix shared with the prompt before `at`, which is smaller.
    let mut shared = 0;
    // Length of the prefix that the prompt before `at` shares with the one at `at`.
    let mut with_next = 0;
    for (at, live) in prompts.iter().enumerate() {
        if with_next < shared {
            // The prompt at `at` differs from the one before at an earlier token than `tokens`
            // does, and is greater.
            return InsertionPoint {
                at,
                shared_before: shared,
                shared_after: with_next,
            };
        }
        if with_next == shared {
            let more = common_prefix(&live.tokens[shared..], &tokens[shared..]);
            if tokens[shared + more..] <= live.tokens[shared + more..] {
                return InsertionPoint {
                    at,
                    shared_before: shared,
                    shared_after: shared + more,
                };
            }
            shared += more;
        }
        // Otherwise it agrees with the one before past the token where `tokens` differs from
        // both.
        with_next = live.shared_with_next;
    }
    InsertionPoint {
        at: prompts.len(),
        shared_before: shared,
        shared_after: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_cases::check_cases;
    use arbtest::arbitrary::{Result, Unstructured};
    use motet_protocol::Salt;

    const CASES: u64 = 1_000;
    /// More than the random bytes that a case takes.
    const BYTES: u64 = 256;

    fn prompt(random: &mut Unstructured<'_>) -> Result<Vec<TokenId>> {
        let length = random.int_in_range(1..=7)?;
        (0..length).map(|_| random.int_in_range(0..=2)).collect()
    }

    #[test]
    fn longest_shared_prefix_comes_first() {
        check_cases(CASES, BYTES, |random| {
            let count = random.int_in_range(0..=19)?;
            let prompts: Result<_> = (0..count).map(|_| prompt(random)).collect();
            let removed = random.int_in_range(0..=19)?;
            check_nearest(prompts?, removed, &prompt(random)?);
            Ok(())
        });
    }

    fn check_nearest(mut prompts: Vec<Vec<TokenId>>, removed: usize, query: &[TokenId]) {
        let key = PrefixKey::default();
        let mut live = InProgressPrompts::default();
        for (i, prompt) in prompts.iter().enumerate() {
            live.insert(&key, &prompt.as_slice().into(), SequenceId(i as u64));
            live.check_integrity();
        }
        let removed = removed.min(prompts.len());
        for i in 0..removed {
            live.remove(&key, SequenceId(i as u64));
            live.check_integrity();
        }
        prompts.drain(..removed);
        assert_eq!(live.len(), prompts.len());
        let shared = prompts.iter().map(|prompt| common_prefix(prompt, query));
        let mut shared: Vec<usize> = shared.filter(|shared| *shared > 0).collect();
        shared.sort_by_key(|shared| std::cmp::Reverse(*shared));
        let nearest: Vec<usize> = live.nearest(&key, query).map(|(_, s)| s).collect();
        assert_eq!(nearest, shared, "{prompts:?} for {query:?}");
        assert_eq!(
            live.nearest(&PrefixKey::of(Salt::new("other")), query)
                .next(),
            None
        );
    }

    #[test]
    fn oldest_of_equal_prompts_is_the_nearest() {
        let orders = [
            [1, 2, 3],
            [1, 3, 2],
            [2, 1, 3],
            [2, 3, 1],
            [3, 1, 2],
            [3, 2, 1],
        ];
        for order in orders {
            let key = PrefixKey::default();
            let mut live = InProgressPrompts::default();
            for id in order {
                live.insert(&key, &[5, 5].into(), SequenceId(id));
                live.insert(&key, &[5].into(), SequenceId(10 + id));
                live.check_integrity();
            }
            let nearest: Vec<_> = live.nearest(&key, &[5, 5]).collect();
            assert_eq!(nearest[0], (SequenceId(1), 2), "inserted as {order:?}");
            assert_eq!(nearest.len(), 6);
        }
    }
}
