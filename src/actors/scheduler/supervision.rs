//! Supervision: failed parts are rebuilt, namely the device thread, the cache and the
//! scheduler's own core.
//!
//! The actor itself stays, with its mailbox and the handles of all sequences, so that no
//! message is lost; all other state is discarded. kameo's own restart would drop the handles,
//! and would replay the mailbox on a state without them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::device_handle::DeviceEvent;
use super::sequence_handle::{SequenceHandle, Start};
use super::{CacheAnswer, Scheduler};
use crate::actors::sequence::SequenceEvent;
use motet_core::SequenceId;
use motet_core::cache::CacheError;
use motet_core::protocol::{GenerateError, Outcome};
use motet_core::recovery::{Fault, Verdict};
use motet_core::scheduler::{Event, Predecessor, SchedulerCore};
use motet_sync::heartbeat::Pulse;

/// The likely cause of a panic.
#[derive(Debug, PartialEq, Eq)]
enum Blame {
    /// The core itself, as far as known.
    Unknown,
    /// Perhaps one sequence, which is retried.
    Suspected,
    /// This sequence, which fails.
    Identified(SequenceId, GenerateError),
}

impl Blame {
    fn culprit(self) -> Option<(SequenceId, GenerateError)> {
        match self {
            Self::Identified(sequence, error) => Some((sequence, error)),
            Self::Unknown | Self::Suspected => None,
        }
    }
}

impl Scheduler {
    /// Passes an event to the core and applies its effects. A panic in either discards the
    /// core.
    pub(super) fn handle_event(&mut self, event: Event) {
        if self.breakdown.reason().is_some() {
            return self.fail_all_sequences();
        }
        if !self.has_recovery {
            return self.advance(event);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| self.advance(event)));
        if outcome.is_err() {
            self.rebuild();
        }
    }

    pub(super) fn on_answer(&mut self, answer: CacheAnswer) {
        self.telemetry.cache(answer.stats);
        if matches!(answer.result, Err(CacheError::Lost)) {
            let blame = self.suspect(answer.suspect, Fault::Cache);
            if blame == Blame::Unknown {
                let verdict = self.breaker.failed(self.started_at.elapsed(), Fault::Cache);
                if verdict == Verdict::GiveUp {
                    return self.give_up("the cache has panicked too often");
                }
            }
            self.telemetry.rebuilt(Fault::Cache);
            self.handle_event(Event::CacheLost(blame.culprit()));
        }
        if !answer.is_reply {
            self.handle_event(Event::CacheEffects(answer.result.unwrap_or_default()));
            return;
        }
        self.pending_answers -= 1;
        self.handle_event(Event::Cache(answer.result));
    }

    pub(super) fn on_device(&mut self, device_event: DeviceEvent) {
        match device_event {
            DeviceEvent::Outcome(outcome) => self.on_outcome(outcome),
            DeviceEvent::Dead => self.lose_device(Fault::DeviceDead),
            DeviceEvent::ReloadDue => self.device.load(std::time::Duration::ZERO),
            DeviceEvent::Loaded(Ok(())) => {
                self.breaker.loaded();
                self.heartbeat.work_finished(self.started_at.elapsed(), 0);
                self.telemetry.device_alive(true);
                self.handle_event(Event::DeviceFound);
            }
            DeviceEvent::Loaded(Err(error)) => {
                let reason = format!("the model cannot be loaded again: {error}");
                self.reload(Fault::DeviceUnloadable, &reason);
            }
        }
    }

    fn on_outcome(&mut self, outcome: Outcome) {
        self.in_flight -= 1;
        self.heartbeat
            .work_finished(self.started_at.elapsed(), self.in_flight);
        self.telemetry.outcome(&outcome);
        self.record_finish(&outcome);
        let idle_before = self.core.stats().device_idle;
        self.handle_event(Event::Outcome(outcome));
        // A rebuilt core counts idle time from zero.
        let idle = self.core.stats().device_idle.saturating_sub(idle_before);
        self.telemetry.device_idle(idle);
    }

    /// Returns when an unanswered device is given up.
    pub(super) fn device_deadline(&self) -> Option<tokio::time::Instant> {
        let Pulse::Working { since } = self.heartbeat.pulse() else {
            return None;
        };
        let at = since.checked_add(self.config.device_timeout)?;
        self.started_at.checked_add(at)
    }

    /// Handles a timer: a device that did not answer in time, or the core's own timers.
    pub(super) fn on_clock(&mut self) {
        let now = tokio::time::Instant::now();
        match self.device_deadline() {
            Some(at) if at <= now => self.lose_device(Fault::DeviceStuck),
            _ => self.handle_event(Event::TimePassed),
        }
    }

    /// Abandons a device thread that has died or does not answer, and starts another.
    fn lose_device(&mut self, fault: Fault) {
        let reason = match fault {
            Fault::DeviceStuck => "the device did not answer",
            _ => "the device thread died",
        };
        self.device.abandon();
        self.in_flight = 0;
        self.steps.forget();
        self.heartbeat.recovering(self.started_at.elapsed());
        self.telemetry.device_alive(false);
        self.handle_event(Event::DeviceLost(reason.into()));
        self.reload(fault, reason);
    }

    fn reload(&mut self, fault: Fault, reason: &str) {
        match self.breaker.failed(self.started_at.elapsed(), fault) {
            Verdict::GiveUp => self.give_up(reason),
            Verdict::Rebuild { after } => {
                tracing::warn!("{reason}: the model is loaded again in {after:?}");
                self.telemetry.rebuilt(fault);
                self.device.load(after);
            }
        }
    }

    /// Rebuilds the core after a panic.
    pub(super) fn rebuild(&mut self) {
        loop {
            let at = self.at.take();
            match self.suspect(at, Fault::Scheduler) {
                Blame::Unknown => {
                    let verdict = self
                        .breaker
                        .failed(self.started_at.elapsed(), Fault::Scheduler);
                    if verdict == Verdict::GiveUp {
                        return self.give_up("the scheduler has panicked too often");
                    }
                }
                Blame::Suspected => {}
                Blame::Identified(culprit, error) => {
                    self.end_sequence(culprit, SequenceEvent::Failed(error))
                }
            }
            tracing::warn!("the scheduler has panicked: it is rebuilt");
            self.telemetry.rebuilt(Fault::Scheduler);
            let rebuilt = catch_unwind(AssertUnwindSafe(|| self.restore_sequences()));
            if rebuilt.is_ok() {
                return;
            }
        }
    }

    /// Decides the blame for a panic at an event about one sequence. The sequence is retried,
    /// and fails after too many such panics: they are the sequence's fault rather than the
    /// core's, and the breaker does not count them. A sequence that has already ended is not
    /// blamed, unless it is the most recent culprit.
    fn suspect(&mut self, sequence: Option<SequenceId>, fault: Fault) -> Blame {
        let handle =
            sequence.and_then(|sequence| Some((sequence, self.handles.get_mut(&sequence)?)));
        let Some((sequence, handle)) = handle else {
            return if sequence.is_some() && sequence == self.culprit {
                Blame::Suspected
            } else {
                Blame::Unknown
            };
        };
        handle.panics_blamed += 1;
        if handle.panics_blamed <= self.config.step_retries_max {
            return Blame::Suspected;
        }
        let error = GenerateError::Panicked {
            part: fault.label(),
            attempts: handle.panics_blamed,
        };
        tracing::warn!("{sequence} fails alone: {error}");
        self.culprit = Some(sequence);
        Blame::Identified(sequence, error)
    }

    fn new_core(&self) -> SchedulerCore {
        SchedulerCore::new(self.spec.clone(), self.config.clone()).with_backups(self.backup_tokens)
    }

    /// Creates a new core and restores all sequences to it, as far as their callers know them.
    fn restore_sequences(&mut self) {
        let predecessor = Predecessor {
            epoch: self.epoch,
            pending_answers: self.pending_answers,
            in_flight: self.in_flight,
            device_away: !self.device.is_running(),
        };
        self.core = self.new_core();
        self.cache_outbox.clear();
        for pending in std::mem::take(&mut self.cache_commands).into_values() {
            // The caller may have gone; if not, it tries again.
            pending.reply.send(Err(CacheError::Lost)).ok();
        }
        self.advance(Event::Rebuilt(predecessor));
        // Forks that have not started come last, after the sequences that they continue.
        let is_fork = |handle: &SequenceHandle| matches!(handle.start, Start::Forked(_));
        let all = self.handles.iter();
        let mut sequences: Vec<(bool, SequenceId)> = all
            .map(|(sequence, handle)| (is_fork(handle), *sequence))
            .collect();
        sequences.sort_unstable();
        for (is_fork, sequence) in sequences {
            let event = self.handles[&sequence].restore_event(self.paused.contains(&sequence));
            self.advance(event);
            if is_fork {
                self.record_start(sequence);
            }
        }
        // The event that the core panicked at may have been a stop.
        let stopping = self.handles.iter().filter(|(_, handle)| handle.is_stopping);
        let mut stopping: Vec<SequenceId> = stopping.map(|(sequence, _)| *sequence).collect();
        stopping.sort_unstable();
        for sequence in stopping {
            self.advance(Event::Stop(sequence));
        }
        if self.is_aborted {
            self.advance(Event::Abort);
        }
    }

    /// Records the tokens that a fork starts with, which the core knows from then on.
    pub(super) fn record_start(&mut self, sequence: SequenceId) {
        let submission = self.core.submission(sequence);
        if let (Some(handle), Some(submission)) = (self.handles.get_mut(&sequence), submission) {
            handle.start = Start::Submitted(submission);
        }
    }

    /// Ends everything, for good.
    pub(super) fn give_up(&mut self, reason: &str) {
        tracing::error!("{reason}: the engine is broken");
        self.breakdown.report(reason);
        self.telemetry.broken();
        self.telemetry.device_alive(false);
        self.heartbeat.gone();
        self.device.abandon();
        self.in_flight = 0;
        self.steps.forget();
        self.core = self.new_core();
        self.telemetry.scheduler(self.core.stats());
        self.cache_outbox.clear();
        // Waiting callers see their channel closed.
        self.cache_commands.clear();
        self.fail_all_sequences();
    }

    /// Fails all sequences: the engine is broken.
    fn fail_all_sequences(&mut self) {
        let reason = self.breakdown.reason().unwrap_or_default().to_owned();
        let mut sequences: Vec<SequenceId> = self.handles.keys().copied().collect();
        sequences.sort_unstable();
        for sequence in sequences {
            let error = GenerateError::Broken {
                reason: reason.clone(),
            };
            self.end_sequence(sequence, SequenceEvent::Failed(error));
        }
        self.cache_commands.clear();
    }
}
