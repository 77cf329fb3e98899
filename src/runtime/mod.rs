//! The surroundings of the actors: how workers run, and where a test may interfere.
//!
//! A worker serves a queue of jobs: the device, and the two copy workers. In every build
//! [`Threads`](threads::Threads) runs each on a thread, and interferes nowhere. Under
//! `--cfg motet_injected` the runtime is [`Injected`](injected::Injected) instead: a test may
//! then run an engine without threads, decide durations and failures, and make parts panic.
//! Nothing of that exists in a build without the cfg. Which of the two it is, is fixed for the
//! crate, so that no type of the public interface has a parameter for it.

pub(crate) mod clock;
#[cfg(motet_injected)]
pub(crate) mod injected;
mod threads;

use std::fmt;
use std::io;

use motet_core::scheduler::{self, Effect};
use motet_protocol::SequenceId;

#[cfg(motet_injected)]
pub(crate) use injected::{Injected as EngineRuntime, SimulatedWorker as RuntimeWorker};
#[cfg(not(motet_injected))]
pub(crate) use {Worker as RuntimeWorker, threads::Threads as EngineRuntime};

/// The queue of a worker's jobs.
pub(crate) type JobQueue<T> = <EngineRuntime as Runtime>::Queue<T>;

/// Runs the workers of one engine, and sees what its actors do. Clones are of the same engine.
///
/// Each method but the first has a default: nothing happens.
pub(crate) trait Runtime: Clone + fmt::Debug + Default + Send + Sync + 'static {
    /// The queue of a worker's jobs. Dropping it ends the worker.
    type Queue<T: Send + 'static>: Queue<T>;

    /// Starts a worker.
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    fn spawn<W: RuntimeWorker>(&self, worker: W) -> io::Result<Self::Queue<W::Job>>;

    /// Returns the capacity of a mailbox for which `mailbox_max` is planned.
    fn mailbox_max(&self, mailbox_max: usize) -> usize {
        mailbox_max
    }

    /// The mailbox of this part was full; the message is kept and sent later.
    fn on_full_mailbox(&self, _part: Part) {}

    /// The core of this part is about to handle a message.
    fn on_message(&self, _part: Part, _message: &dyn fmt::Debug) {}

    /// The scheduler's core is about to handle an event.
    fn on_scheduler_event(&self, _event: &scheduler::Event) {}

    /// The scheduler's core has handled that event, with these effects.
    fn on_scheduler_effects(&self, _effects: &[Effect]) {}

    /// A core has handled a message, and may check its integrity.
    fn check(&self, _check_integrity: impl FnOnce()) {}

    /// A part may panic here, at a message about this sequence, if any.
    fn fail_here(&self, _part: Part, _concerns: Option<SequenceId>) {}

    /// Whether a panic rebuilds an actor's core, from records that are kept for it. False only
    /// in measurements of these records: then a panic ends the actor.
    fn has_recovery(&self) -> bool {
        true
    }
}

/// The sender's end of a queue.
pub(crate) trait Queue<T>: fmt::Debug + Send + Sync {
    /// Queues a job. Returns false when the worker is gone.
    ///
    /// # Panics
    ///
    /// With the message `never_full` when the queue is full.
    #[must_use]
    fn enqueue(&self, job: T, never_full: &str) -> bool;
}

/// A worker: it serves its jobs until the queue's sender is dropped.
pub(crate) trait Worker: Send + 'static {
    /// A piece of its work.
    type Job: Send + 'static;
    /// The name of its thread.
    const NAME: &'static str;
    /// Most jobs that may be queued.
    const JOBS_MAX: usize;

    /// Serves the jobs, on a thread of its own.
    fn run(self, jobs: crossbeam_channel::Receiver<Self::Job>);
}

/// A part that handles messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The device.
    Device,
    /// The scheduler.
    Scheduler,
    /// The cache.
    Cache,
    /// The pager.
    Pager,
}
