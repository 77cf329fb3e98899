//! What fails is made anew: the device thread, the cache, the scheduler's own core.
//!
//! The actor itself stays, with its mailbox and the ways to all sequences, so that nothing
//! which was sent to it is lost; whatever it knew beside that is thrown away. kameo's own
//! restart would make it forget the ways, and replay what is queued on a state that never
//! knew of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::device::DeviceNews;
use super::link::{Link, Start};
use super::{Answer, Scheduler};
use crate::actors::sequence::News;
use motet_core::SequenceId;
use motet_core::cache::CacheError;
use motet_core::protocol::{GenerateError, Outcome};
use motet_core::recovery::{Fault, Verdict};
use motet_core::scheduler::{Event, Leftover, SchedulerCore};
use motet_sync::heartbeat::Pulse;

/// Whose fault a panic is.
#[derive(Debug, PartialEq, Eq)]
enum Blame {
    /// The core's own, as far as can be told.
    Nobody,
    /// Perhaps that of one sequence, which is tried again.
    Suspected,
    /// This sequence's, which fails.
    Found(SequenceId, GenerateError),
}

impl Blame {
    fn culprit(self) -> Option<(SequenceId, GenerateError)> {
        match self {
            Self::Found(sequence, error) => Some((sequence, error)),
            Self::Nobody | Self::Suspected => None,
        }
    }
}

impl Scheduler {
    /// Feeds the core and carries out what follows. A panic of either costs the core.
    pub(super) fn feed(&mut self, event: Event) {
        if self.breakdown.reason().is_some() {
            return self.turn_away();
        }
        if !self.keeps_books {
            return self.advance(event);
        }
        let fed = catch_unwind(AssertUnwindSafe(|| self.advance(event)));
        if fed.is_err() {
            self.rebuild();
        }
    }

    pub(super) fn on_answer(&mut self, answer: Answer) {
        self.telemetry.cache(answer.stats);
        if matches!(answer.result, Err(CacheError::Lost)) {
            let blame = self.suspect(answer.suspect, Fault::Cache);
            if blame == Blame::Nobody {
                let verdict = self.breaker.failed(self.born.elapsed(), Fault::Cache);
                if verdict == Verdict::GiveUp {
                    return self.give_up("the cache has panicked too often");
                }
            }
            self.telemetry.rebuilt(Fault::Cache);
            self.feed(Event::CacheLost(blame.culprit()));
        }
        if !answer.asked {
            self.feed(Event::News(answer.result.unwrap_or_default()));
            return;
        }
        self.asked -= 1;
        self.feed(Event::Cache(answer.result));
    }

    pub(super) fn on_device(&mut self, news: DeviceNews) {
        match news {
            DeviceNews::Outcome(outcome) => self.on_outcome(outcome),
            DeviceNews::Dead => self.lose_device(Fault::DeviceDead),
            DeviceNews::Due => self.device.load(std::time::Duration::ZERO),
            DeviceNews::Loaded(Ok(())) => {
                self.breaker.loaded();
                self.heartbeat.work_landed(self.born.elapsed(), 0);
                self.telemetry.device_alive(true);
                self.feed(Event::DeviceFound);
            }
            DeviceNews::Loaded(Err(error)) => {
                let reason = format!("the model cannot be loaded again: {error}");
                self.load_again(Fault::DeviceUnloadable, &reason);
            }
        }
    }

    fn on_outcome(&mut self, outcome: Outcome) {
        self.under_way -= 1;
        self.heartbeat
            .work_landed(self.born.elapsed(), self.under_way);
        self.telemetry.outcome(&outcome);
        self.note_landing(&outcome);
        let idle_before = self.core.stats().device_idle;
        self.feed(Event::Outcome(outcome));
        // Another core has seen nothing.
        let idle = self.core.stats().device_idle.saturating_sub(idle_before);
        self.telemetry.device_idle(idle);
    }

    /// When the device is given up if it has not answered.
    pub(super) fn patience_ends_at(&self) -> Option<tokio::time::Instant> {
        let Pulse::Working { since } = self.heartbeat.pulse() else {
            return None;
        };
        let at = since.checked_add(self.config.device_timeout)?;
        self.born.checked_add(at)
    }

    /// Time has passed.
    pub(super) fn on_clock(&mut self) {
        let now = tokio::time::Instant::now();
        match self.patience_ends_at() {
            Some(at) if at <= now => self.lose_device(Fault::DeviceStuck),
            _ => self.feed(Event::Tick),
        }
    }

    /// The device thread has died, or is left behind; another is started.
    fn lose_device(&mut self, fault: Fault) {
        let reason = match fault {
            Fault::DeviceStuck => "the device did not answer",
            _ => "the device thread died",
        };
        self.device.leave();
        self.under_way = 0;
        self.steps.forget();
        self.heartbeat.recovering(self.born.elapsed());
        self.telemetry.device_alive(false);
        self.feed(Event::DeviceLost(reason.into()));
        self.load_again(fault, reason);
    }

    fn load_again(&mut self, fault: Fault, reason: &str) {
        match self.breaker.failed(self.born.elapsed(), fault) {
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
                Blame::Nobody => {
                    let verdict = self.breaker.failed(self.born.elapsed(), Fault::Scheduler);
                    if verdict == Verdict::GiveUp {
                        return self.give_up("the scheduler has panicked too often");
                    }
                }
                Blame::Suspected => {}
                Blame::Found(culprit, error) => self.part(culprit, News::Failed(error)),
            }
            tracing::warn!("the scheduler has panicked: it is made anew");
            self.telemetry.rebuilt(Fault::Scheduler);
            let begun = catch_unwind(AssertUnwindSafe(|| self.start_over()));
            if begun.is_ok() {
                return;
            }
        }
    }

    /// A core has panicked at something that is about this sequence alone, if about one. It is
    /// tried again, and is to fail when that has happened too often: such a panic is the
    /// sequence's fault rather than the core's, and the breaker does not hear of it. Who has
    /// left is not to blame, but for the last that was found to be.
    fn suspect(&mut self, sequence: Option<SequenceId>, fault: Fault) -> Blame {
        let link = sequence.and_then(|sequence| Some((sequence, self.links.get_mut(&sequence)?)));
        let Some((sequence, link)) = link else {
            return match sequence.is_some() && sequence == self.culprit {
                true => Blame::Suspected,
                false => Blame::Nobody,
            };
        };
        link.suspected += 1;
        if link.suspected <= self.config.step_retries_max {
            return Blame::Suspected;
        }
        let error = GenerateError::Panicked {
            part: fault.label(),
            attempts: link.suspected,
        };
        tracing::warn!("{sequence} fails alone: {error}");
        self.culprit = Some(sequence);
        Blame::Found(sequence, error)
    }

    fn fresh_core(&self) -> SchedulerCore {
        SchedulerCore::new(self.spec.clone(), self.config.clone()).with_backups(self.backup_tokens)
    }

    /// A fresh core is told of all sequences, as their callers know them.
    fn start_over(&mut self) {
        let left = Leftover {
            epoch: self.epoch,
            unanswered: self.asked,
            under_way: self.under_way,
            device_away: !self.device.is_here(),
        };
        self.core = self.fresh_core();
        self.unasked.clear();
        for asking in std::mem::take(&mut self.upkeep).into_values() {
            // Who asked may have gone; who has not asks again.
            asking.reply.send(Err(CacheError::Lost)).ok();
        }
        self.advance(Event::TakeOver(left));
        // Forks that are not known yet come last, when there is what they continue.
        let is_fork = |link: &Link| matches!(link.start, Start::Forks(_));
        let all = self.links.iter();
        let mut sequences: Vec<(bool, SequenceId)> = all
            .map(|(sequence, link)| (is_fork(link), *sequence))
            .collect();
        sequences.sort_unstable();
        for (is_fork, sequence) in sequences {
            let event = self.links[&sequence].event(self.paused.contains(&sequence));
            self.advance(event);
            if is_fork {
                self.note_start(sequence);
            }
        }
        // What was being handled when the core panicked may have been this.
        let stopping = self.links.iter().filter(|(_, link)| link.stops);
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
    pub(super) fn note_start(&mut self, sequence: SequenceId) {
        let submission = self.core.submission(sequence);
        if let (Some(link), Some(submission)) = (self.links.get_mut(&sequence), submission) {
            link.start = Start::Submitted(submission);
        }
    }

    /// Everything ends, for good.
    pub(super) fn give_up(&mut self, reason: &str) {
        tracing::error!("{reason}: the engine is broken");
        self.breakdown.tell(reason);
        self.telemetry.broken();
        self.telemetry.device_alive(false);
        self.heartbeat.gone();
        self.device.leave();
        self.under_way = 0;
        self.steps.forget();
        self.core = self.fresh_core();
        self.telemetry.scheduler(self.core.stats());
        self.unasked.clear();
        // Whoever asked hears that nobody will answer.
        self.upkeep.clear();
        self.turn_away();
    }

    /// Tells all who are inside that the engine is broken.
    fn turn_away(&mut self) {
        let reason = self.breakdown.reason().unwrap_or_default().to_owned();
        let mut sequences: Vec<SequenceId> = self.links.keys().copied().collect();
        sequences.sort_unstable();
        for sequence in sequences {
            let error = GenerateError::Broken {
                reason: reason.clone(),
            };
            self.part(sequence, News::Failed(error));
        }
        self.upkeep.clear();
    }
}
