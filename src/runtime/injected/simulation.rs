//! An engine without threads, for simulations.
//!
//! Every part of a simulated engine is a task of one single-threaded tokio runtime with a
//! paused clock, so that a history follows from its seed alone (as in FoundationDB's
//! simulation, Zhou et al., SIGMOD 2021, and TigerBeetle's). The device and the copy workers
//! are tasks of a [`LocalSet`](tokio::task::LocalSet) that answer at times set by a
//! [`FaultSchedule`]; all other code is the product's. The cores check their integrity after
//! each message.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use motet_core::pager::Job;
use motet_core::scheduler::{Effect, Event};
use motet_protocol::Work;

/// Most tasks that may wait to be started: more than one engine has.
const TASKS_MAX: usize = 16;

/// Decides what would be left to chance with threads: durations, failures and mailbox sizes.
pub trait FaultSchedule: Send + Sync {
    /// Returns how long the device takes for this work, counted from its submission or from the
    /// end of the previous work. Called at submission.
    fn work(&self, work: &Work) -> Duration;

    /// Returns the duration and the result of this copy. Called when the copy starts.
    fn copy(&self, job: &Job) -> ScheduledCopy;

    /// Returns the capacity of the scheduler's and the pager's mailboxes, if it is to be lower
    /// than the default.
    fn mailbox_max(&self) -> Option<usize> {
        None
    }

    /// Records that a mailbox was full; the message is kept and sent later.
    fn full(&self, _mailbox: &'static str) {}

    /// Records a message that a core is about to handle.
    fn message(&self, core: &'static str, message: &dyn fmt::Debug);

    /// Records an event that the scheduler's core is about to handle.
    fn scheduler_event(&self, _event: &Event) {}

    /// Records the effects of that event, in order.
    fn scheduler_effects(&self, _effects: &[Effect]) {}
}

/// Duration and result of one copy between tiers.
#[derive(Clone, Debug, Default)]
pub struct ScheduledCopy {
    /// How long the copy takes.
    pub takes: Duration,
    /// Why the copy fails, if it does. Then nothing is copied.
    pub fails: Option<String>,
}

type Start = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// An engine without threads. Clones share one simulation; each engine has its own.
#[derive(Clone)]
pub struct Simulation {
    pub(crate) fault_schedule: Arc<dyn FaultSchedule>,
    starts: mpsc::Sender<Start>,
    /// Notified after each piece of the device's work, which may have exported state.
    pub(crate) exported: Arc<Notify>,
}

impl Simulation {
    /// Creates a simulation that follows this fault schedule.
    ///
    /// # Panics
    ///
    /// Outside a [`LocalSet`](tokio::task::LocalSet).
    #[must_use]
    pub fn new(fault_schedule: Arc<dyn FaultSchedule>) -> Self {
        let (starts, mut started) = mpsc::channel::<Start>(TASKS_MAX);
        tokio::task::spawn_local(async move {
            while let Some(start) = started.recv().await {
                tokio::task::spawn_local(start());
            }
        });
        Self {
            fault_schedule,
            starts,
            exported: Arc::default(),
        }
    }

    /// Starts a task in place of a thread. May be called from any task.
    pub(crate) fn spawn<F>(&self, start: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let start: Start = Box::new(move || Box::pin(start()));
        let sent = self.starts.try_send(start);
        assert!(sent.is_ok(), "at most `TASKS_MAX` tasks wait to be started");
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
}
