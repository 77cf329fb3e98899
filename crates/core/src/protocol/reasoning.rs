//! The reasoning in an output, and its budget.

use std::sync::Arc;

use crate::TokenId;

/// A bound on the reasoning of an output.
///
/// A model that reasons writes its reasoning between an opening and a closing mark, before its
/// answer. Generated tokens between the marks are counted, over all reasoning of the output.
/// When there are `tokens_max` of them, the closing mark is appended without sampling, and the
/// model goes on with its answer. Appended tokens are tokens of the output like others, but have
/// no log probabilities.
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
    /// Most generated tokens inside the reasoning, without the marks. 0 closes it at once;
    /// `usize::MAX` only counts them.
    pub tokens_max: usize,
}

/// Follows the reasoning in one output, token by token. Its state is a function of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningTracker {
    budget: Arc<ReasoningBudget>,
    is_inside: bool,
    /// Number of the last tokens that may be the beginning of the next mark.
    matched: usize,
    /// Tokens inside the reasoning. Those that may be the beginning of the closing mark count
    /// until the mark is complete.
    tokens: usize,
}

impl ReasoningBudget {
    /// Most tokens of a mark.
    pub const MARK_TOKENS_MAX: usize = 64;
}

impl ReasoningTracker {
    /// Follows an output from its first token on.
    #[must_use]
    pub fn new(budget: Arc<ReasoningBudget>) -> Self {
        Self {
            is_inside: budget.is_open,
            budget,
            matched: 0,
            tokens: 0,
        }
    }

    /// Adds the next token of the output.
    pub fn push(&mut self, token: TokenId) {
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

    /// Returns the tokens to append now: the rest of the closing mark if the budget is used up,
    /// none otherwise.
    #[must_use]
    pub fn due(&self) -> &[TokenId] {
        if self.is_inside && self.tokens >= self.budget.tokens_max {
            &self.budget.close[self.matched..]
        } else {
            &[]
        }
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
