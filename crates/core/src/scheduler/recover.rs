//! What is lost beside a step: the device thread, the cache, or the scheduler itself.
//!
//! Each time everybody who had a slot goes back to the queue with their history, the cache
//! begins anew, and the device drops what it still holds, told by the next work's epoch.

use std::collections::VecDeque;
use std::time::Duration;

use super::cost::StepLoad;
use super::entry::{Entry, EntryKey, Over, Phase};
use super::outcome::Loss;
use super::start::Timer;
use super::steps::Flight;
use super::{Effect, Event, SchedulerCore, Submission};
use crate::protocol::{FinishReason, GenerateError};
use crate::recovery::the_only;
use crate::{SequenceId, TokenId, cache};
use motet_sync::planted::{self, Bug};

/// What a scheduler that has failed leaves to the one that takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The epoch of the last work that was sent.
    pub epoch: u64,
    /// Messages that the cache has not answered yet.
    pub unanswered: usize,
    /// Work that the device has not answered yet.
    pub under_way: usize,
    /// Whether there is no device now.
    pub device_away: bool,
}

/// A sequence as its caller knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// What it was submitted as; of a fork, with all that it continues.
    pub submission: Submission,
    /// Its tokens so far.
    pub generated: Vec<TokenId>,
    /// Whether it has had a slot.
    pub started: bool,
    /// Whether it waits for its reader.
    pub paused: bool,
}

impl Event {
    /// The sequence that it is about, if it is about one and no other: whom to suspect when
    /// the scheduler panics at it.
    #[must_use]
    pub fn concerns(&self) -> Option<SequenceId> {
        match self {
            Self::Submit(submission) => Some(submission.sequence),
            Self::Fork(fork) => Some(fork.submission.sequence),
            Self::GoOn(history) => Some(history.submission.sequence),
            Self::Stop(sequence)
            | Self::Pause(sequence)
            | Self::Resume(sequence)
            | Self::Mask(sequence, _) => Some(*sequence),
            Self::Cache(Ok(said)) | Self::News(said) => {
                the_only(said.iter().map(cache::Effect::concerns))
            }
            Self::Cache(Err(_))
            | Self::Upkeep { .. }
            | Self::Outcome(_)
            | Self::Tick
            | Self::DeviceLost(_)
            | Self::DeviceFound
            | Self::CacheLost(_)
            | Self::TakeOver(_)
            | Self::Abort => None,
        }
    }
}

impl SchedulerCore {
    /// Takes over from a scheduler that has failed, before anything else happens.
    pub(super) fn take_over(&mut self, left: Leftover, effects: &mut Vec<Effect>) {
        self.epoch = left.epoch;
        self.asked = left.unanswered as u64;
        self.unanswered = left.unanswered;
        self.device_away = left.device_away;
        // Whose steps these were begins anew.
        let strays = (0..left.under_way).map(|_| Flight {
            members: Vec::new(),
            load: StepLoad::default(),
            takes: Duration::ZERO,
            ends_at: self.now,
            clearings: Vec::new(),
            epoch: left.epoch,
        });
        self.flights = VecDeque::from_iter(strays);
        self.reset(&[], "", u32::MAX, effects);
    }

    /// A sequence goes on from its history.
    pub(super) fn go_on(&mut self, history: History, effects: &mut Vec<Effect>) {
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
        let mut entry = Entry::new(submission, self.spec.context_tokens_max, self.now);
        entry.generated = generated;
        entry.started = started;
        entry.resumes = !entry.generated.is_empty();
        entry.restart();
        if started {
            // What it had was paid for.
            entry.charged_tokens = entry.tokens.len();
        }
        let key = self.entries.insert(entry);
        self.names.insert(sequence, key);
        if paused {
            // Before it could start, and others wait for what it computes.
            self.pause(sequence);
        }
        self.enqueue(key);
    }

    /// The device thread is gone, or was left behind. Who was in a step under way may be to
    /// blame, but so may the device: they are tried again with others once, then alone.
    pub(super) fn lose_device(&mut self, reason: &str, effects: &mut Vec<Effect>) {
        self.device_away = true;
        let flights = std::mem::take(&mut self.flights);
        self.is_in_doubt = false;
        let members = flights.iter().map(|flight| &flight.members);
        let mut blamed: Vec<EntryKey> = members
            .flat_map(|members| self.still_there(members))
            .collect();
        // One may be in both.
        blamed.sort_unstable();
        blamed.dedup();
        self.reset(&blamed, reason, 2, effects);
    }

    /// There is a device again, and it is empty.
    pub(super) fn find_device(&mut self, effects: &mut Vec<Effect>) {
        self.device_away = false;
        self.may_start = true;
        self.look(effects);
    }

    /// The cache has failed, and is empty. Whoever is known to be to blame fails, and is not
    /// named to it again.
    pub(super) fn lose_cache(
        &mut self,
        culprit: Option<(SequenceId, GenerateError)>,
        effects: &mut Vec<Effect>,
    ) {
        self.reset(&[], "", u32::MAX, effects);
        let culprit = culprit.and_then(|(name, error)| Some((*self.names.get(&name)?, error)));
        if let Some((key, error)) = culprit {
            self.fail(key, error, Over::Discard, effects);
        }
    }

    /// All that had state begins anew, on an empty device and an empty cache. Who of those
    /// to blame has been in so many failed steps in a row is tried alone from now on.
    pub(super) fn reset(
        &mut self,
        blamed: &[EntryKey],
        reason: &str,
        alone_after: u32,
        effects: &mut Vec<Effect>,
    ) {
        let has_state = |key: &EntryKey| !matches!(self.entries[*key].phase, Phase::Queued);
        let mut lost: Vec<EntryKey> = self.entries.keys().filter(has_state).collect();
        lost.sort_by_key(|key| self.entries[*key].sequence);
        self.epoch += 1;
        self.clears_device = true;
        self.edits.clear();
        self.clearings.clear();
        self.drawers.clear();
        self.looking = None;
        self.stale_answers = self.unanswered;
        if planted::errs(Bug::StaleAnswer) {
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

    /// What a sequence was submitted as, with all that it continues, if it is not over.
    #[must_use]
    pub fn submission(&self, sequence: SequenceId) -> Option<Submission> {
        if let Some(key) = self.names.get(&sequence) {
            return Some(self.entries[*key].submission());
        }
        let mut due = self.forks_due.iter().map(|fork| &fork.submission);
        due.find(|due| due.sequence == sequence).cloned()
    }
}
