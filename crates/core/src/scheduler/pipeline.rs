//! The work for the device: what goes with the next work, and the work in flight, up to two
//! steps at once.
//!
//! The second step is planned as late as possible without making the device wait. Sequences that
//! arrive while the first is computed can thus be part of it.

use std::collections::VecDeque;
use std::time::Duration;

use super::Predecessor;
use super::policy::step_cost::StepLoad;
use super::sequence::{Sequence, SequenceKey, Slot};
use super::sequences::Sequences;
use motet_protocol::{DraftForget, DraftOrder, Edit, Outcome, PlannedSpan, SamplerStart, Work};
use motet_protocol::{SequenceId, SlotId, TokenId, WORK_IN_FLIGHT_MAX};

/// Time before the end of a step at which the next is planned at the latest. It covers
/// planning, building the graph, and a timer's error.
const LEAD_MIN: Duration = Duration::from_millis(4);
/// The same as a part of the step's duration: long steps are predicted less exactly.
const LEAD_PART: f64 = 0.15;

/// The work for the device, and what is known of the device.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    /// Edits for the next work, in the cache's order.
    edits: Vec<Edit>,
    /// Fences behind these edits, which the cache expects to pass.
    fences: Vec<u64>,
    /// The work in flight, oldest first.
    steps_in_flight: VecDeque<InFlightStep>,
    /// Whether a step has failed on top of which a step in flight was submitted.
    is_in_doubt: bool,
    /// Number of times that all state was lost: the device reported it, or the device, the
    /// cache or the scheduler was lost.
    epoch: u64,
    /// Whether there is no device now; there may be one later.
    device_away: bool,
    /// Whether the device does not know the epoch yet and still holds lost state. Work is then
    /// sent for the epoch alone.
    device_needs_reset: bool,
    /// Whether there was something to do when the last work finished.
    had_work: bool,
    /// Whether the last work that finished verified drafts, or made some.
    finished_drafts: bool,
    /// Time so far in which the device was idle although there was work.
    device_idle: Duration,
}

/// Work in flight.
#[derive(Debug)]
struct InFlightStep {
    /// The sequences in the step.
    members: Vec<Member>,
    /// The load of the step.
    load: StepLoad,
    /// Predicted duration.
    takes: Duration,
    /// Predicted end.
    ends_at: Duration,
    /// The orders to the draft model in it.
    asked: Asked,
    /// Fences that pass when the edits sent with it are carried out.
    fences: Vec<u64>,
    /// Epoch in which it was sent. A failure of work from an earlier epoch blames no sequence.
    epoch: u64,
}

/// One sequence's part in a step in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) key: SequenceKey,
    /// Its slot then: it may have lost it since.
    pub(super) slot: SlotId,
    /// Tokens that it evaluates, but for draft tokens.
    pub(super) tokens: usize,
    pub(super) draft_tokens: usize,
    pub(super) samples_token: bool,
}

/// The orders to the draft model in one work.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// One for each order.
    pub(super) sequences: Vec<AskedSequence>,
    /// The load of a forward pass.
    pub(super) load: StepLoad,
    /// Number of passes.
    pub(super) passes: u32,
}

/// A sequence that the draft model was asked about.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedSequence {
    pub(super) key: SequenceKey,
    pub(super) id: SequenceId,
    /// Tokens of its text then.
    pub(super) text_tokens: usize,
    /// Tokens of the text that are read afterwards.
    pub(super) read_until: usize,
    /// Tokens to draft; 0 only reads.
    pub(super) draft_tokens: usize,
}

/// A step that is planned and not submitted, or orders to the draft model in its place.
#[derive(Debug, Default)]
pub(super) struct PlannedStep {
    members: Vec<Member>,
    spans: Vec<PlannedSpan>,
    sampler_starts: Vec<SamplerStart>,
    load: StepLoad,
    draft_orders: Vec<DraftOrder>,
    asked: Asked,
}

/// Work that has finished.
#[derive(Debug)]
pub(super) struct FinishedStep {
    /// The sequences that were in the step.
    pub(super) members: Vec<Member>,
    /// Its load.
    pub(super) load: StepLoad,
    /// The orders to the draft model in it.
    pub(super) asked: Asked,
    /// Fences that have passed.
    pub(super) fences: Vec<u64>,
    /// Time that the device waited for it although there was something to do.
    pub(super) idle: Duration,
    /// The same, if the step before had drafts.
    pub(super) idle_after_drafts: Option<Duration>,
    /// Whether all state was lost after it was sent.
    pub(super) is_of_older_epoch: bool,
}

impl PlannedStep {
    /// Creates a step that this many sequences can join without an allocation.
    pub(super) fn with_capacity(members: usize) -> Self {
        Self {
            members: Vec::with_capacity(members),
            spans: Vec::with_capacity(members),
            ..Self::default()
        }
    }

    /// Orders to the draft model, without a step.
    pub(super) fn of_orders(draft_orders: Vec<DraftOrder>, asked: Asked) -> Self {
        Self {
            draft_orders,
            asked,
            ..Self::default()
        }
    }

    /// Adds the next `tokens` tokens of a sequence, which come after `cached` computed ones, and a
    /// draft of those after them. Returns how many of the tokens its user was not charged for
    /// before.
    pub(super) fn add(
        &mut self,
        key: SequenceKey,
        sequence: &mut Sequence,
        tokens: usize,
        draft: &[TokenId],
        cached: usize,
    ) -> usize {
        let joined = sequence.join_step(tokens, draft, &mut self.sampler_starts);
        let draft_tokens = joined.draft_tokens;
        self.members.push(Member {
            key,
            slot: joined.span.slot,
            tokens,
            draft_tokens,
            samples_token: joined.samples_token,
        });
        self.spans.push(joined.span);
        self.load = self.load.and(StepLoad::span(tokens + draft_tokens, cached));
        joined.new_tokens
    }

    /// Returns what it costs the device.
    pub(super) fn load(&self) -> StepLoad {
        self.load
    }
}

impl InFlightStep {
    /// Returns the number of draft tokens that it verifies.
    fn draft_tokens(&self) -> usize {
        self.members.iter().map(|member| member.draft_tokens).sum()
    }

    /// Whether it verifies drafts, or makes some.
    fn drafts(&self) -> bool {
        self.draft_tokens() > 0 || self.makes_drafts()
    }

    /// Whether the draft model was asked.
    fn makes_drafts(&self) -> bool {
        !self.asked.sequences.is_empty()
    }
}

impl Pipeline {
    /// Whether there is no device now.
    pub(super) fn is_device_away(&self) -> bool {
        self.device_away
    }

    /// Returns the time so far in which the device was idle although there was work.
    pub(super) fn device_idle(&self) -> Duration {
        self.device_idle
    }

    /// Whether no work is in flight, and no edit waits for the next one.
    pub(super) fn is_idle(&self) -> bool {
        self.steps_in_flight.is_empty() && self.edits.is_empty()
    }

    /// Whether no work is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.steps_in_flight.is_empty()
    }

    /// Whether the device can take work now. None is sent on top of a step with drafts, or of orders
    /// to the draft model: what they leave is known only when they have finished.
    pub(super) fn takes_work(&self, now: Duration) -> bool {
        !self.device_away
            && !self.is_in_doubt
            && !self.is_held_back()
            && self.steps_in_flight.len() < WORK_IN_FLIGHT_MAX
            && self.next_submit_at(now).is_none()
    }

    /// Returns when the next step is planned, if that is held back.
    pub(super) fn next_submit_at(&self, now: Duration) -> Option<Duration> {
        let last = self.steps_in_flight.back()?;
        if self.steps_in_flight.len() == WORK_IN_FLIGHT_MAX || self.is_held_back() {
            return None;
        }
        let lead = LEAD_MIN.max(last.takes.mul_f64(LEAD_PART));
        let at = last.ends_at.saturating_sub(lead);
        (at > now).then_some(at)
    }

    /// Whether the last work in flight verifies drafts, or makes some.
    fn is_held_back(&self) -> bool {
        let last = self.steps_in_flight.back();
        last.is_some_and(InFlightStep::drafts)
    }

    /// Whether work with this many tokens is to be submitted: there is something to do, and it
    /// need not wait until the step in flight has finished.
    pub(super) fn is_due(&self, tokens: usize, overlap_tokens_max: usize) -> bool {
        let overlaps = self.steps_in_flight.is_empty() || tokens <= overlap_tokens_max;
        let has_work = tokens > 0 || !self.edits.is_empty() || self.device_needs_reset;
        overlaps && has_work
    }

    /// Adds an edit to the next work.
    pub(super) fn push_edit(&mut self, edit: Edit) {
        self.edits.push(edit);
    }

    /// Sets a fence behind all edits so far. It passes when they are carried out. A device that
    /// does not know the epoch yet would drop states imported before that, so the fence waits
    /// for it. Returns whether the fence has passed already.
    #[must_use]
    pub(super) fn set_fence(&mut self, number: u64) -> bool {
        if !self.edits.is_empty() || self.device_needs_reset {
            self.fences.push(number);
        } else if let Some(last) = self.steps_in_flight.back_mut() {
            last.fences.push(number);
        } else {
            return true;
        }
        false
    }

    /// Submits a step, predicted to take this long, with all edits so far.
    pub(super) fn submit(
        &mut self,
        step: PlannedStep,
        draft_forgets: Vec<DraftForget>,
        takes: Duration,
        now: Duration,
    ) -> Work {
        self.device_needs_reset = false;
        let last = self.steps_in_flight.back();
        let begins_at = last.map_or(now, |last| last.ends_at.max(now));
        self.steps_in_flight.push_back(InFlightStep {
            members: step.members,
            load: step.load,
            asked: step.asked,
            takes,
            ends_at: begins_at.saturating_add(takes),
            fences: std::mem::take(&mut self.fences),
            epoch: self.epoch,
        });
        Work {
            edits: std::mem::take(&mut self.edits),
            sampler_starts: step.sampler_starts,
            spans: step.spans,
            draft_forgets,
            draft_orders: step.draft_orders,
            epoch: self.epoch,
        }
    }

    /// Finishes the oldest work in flight.
    pub(super) fn finish(&mut self, outcome: &Outcome, now: Duration) -> FinishedStep {
        let step = self.steps_in_flight.pop_front();
        let step = step.expect("an outcome answers work in flight");
        if let Some(next) = self.steps_in_flight.front_mut() {
            next.ends_at = now.saturating_add(next.takes);
        }
        if self.had_work {
            self.device_idle = self.device_idle.saturating_add(outcome.gap);
        }
        // A step that was submitted on top of a failed one may be dropped with it, and so would
        // a step on top of that. None is submitted until the doubtful one has finished.
        self.is_in_doubt |= outcome.result.is_err();
        self.is_in_doubt &= !self.steps_in_flight.is_empty();
        let followed_drafts = std::mem::replace(&mut self.finished_drafts, step.drafts());
        let idle = if self.had_work {
            outcome.gap
        } else {
            Duration::ZERO
        };
        // The time before the draft model works is a part of what it costs.
        let is_after_drafts = followed_drafts && self.had_work && !step.makes_drafts();
        FinishedStep {
            idle,
            idle_after_drafts: is_after_drafts.then_some(idle),
            members: step.members,
            load: step.load,
            asked: step.asked,
            fences: step.fences,
            is_of_older_epoch: step.epoch != self.epoch,
        }
    }

    /// Records whether there is something to do now that work has finished. The device's time
    /// until the next work counts as idle if there is.
    pub(super) fn expect_work(&mut self, has_work: bool) {
        self.had_work = has_work;
    }

    /// Begins an epoch: all state is lost, and the edits of lost state with it.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.device_needs_reset = true;
        self.edits.clear();
        self.fences.clear();
    }

    /// Records that the device is lost. Returns the sequences whose work was in flight.
    pub(super) fn lose_device(&mut self) -> Vec<Member> {
        self.device_away = true;
        self.is_in_doubt = false;
        let steps = std::mem::take(&mut self.steps_in_flight);
        steps.into_iter().flat_map(|step| step.members).collect()
    }

    /// Records that there is another device, which is empty.
    pub(super) fn find_device(&mut self) {
        self.device_away = false;
    }

    /// Takes over the work in flight of a failed scheduler, whose sequences restart.
    pub(super) fn succeed(&mut self, predecessor: Predecessor, now: Duration) {
        self.epoch = predecessor.epoch;
        self.device_away = predecessor.device_away;
        let strays = (0..predecessor.in_flight).map(|_| InFlightStep {
            members: Vec::new(),
            load: StepLoad::default(),
            asked: Asked::default(),
            takes: Duration::ZERO,
            ends_at: now,
            fences: Vec::new(),
            epoch: predecessor.epoch,
        });
        self.steps_in_flight = VecDeque::from_iter(strays);
    }

    pub(super) fn check_integrity(&self, sequences: &Sequences) {
        assert!(
            self.steps_in_flight.len() <= WORK_IN_FLIGHT_MAX,
            "at most two steps are in flight"
        );
        assert!(
            !self.is_in_doubt || !self.steps_in_flight.is_empty(),
            "only a step in flight is in doubt"
        );
        let slots = sequences.keys();
        let slots = slots.filter_map(|key| Some((key, sequences[key].slot()?)));
        for (key, slot) in slots {
            self.check_slot(key, slot);
        }
    }

    fn check_slot(&self, key: SequenceKey, slot: &Slot) {
        let members = self.steps_in_flight.iter().flat_map(|step| &step.members);
        let own = members.filter(|member| member.key == key && member.slot == slot.id());
        let own: Vec<&Member> = own.collect();
        assert_eq!(
            own.len(),
            slot.steps_in_flight(),
            "steps in flight are counted"
        );
        let tokens: usize = own.iter().map(|member| member.tokens).sum();
        assert_eq!(
            tokens,
            slot.in_flight_tokens(),
            "tokens in flight are counted"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_protocol::{DeviceMemory, Failure, Lost};

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn outcome(result: Result<Vec<motet_protocol::SpanOutput>, Failure>) -> Outcome {
        Outcome {
            result,
            drafts: Ok(Vec::new()),
            busy: Duration::ZERO,
            gap: at(1),
            lost: Lost::default(),
            memory: DeviceMemory::default(),
        }
    }

    #[test]
    fn second_step_is_submitted_shortly_before_the_first_ends() {
        let mut pipeline = Pipeline::default();
        assert!(pipeline.takes_work(at(0)));
        pipeline.submit(PlannedStep::default(), Vec::new(), at(100), at(0));
        assert_eq!(pipeline.next_submit_at(at(0)), Some(at(85)));
        assert!(!pipeline.takes_work(at(84)) && pipeline.takes_work(at(85)));
        pipeline.submit(PlannedStep::default(), Vec::new(), at(100), at(85));
        assert!(!pipeline.takes_work(at(200)), "two steps are in flight");
        pipeline.finish(&outcome(Ok(Vec::new())), at(110));
        assert_eq!(pipeline.next_submit_at(at(110)), Some(at(195)));
    }

    #[test]
    fn no_step_is_submitted_on_top_of_a_doubtful_one() {
        let mut pipeline = Pipeline::default();
        for _ in 0..WORK_IN_FLIGHT_MAX {
            pipeline.submit(PlannedStep::default(), Vec::new(), at(0), at(0));
        }
        pipeline.finish(&outcome(Err(Failure::Dropped)), at(1));
        assert!(!pipeline.takes_work(at(1)));
        pipeline.finish(&outcome(Ok(Vec::new())), at(2));
        assert!(pipeline.takes_work(at(2)));
    }

    #[test]
    fn fence_passes_with_the_work_before_it() {
        let mut pipeline = Pipeline::default();
        assert!(pipeline.set_fence(1), "there is nothing before it");
        pipeline.submit(PlannedStep::default(), Vec::new(), at(0), at(0));
        assert!(!pipeline.set_fence(2));
        pipeline.begin_epoch();
        assert!(!pipeline.set_fence(3));
        let step = pipeline.finish(&outcome(Ok(Vec::new())), at(1));
        assert_eq!(step.fences, [2]);
        assert!(step.is_of_older_epoch);
        assert!(pipeline.is_due(0, 0), "the device is to learn the epoch");
        pipeline.submit(PlannedStep::default(), Vec::new(), at(0), at(1));
        let step = pipeline.finish(&outcome(Ok(Vec::new())), at(2));
        assert_eq!(step.fences, [3]);
    }

    #[test]
    fn device_is_idle_only_while_there_is_work() {
        let mut pipeline = Pipeline::default();
        for has_work in [true, false, true] {
            pipeline.submit(PlannedStep::default(), Vec::new(), at(0), at(0));
            pipeline.finish(&outcome(Ok(Vec::new())), at(0));
            pipeline.expect_work(has_work);
        }
        assert_eq!(pipeline.device_idle(), at(1));
    }
}
