//! Events about steps, for subscribers.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Scheduler;
use crate::telemetry::{EngineEvent, SPANS_MAX, SpanView, StepView};
use motet_core::protocol::{Outcome, Work};
use motet_core::{SequenceId, SlotId};

/// Steps in flight that are reported when they finish.
#[derive(Debug, Default)]
pub(super) struct StepEvents {
    made: u64,
    /// One entry for each work in flight; `None` for work without spans, and for work submitted
    /// while there was no subscriber.
    in_flight: VecDeque<Option<StepView>>,
}

impl StepEvents {
    /// Forgets the steps in flight: they will not finish.
    pub(super) fn forget(&mut self) {
        self.in_flight.clear();
    }
}

impl Scheduler {
    /// Records work that is sent to the device.
    pub(super) fn record_submit(&mut self, work: &Work) {
        let is_step = !work.spans.is_empty();
        self.steps.made += u64::from(is_step);
        let step = (is_step && self.telemetry.is_watched()).then(|| self.step(work));
        self.steps.in_flight.push_back(step);
    }

    /// Reports the oldest work, which has finished.
    pub(super) fn record_finish(&mut self, outcome: &Outcome) {
        let Some(mut step) = self.steps.in_flight.pop_front().flatten() else {
            return;
        };
        step.finished_at = self.started_at.elapsed();
        step.busy = outcome.busy;
        step.failed = outcome.result.is_err();
        self.telemetry.emit(|| EngineEvent::Step(Arc::new(step)));
    }

    fn step(&self, work: &Work) -> StepView {
        let slot_owners: FxHashMap<SlotId, SequenceId> = self.core.slot_owners().collect();
        let mut step = StepView {
            number: self.steps.made,
            ..StepView::default()
        };
        for span in &work.spans {
            match span.token_source.tokens() {
                1 => step.decode_tokens += 1,
                tokens => step.prefill_tokens += tokens,
            }
        }
        let shown = work.spans.iter().take(SPANS_MAX);
        let shown = shown.filter_map(|span| {
            let sequence = *slot_owners.get(&span.slot)?;
            Some(SpanView::new(sequence, span.token_source.tokens()))
        });
        step.spans = shown.collect();
        step.spans_left_out = work.spans.len() - step.spans.len();
        step
    }
}
