//! Drafts from the answer that the caller predicts, such as the file that an edit is made to.

use std::fmt;
use std::sync::Arc;

use motet_protocol::TokenId;

use super::ngram_index::{Match, NgramIndex};
use super::{DraftSource, Drafter, Proposal};

/// Length of the indexed n-grams.
const NGRAM_TOKENS: usize = 3;
/// Length of the shortest match near the place where the output left the prediction.
const NEAR_MATCH_MIN: usize = 2;
/// Number of tokens after that place that count as near. Few edits skip more.
const NEAR_TOKENS: usize = 64;
/// Maximum number of tokens of a prediction that are used. The rest is ignored, which costs drafts
/// only.
const TOKENS_MAX: usize = 1 << 20;

/// A predicted answer. It is proposed from its start. Where the output differs, the place where
/// it goes on like the prediction is searched: first near the place where both differed, then
/// everywhere.
#[derive(Clone)]
pub(super) struct Prediction {
    tokens: Arc<[TokenId]>,
    index: NgramIndex,
    /// Position of the token that should come next.
    next: usize,
    /// Number of tokens before `next` that the output had as well; `None` if the last one differed.
    matched: Option<usize>,
    /// Position after the last token that was right.
    left_at: usize,
}

impl Prediction {
    /// The prediction of these tokens, none of them indexed.
    pub(super) fn new(tokens: Arc<[TokenId]>) -> Self {
        let used = tokens.len().min(TOKENS_MAX);
        Self {
            tokens,
            index: NgramIndex::new(NGRAM_TOKENS, used, TOKENS_MAX),
            next: 0,
            matched: Some(0),
            left_at: 0,
        }
    }

    /// Number of tokens that are not indexed yet.
    fn unindexed(&self) -> usize {
        self.used().len() - self.index.end()
    }

    /// Indexes the next `tokens_max` tokens, in order. Returns how many there were.
    pub(super) fn index(&mut self, tokens_max: usize) -> usize {
        let begin = self.index.end();
        let indexed = self.unindexed().min(tokens_max);
        for position in begin..begin + indexed {
            let first = position.saturating_sub(NGRAM_TOKENS);
            self.index.insert(&self.tokens[first..position]);
        }
        indexed
    }

    /// Follows a token that joined the output. Returns whether it is the one that should come next.
    pub(super) fn push(&mut self, token: TokenId) -> bool {
        let is_right = self.used().get(self.next) == Some(&token);
        self.matched = self.matched.filter(|_| is_right).map(|matched| matched + 1);
        if self.matched.is_some() {
            self.next += 1;
            self.left_at = self.next;
        }
        self.matched.is_some()
    }

    /// Bytes that the index occupies. The prediction is shared with the sequence.
    pub(super) fn bytes(&self) -> usize {
        self.index.bytes()
    }

    fn used(&self) -> &[TokenId] {
        &self.tokens[..self.tokens.len().min(TOKENS_MAX)]
    }

    /// The longest match near the place where the output left the prediction, and the nearest of
    /// several.
    fn near(&self, recent: &[TokenId]) -> Option<Match> {
        let end = self.used().len().min(self.left_at + NEAR_TOKENS);
        let last = *recent.last()?;
        let positions = (self.left_at..end).filter(|at| *at > 0 && self.tokens[at - 1] == last);
        let matches = positions.map(|at| Match::at(&self.used(), at, recent));
        let long = matches.filter(|found| found.tokens >= NEAR_MATCH_MIN);
        // `max_by_key` returns the last of several equal ones.
        long.rev().max_by_key(|found| found.tokens)
    }
}

impl Drafter for Prediction {
    fn propose(&mut self, recent: &[TokenId], proposal: &mut Proposal) {
        if self.matched.is_none() {
            let near = self.near(recent);
            let anywhere = self.index.longest(&self.used(), recent);
            // `max_by_key` returns the last of several equal ones.
            let found = anywhere.into_iter().chain(near);
            if let Some(found) = found.max_by_key(|found| found.tokens) {
                self.next = found.position;
                self.matched = Some(found.tokens);
            }
        }
        let rest = self.matched.map_or(&[][..], |_| &self.used()[self.next..]);
        let matched = self.matched.unwrap_or(0);
        let tokens = rest.iter().copied();
        proposal.set(DraftSource::Prediction, matched, tokens);
    }
}

/// Shows how long the prediction is, not its tokens.
impl fmt::Debug for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prediction({} tokens)", self.tokens.len())
    }
}
