//! Where an n-gram occurred in a text: the hash chains of DEFLATE.
//!
//! `heads` has the latest position by the hash of an n-gram, and `previous` has, for each
//! position, the one before it in its chain. A chain may hold several n-grams, and the lookup
//! compares tokens. Chains are walked for a bounded number of positions. Texts that are made to
//! collide are therefore found less often, but not more slowly.

use std::fmt;

use motet_protocol::{TokenId, hash_step};

use super::{CANDIDATES_MAX, MATCH_TOKENS_MAX};

/// There are at least as many heads as positions, so that few chains hold many n-grams. Twice as
/// many find no better drafts.
const HEADS_MIN: usize = 64;
/// Positions of a chain that a lookup visits, those of other n-grams included.
const VISITS_MAX: usize = 2 * CANDIDATES_MAX;
/// Marks the end of a chain. No n-gram ends before position 0.
const NONE: u32 = 0;

/// A text whose positions an index knows.
pub(super) trait Text {
    /// The token at a position. `None` if the text does not have it, or has it no more.
    fn token(&self, position: usize) -> Option<TokenId>;
}

/// The positions in a text that follow each n-gram.
#[derive(Clone)]
pub(super) struct NgramIndex {
    ngram_tokens: usize,
    /// Latest position by hash; a power of two of them.
    heads: Vec<u32>,
    /// The position before, for the latest positions. The one of `position` is at
    /// `position % window`.
    previous: Vec<u32>,
    window: usize,
    /// Number of positions seen; the next one.
    end: usize,
}

/// The place of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// Number of tokens that matched, at most [`MATCH_TOKENS_MAX`].
    pub(super) tokens: usize,
    /// Position after them.
    pub(super) position: usize,
}

impl Match {
    /// The number of tokens before `position` that equal the last ones of `recent`.
    pub(super) fn at(text: &impl Text, position: usize, recent: &[TokenId]) -> Self {
        let backwards = recent.iter().rev().take(MATCH_TOKENS_MAX);
        let before = (0..position).rev().map(|at| text.token(at));
        let pairs = backwards.zip(before);
        let tokens = pairs
            .take_while(|(token, before)| *before == Some(**token))
            .count();
        Self { tokens, position }
    }
}

impl NgramIndex {
    /// An index of n-grams of this length, over a text of about `expected` tokens. It forgets all
    /// but the latest `window` positions.
    ///
    /// # Panics
    ///
    /// If `window` is no power of two, or an n-gram has no tokens.
    pub(super) fn new(ngram_tokens: usize, expected: usize, window: usize) -> Self {
        assert!(window.is_power_of_two(), "positions are reduced by a mask");
        assert!(ngram_tokens > 0, "an n-gram has tokens");
        let expected = expected.min(window);
        let heads = expected.next_power_of_two();
        Self {
            ngram_tokens,
            heads: vec![NONE; heads.max(HEADS_MIN)],
            previous: Vec::with_capacity(expected),
            window,
            end: 0,
        }
    }

    /// The next position to insert.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Whether no more positions can be inserted.
    pub(super) fn is_full(&self) -> bool {
        self.end >= u32::MAX as usize
    }

    /// Bytes that the index occupies.
    pub(super) fn bytes(&self) -> usize {
        (self.heads.capacity() + self.previous.capacity()) * size_of::<u32>()
    }

    /// Inserts the next position, which follows `before`: the text's tokens before it, or at least
    /// the last n of them.
    ///
    /// # Panics
    ///
    /// If the index is full.
    pub(super) fn insert(&mut self, before: &[TokenId]) {
        assert!(!self.is_full(), "positions have 32 bits");
        let position = self.end as u32;
        let ngram = before.len().checked_sub(self.ngram_tokens);
        let previous = match ngram {
            Some(begin) => {
                let head = self.head(&before[begin..]);
                std::mem::replace(&mut self.heads[head], position)
            }
            None => NONE,
        };
        if self.previous.len() < self.window {
            self.previous.push(previous);
        } else {
            self.previous[self.end & (self.window - 1)] = previous;
        }
        self.end += 1;
        if self.previous.len() > self.heads.len() {
            // Each chain becomes that of two hashes, which differ in the new bit. They share their
            // positions so far and get new ones apart. Nothing is hashed again.
            self.heads.extend_from_within(..);
        }
    }

    /// The longest match of the end of `recent` that the index knows, and the latest of several.
    pub(super) fn longest(&self, text: &impl Text, recent: &[TokenId]) -> Option<Match> {
        let mut longest: Option<Match> = None;
        let mut candidates = 0;
        for position in self.chain(recent) {
            let found = Match::at(text, position, recent);
            if found.tokens < self.ngram_tokens {
                continue; // another n-gram of the same hash
            }
            if longest.is_none_or(|longest| found.tokens > longest.tokens) {
                longest = Some(found);
            }
            candidates += 1;
            if candidates == CANDIDATES_MAX || found.tokens == MATCH_TOKENS_MAX {
                break;
            }
        }
        longest
    }

    /// Positions in the chain of the last n-gram of `recent`, latest first.
    fn chain(&self, recent: &[TokenId]) -> impl Iterator<Item = usize> + '_ {
        let begin = recent.len().checked_sub(self.ngram_tokens);
        let head = begin.map_or(NONE, |begin| self.heads[self.head(&recent[begin..])]);
        let oldest = self.end - self.previous.len();
        let is_known = move |position: &u32| *position != NONE && *position as usize >= oldest;
        let next = move |position: &u32| {
            let previous = self.previous[*position as usize & (self.window - 1)];
            Some(previous).filter(is_known)
        };
        std::iter::successors(Some(head).filter(is_known), next)
            .map(|position| position as usize)
            .take(VISITS_MAX)
    }

    fn head(&self, ngram: &[TokenId]) -> usize {
        let words = ngram.iter().map(|token| u64::from(*token));
        let hash = words.fold(0, hash_step);
        (hash >> 32) as usize & (self.heads.len() - 1)
    }
}

impl Text for &[TokenId] {
    fn token(&self, position: usize) -> Option<TokenId> {
        self.get(position).copied()
    }
}

/// Shows how many positions there are, not which.
impl fmt::Debug for NgramIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NgramIndex({} positions)", self.previous.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_cases::check_cases;

    /// The longest match at a position from `oldest` that a token follows, and the latest of
    /// several.
    fn naive(text: &[TokenId], recent: &[TokenId], least: usize, oldest: usize) -> Option<Match> {
        let matches = (oldest..text.len()).map(|position| {
            let before = text[oldest..position].iter().rev();
            let pairs = before.zip(recent.iter().rev()).take(MATCH_TOKENS_MAX);
            let tokens = pairs.take_while(|(before, token)| before == token).count();
            Match { tokens, position }
        });
        let long = matches.filter(|found| found.tokens >= least);
        long.max_by_key(|found| found.tokens)
    }

    /// The text's tokens from `oldest`, as a window over it knows them.
    struct Window<'a>(&'a [TokenId], usize);

    impl Text for Window<'_> {
        fn token(&self, position: usize) -> Option<TokenId> {
            let known = self.0.get(position).copied();
            known.filter(|_| position >= self.1)
        }
    }

    #[test]
    fn matches_are_those_of_a_naive_search() {
        let complete = std::cell::Cell::new([0usize; 2]);
        check_cases(2_000, 512, |random| {
            let ngram_tokens = random.int_in_range(1..=3)?;
            let window = 1 << random.int_in_range(3..=8)?;
            let kinds = random.int_in_range(1..=40)?;
            let length = random.int_in_range(1..=200)?;
            let mut index = NgramIndex::new(ngram_tokens, 0, window);
            let mut text: Vec<TokenId> = Vec::new();
            for _ in 0..length {
                index.insert(&text[text.len().saturating_sub(ngram_tokens)..]);
                text.push(random.int_in_range(0..=kinds)?);
            }
            let from = random.int_in_range(0..=length)?;
            let recent = &text[from..];
            let oldest = length.saturating_sub(window);
            let known = Window(&text, oldest);
            let found = index.longest(&known, recent);
            let visits = index.chain(recent).count();
            let all = visits <= CANDIDATES_MAX;
            let mut counts = complete.get();
            counts[usize::from(all)] += 1;
            complete.set(counts);
            if all {
                assert_eq!(found, naive(&text, recent, ngram_tokens, oldest));
            } else if let Some(found) = found {
                assert!(found.tokens >= ngram_tokens && found.position < length);
                assert_eq!(found, Match::at(&known, found.position, recent));
            }
            assert!(visits <= VISITS_MAX);
            Ok(())
        });
        let [bounded, all] = complete.get();
        assert!(bounded > 10 && all > 10, "{bounded} were cut, {all} not");
    }

    #[test]
    fn colliding_n_grams_are_searched_a_bounded_time() {
        let mut index = NgramIndex::new(2, 0, 1 << 16);
        let mut text: Vec<TokenId> = Vec::new();
        for _ in 0..10_000 {
            index.insert(&text);
            text.push(7);
        }
        assert_eq!(index.chain(&text).count(), VISITS_MAX);
        let found = index.longest(&&text[..], &text).expect("the text repeats");
        assert_eq!((found.tokens, found.position), (MATCH_TOKENS_MAX, 9_999));
    }

    #[test]
    fn an_index_occupies_few_bytes_a_token() {
        for tokens in [1_000, 4_097, 100_000] {
            let mut index = NgramIndex::new(2, tokens, 1 << 31);
            (0..tokens as TokenId).for_each(|token| index.insert(&[token, token + 1]));
            assert!(index.bytes() <= 12 * tokens, "{} bytes", index.bytes());
        }
    }
}
