//! The table: the arrays behind the ids, and the steps in flight.
//!
//! | file | contents |
//! |---|---|
//! | `edit.rs` | changes to the slots and segments |
//! | `sampling.rs` | inputs for each step's sampler, and the sampled tokens |

mod edit;
mod sampling;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::next_action::{NextAction, Progress, next_action};
use crate::transfer_queue::{DeviceEnd, transfer_queue};
use edit::{EditLosses, changed_slot, edit_losses, required_segments};
use motet_model::sampling::Sampler;
use motet_model::{DetachedState, Model, Span, TokenSource};
use motet_protocol::{CopyId, SegmentId, SlotId, TokenId};
use motet_protocol::{
    Edit, Failure, Lost, ModelError, OutputKind, PlannedSpan, PlannedTokens, SamplerStart,
    SpanOutput, WORK_IN_FLIGHT_MAX, Work,
};
use sampling::Decided;

/// Most consecutive works with a failed edit. After that the device's state is not trusted any
/// more.
const FAILING_WORKS_MAX: u32 = 8;

/// The device without its thread, so that simulations can drive it.
///
/// Each work is submitted, sampled and finished, in this order. Two may be in flight: the
/// second is submitted when the first has been sampled, and sampled when the first has
/// finished.
pub struct Table<M: Model> {
    pub(super) segments: FxHashMap<SegmentId, Rc<M::Segment>>,
    pub(super) slots: FxHashMap<SlotId, DeviceSlot<M>>,
    in_flight: VecDeque<InFlight<M>>,
    /// Works submitted so far.
    works_submitted: u64,
    /// Resets so far: the table's own, and those that the sender of the work asked for.
    epoch: u64,
    /// Slots and segments lost to the edits of the latest work that was submitted or finished.
    lost: Lost,
    /// Segments and slots lost to failed edits, until they are dropped and closed.
    pub(super) absent: Absent,
    /// Consecutive works with a failed edit.
    failing_works: u32,
    /// The device end of the transfer queue, for exports and imports.
    pub(super) transfer_queue: DeviceEnd<DetachedState<M>>,
    /// Copies of tails that a failure of the steps in flight would invalidate.
    pending_exports: Vec<PendingExport<M>>,
}

/// A copy of a tail, exported when all work submitted before it has finished.
struct PendingExport<M: Model> {
    /// The number of the latest work submitted before it.
    after: u64,
    copy: CopyId,
    detached_state: DetachedState<M>,
}

/// Segments and slots that are absent, although the sender of the work may not know it yet.
#[derive(Default)]
pub(super) struct Absent {
    pub(super) segments: FxHashSet<SegmentId>,
    pub(super) slots: FxHashSet<SlotId>,
}

pub(super) struct DeviceSlot<M: Model> {
    pub(super) path: Vec<Rc<M::Segment>>,
    pub(super) tail: M::Tail,
    /// `None` where sampling is plain.
    pub(super) sampler: Option<Sampler>,
    pub(super) last: Last,
}

/// The token that a slot's last span sampled.
#[derive(Clone, Copy)]
pub(super) enum Last {
    Nothing,
    Token(TokenId),
    /// The token that span number `span` of work number `work_number` samples.
    InFlight {
        work_number: u64,
        span: usize,
    },
}

struct InFlight<M: Model> {
    work_number: u64,
    sampler_starts: Vec<SamplerStart>,
    spans: Vec<PlannedSpan>,
    /// Positions in the step of the spans with absent slots, ascending.
    skipped: Vec<usize>,
    /// Slots and segments lost to its edits.
    lost: Lost,
    stage: Stage<M>,
}

enum Stage<M: Model> {
    Submitted(M::InFlightStep),
    /// Sampled, with the spans whose outputs are decided otherwise.
    Sampled(M::InFlightStep, Vec<(usize, Decided)>),
    /// Without a step on the device: the result.
    Finished(Result<Vec<SpanOutput>, Failure>),
}

impl<M: Model> Table<M> {
    /// Creates a device without slots and segments.
    #[must_use]
    pub fn new() -> Self {
        Self::with_transfer_queue(transfer_queue().0)
    }

    /// Creates the same, with a transfer queue for exports and imports.
    #[must_use]
    pub fn with_transfer_queue(transfer_queue: DeviceEnd<DetachedState<M>>) -> Self {
        Self {
            segments: FxHashMap::default(),
            slots: FxHashMap::default(),
            in_flight: VecDeque::new(),
            works_submitted: 0,
            epoch: 0,
            lost: Lost::default(),
            absent: Absent::default(),
            failing_works: 0,
            transfer_queue,
            pending_exports: Vec::new(),
        }
    }

    /// Returns the numbers of segments and slots.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.segments.len(), self.slots.len())
    }

    /// Returns the number of works in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether the latest work is still to be sampled.
    #[must_use]
    pub fn needs_sampling(&self) -> bool {
        let last = self.in_flight.back();
        last.is_some_and(|work| matches!(work.stage, Stage::Submitted(_)))
    }

    /// Returns the next action; `may_receive` is whether more work may arrive.
    #[must_use]
    pub fn next_action(&self, may_receive: bool) -> NextAction {
        let mut progress = [Progress::Sampled; WORK_IN_FLIGHT_MAX];
        let in_flight = &mut progress[..self.in_flight()];
        if let (Some(last), true) = (in_flight.last_mut(), self.needs_sampling()) {
            *last = Progress::Submitted;
        }
        next_action(in_flight, may_receive)
    }

    /// Whether the oldest work would finish without waiting. True where there is none.
    #[must_use]
    pub fn is_ready(&self, model: &M) -> bool {
        self.in_flight.front().is_none_or(|work| match &work.stage {
            Stage::Submitted(step) | Stage::Sampled(step, _) => model.is_ready(step),
            Stage::Finished(_) => true,
        })
    }

    /// Whether the oldest work's result is known already.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let oldest = self.in_flight.front();
        oldest.is_some_and(|work| matches!(work.stage, Stage::Finished(_)))
    }

    /// Carries out the edits, then submits the step to the device. Errors are returned when the
    /// work finishes. A panic of the model is caught.
    ///
    /// # Panics
    ///
    /// When [`WORK_IN_FLIGHT_MAX`] works are in flight, or the latest is not sampled.
    pub fn submit(&mut self, model: &mut M, mut work: Work) {
        assert!(
            self.in_flight.len() < WORK_IN_FLIGHT_MAX && !self.needs_sampling(),
            "work is submitted after a sampled one, and at most `WORK_IN_FLIGHT_MAX` are in flight"
        );
        self.works_submitted += 1;
        self.lost = Lost::default();
        if work.epoch > self.epoch {
            self.drop_all();
            self.epoch = work.epoch;
        }
        let mut skipped = Vec::new();
        let stage = if work.epoch == self.epoch {
            let edits = std::mem::take(&mut work.edits);
            let submitted = self.guarded(|table| {
                table.apply_edits(model, edits)?;
                skipped = table.skip_absent(&mut work.spans);
                table.submit_spans(model, &work.spans)
            });
            match submitted {
                Ok(Some(step)) => Stage::Submitted(step),
                Ok(None) => Stage::Finished(Ok(Vec::new())),
                Err(failure) => Stage::Finished(Err(failure)),
            }
        } else {
            Stage::Finished(Err(Failure::Dropped))
        };
        self.in_flight.push_back(InFlight {
            work_number: self.works_submitted,
            sampler_starts: work.sampler_starts,
            spans: work.spans,
            skipped,
            lost: std::mem::take(&mut self.lost),
            stage,
        });
    }

    /// Takes the slots and segments that were lost to the edits of the work that finished last.
    pub fn take_lost(&mut self) -> Lost {
        std::mem::take(&mut self.lost)
    }

    /// Samples the tokens of the latest work, if it is not sampled yet.
    ///
    /// # Panics
    ///
    /// When the work before it has not finished.
    pub fn sample(&mut self, model: &mut M) {
        if !self.needs_sampling() {
            return;
        }
        assert!(
            self.in_flight.len() == 1,
            "work is sampled when the work before it has finished"
        );
        let mut work = self
            .in_flight
            .pop_back()
            .expect("some work is to be sampled");
        let Stage::Submitted(mut step) = work.stage else {
            unreachable!("the work needs sampling")
        };
        let sampler_starts = std::mem::take(&mut work.sampler_starts);
        let sampled = self.guarded(|table| {
            table.start(sampler_starts);
            let (inputs, decided) = table.inputs(&work.spans);
            model.sample(&mut step, inputs).map_err(Failure::Step)?;
            Ok(decided)
        });
        work.stage = match sampled {
            Ok(decided) => Stage::Sampled(step, decided),
            Err(failure) => {
                self.lose(&work.spans);
                Stage::Finished(Err(failure))
            }
        };
        self.in_flight.push_back(work);
    }

    /// Waits for the oldest work and returns one output for each span.
    ///
    /// # Errors
    ///
    /// [`Failure`], which says what is lost.
    ///
    /// # Panics
    ///
    /// When no work is in flight, or the oldest is not sampled.
    pub fn finish(&mut self, model: &mut M) -> Result<Vec<SpanOutput>, Failure> {
        let work = self.in_flight.pop_front().expect("some work is in flight");
        let work_number = work.work_number;
        let result = self.finish_work(model, work);
        let succeeded = result.is_ok();
        let exported = self.guarded(|table| {
            let exported = table.export_finished(work_number, succeeded);
            exported.map_err(|error| Failure::Reset(error.to_string()))
        });
        exported.and(result)
    }

    fn finish_work(
        &mut self,
        model: &mut M,
        work: InFlight<M>,
    ) -> Result<Vec<SpanOutput>, Failure> {
        self.lost = work.lost;
        let result = match work.stage {
            Stage::Submitted(_) => panic!("work is sampled before it finishes"),
            Stage::Finished(result) => {
                return result.map(|outputs| with_skipped(outputs, &work.skipped));
            }
            Stage::Sampled(step, decided) => self.guarded(|table| {
                let mut span_outputs = model.finish(step).map_err(Failure::Step)?;
                assert_eq!(
                    span_outputs.len(),
                    work.spans.len(),
                    "a step returns one output for each span"
                );
                let accepted = table.accept(
                    model,
                    work.work_number,
                    &work.spans,
                    &mut span_outputs,
                    decided,
                );
                accepted.map_err(Failure::Step)?;
                Ok(with_skipped(span_outputs, &work.skipped))
            }),
        };
        if result.is_err() {
            self.lose(&work.spans);
            // Work submitted after it may have read state that the failed step did not write.
            for mut later in std::mem::take(&mut self.in_flight) {
                self.lose(&later.spans);
                if !matches!(later.stage, Stage::Finished(Ok(_) | Err(Failure::Reset(_)))) {
                    later.stage = Stage::Finished(Err(Failure::Dropped));
                }
                self.in_flight.push_back(later);
            }
        }
        result
    }

    /// Submits, samples and finishes one work while no other is in flight.
    ///
    /// # Errors
    ///
    /// As for [`finish`](Table::finish).
    ///
    /// # Panics
    ///
    /// When other work is in flight.
    pub fn run_work(&mut self, model: &mut M, work: Work) -> Result<Vec<SpanOutput>, Failure> {
        assert!(self.in_flight.is_empty(), "no other work is in flight");
        self.submit(model, work);
        self.sample(model);
        self.finish(model)
    }

    /// Catches a panic of the model. Drops everything when the operation ends in a reset.
    fn guarded<T>(
        &mut self,
        operation: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let done = catch_unwind(AssertUnwindSafe(|| operation(self)));
        let result = done.unwrap_or_else(|panic| {
            let reason = format!("the model panicked: {}", panic_text(&*panic));
            Err(Failure::Reset(reason))
        });
        if matches!(result, Err(Failure::Reset(_))) {
            self.drop_all();
            self.epoch += 1;
        }
        result
    }

    /// Exports a copy of a slot's tail once the steps in flight have finished. A step that
    /// fails invalidates the tail, and the copy with it.
    pub(super) fn export_when_finished(
        &mut self,
        copy: CopyId,
        detached_state: Result<DetachedState<M>, ModelError>,
    ) -> Result<(), ModelError> {
        match (detached_state, self.in_flight.back()) {
            (Ok(detached_state), Some(before)) => {
                self.pending_exports.push(PendingExport {
                    after: before.work_number,
                    copy,
                    detached_state,
                });
                Ok(())
            }
            (detached_state, _) => self.transfer_queue.export(copy, detached_state),
        }
    }

    /// Exports the copies that waited for this work, which has finished, with or without
    /// success.
    fn export_finished(&mut self, work_number: u64, succeeded: bool) -> Result<(), ModelError> {
        let due = |pending: &mut PendingExport<M>| pending.after <= work_number || !succeeded;
        let due: Vec<PendingExport<M>> = self.pending_exports.extract_if(.., due).collect();
        for PendingExport {
            copy,
            detached_state,
            ..
        } in due
        {
            let failed = || ModelError::Device("a step before the copy has failed".into());
            let detached_state = succeeded.then_some(detached_state).ok_or_else(failed);
            self.transfer_queue.export(copy, detached_state)?;
        }
        Ok(())
    }

    fn drop_all(&mut self) {
        self.segments.clear();
        self.slots.clear();
        self.pending_exports.clear();
        self.transfer_queue.clear();
        self.lost = Lost::default();
        self.absent = Absent::default();
        self.failing_works = 0;
    }

    /// Carries out edits. A failed edit loses the slots and segments that it touches; an error
    /// that is not confined to the edit resets the device.
    fn apply_edits(&mut self, model: &mut M, edits: Vec<Edit>) -> Result<(), Failure> {
        if edits.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        for edit in edits {
            let edit_losses = edit_losses(&edit);
            let edited = if self.lacks(&edit) {
                let why = "a slot or a segment that the edit needs was lost";
                Err(ModelError::Device(why.into()))
            } else {
                self.edit(model, edit)
            };
            match edited {
                Ok(()) => {}
                Err(error) if error.is_confined_to_edit() => {
                    let reason = failed.get_or_insert_with(|| error.to_string());
                    self.apply_losses(edit_losses, reason);
                }
                Err(error) => return Err(Failure::Reset(error.to_string())),
            }
        }
        let Some(reason) = failed else {
            self.failing_works = 0;
            return Ok(());
        };
        self.failing_works += 1;
        if self.failing_works <= FAILING_WORKS_MAX {
            return Ok(());
        }
        Err(Failure::Reset(format!(
            "edits failed in {} works in a row: {reason}",
            self.failing_works
        )))
    }

    /// Whether a slot or a segment that the edit needs was lost.
    fn lacks(&self, edit: &Edit) -> bool {
        let slot = changed_slot(edit);
        slot.is_some_and(|slot| self.absent.slots.contains(&slot))
            || required_segments(edit).any(|segment| self.absent.segments.contains(&segment))
    }

    /// Marks the slots and segments as lost that a failed edit was to change or create.
    fn apply_losses(&mut self, edit_losses: EditLosses, reason: &str) {
        if self.lost.is_empty() {
            reason.clone_into(&mut self.lost.reason);
        }
        for segment in edit_losses.used_up {
            self.segments.remove(&segment);
            self.absent.segments.remove(&segment);
        }
        if let Some(slot) = edit_losses.slot {
            self.slots.remove(&slot);
            if edit_losses.closes {
                self.absent.slots.remove(&slot);
            } else if self.absent.slots.insert(slot) {
                self.lost.slots.push(slot);
            }
        }
        self.absent.segments.extend(&edit_losses.made);
        self.lost.segments.extend(edit_losses.made);
    }

    /// Removes spans with absent slots from a step. Returns their positions.
    fn skip_absent(&self, spans: &mut Vec<PlannedSpan>) -> Vec<usize> {
        if self.absent.slots.is_empty() {
            return Vec::new();
        }
        let is_absent = |span: &PlannedSpan| self.absent.slots.contains(&span.slot);
        let indices = (0..).zip(&*spans).filter(|(_, span)| is_absent(span));
        let skipped = indices.map(|(index, _)| index).collect();
        spans.retain(|span| !is_absent(span));
        skipped
    }

    /// Submits a step; `None` where there are no spans. The slots are taken out of the table
    /// meanwhile, so that a failed submission loses them.
    fn submit_spans(
        &mut self,
        model: &mut M,
        planned: &[PlannedSpan],
    ) -> Result<Option<M::InFlightStep>, Failure> {
        if planned.is_empty() {
            return Ok(None);
        }
        let taken = planned.iter().map(|span| self.slots.remove(&span.slot));
        let taken: Vec<Option<DeviceSlot<M>>> = taken.collect();
        let slots: Option<Vec<DeviceSlot<M>>> = taken.into_iter().collect();
        // Slots that are absent were lost with the step before.
        let mut slots = slots.ok_or(Failure::Dropped)?;
        let before = self.in_flight.back();
        let pairs = planned.iter().zip(&slots);
        let known: Vec<Cow<'_, [TokenId]>> = pairs
            .map(|(span, slot)| known_tokens(&span.token_source, slot.last))
            .collect();
        let mut spans: Vec<Span<'_, M>> = planned
            .iter()
            .zip(&known)
            .zip(&mut slots)
            .map(|((span, known), slot)| Span {
                tokens: token_source(&span.token_source, known, slot.last, before),
                path: &slot.path,
                tail: &mut slot.tail,
                output_kind: span.output_kind.clone(),
            })
            .collect();
        let step = model.submit(&mut spans).map_err(Failure::Step)?;
        for (index, (planned, mut slot)) in planned.iter().zip(slots).enumerate() {
            let is_verified = matches!(planned.output_kind, OutputKind::Verify(_));
            slot.last = match planned.output_kind.token_sampling() {
                Some(_) if !is_verified => Last::InFlight {
                    work_number: self.works_submitted,
                    span: index,
                },
                _ => Last::Nothing,
            };
            let twin = self.slots.insert(planned.slot, slot);
            assert!(twin.is_none(), "a slot has one span in a step");
        }
        Ok(Some(step))
    }

    fn lose(&mut self, spans: &[PlannedSpan]) {
        for span in spans {
            self.slots.remove(&span.slot);
        }
    }
}

impl<M: Model> DeviceSlot<M> {
    pub(super) fn new(path: Vec<Rc<M::Segment>>, tail: M::Tail) -> Self {
        Self {
            path,
            tail,
            sampler: None,
            last: Last::Nothing,
        }
    }
}

/// Inserts [`SpanOutput::Nothing`] where a span was skipped.
fn with_skipped(mut span_outputs: Vec<SpanOutput>, skipped: &[usize]) -> Vec<SpanOutput> {
    for index in skipped {
        span_outputs.insert(*index, SpanOutput::Nothing);
    }
    span_outputs
}

/// Returns a span's tokens that are known: those from the scheduler, after the token that the
/// slot's last span sampled if that is wanted and no longer in flight.
fn known_tokens(token_source: &PlannedTokens, last: Last) -> Cow<'_, [TokenId]> {
    match (token_source, last) {
        (PlannedTokens::Sampled(draft), Last::Token(token)) => {
            Cow::Owned([&[token], &draft[..]].concat())
        }
        (PlannedTokens::Known(tokens) | PlannedTokens::Sampled(tokens), _) => Cow::Borrowed(tokens),
    }
}

/// Returns a span's token source: its known tokens, after the token that the slot's last span
/// samples if that is still in flight.
fn token_source<'a, M: Model>(
    token_source: &PlannedTokens,
    known: &'a [TokenId],
    last: Last,
    before: Option<&'a InFlight<M>>,
) -> TokenSource<'a, M> {
    match (token_source, last) {
        (PlannedTokens::Known(_), _) | (PlannedTokens::Sampled(_), Last::Token(_)) => {
            TokenSource::Known(known)
        }
        (PlannedTokens::Sampled(_), Last::InFlight { work_number, span }) => {
            let before = before.filter(|before| before.work_number == work_number);
            match &before
                .expect("the step in flight is the one submitted before")
                .stage
            {
                Stage::Sampled(step, _) => TokenSource::Sampled(step, span, known),
                Stage::Submitted(_) | Stage::Finished(_) => {
                    unreachable!("a failed step's slots are lost")
                }
            }
        }
        (PlannedTokens::Sampled(_), Last::Nothing) => {
            panic!("the slot's last span sampled a token")
        }
    }
}

/// Returns a panic's message.
#[must_use]
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

impl<M: Model> Default for Table<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Model> std::fmt::Debug for Table<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (segments, slots) = self.held();
        write!(f, "Table({segments} segments, {slots} slots)")
    }
}
