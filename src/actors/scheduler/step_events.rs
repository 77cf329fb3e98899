//! Events about steps, for subscribers.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::telemetry::{SpanView, StepView};
use motet_protocol::{Outcome, SequenceId, SlotId, SpanOutput, Work};

/// Steps in flight that are reported when they finish.
#[derive(Debug, Default)]
pub(super) struct StepEvents {
    made: u64,
    /// One entry for each work in flight; `None` for work without spans, and for work submitted
    /// while there was no subscriber.
    in_flight: VecDeque<Option<StepView>>,
}

impl StepEvents {
    /// Records work that is sent to the device. `slot_owners` is `None` while there is no
    /// subscriber.
    pub(super) fn submitted(
        &mut self,
        work: &Work,
        slot_owners: Option<impl Iterator<Item = (SlotId, SequenceId)>>,
    ) {
        let is_step = !work.spans.is_empty();
        self.made += u64::from(is_step);
        let slot_owners = slot_owners.filter(|_| is_step);
        let step = slot_owners.map(|slot_owners| step(self.made, work, slot_owners));
        self.in_flight.push_back(step);
    }

    /// Returns the report of the oldest work, which has finished.
    pub(super) fn finished(&mut self, now: Duration, outcome: &Outcome) -> Option<StepView> {
        let mut step = self.in_flight.pop_front().flatten()?;
        step.finished_at = now;
        step.busy = outcome.busy;
        step.failed = outcome.result.is_err();
        let span_outputs = outcome.result.iter().flatten();
        step.accepted_tokens = span_outputs.map(accepted_tokens).sum();
        Some(step)
    }

    /// Forgets the steps in flight: they will not finish.
    pub(super) fn forget(&mut self) {
        self.in_flight.clear();
    }
}

fn step(
    number: u64,
    work: &Work,
    slot_owners: impl Iterator<Item = (SlotId, SequenceId)>,
) -> StepView {
    let slot_owners: FxHashMap<SlotId, SequenceId> = slot_owners.collect();
    let mut step = StepView {
        number,
        ..StepView::default()
    };
    for span in &work.spans {
        let draft_tokens = span.draft().len();
        step.draft_tokens += draft_tokens;
        match span.token_source.tokens() - draft_tokens {
            1 => step.decode_tokens += 1,
            tokens => step.prefill_tokens += tokens,
        }
    }
    let shown = work.spans.iter().take(StepView::SPANS_MAX);
    let shown = shown.filter_map(|span| {
        let sequence = *slot_owners.get(&span.slot)?;
        let tokens = span.token_source.tokens();
        Some(SpanView::new(sequence, tokens, span.draft().len()))
    });
    step.spans = shown.collect();
    step.spans_left_out = work.spans.len() - step.spans.len();
    step
}

/// Number of a span's draft tokens that were right.
fn accepted_tokens(span_output: &SpanOutput) -> usize {
    match span_output {
        SpanOutput::Verified(tokens) => tokens.len() - 1,
        _ => 0,
    }
}
