//! Finds copies by the tokens whose state they hold.
//!
//! A copy is found by its salt, its tokens from the first one of the sequence on, and the
//! offset where its range begins. The trie may split and merge segments; copies do not change.
//! A sequence's tokens are covered by a chain of copies. Each copy begins no later than where
//! the one before it ends.
//!
//! For the tokens before a copy's own range only a [digest](PrefixDigest) is stored. A
//! sequence's own digests are computed as far as copies may continue it, in one pass over its
//! tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::pager::{Label, PrefixDigest, PrefixHasher};
use motet_protocol::common_prefix;
use motet_protocol::{CopyId, TokenId};
use motet_protocol::{KeyDigest, SaltDigest};

/// Upper bound on the neighbours searched for a copy that must match in full.
const NEIGHBOURS_MAX: usize = 8;

/// Copies by salt, start of their range and first token; then by the prefix before them, then
/// in lexicographic order.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_start: BTreeMap<(SaltDigest, usize, TokenId), Vec<Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    label: Arc<Label>,
    copy: CopyId,
}

/// A copy that continues some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pager) struct Continuation {
    pub(in crate::pager) copy: CopyId,
    /// Offset at which its range begins.
    pub(in crate::pager) start: usize,
    /// Offset up to which the sequence's tokens equal those of the copy.
    pub(in crate::pager) shared: usize,
    /// Whether all tokens of the copy are matched.
    pub(in crate::pager) whole: bool,
}

impl Index {
    pub(super) fn insert(&mut self, label: &Arc<Label>, copy: CopyId) {
        let bucket = self.by_start.entry(place(label)).or_default();
        let at = bucket.partition_point(|entry| order(&entry.label) < order(label));
        let label = Arc::clone(label);
        bucket.insert(at, Entry { label, copy });
    }

    pub(super) fn remove(&mut self, label: &Label, copy: CopyId) {
        let place = place(label);
        let bucket = self
            .by_start
            .get_mut(&place)
            .expect("the index holds every complete copy");
        bucket.retain(|entry| entry.copy != copy);
        if bucket.is_empty() {
            self.by_start.remove(&place);
        }
    }

    /// Number of copies that can be found.
    pub(super) fn len(&self) -> usize {
        self.by_start.values().map(Vec::len).sum()
    }

    /// Whether this copy can be found.
    pub(super) fn holds(&self, label: &Label, copy: CopyId) -> bool {
        let bucket = self.by_start.get(&place(label));
        bucket.is_some_and(|bucket| bucket.iter().any(|entry| entry.copy == copy))
    }

    /// Returns the copies that cover `tokens` from `from` on, each reaching as far as any copy
    /// does. If `whole` is true, all tokens of each copy are among `tokens`.
    pub(super) fn chain(
        &self,
        key: KeyDigest,
        tokens: &[TokenId],
        from: usize,
        whole: bool,
    ) -> Vec<Continuation> {
        let candidates = self.candidates(key, tokens, from, whole);
        let mut chain = Vec::new();
        let mut at = from;
        loop {
            let reach = candidates.iter().filter(|one| one.start <= at);
            match reach.max_by_key(|one| (one.shared, one.start)) {
                Some(next) if next.shared > at => {
                    at = next.shared;
                    chain.push(*next);
                }
                _ => return chain,
            }
        }
    }

    /// Returns, for each offset, the copy that begins there and reaches furthest, if it reaches
    /// past `from`.
    fn candidates(
        &self,
        key: KeyDigest,
        tokens: &[TokenId],
        from: usize,
        whole: bool,
    ) -> Vec<Continuation> {
        let mut found = Vec::new();
        let salt = key.salt;
        let mut prefix = PrefixHasher::new(key);
        let (mut hashed, mut at) = (0, 0);
        while at < tokens.len() {
            let mut ahead = self.by_start.range((salt, at, 0)..(salt, tokens.len(), 0));
            let Some(((_, start, _), _)) = ahead.next() else {
                break;
            };
            let start = *start;
            at = start + 1;
            // Most copies at this offset start with another token or end too soon; nothing is
            // hashed for those.
            let Some(bucket) = self.by_start.get(&(salt, start, tokens[start])) else {
                continue;
            };
            let reaches = |entry: &Entry| entry.label.end() > from;
            if bucket.len() <= NEIGHBOURS_MAX && !bucket.iter().any(reaches) {
                continue;
            }
            prefix.update(&tokens[hashed..start]);
            hashed = start;
            let rest = &tokens[start..];
            let alike = key.tokens_alike(start).min(rest.len());
            let furthest = furthest(bucket, prefix.digest(), &rest[..alike], whole);
            let furthest = furthest.map(|(copy, shared, whole)| Continuation {
                copy,
                start,
                shared: start + shared,
                whole,
            });
            found.extend(furthest.filter(|one| one.shared > from.max(start)));
        }
        found
    }
}

fn place(label: &Label) -> (SaltDigest, usize, TokenId) {
    let first = label.tokens.first();
    let first = first.expect("a copy has at least one token");
    (label.key.salt, label.start, *first)
}

fn order(label: &Label) -> (PrefixDigest, &[TokenId]) {
    (label.before, &label.tokens)
}

/// Returns, from the entries that come after the prefix `before`, the one that shares most with
/// the `tokens` that follow. The result holds the copy, the number of shared tokens, and
/// whether these are all of the copy's tokens.
fn furthest(
    bucket: &[Entry],
    before: PrefixDigest,
    tokens: &[TokenId],
    whole: bool,
) -> Option<(CopyId, usize, bool)> {
    let first = bucket.partition_point(|entry| entry.label.before < before);
    let bucket = &bucket[first..];
    let bucket = &bucket[..bucket.partition_point(|entry| entry.label.before == before)];
    let at = bucket.partition_point(|entry| &entry.label.tokens[..] <= tokens);
    // Entries that match in full sort before the tokens, and those that share most sort beside
    // them.
    let before = bucket[..at].iter().rev().take(NEIGHBOURS_MAX);
    let after = bucket[at..].iter().take(1);
    let shares = |entry: &Entry| {
        let shared = common_prefix(&entry.label.tokens, tokens);
        (entry.copy, shared, shared == entry.label.tokens.len())
    };
    let found = before.chain(after).map(shares);
    found
        .filter(|(_, _, all)| *all || !whole)
        // The newest of equals wins: it was made because the others did not serve.
        .max_by_key(|(copy, shared, all)| (*shared, *all, *copy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::Precision;

    const KEY: KeyDigest = KeyDigest::of(SaltDigest([7; 32]));

    fn label(tokens: &[TokenId], start: usize) -> Arc<Label> {
        Arc::new(Label::new(KEY, tokens, start, 0, Precision::Full, 1))
    }

    fn index(copies: &[(&[TokenId], usize)]) -> Index {
        let mut index = Index::default();
        for (copy, (tokens, start)) in (1..).zip(copies) {
            index.insert(&label(tokens, *start), CopyId(copy));
        }
        index
    }

    #[test]
    fn chain_extends_as_far_as_copies_reach() {
        let copies: [(&[TokenId], usize); 5] = [
            (&[1, 2, 3, 4], 0),
            (&[1, 2, 3, 4, 5, 6], 4),
            (&[1, 2, 3, 9, 9], 3),
            (&[1, 2, 3, 4, 5, 6, 7, 8], 5),
            (&[2, 2], 0),
        ];
        let index = index(&copies);
        let check = |tokens: &[TokenId], from, whole, expected: &[(u64, usize)]| {
            let chain = index.chain(KEY, tokens, from, whole);
            let chain: Vec<(u64, usize)> =
                chain.iter().map(|one| (one.copy.0, one.shared)).collect();
            assert_eq!(chain, expected, "{tokens:?} from {from}");
        };
        check(
            &[1, 2, 3, 4, 5, 6, 7, 8, 9],
            0,
            false,
            &[(1, 4), (2, 6), (4, 8)],
        );
        check(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 5, false, &[(4, 8)]);
        check(&[1, 2, 3, 9, 9], 0, false, &[(1, 3), (3, 5)]);
        check(&[1, 2, 3, 9, 9], 0, true, &[]);
        check(&[1, 2, 3, 9, 9], 3, true, &[(3, 5)]);
        check(&[1, 2], 0, false, &[(1, 2)]);
        check(&[1, 2], 2, false, &[]);
        check(&[3], 0, false, &[]);
        assert!(
            index
                .chain(KeyDigest::of(SaltDigest([8; 32])), &[1, 2], 0, false)
                .is_empty()
        );
    }

    #[test]
    fn removed_copy_is_not_found() {
        let tokens = [1, 2, 3];
        let mut index = index(&[(&tokens, 1), (&tokens, 1)]);
        index.remove(&label(&tokens, 1), CopyId(1));
        assert_eq!(index.chain(KEY, &tokens, 1, true)[0].copy, CopyId(2));
        index.remove(&label(&tokens, 1), CopyId(2));
        assert!(index.by_start.is_empty());
    }

    /// Copies with the same tokens at the same offset, after different prefixes.
    #[test]
    fn same_tokens_after_another_prefix_are_another_copy() {
        let copies: [(&[TokenId], usize); 3] = [
            (&[1, 2, 8, 9], 2),
            (&[1, 3, 8, 9], 2),
            (&[1, 3, 8, 9, 9], 2),
        ];
        let index = index(&copies);
        for (tokens, copy) in [
            ([1, 2, 8, 9], Some(1)),
            ([1, 3, 8, 9], Some(2)),
            ([3, 2, 8, 9], None),
        ] {
            let chain = index.chain(KEY, &tokens, 2, false);
            let found = chain.first().map(|one| one.copy.0);
            assert_eq!(found, copy, "{tokens:?}");
        }
    }
}
