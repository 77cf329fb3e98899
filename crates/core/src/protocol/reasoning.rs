//! The reasoning in an output, and its budget.

use std::sync::Arc;

use super::spelling::{TokenSpelling, UnfinishedCharacter};
use crate::TokenId;

/// A bound on the reasoning of an output.
///
/// A model that reasons writes its reasoning between an opening and a closing mark, before its
/// answer. Generated tokens between the marks are counted, over all reasoning of the output.
/// When there are `tokens_max` of them, the closing mark is appended without sampling, and the
/// model goes on with its answer. Appended tokens are tokens of the output like others, but have
/// no log probabilities.
///
/// Where the tokens' bytes are known, the closing mark does not come inside a character: it waits
/// until the character is complete, for at most
/// [`CHARACTER_TOKENS_MAX`](Self::CHARACTER_TOKENS_MAX) tokens of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningBudget {
    /// The tokens that open the reasoning; empty only if `is_open`, and reasoning cannot begin
    /// again then. At most [`MARK_TOKENS_MAX`](Self::MARK_TOKENS_MAX).
    pub open: Vec<TokenId>,
    /// The tokens that close it; at least one, at most
    /// [`MARK_TOKENS_MAX`](Self::MARK_TOKENS_MAX).
    pub close: Vec<TokenId>,
    /// Whether the prompt ends inside the reasoning: its template has opened it.
    pub is_open: bool,
    /// Most generated tokens inside the reasoning, without the marks and those that complete a
    /// character. 0 closes it at once; `usize::MAX` only counts them.
    pub tokens_max: usize,
}

/// Follows the reasoning in one output, token by token. Its state is a function of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningTracker {
    budget: Arc<ReasoningBudget>,
    /// `None` if the output is tokens only.
    spelling: Option<Arc<dyn TokenSpelling>>,
    is_inside: bool,
    /// Number of the last tokens that may be the beginning of the next mark.
    matched: usize,
    /// Tokens inside the reasoning. Those that may be the beginning of the closing mark count
    /// until the mark is complete.
    tokens: usize,
    /// The end of the output, if it is inside a character.
    unfinished: UnfinishedCharacter,
}

impl ReasoningBudget {
    /// Most tokens of a mark.
    pub const MARK_TOKENS_MAX: usize = 64;
    /// Most tokens beyond the budget that may complete a character: it has four bytes at most, and
    /// the first is in a token within the budget.
    pub const CHARACTER_TOKENS_MAX: usize = 3;
}

impl ReasoningTracker {
    /// Follows an output from its first token on.
    #[must_use]
    pub fn new(budget: Arc<ReasoningBudget>) -> Self {
        Self {
            is_inside: budget.is_open,
            budget,
            spelling: None,
            matched: 0,
            tokens: 0,
            unfinished: UnfinishedCharacter::default(),
        }
    }

    /// Makes the closing mark wait for the end of a character of the output's text.
    #[must_use]
    pub fn with_spelling(mut self, spelling: Arc<dyn TokenSpelling>) -> Self {
        self.spelling = Some(spelling);
        self
    }

    /// Adds the next token of the output.
    pub fn push(&mut self, token: TokenId) {
        if let Some(spelling) = &self.spelling {
            self.unfinished.push(spelling.spelling(token));
        }
        let budget = &self.budget;
        let mark = if self.is_inside {
            &budget.close
        } else {
            &budget.open
        };
        self.matched = matched_after(mark, self.matched, token);
        let is_complete = !mark.is_empty() && self.matched == mark.len();
        self.tokens += usize::from(self.is_inside);
        if !is_complete {
            return;
        }
        if self.is_inside {
            self.tokens -= self.matched;
        }
        self.matched = 0;
        self.is_inside = !self.is_inside;
    }

    /// Returns the number of tokens inside the reasoning so far, without its marks.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the tokens to append now: the rest of the closing mark if the budget is used up and
    /// no character is unfinished, none otherwise.
    #[must_use]
    pub fn due(&self) -> &[TokenId] {
        let is_used_up = self.tokens >= self.budget.tokens_max;
        if self.is_inside && is_used_up && !self.completes_character() {
            &self.budget.close[self.matched..]
        } else {
            &[]
        }
    }

    /// Whether more tokens may complete the character in which the reasoning ends. If the last
    /// tokens may be the beginning of the mark, the rest of it follows them.
    fn completes_character(&self) -> bool {
        let most = ReasoningBudget::CHARACTER_TOKENS_MAX;
        self.matched == 0
            && !self.unfinished.is_empty()
            && self.tokens < self.budget.tokens_max.saturating_add(most)
    }
}

/// Returns the length of the longest beginning of a mark with which the tokens end, if they ended
/// with `matched` tokens of it before this one.
fn matched_after(mark: &[TokenId], matched: usize, token: TokenId) -> usize {
    let before = &mark[..matched];
    let ends_with =
        |length: &usize| mark[*length - 1] == token && before.ends_with(&mark[..*length - 1]);
    let longest = mark.len().min(matched + 1);
    (1..=longest).rev().find(ends_with).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: TokenId = 90;

    fn tracker(close: &[TokenId], is_open: bool, tokens_max: usize) -> ReasoningTracker {
        ReasoningTracker::new(Arc::new(ReasoningBudget {
            open: vec![OPEN],
            close: close.to_vec(),
            is_open,
            tokens_max,
        }))
    }

    /// Pushes an output, and returns the tokens that are due after it and those counted.
    fn after(mut tracker: ReasoningTracker, output: &[TokenId]) -> (Vec<TokenId>, usize) {
        for token in output {
            tracker.push(*token);
        }
        (tracker.due().to_vec(), tracker.tokens())
    }

    #[test]
    fn tokens_between_the_marks_are_counted() {
        let check = |output: &[TokenId], tokens| {
            let counted = after(tracker(&[91], false, usize::MAX), output);
            assert_eq!(counted, (Vec::new(), tokens), "{output:?}");
        };
        check(&[1, 2, 3], 0);
        check(&[OPEN], 0);
        check(&[1, OPEN, 2, 3], 2);
        check(&[OPEN, 2, 3, 91], 2);
        check(&[OPEN, 2, 3, 91, 4, 91, 5], 2);
        check(&[OPEN, 2, 91, 4, OPEN, 5, OPEN, 91, 7], 3);
        check(&[91, OPEN, 91], 0);
    }

    #[test]
    fn closing_mark_is_due_when_the_budget_is_used_up() {
        let check = |is_open, tokens_max, output: &[TokenId], due: &[TokenId]| {
            let found = after(tracker(&[91, 92], is_open, tokens_max), output);
            assert_eq!(found.0, due, "{output:?}");
        };
        check(true, 0, &[], &[91, 92]);
        check(true, 2, &[1], &[]);
        check(true, 2, &[1, 2], &[91, 92]);
        check(true, 2, &[1, 2, 91, 92], &[]);
        check(false, 0, &[1, 2], &[]);
        check(false, 0, &[1, OPEN], &[91, 92]);
        // The part of the mark that was written is not repeated.
        check(true, 2, &[1, 91], &[92]);
        check(true, 2, &[1, 91, 92], &[]);
        // The budget is that of the whole output.
        check(false, 2, &[OPEN, 1, 91, 92, 5, OPEN], &[]);
        check(false, 2, &[OPEN, 1, 91, 92, 5, OPEN, 2], &[91, 92]);
        check(false, 1, &[OPEN, 1, 91, 92, 5, OPEN], &[91, 92]);
    }

    /// Tokens below 256 are single bytes.
    #[derive(Debug)]
    struct Bytes([u8; 256]);

    impl TokenSpelling for Bytes {
        fn spelling(&self, token: TokenId) -> &[u8] {
            let byte = token as usize;
            self.0.get(byte..byte + 1).unwrap_or_default()
        }
    }

    fn bytes() -> Arc<dyn TokenSpelling> {
        Arc::new(Bytes(std::array::from_fn(|byte| byte as u8)))
    }

    /// The number of tokens of the output after which its end is due, the tokens that are due then,
    /// and those counted.
    fn end(tracker: ReasoningTracker, output: &[TokenId]) -> Option<(usize, Vec<TokenId>, usize)> {
        let mut tracker = tracker.with_spelling(bytes());
        for at in 0..=output.len() {
            if !tracker.due().is_empty() {
                return Some((at, tracker.due().to_vec(), tracker.tokens()));
            }
            output
                .get(at)
                .iter()
                .for_each(|token| tracker.push(**token));
        }
        None
    }

    #[test]
    fn closing_mark_waits_for_the_end_of_a_character() {
        let check = |tokens_max, output: &[TokenId], at: Option<usize>| {
            let tracker = tracker(&[91, 92], true, tokens_max);
            let expected = at.map(|at| (at, vec![91, 92], at));
            assert_eq!(end(tracker, output), expected, "{tokens_max}: {output:x?}");
        };
        // 😀 and 😀, then a letter.
        let output = [0xF0, 0x9F, 0x98, 0x80, 0xF0, 0x9F, 0x98, 0x80, 97];
        let ends = [0, 4, 4, 4, 4, 8, 8, 8, 8, 9];
        for (tokens_max, at) in ends.into_iter().enumerate() {
            check(tokens_max, &output, Some(at));
        }
        check(1, &output[..3], None);
        // A character that is never completed keeps nothing waiting.
        check(1, &[0xF0, 97, 98], Some(2));
        check(1, &[0xF0, 0xF0, 0xF0, 0xF0, 0xF0], Some(4));
        check(2, &[97, 0xE3, 0xE3, 0xE3, 0xE3, 0xE3], Some(5));
        // Tokens without bytes count as well.
        check(1, &[0xE3, 300, 300, 300, 300], Some(4));
        check(usize::MAX, &[0xE3], None);
    }

    #[test]
    fn closing_mark_does_not_wait_without_spelling() {
        let found = after(tracker(&[91, 92], true, 1), &[0xF0]);
        assert_eq!(found, (vec![91, 92], 1));
    }

    #[test]
    fn closing_mark_that_has_begun_is_completed() {
        // The mark's first character is ▪ in three tokens, and the model has written one of them.
        let close = [0xE2, 0x96, 0xAA, 92];
        let found = end(tracker(&close, true, 2), &[97, 0xE2, 0x96]);
        assert_eq!(found, Some((2, vec![0x96, 0xAA, 92], 2)));
        // A model that ends its reasoning inside a character has ended it.
        let found = end(tracker(&[91], true, 1), &[0xE2, 91, 97, 97, 97, 97]);
        assert_eq!(found, None);
    }

    #[test]
    fn overlapping_beginnings_of_a_mark_are_found() {
        let closes = |close: &[TokenId], output: &[TokenId]| {
            let mut tracker = tracker(close, true, usize::MAX);
            output.iter().for_each(|token| tracker.push(*token));
            (!tracker.is_inside).then_some(tracker.tokens())
        };
        assert_eq!(closes(&[1, 1, 2], &[1, 1, 1, 2]), Some(1));
        assert_eq!(closes(&[1, 2, 1, 3], &[1, 2, 1, 2, 1, 3]), Some(2));
        assert_eq!(closes(&[1, 2], &[1, 3, 2]), None);
    }

    #[test]
    fn reasoning_without_an_opening_mark_does_not_begin_again() {
        let budget = ReasoningBudget {
            open: Vec::new(),
            close: vec![91],
            is_open: true,
            tokens_max: 1,
        };
        let counted = after(ReasoningTracker::new(Arc::new(budget)), &[1, 91, 2, 3]);
        assert_eq!(counted, (Vec::new(), 1));
    }
}
