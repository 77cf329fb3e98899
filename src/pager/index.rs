//! Which copies hold the state of which tokens.
//!
//! A copy is found by what it is the state of: its salt, its tokens from the first one
//! on, and where its own range begins. The trie may cut and merge segments as it likes;
//! a copy stays what it is. So a sequence's tokens are covered by a chain of copies, each
//! of which begins no later than where the one before it ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::tiers::SaltDigest;
use crate::cache::trie::common_prefix;
use crate::{CopyId, TokenId};

/// Neighbours that are looked at when one must be matched in full.
const NEIGHBOURS_MAX: usize = 8;

/// Copies by salt and by where their range begins, then by the tokens before that, then
/// in lexicographic order.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_start: BTreeMap<(SaltDigest, usize), FxHashMap<u64, Vec<Entry>>>,
}

#[derive(Clone, Debug)]
struct Entry {
    tokens: Arc<[TokenId]>,
    copy: CopyId,
}

/// A copy that continues some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continuation {
    pub(super) copy: CopyId,
    /// Where its range begins.
    pub(super) start: usize,
    /// How far the tokens are its own.
    pub(super) shared: usize,
    /// Whether that is all of it.
    pub(super) whole: bool,
}

impl Index {
    pub(super) fn insert(
        &mut self,
        salt: SaltDigest,
        tokens: &Arc<[TokenId]>,
        start: usize,
        copy: CopyId,
    ) {
        let before = hash(&tokens[..start]);
        let buckets = self.by_start.entry((salt, start)).or_default();
        let bucket = buckets.entry(before).or_default();
        let at = bucket.partition_point(|entry| entry.tokens < *tokens);
        let tokens = Arc::clone(tokens);
        bucket.insert(at, Entry { tokens, copy });
    }

    pub(super) fn remove(
        &mut self,
        salt: SaltDigest,
        tokens: &[TokenId],
        start: usize,
        copy: CopyId,
    ) {
        let key = (salt, start);
        let before = hash(&tokens[..start]);
        let buckets = self.by_start.get_mut(&key).expect("the copy is listed");
        let bucket = buckets.get_mut(&before).expect("the copy is listed");
        bucket.retain(|entry| entry.copy != copy);
        if bucket.is_empty() {
            buckets.remove(&before);
        }
        if buckets.is_empty() {
            self.by_start.remove(&key);
        }
    }

    /// The copies that cover `tokens` from `from` on, each as far as any does. Where
    /// `whole`, only copies of which all tokens are among these.
    pub(super) fn chain(
        &self,
        salt: SaltDigest,
        tokens: &[TokenId],
        from: usize,
        whole: bool,
    ) -> Vec<Continuation> {
        let candidates = self.candidates(salt, tokens, from, whole);
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

    /// Of the copies that begin at each offset, that which goes furthest, if it goes
    /// beyond `from`.
    fn candidates(
        &self,
        salt: SaltDigest,
        tokens: &[TokenId],
        from: usize,
        whole: bool,
    ) -> Vec<Continuation> {
        let mut found = Vec::new();
        let (mut hashed, mut before) = (0, hash(&[]));
        for ((_, start), buckets) in self.by_start.range((salt, 0)..(salt, tokens.len())) {
            before = extend(before, &tokens[hashed..*start]);
            hashed = *start;
            if let Some(bucket) = buckets.get(&before) {
                let furthest = furthest(bucket, tokens, whole);
                found.extend(
                    furthest
                        .filter(|(_, shared, _)| *shared > from.max(*start))
                        .map(|(copy, shared, whole)| Continuation {
                            copy,
                            start: *start,
                            shared,
                            whole,
                        }),
                );
            }
        }
        found
    }
}

/// The entry that shares most with `tokens`, how much that is, and whether it is all of it.
fn furthest(bucket: &[Entry], tokens: &[TokenId], whole: bool) -> Option<(CopyId, usize, bool)> {
    let at = bucket.partition_point(|entry| &entry.tokens[..] <= tokens);
    // What is wholly among the tokens stands before them, and what shares most beside.
    let before = bucket[..at].iter().rev().take(NEIGHBOURS_MAX);
    let after = bucket[at..].iter().take(1);
    let shares = |entry: &Entry| {
        // From the first token on: a hash may lie.
        let shared = common_prefix(&entry.tokens, tokens);
        (entry.copy, shared, shared == entry.tokens.len())
    };
    let found = before.chain(after).map(shares);
    found
        .filter(|(_, _, all)| *all || !whole)
        // Of equals the newest: it was made because the others did not serve.
        .max_by_key(|(copy, shared, all)| (*shared, *all, *copy))
}

fn hash(tokens: &[TokenId]) -> u64 {
    extend(0x9e37_79b9_7f4a_7c15, tokens)
}

/// As FxHash does.
fn extend(before: u64, tokens: &[TokenId]) -> u64 {
    tokens.iter().fold(before, |hash, token| {
        (hash.rotate_left(5) ^ u64::from(*token)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: SaltDigest = SaltDigest([7; 32]);

    fn index(copies: &[(&[TokenId], usize)]) -> Index {
        let mut index = Index::default();
        for (copy, (tokens, start)) in (1..).zip(copies) {
            index.insert(SALT, &Arc::from(*tokens), *start, CopyId(copy));
        }
        index
    }

    #[test]
    fn a_chain_goes_as_far_as_copies_reach() {
        let copies: [(&[TokenId], usize); 5] = [
            (&[1, 2, 3, 4], 0),
            (&[1, 2, 3, 4, 5, 6], 4),
            (&[1, 2, 3, 9, 9], 3),
            (&[1, 2, 3, 4, 5, 6, 7, 8], 5),
            (&[2, 2], 0),
        ];
        let index = index(&copies);
        let check = |tokens: &[TokenId], from, whole, expected: &[(u64, usize)]| {
            let chain = index.chain(SALT, tokens, from, whole);
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
                .chain(SaltDigest([8; 32]), &[1, 2], 0, false)
                .is_empty()
        );
    }

    #[test]
    fn what_is_removed_is_not_found() {
        let tokens: Arc<[TokenId]> = Arc::from([1, 2, 3]);
        let mut index = index(&[(&tokens, 1), (&tokens, 1)]);
        index.remove(SALT, &tokens, 1, CopyId(1));
        assert_eq!(index.chain(SALT, &tokens, 1, true)[0].copy, CopyId(2));
        index.remove(SALT, &tokens, 1, CopyId(2));
        assert!(index.by_start.is_empty());
    }
}
