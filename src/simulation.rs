//! The house without threads, for simulations.
//!
//! Everything in a simulated house is a task of one tokio runtime that has one thread and
//! a paused clock, so that a history follows from its seed alone (as in FoundationDB's
//! simulation, Zhou et al., SIGMOD 2021, and TigerBeetle's). The device and what copies are
//! tasks of a [`LocalSet`](tokio::task::LocalSet) that answer when the time has come which
//! a [`Fate`] sets; all else is what the product runs. The cores check their integrity
//! after each message.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use motet_core::pager::Job;
use motet_core::protocol::Work;
use motet_core::scheduler::{Effect, Event};

/// Tasks that may wait to be started: more than one engine has.
const TASKS_MAX: usize = 16;

/// Decides what threads would leave to chance.
pub trait Fate: Send + Sync {
    /// How long the device takes for this work, from its launch or the end of the work
    /// before it. Called when it is launched.
    fn work(&self, work: &Work) -> Duration;

    /// What becomes of this copy. Called when it begins.
    fn copy(&self, job: &Job) -> CopyFate;

    /// Messages that the mailboxes of scheduler and pager hold, if that is to be fewer than
    /// they do.
    fn mailbox_max(&self) -> Option<usize> {
        None
    }

    /// A mailbox had no room for a message, which is kept for later.
    fn full(&self, _mailbox: &'static str) {}

    /// A core is about to take in this message.
    fn message(&self, core: &'static str, message: &dyn fmt::Debug);

    /// The scheduler's core is about to take in this event.
    fn scheduler_event(&self, _event: &Event) {}

    /// This is what followed from it, in order.
    fn scheduler_effects(&self, _effects: &[Effect]) {}
}

/// What becomes of one copy between tiers.
#[derive(Clone, Debug, Default)]
pub struct CopyFate {
    /// How long it takes.
    pub takes: Duration,
    /// Why it fails, if it does. Then nothing is copied.
    pub fails: Option<String>,
}

type Start = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A house without threads. Clones are the same one; each engine has its own.
#[derive(Clone)]
pub struct Simulation {
    pub(crate) fate: Arc<dyn Fate>,
    starts: mpsc::Sender<Start>,
    /// Rung when the device has done something: it may have handed something over.
    pub(crate) handed_over: Arc<Notify>,
}

impl Simulation {
    /// A house in which this fate rules.
    ///
    /// # Panics
    ///
    /// Outside a [`LocalSet`](tokio::task::LocalSet).
    #[must_use]
    pub fn new(fate: Arc<dyn Fate>) -> Self {
        let (starts, mut started) = mpsc::channel::<Start>(TASKS_MAX);
        tokio::task::spawn_local(async move {
            while let Some(start) = started.recv().await {
                tokio::task::spawn_local(start());
            }
        });
        Self {
            fate,
            starts,
            handed_over: Arc::default(),
        }
    }

    /// What a mailbox holds, which would be `mailbox_max`.
    pub(crate) fn mailbox_max(simulation: Option<&Self>, mailbox_max: usize) -> usize {
        let fewer = simulation.and_then(|simulation| simulation.fate.mailbox_max());
        fewer.unwrap_or(mailbox_max)
    }

    /// Starts what would be a thread. Any task may ask for it.
    pub(crate) fn spawn<F>(&self, start: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let start: Start = Box::new(move || Box::pin(start()));
        let sent = self.starts.try_send(start);
        assert!(sent.is_ok(), "few tasks stand for threads");
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
}

/// The way to a thread, or to the task that stands for it.
#[derive(Debug)]
pub(crate) enum Way<T> {
    Thread(crossbeam_channel::Sender<T>),
    Task(mpsc::Sender<T>),
}

impl<T> Way<T> {
    /// False when nobody is there.
    ///
    /// # Panics
    ///
    /// When it is full, for this reason.
    #[must_use]
    pub(crate) fn send(&self, message: T, never_full: &str) -> bool {
        let (sent, full) = match self {
            Self::Thread(way) => {
                let sent = way.try_send(message);
                (sent.is_ok(), sent.is_err_and(|error| error.is_full()))
            }
            Self::Task(way) => {
                let sent = way.try_send(message);
                let full = matches!(sent, Err(mpsc::error::TrySendError::Full(_)));
                (sent.is_ok(), full)
            }
        };
        assert!(!full, "{never_full}");
        sent
    }
}
