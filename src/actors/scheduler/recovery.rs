//! Failed parts are rebuilt, namely the device thread, the cache and the scheduler's own core, or
//! the engine gives up.
//!
//! The actor itself stays, with its mailbox and the handles of all sequences, so that no
//! message is lost; all other state is discarded. kameo's own restart would drop the handles,
//! and would replay the mailbox on a state without them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Scheduler;
use super::supervision::Blame;
use crate::actors::sequence::SequenceEvent;
use motet_core::recovery::{Fault, Verdict};
use motet_core::scheduler::Event;
use motet_protocol::GenerateError;
use motet_protocol::SequenceId;

impl Scheduler {
    /// Abandons a device thread that has died or does not answer, and starts another.
    pub(super) fn lose_device(&mut self, fault: Fault) {
        let reason = match fault {
            Fault::DeviceStuck => "the device did not answer",
            _ => "the device thread died",
        };
        self.device.abandon(self.now());
        self.steps.forget();
        self.telemetry.device_alive(false);
        self.handle_event(Event::DeviceLost(reason.into()));
        self.reload(fault, reason);
    }

    /// Loads the model again, on another device thread.
    pub(super) fn reload(&mut self, fault: Fault, reason: &str) {
        match self.supervision.failed(self.now(), fault) {
            Verdict::GiveUp => self.give_up(reason),
            Verdict::Rebuild { after } => {
                tracing::warn!("{reason}: the model is loaded again in {after:?}");
                self.telemetry.rebuilt(fault);
                self.device.load(after);
            }
        }
    }

    /// The cache has panicked at a message about this sequence, if any, and is empty now.
    pub(super) fn lose_cache(&mut self, suspect: Option<SequenceId>) {
        let blame = self.suspect(suspect, Fault::Cache);
        if blame == Blame::Unknown
            && self.supervision.failed(self.now(), Fault::Cache) == Verdict::GiveUp
        {
            return self.give_up("the cache has panicked too often");
        }
        self.telemetry.rebuilt(Fault::Cache);
        self.handle_event(Event::CacheLost(blame.culprit()));
    }

    /// Rebuilds the core after a panic.
    pub(super) fn rebuild(&mut self) {
        loop {
            let suspect = self.core.take_suspect();
            match self.suspect(suspect, Fault::Scheduler) {
                Blame::Unknown => {
                    if self.supervision.failed(self.now(), Fault::Scheduler) == Verdict::GiveUp {
                        return self.give_up("the scheduler has panicked too often");
                    }
                }
                Blame::Suspected => {}
                Blame::Identified(culprit, error) => {
                    self.sequences.end(culprit, SequenceEvent::Failed(error));
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

    fn suspect(&mut self, sequence: Option<SequenceId>, fault: Fault) -> Blame {
        let panics_blamed = sequence.and_then(|sequence| self.sequences.blame(sequence));
        self.supervision.suspect(sequence, panics_blamed, fault)
    }

    /// Creates a new core and restores all sequences to it, as far as their callers know them.
    fn restore_sequences(&mut self) {
        let predecessor = self.device.predecessor(self.cache.pending_answers());
        self.core.discard();
        self.cache.forget_queued();
        self.cache_commands.fail_all();
        self.advance(Event::Rebuilt(predecessor));
        for (is_fork, sequence) in self.sequences.to_restore() {
            self.advance(self.sequences.restore_event(sequence));
            if is_fork {
                self.record_start(sequence);
            }
        }
        // The event that the core panicked at may have been a stop.
        for sequence in self.sequences.stopping() {
            self.advance(Event::Stop(sequence));
        }
        if let Some(how) = self.aborted {
            self.advance(how.event());
        }
    }

    /// Records the tokens that a fork starts with, which the core knows from then on.
    pub(super) fn record_start(&mut self, sequence: SequenceId) {
        if let Some(submission) = self.core.get().submission(sequence) {
            self.sequences.fork_started(sequence, submission);
        }
    }

    /// Ends everything, for good.
    pub(super) fn give_up(&mut self, reason: &str) {
        self.supervision.break_down(reason);
        self.telemetry.broken();
        self.telemetry.device_alive(false);
        self.device.give_up();
        self.steps.forget();
        self.core.discard();
        self.telemetry.scheduler(self.core.get().stats());
        self.cache.forget_queued();
        self.cache_commands.drop_all();
        self.fail_all_sequences();
    }

    /// Fails all sequences: the engine is broken.
    pub(super) fn fail_all_sequences(&mut self) {
        let reason = self.supervision.reason();
        self.sequences.end_all(|| {
            SequenceEvent::Failed(GenerateError::Broken {
                reason: reason.to_owned(),
            })
        });
        self.cache_commands.drop_all();
    }
}
