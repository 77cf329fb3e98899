//! The rows of a sequence's prompt that its caller still waits for.

use std::ops::Range;
use std::sync::Arc;

use super::{Sequence, Slot};
use crate::scheduler::Submission;
use motet_protocol::TokenId;
use motet_protocol::{LogprobRows, OutputKind, Pooling, PromptOutput, TokenSampling};

/// The rows of a prompt whose results have not come yet, as offsets of tokens. They are computed
/// in order, and once: a sequence that restarts continues after the results that it has.
#[derive(Debug, Default)]
pub(super) struct PromptRows {
    left: Range<usize>,
}

impl PromptRows {
    pub(super) fn new(submission: &Submission) -> Self {
        let output = submission.prompt_output.as_ref();
        let left = output.map(|output| output.rows(submission.prompt.len()));
        Self {
            left: left.unwrap_or_default(),
        }
    }

    /// Returns the first row that is needed, which cached state cannot give; `None` if there is
    /// no such row.
    fn needed_from(&self) -> Option<usize> {
        (!self.left.is_empty()).then_some(self.left.start)
    }

    /// Returns the rows that the evaluation of these tokens gives.
    fn within(&self, evaluated: &Range<usize>) -> Range<usize> {
        let start = self.left.start.max(evaluated.start);
        start..self.left.end.min(evaluated.end).max(start)
    }

    /// Records that the results of these rows have come.
    fn finish(&mut self, rows: &Range<usize>) {
        self.left.start = self.left.start.max(rows.end);
    }
}

impl Sequence {
    /// Returns the most cached tokens that it can start with, if not all but its last.
    pub(super) fn reuse_max(&self) -> Option<usize> {
        self.prompt_rows.needed_from()
    }

    /// Returns the output kind of its next span, which evaluates these tokens and samples a
    /// token if `token` says how.
    pub(super) fn output_kind(
        &self,
        evaluated: &Range<usize>,
        token: Option<TokenSampling>,
    ) -> OutputKind {
        let rows = self.prompt_rows.within(evaluated);
        let without_rows = || token.map_or(OutputKind::Nothing, OutputKind::Token);
        if rows.is_empty() {
            return without_rows();
        }
        let in_span = rows.start - evaluated.start..rows.end - evaluated.start;
        match self.submission.prompt_output {
            Some(PromptOutput::Logprobs { after, top, .. }) => {
                OutputKind::PromptLogprobs(LogprobRows {
                    first: in_span.start,
                    targets: self.targets(&rows, after),
                    top,
                    token,
                })
            }
            // The sum over one row is the row.
            Some(PromptOutput::Hidden(Pooling::Mean | Pooling::Last)) => {
                OutputKind::HiddenSum(in_span)
            }
            None => without_rows(),
        }
    }

    /// Returns the tokens that follow these rows.
    fn targets(&self, rows: &Range<usize>, after: Option<TokenId>) -> Arc<[TokenId]> {
        let known = self.history.prompt().iter().copied().chain(after);
        known.skip(rows.start + 1).take(rows.len()).collect()
    }

    /// Returns the rows whose results come with a finished span of this many tokens, and records
    /// that they have come.
    pub(in crate::scheduler) fn finish_prompt_rows(&mut self, tokens: usize) -> Range<usize> {
        let computed = self.slot().map_or(0, Slot::computed);
        let rows = self.prompt_rows.within(&(computed - tokens..computed));
        self.prompt_rows.finish(&rows);
        rows
    }

    /// Whether it generates nothing, and its prompt is computed.
    pub(in crate::scheduler) fn ends_with_prompt(&self) -> bool {
        let is_computed = |slot: &Slot| slot.computed() == self.history.known();
        self.submission.output_tokens_max == 0
            && !self.is_finished()
            && self.slot().is_some_and(is_computed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scheduler::tests::submission;
    use motet_protocol::Sampling;
    use motet_protocol::SequenceId;
    use motet_protocol::SlotId;

    const TOKEN: TokenSampling = TokenSampling {
        sampling: Sampling::GREEDY,
        position: 0,
    };

    /// A sequence of four tokens that starts with `cached` cached ones.
    fn sequence(output: PromptOutput, cached: usize) -> Sequence {
        let submission = Submission {
            prompt: [10, 11, 12, 13].into(),
            prompt_output: Some(output),
            ..submission(1)
        };
        assert_eq!(submission.sequence, SequenceId(1));
        let mut sequence = Sequence::new(submission, 100, Duration::ZERO);
        sequence.ask_for_slot(1, 50, Duration::ZERO);
        assert!(sequence.open_slot(SlotId(1), cached, 0));
        sequence
    }

    fn logprobs(first: usize, after: Option<TokenId>) -> PromptOutput {
        PromptOutput::Logprobs {
            first,
            after,
            top: 2,
        }
    }

    fn rows(first: usize, targets: &[TokenId], token: Option<TokenSampling>) -> OutputKind {
        OutputKind::PromptLogprobs(LogprobRows {
            first,
            targets: targets.into(),
            top: 2,
            token,
        })
    }

    #[test]
    fn rows_name_the_tokens_that_follow_them() {
        let check = |output, evaluated, token, expected| {
            let sequence = sequence(output, 0);
            assert_eq!(sequence.output_kind(&evaluated, token), expected);
        };
        check(logprobs(1, None), 0..2, None, rows(0, &[11, 12], None));
        // The last row has no target: it samples.
        let last = rows(0, &[13], Some(TOKEN));
        check(logprobs(1, None), 2..4, Some(TOKEN), last);
        let alone = OutputKind::Token(TOKEN);
        check(logprobs(1, None), 3..4, Some(TOKEN), alone);
        // Two rows come before the first one that is wanted.
        check(logprobs(3, Some(14)), 0..4, None, rows(2, &[13, 14], None));
        check(logprobs(3, Some(14)), 0..2, None, OutputKind::Nothing);
        let hidden = |pooling| PromptOutput::Hidden(pooling);
        check(
            hidden(Pooling::Mean),
            1..3,
            None,
            OutputKind::HiddenSum(0..2),
        );
        check(
            hidden(Pooling::Last),
            1..4,
            None,
            OutputKind::HiddenSum(2..3),
        );
        check(hidden(Pooling::Last), 0..3, None, OutputKind::Nothing);
    }

    #[test]
    fn cached_state_ends_where_rows_are_needed() {
        let check = |output, expected| assert_eq!(sequence(output, 0).reuse_max(), expected);
        check(logprobs(1, None), Some(0));
        check(logprobs(3, None), Some(2));
        check(logprobs(4, None), None);
        check(PromptOutput::Hidden(Pooling::Mean), Some(0));
        check(PromptOutput::Hidden(Pooling::Last), Some(3));
    }

    #[test]
    fn rows_that_came_are_not_needed_again() {
        let mut sequence = sequence(logprobs(2, Some(14)), 1);
        let mut starts = Vec::new();
        sequence.join_step(2, &[], &mut starts);
        sequence.finish_step(2, 0, false);
        assert_eq!(sequence.finish_prompt_rows(2), 1..3);
        assert_eq!(sequence.reuse_max(), Some(3));
        sequence.preempt();
        // It starts with less than it may.
        sequence.ask_for_slot(2, 50, Duration::ZERO);
        sequence.open_slot(SlotId(2), 2, 0);
        let found = sequence.output_kind(&(2..4), None);
        assert_eq!(found, rows(1, &[14], None));
        let motet_protocol::cache::Message::OpenSlot(open) = sequence.open_message(50, None) else {
            panic!("it asks for a slot");
        };
        assert_eq!(open.reusable_tokens(), [10, 11, 12]);
    }
}
