//! The prompts of live sequences, in lexicographic order.
//!
//! Of all prompts, the one that shares the longest beginning with a given one stands
//! next to where that one would stand. Each prompt knows how much it shares with the
//! next, as in a suffix array (Manber and Myers): with that, a place is found by
//! reading each token of the newcomer once, however much the live prompts share.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::salt::Salt;
use super::trie::common_prefix;
use crate::{SequenceId, TokenId};

/// Who computes what just now.
#[derive(Debug, Default)]
pub(super) struct LivePrompts {
    by_salt: BTreeMap<Salt, Vec<Live>>,
}

#[derive(Debug)]
struct Live {
    tokens: Arc<[TokenId]>,
    sequence: SequenceId,
    /// Tokens that it has in common with the next prompt; 0 for the last.
    shared_with_next: usize,
}

/// Where a prompt stands or would stand: before all that are equal or greater.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    /// Tokens that it has in common with the prompt before it.
    shared_before: usize,
    /// The same with the prompt that stands there.
    shared_after: usize,
}

impl LivePrompts {
    pub(super) fn insert(&mut self, salt: &Salt, tokens: &Arc<[TokenId]>, sequence: SequenceId) {
        if !self.by_salt.contains_key(salt) {
            self.by_salt.insert(salt.clone(), Vec::new());
        }
        let prompts = self.by_salt.get_mut(salt).expect("it was just made");
        let mut place = place(prompts, tokens);
        // The older of equals stands first.
        let older = |live: &Live| live.sequence < sequence && live.tokens == *tokens;
        while prompts.get(place.at).is_some_and(older) {
            place.shared_before = tokens.len();
            place.shared_after = prompts[place.at].shared_with_next;
            place.at += 1;
        }
        if let Some(before) = place.at.checked_sub(1) {
            prompts[before].shared_with_next = place.shared_before;
        }
        let live = Live {
            tokens: Arc::clone(tokens),
            sequence,
            shared_with_next: place.shared_after,
        };
        prompts.insert(place.at, live);
    }

    pub(super) fn remove(&mut self, salt: &Salt, sequence: SequenceId) {
        let prompts = self.by_salt.get_mut(salt).expect("a live prompt is listed");
        let at = prompts.iter().position(|live| live.sequence == sequence);
        let at = at.expect("a live prompt is listed");
        let gone = prompts.remove(at);
        if let Some(before) = at.checked_sub(1) {
            let shared = &mut prompts[before].shared_with_next;
            *shared = gone.shared_with_next.min(*shared);
        }
        if prompts.is_empty() {
            self.by_salt.remove(salt);
        }
    }

    /// The live sequences that share a beginning with `tokens`, and how many tokens
    /// that is: who shares most comes first.
    pub(super) fn nearest(
        &self,
        salt: &Salt,
        tokens: &[TokenId],
    ) -> impl Iterator<Item = (SequenceId, usize)> + '_ {
        let prompts = self.by_salt.get(salt).map_or(&[][..], Vec::as_slice);
        let place = place(prompts, tokens);
        let (mut below, mut above) = (place.at, place.at);
        let (mut shared_below, mut shared_above) = (place.shared_before, place.shared_after);
        std::iter::from_fn(move || {
            let before = below.checked_sub(1).map(|at| &prompts[at]);
            let after = prompts.get(above);
            let older = |one: &Live, other: &Live| one.sequence < other.sequence;
            let takes_before = match (before, after) {
                (Some(before), Some(after)) if shared_below == shared_above => older(before, after),
                (Some(_), Some(_)) => shared_below > shared_above,
                (before, _) => before.is_some(),
            };
            let (live, shared) = match takes_before {
                true => (before?, shared_below),
                false => (after?, shared_above),
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
        self.by_salt.values().map(Vec::len).sum()
    }

    /// Panics unless the order and what neighbours share are as they should be.
    pub(super) fn check_integrity(&self) {
        for pair in self.by_salt.values().flat_map(|prompts| prompts.windows(2)) {
            let [one, next] = pair else { continue };
            assert!(one.tokens <= next.tokens, "live prompts stand in order");
            let shared = common_prefix(&one.tokens, &next.tokens);
            assert_eq!(one.shared_with_next, shared, "neighbours know each other");
        }
    }
}

fn place(prompts: &[Live], tokens: &[TokenId]) -> Place {
    // Tokens in common with the prompt before `at`, which is less.
    let mut shared = 0;
    // Tokens that the prompt before `at` has in common with the one there.
    let mut with_next = 0;
    for (at, live) in prompts.iter().enumerate() {
        if with_next < shared {
            // The prompt there has left the one before earlier than we do, upwards.
            return Place {
                at,
                shared_before: shared,
                shared_after: with_next,
            };
        }
        if with_next == shared {
            let more = common_prefix(&live.tokens[shared..], &tokens[shared..]);
            if tokens[shared + more..] <= live.tokens[shared + more..] {
                return Place {
                    at,
                    shared_before: shared,
                    shared_after: shared + more,
                };
            }
            shared += more;
        }
        // Else it goes on with the one before where we have left both.
        with_next = live.shared_with_next;
    }
    Place {
        at: prompts.len(),
        shared_before: shared,
        shared_after: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Prompts = Vec<Vec<TokenId>>;

    fn prompts() -> impl Strategy<Value = Prompts> {
        prop::collection::vec(prop::collection::vec(0u32..3, 1..8), 0..20)
    }

    proptest! {
        #[test]
        fn who_shares_most_comes_first(
            mut prompts in prompts(),
            removed in 0usize..20,
            query in prop::collection::vec(0u32..3, 1..8),
        ) {
            let salt = Salt::default();
            let mut live = LivePrompts::default();
            for (i, prompt) in prompts.iter().enumerate() {
                live.insert(&salt, &prompt.as_slice().into(), SequenceId(i as u64));
                live.check_integrity();
            }
            let removed = removed.min(prompts.len());
            for i in 0..removed {
                live.remove(&salt, SequenceId(i as u64));
                live.check_integrity();
            }
            prompts.drain(..removed);
            prop_assert_eq!(live.len(), prompts.len());
            let shared = prompts.iter().map(|prompt| common_prefix(prompt, &query));
            let mut shared: Vec<usize> = shared.filter(|shared| *shared > 0).collect();
            shared.sort_by_key(|shared| std::cmp::Reverse(*shared));
            let nearest: Vec<usize> = live.nearest(&salt, &query).map(|(_, s)| s).collect();
            prop_assert_eq!(nearest, shared);
            prop_assert_eq!(live.nearest(&Salt::new("other"), &query).next(), None);
        }

        #[test]
        fn of_equals_the_oldest_is_the_nearest(order in Just([3u64, 1, 2]).prop_shuffle()) {
            let salt = Salt::default();
            let mut live = LivePrompts::default();
            for id in order {
                live.insert(&salt, &[5, 5].into(), SequenceId(id));
                live.insert(&salt, &[5].into(), SequenceId(10 + id));
                live.check_integrity();
            }
            let nearest: Vec<_> = live.nearest(&salt, &[5, 5]).collect();
            prop_assert_eq!(nearest[0], (SequenceId(1), 2));
            prop_assert_eq!(nearest.len(), 6);
        }
    }
}
