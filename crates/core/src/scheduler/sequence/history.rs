//! The tokens of one sequence.

use std::ops::Range;
use std::sync::Arc;

use motet_protocol::PlannedTokens;
use motet_protocol::TokenId;
use motet_sync::injected::{self, Bug};

/// The tokens of a sequence: its prompt and the generated ones, and which of them it starts with.
///
/// The tokens that it starts with and the fresh ones after them are its *known* tokens.
#[derive(Debug)]
pub(in crate::scheduler) struct TokenHistory {
    prompt: Arc<[TokenId]>,
    /// Tokens with which it starts: the prompt, after a restart also the tokens generated
    /// before it, without dropped ones.
    tokens: Arc<[TokenId]>,
    generated: Vec<TokenId>,
    /// Number of `generated` tokens that are in `tokens` already.
    restarted_at: usize,
    /// Tokens of the history that are not in `tokens`, since it restarted without them.
    dropped_tokens: usize,
}

impl TokenHistory {
    pub(super) fn new(prompt: Arc<[TokenId]>) -> Self {
        Self {
            tokens: Arc::clone(&prompt),
            prompt,
            generated: Vec::new(),
            restarted_at: 0,
            dropped_tokens: 0,
        }
    }

    /// Creates the history of a sequence that restarts with these generated tokens.
    pub(super) fn restored(prompt: Arc<[TokenId]>, generated: Vec<TokenId>) -> Self {
        let mut history = Self::new(prompt);
        history.generated = generated;
        history.restart();
        history
    }

    pub(in crate::scheduler) fn prompt(&self) -> &Arc<[TokenId]> {
        &self.prompt
    }

    /// Returns the tokens with which the sequence starts.
    pub(in crate::scheduler) fn tokens(&self) -> &Arc<[TokenId]> {
        &self.tokens
    }

    pub(in crate::scheduler) fn generated(&self) -> &[TokenId] {
        &self.generated
    }

    /// Returns the tokens generated since the last restart.
    pub(in crate::scheduler) fn fresh(&self) -> &[TokenId] {
        &self.generated[self.restarted_at..]
    }

    /// Returns all tokens so far: the prompt, then the generated ones.
    pub(in crate::scheduler) fn all(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.prompt.iter().chain(&self.generated).copied()
    }

    /// Returns the tokens that the sequence continues from: all but the dropped ones.
    pub(super) fn known_tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.tokens.iter().chain(self.fresh()).copied()
    }

    /// Returns the number of known tokens.
    pub(super) fn known(&self) -> usize {
        self.tokens.len() + self.fresh().len()
    }

    /// Returns the number of tokens that were dropped at restarts.
    pub(super) fn dropped_tokens(&self) -> usize {
        self.dropped_tokens
    }

    /// Returns the number of its tokens, beyond those it starts with, if it generates this many.
    pub(super) fn output_left(&self, output_tokens_max: usize) -> usize {
        output_tokens_max - self.restarted_at
    }

    /// Whether the sequence decodes once this many tokens are generated.
    pub(super) fn is_decoding_at(&self, generated: usize) -> bool {
        generated > self.restarted_at
    }

    /// Whether this sequence continues that one: its prompt is that prompt and that output.
    pub(super) fn continues(&self, before: &Self) -> bool {
        self.tokens.get(before.prompt.len()) == before.generated.first()
            && self.tokens.starts_with(&before.prompt)
    }

    /// Returns the source of the next `count` tokens, of which `pending` are known. A token
    /// that is being sampled is not known here, and follows the known ones.
    pub(super) fn token_source(&self, pending: usize, count: usize) -> PlannedTokens {
        if pending == 0 {
            return PlannedTokens::Sampled(Vec::new());
        }
        let from = self.known() - pending;
        let of_prompt = self.tokens.get(from..).unwrap_or_default();
        let of_fresh = &self.fresh()[from.saturating_sub(self.tokens.len())..];
        let tokens = of_prompt.iter().chain(of_fresh).take(count).copied();
        PlannedTokens::Known(tokens.collect())
    }

    /// Appends a sampled token.
    pub(super) fn push(&mut self, token: TokenId) {
        self.generated.push(token);
    }

    /// Makes all known tokens those that the sequence starts with.
    pub(super) fn restart(&mut self) {
        if injected::is_injected(Bug::TokenTwice) {
            self.generated.pop();
        }
        self.tokens = self.known_tokens().collect();
        self.restarted_at = self.generated.len();
    }

    /// Restarts without these known tokens, as if they had never existed.
    pub(super) fn restart_without(&mut self, removed: &Range<usize>) {
        let stay = self.known_tokens().enumerate();
        let stay = stay.filter(|(at, _)| !removed.contains(at));
        self.tokens = stay.map(|(_, token)| token).collect();
        self.dropped_tokens += removed.len();
        self.restarted_at = self.generated.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> TokenHistory {
        let mut history = TokenHistory::new([1, 2, 3].into());
        history.push(4);
        history.push(5);
        history
    }

    #[test]
    fn restart_starts_with_all_known_tokens() {
        let mut history = history();
        assert_eq!((history.known(), history.fresh()), (5, &[4, 5][..]));
        history.restart();
        history.push(6);
        assert_eq!(**history.tokens(), [1, 2, 3, 4, 5]);
        assert_eq!((history.known(), history.fresh()), (6, &[6][..]));
        assert_eq!(history.all().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(history.output_left(8), 6);
    }

    #[test]
    fn restart_without_tokens_forgets_them() {
        let mut history = history();
        history.restart_without(&(1..3));
        assert_eq!(**history.tokens(), [1, 4, 5]);
        assert_eq!(history.dropped_tokens(), 2);
        assert_eq!(history.all().count(), 5);
    }

    #[test]
    fn token_source_crosses_from_the_prompt_to_fresh_tokens() {
        let check = |pending, count, expected: &[TokenId]| {
            let expected = PlannedTokens::Known(expected.to_vec());
            assert_eq!(history().token_source(pending, count), expected);
        };
        check(5, 2, &[1, 2]);
        check(3, 3, &[3, 4, 5]);
        check(1, 1, &[5]);
        assert_eq!(
            history().token_source(0, 1),
            PlannedTokens::Sampled(Vec::new())
        );
    }

    #[test]
    fn next_turn_of_a_chat_continues_the_last_one() {
        let next = |prompt: &[TokenId]| TokenHistory::new(prompt.into());
        assert!(next(&[1, 2, 3, 4, 9]).continues(&history()));
        assert!(!next(&[1, 2, 3, 9]).continues(&history()));
        assert!(!next(&[1, 2, 9, 4]).continues(&history()));
    }
}
