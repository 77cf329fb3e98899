//! A sequence's start, its pauses, its deadlines, and its end.

use std::time::Duration;

use super::deadlines::Purpose;
use super::sequence::{Finished, Phase, Sequence, SequenceKey};
use super::{Effect, History, SchedulerCore, Submission};
use motet_protocol::SequenceId;
use motet_protocol::{Deadline, FinishReason, GenerateError};

impl SchedulerCore {
    pub(super) fn submit(&mut self, submission: Submission, effects: &mut Vec<Effect>) {
        if !submission.output_so_far.is_empty() {
            let generated = submission.output_so_far.to_vec();
            let history = History {
                submission,
                generated,
                started: false,
                paused: false,
            };
            return self.restore(history, effects);
        }
        let sequence = Sequence::new(submission, self.spec.context_tokens_max, self.now);
        let key = self.enter(sequence);
        self.enqueue(key);
    }

    /// Adds a sequence that has a caller and no slot.
    pub(super) fn enter(&mut self, sequence: Sequence) -> SequenceKey {
        self.deadlines
            .enter(sequence.submission(), sequence.is_started());
        self.service.enter(sequence.user(), sequence.priority());
        self.sequences.insert(sequence)
    }

    /// Ends a sequence at its caller's request.
    pub(super) fn stop(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        match self.sequences.find(sequence) {
            Some(key) => self.finish(key, FinishReason::Cancelled, effects),
            None if self.cancel_fork(sequence, effects) => {
                effects.push(Effect::Finished(sequence, FinishReason::Cancelled));
            }
            None => {}
        }
    }

    pub(super) fn pause(&mut self, id: SequenceId) {
        if let Some(key) = self.sequences.find(id)
            && self.sequences.pause(key, self.now)
        {
            let sequence = &mut self.sequences[key];
            self.service.leave(sequence.user(), sequence.priority());
            self.waiting.end_turn(sequence);
            self.deadlines.pause(id, self.now);
            self.waiting.stop_waiting_for_memory(key);
            // A waiting sequence may take its slot.
            self.waiting.request_scan();
        }
    }

    pub(super) fn resume(&mut self, sequence: SequenceId) {
        if let Some(key) = self.sequences.find(sequence)
            && self.end_pause(key)
        {
            let sequence = &self.sequences[key];
            self.service.enter(sequence.user(), sequence.priority());
            self.waiting.request_scan();
        }
    }

    /// Ends a sequence's pause: its caller has read, or has no more to read. Returns false if
    /// it was not paused.
    fn end_pause(&mut self, key: SequenceKey) -> bool {
        let since = self.sequences.resume(key);
        if let Some(since) = since {
            self.deadlines.resume(self.sequences[key].id(), since);
        }
        since.is_some()
    }

    /// Ends the sequences whose deadlines have passed.
    pub(super) fn expire(&mut self, effects: &mut Vec<Effect>) {
        while let Some(timer) = self.deadlines.pop_passed(self.now) {
            let Some(key) = self.sequences.find(timer.sequence) else {
                continue;
            };
            let started = self.sequences[key].is_started();
            match timer.purpose {
                Purpose::Start if started => {}
                Purpose::Finish if started => self.finish(key, FinishReason::Deadline, effects),
                Purpose::Start => self.miss(key, Deadline::Start, timer.at, effects),
                Purpose::Finish => self.miss(key, Deadline::Finish, timer.at, effects),
                Purpose::Unread => {
                    // The caller may have read since, and the sequence paused again.
                    let waited = self.deadlines.unread_for(&self.sequences[key], self.now);
                    if let Some(waited) = waited {
                        let unread = self.config.unread_tokens_max;
                        let error = GenerateError::SlowReader { unread, waited };
                        self.fail(key, error, Finished::Close, effects);
                    }
                }
            }
        }
    }

    /// Fails a sequence that cannot meet a deadline.
    pub(super) fn miss(
        &mut self,
        key: SequenceKey,
        deadline: Deadline,
        at: Duration,
        effects: &mut Vec<Effect>,
    ) {
        let error = GenerateError::DeadlineMissed {
            deadline,
            needed: self.prefill_time(key),
            left: at.saturating_sub(self.now),
        };
        self.fail(key, error, Finished::Close, effects);
    }

    /// Ends a sequence and lets the cache publish its computed state.
    pub(super) fn finish(
        &mut self,
        key: SequenceKey,
        reason: FinishReason,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::Finished(self.sequences[key].id(), reason));
        self.end(key, Finished::Close, effects);
    }

    /// Fails a sequence: it ends without its output.
    pub(super) fn fail(
        &mut self,
        key: SequenceKey,
        error: GenerateError,
        finished: Finished,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::Failed(self.sequences[key].id(), error));
        self.end(key, finished, effects);
    }

    /// Fails all sequences, each with the error for so many tokens of its output. Their computed state
    /// may serve the next start.
    pub(super) fn fail_all(
        &mut self,
        error: impl Fn(usize) -> GenerateError,
        effects: &mut Vec<Effect>,
    ) {
        for sequence in self.forks.take_all() {
            effects.push(Effect::Failed(sequence, error(0)));
        }
        let all: Vec<SequenceKey> = self.sequences.live().collect();
        for key in all {
            let output_tokens = self.sequences[key].history().generated().len();
            self.fail(key, error(output_tokens), Finished::Close, effects);
        }
    }

    /// Ends all sequences, which go on elsewhere.
    pub(super) fn hand_all_over(&mut self, effects: &mut Vec<Effect>) {
        let handed_over = |output_tokens| GenerateError::HandedOver { output_tokens };
        self.fail_all(handed_over, effects);
    }

    /// Ends a sequence whose caller has its result. Its slot is freed as soon as it is in no
    /// step.
    fn end(&mut self, key: SequenceKey, finished: Finished, effects: &mut Vec<Effect>) {
        self.drafting.end(&mut self.sequences[key]);
        self.leave_caller(key);
        if self.sequences.finish(key, finished) {
            self.free_slot(key, finished, effects);
        }
    }

    /// Removes a finished sequence from everything that finds it by id, and ends its deadlines.
    pub(super) fn leave_caller(&mut self, key: SequenceKey) {
        self.waiting.end_turn(&mut self.sequences[key]);
        let was_paused = self.end_pause(key);
        self.sequences.leave_caller(key);
        let sequence = &self.sequences[key];
        if !was_paused {
            self.service.leave(sequence.user(), sequence.priority());
        }
        self.deadlines.leave(sequence.submission());
    }

    /// Frees the slot of a finished sequence, or its place in the queue.
    pub(super) fn free_slot(
        &mut self,
        key: SequenceKey,
        finished: Finished,
        effects: &mut Vec<Effect>,
    ) {
        self.leave_phase(key);
        let sequence = self.sequences.remove(key);
        match (sequence.phase(), finished) {
            (Phase::Queued, _) => {}
            (Phase::Running(_), Finished::Close) => self.ask(sequence.close_message(), effects),
            (Phase::Starting { .. }, _) | (Phase::Running(_), Finished::Discard) => {
                self.ask(sequence.discard_message(), effects);
            }
        }
        self.start_forks_of(sequence.id(), effects);
    }

    /// Removes a sequence from the component that holds it in its phase.
    pub(super) fn leave_phase(&mut self, key: SequenceKey) {
        match self.sequences[key].phase() {
            Phase::Queued => self.waiting.leave(key),
            Phase::Starting { .. } => self.slots.leave(key, &mut self.sequences),
            Phase::Running(_) => {
                self.grants.leave(key);
                self.slots.leave(key, &mut self.sequences);
            }
        }
        self.waiting.request_scan();
    }
}
