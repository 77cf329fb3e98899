//! Recovery from losses beside a step: the device thread, the cache, or the scheduler itself.
//!
//! Each time all sequences with a slot return to the queue with their histories, and the cache
//! starts empty. The device drops its remaining state when it receives the epoch of the next
//! work.

use std::collections::VecDeque;
use std::time::Duration;

use super::admission::Timer;
use super::outcome::Loss;
use super::pipeline::InFlightStep;
use super::policy::step_cost::StepLoad;
use super::sequence::{Finished, Phase, Sequence, SequenceKey};
use super::{Effect, Event, SchedulerCore, Submission};
use crate::protocol::{FinishReason, GenerateError};
use crate::recovery::only_sequence;
use crate::{SequenceId, TokenId, cache};
use motet_sync::injected::{self, Bug};

/// State that a failed scheduler leaves to its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// Epoch of the last work that was sent.
    pub epoch: u64,
    /// Messages that the cache has not answered yet.
    pub pending_answers: usize,
    /// Work that the device has not answered yet.
    pub in_flight: usize,
    /// Whether there is no device now.
    pub device_away: bool,
}

/// A sequence as its caller knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The submission that created it; for a fork, with all tokens that it continues.
    pub submission: Submission,
    /// Tokens generated so far.
    pub generated: Vec<TokenId>,
    /// Whether it has had a slot.
    pub started: bool,
    /// Whether it waits for its reader.
    pub paused: bool,
}

impl Event {
    /// Returns the sequence that the event concerns, if it concerns exactly one. That sequence
    /// is suspected when the scheduler panics while handling the event.
    #[must_use]
    pub fn concerns(&self) -> Option<SequenceId> {
        match self {
            Self::Submit(submission) => Some(submission.sequence),
            Self::Fork(fork) => Some(fork.submission.sequence),
            Self::Restore(history) => Some(history.submission.sequence),
            Self::Stop(sequence)
            | Self::Pause(sequence)
            | Self::Resume(sequence)
            | Self::Mask(sequence, _) => Some(*sequence),
            Self::Cache(Ok(effects)) | Self::CacheEffects(effects) => {
                only_sequence(effects.iter().map(cache::Effect::concerns))
            }
            Self::Cache(Err(_))
            | Self::CacheCommand { .. }
            | Self::Outcome(_)
            | Self::TimePassed
            | Self::DeviceLost(_)
            | Self::DeviceFound
            | Self::CacheLost(_)
            | Self::Rebuilt(_)
            | Self::Abort => None,
        }
    }
}

impl SchedulerCore {
    /// Takes over from a scheduler that has failed, before any other event.
    pub(super) fn rebuild(&mut self, predecessor: Predecessor, effects: &mut Vec<Effect>) {
        self.epoch = predecessor.epoch;
        self.asked = predecessor.pending_answers as u64;
        self.pending_answers = predecessor.pending_answers;
        self.device_away = predecessor.device_away;
        // The sequences of these steps restart.
        let strays = (0..predecessor.in_flight).map(|_| InFlightStep {
            members: Vec::new(),
            load: StepLoad::default(),
            takes: Duration::ZERO,
            ends_at: self.now,
            fences: Vec::new(),
            epoch: predecessor.epoch,
        });
        self.steps_in_flight = VecDeque::from_iter(strays);
        self.reset(&[], "", u32::MAX, effects);
    }

    /// Continues a sequence from its history.
    pub(super) fn restore(&mut self, history: History, effects: &mut Vec<Effect>) {
        let History {
            submission,
            generated,
            started,
            paused,
        } = history;
        let sequence = submission.sequence;
        if generated.len() >= submission.output_tokens_max {
            effects.push(Effect::Finished(sequence, FinishReason::Length));
            return;
        }
        for (at, timer) in [
            (submission.start_by.filter(|_| !started), Timer::Start),
            (submission.finish_by, Timer::Finish),
        ] {
            self.timers.extend(at.map(|at| (at, sequence, timer)));
        }
        self.service.enter(submission.user, submission.class);
        let mut entry = Sequence::new(submission, self.spec.context_tokens_max, self.now);
        entry.generated = generated;
        entry.started = started;
        entry.resumes = !entry.generated.is_empty();
        entry.restart();
        if started {
            // Its tokens so far are paid for.
            entry.charged_tokens = entry.tokens.len();
        }
        let key = self.sequences.insert(entry);
        self.live_keys.insert(sequence, key);
        if paused {
            // Pauses it before it can start and before other sequences wait for its prefix.
            self.pause(sequence);
        }
        self.enqueue(key);
    }

    /// Handles the loss of the device thread. Sequences in a step in flight may be to blame,
    /// but so may the device. They are tried again with others once, then alone.
    pub(super) fn lose_device(&mut self, reason: &str, effects: &mut Vec<Effect>) {
        self.device_away = true;
        let steps_in_flight = std::mem::take(&mut self.steps_in_flight);
        self.is_in_doubt = false;
        let members = steps_in_flight.iter().map(|step| &step.members);
        let mut blamed: Vec<SequenceKey> = members
            .flat_map(|members| self.still_in_slot(members))
            .collect();
        // A sequence may be in both steps.
        blamed.sort_unstable();
        blamed.dedup();
        self.reset(&blamed, reason, 2, effects);
    }

    /// Continues on another device, which is empty.
    pub(super) fn find_device(&mut self, effects: &mut Vec<Effect>) {
        self.device_away = false;
        self.may_start = true;
        self.probe_prefixes(effects);
    }

    /// Handles the failure of the cache, which is now empty. The culprit, if known, fails and
    /// is not sent to the cache again.
    pub(super) fn lose_cache(
        &mut self,
        culprit: Option<(SequenceId, GenerateError)>,
        effects: &mut Vec<Effect>,
    ) {
        self.reset(&[], "", u32::MAX, effects);
        let culprit = culprit.and_then(|(name, error)| Some((*self.live_keys.get(&name)?, error)));
        if let Some((key, error)) = culprit {
            self.fail(key, error, Finished::Discard, effects);
        }
    }

    /// Restarts all sequences with state, on an empty device and an empty cache. A blamed
    /// sequence runs alone from now on if it has been in `alone_after` failed steps in a row.
    pub(super) fn reset(
        &mut self,
        blamed: &[SequenceKey],
        reason: &str,
        alone_after: u32,
        effects: &mut Vec<Effect>,
    ) {
        let has_state = |key: &SequenceKey| !matches!(self.sequences[*key].phase, Phase::Queued);
        let mut lost: Vec<SequenceKey> = self.sequences.keys().filter(has_state).collect();
        lost.sort_by_key(|key| self.sequences[*key].sequence);
        self.epoch += 1;
        self.device_needs_reset = true;
        self.edits.clear();
        self.fences.clear();
        self.sampler_starts.clear();
        self.probe_message = None;
        self.stale_answers = self.pending_answers;
        if injected::is_injected(Bug::StaleAnswer) {
            self.stale_answers = self.stale_answers.saturating_sub(1);
        }
        self.ask(cache::Message::Reset, effects);
        self.reset_asked = self.asked;
        let loss = Loss {
            lost: &lost,
            blamed,
            reason,
            alone_after,
            discards: false,
        };
        self.lose(&loss, effects);
    }

    /// Returns what a sequence was submitted as, with all tokens that it continues; `None` if
    /// it is finished.
    #[must_use]
    pub fn submission(&self, sequence: SequenceId) -> Option<Submission> {
        if let Some(key) = self.live_keys.get(&sequence) {
            return Some(self.sequences[*key].submission());
        }
        let mut due = self.forks_due.iter().map(|fork| &fork.submission);
        due.find(|due| due.sequence == sequence).cloned()
    }
}
