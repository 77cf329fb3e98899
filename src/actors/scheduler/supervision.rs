//! What fails is made anew: the device thread, the cache, the scheduler's own core.
//!
//! The actor itself stays, with its mailbox and the ways to all sequences, so that nothing
//! which was sent to it is lost; whatever it knew beside that is thrown away. kameo's own
//! restart would make it forget the ways, and replay what is queued on a state that never
//! knew of it.

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

/// Whose fault a panic is.
#[derive(Debug, PartialEq, Eq)]
enum Blame {
    /// The core's own, as far as can be told.
    Unknown,
    /// Perhaps that of one sequence, which is tried again.
    Suspected,
    /// This sequence's, which fails.
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
    /// Feeds the core and carries out what follows. A panic of either costs the core.
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
        // Another core has seen nothing.
        let idle = self.core.stats().device_idle.saturating_sub(idle_before);
        self.telemetry.device_idle(idle);
    }

    /// When the device is given up if it has not answered.
    pub(super) fn device_deadline(&self) -> Option<tokio::time::Instant> {
        let Pulse::Working { since } = self.heartbeat.pulse() else {
            return None;
        };
        let at = since.checked_add(self.config.device_timeout)?;
        self.started_at.checked_add(at)
    }

    /// Time has passed.
    pub(super) fn on_clock(&mut self) {
        let now = tokio::time::Instant::now();
        match self.device_deadline() {
            Some(at) if at <= now => self.lose_device(Fault::DeviceStuck),
            _ => self.handle_event(Event::TimePassed),
        }
    }

    /// The device thread has died, or is left behind; another is started.
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

    /// The core has panicked: another takes its place.
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
            tracing::warn!("the scheduler has panicked: it is made anew");
            self.telemetry.rebuilt(Fault::Scheduler);
            let rebuilt = catch_unwind(AssertUnwindSafe(|| self.restore_sequences()));
            if rebuilt.is_ok() {
                return;
            }
        }
    }

    /// A core has panicked at something that is about this sequence alone, if about one. It is
    /// tried again, and is to fail when that has happened too often: such a panic is the
    /// sequence's fault rather than the core's, and the breaker does not hear of it. Who has
    /// left is not to blame, but for the last that was found to be.
    fn suspect(&mut self, sequence: Option<SequenceId>, fault: Fault) -> Blame {
        let handle =
            sequence.and_then(|sequence| Some((sequence, self.handles.get_mut(&sequence)?)));
        let Some((sequence, handle)) = handle else {
            return match sequence.is_some() && sequence == self.culprit {
                true => Blame::Suspected,
                false => Blame::Unknown,
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

    /// A fresh core is told of all sequences, as their callers know them.
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
            // Who asked may have gone; who has not asks again.
            pending.reply.send(Err(CacheError::Lost)).ok();
        }
        self.advance(Event::Rebuilt(predecessor));
        // Forks that are not known yet come last, when there is what they continue.
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
        // What was being handled when the core panicked may have been this.
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

    /// Notes what a fork begins with, which stands in the core from then on.
    pub(super) fn record_start(&mut self, sequence: SequenceId) {
        let submission = self.core.submission(sequence);
        if let (Some(handle), Some(submission)) = (self.handles.get_mut(&sequence), submission) {
            handle.start = Start::Submitted(submission);
        }
    }

    /// Everything ends, for good.
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
        // Whoever asked hears that nobody will answer.
        self.cache_commands.clear();
        self.fail_all_sequences();
    }

    /// Tells all who are inside that the engine is broken.
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
