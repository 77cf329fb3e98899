//! The runtime of tests: threads or a [simulation], and failpoints.

pub mod failpoint;
pub mod simulation;

use std::fmt;
use std::future::Future;
use std::io;

use crossbeam_channel::Sender;
use tokio::sync::mpsc;

use super::threads::Threads;
use super::{Part, Queue, Runtime, RuntimeWorker, Worker};
use failpoint::Failpoints;
use motet_core::scheduler::{Effect, Event};
use motet_protocol::SequenceId;
use simulation::Simulation;

/// An engine in which a test interferes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Injected {
    /// The simulation that the engine runs in, if any: then tasks replace the threads.
    pub(crate) simulation: Option<Simulation>,
    pub(crate) failpoints: Failpoints,
    pub(crate) has_no_recovery: bool,
}

/// A worker that a simulation can run.
pub(crate) trait SimulatedWorker: Worker {
    /// Serves the jobs, as a task.
    fn simulate(
        self,
        jobs: mpsc::Receiver<Self::Job>,
        simulation: Simulation,
    ) -> impl Future<Output = ()>;
}

/// The queue of a thread, or of the task that replaces it.
pub(crate) enum InjectedQueue<T> {
    Thread(Sender<T>),
    Task(mpsc::Sender<T>),
}

impl Runtime for Injected {
    type Queue<T: Send + 'static> = InjectedQueue<T>;

    fn spawn<W: RuntimeWorker>(&self, worker: W) -> io::Result<InjectedQueue<W::Job>> {
        let Some(simulation) = self.simulation.clone() else {
            return Threads::default().spawn(worker).map(InjectedQueue::Thread);
        };
        let (queue, jobs) = mpsc::channel(W::JOBS_MAX);
        let inside = simulation.clone();
        simulation.spawn(move || worker.simulate(jobs, inside));
        Ok(InjectedQueue::Task(queue))
    }

    fn mailbox_max(&self, mailbox_max: usize) -> usize {
        let simulation = self.simulation.as_ref();
        let fewer = simulation.and_then(|simulation| simulation.fault_schedule.mailbox_max());
        fewer.unwrap_or(mailbox_max)
    }

    fn on_full_mailbox(&self, part: Part) {
        if let Some(simulation) = &self.simulation {
            simulation.fault_schedule.full(part.label());
        }
    }

    fn on_message(&self, part: Part, message: &dyn fmt::Debug) {
        if let Some(simulation) = &self.simulation {
            simulation.fault_schedule.message(part.label(), message);
        }
    }

    fn on_scheduler_event(&self, event: &Event) {
        if let Some(simulation) = &self.simulation {
            simulation.fault_schedule.scheduler_event(event);
        }
    }

    fn on_scheduler_effects(&self, effects: &[Effect]) {
        if let Some(simulation) = &self.simulation {
            simulation.fault_schedule.scheduler_effects(effects);
        }
    }

    fn check(&self, check_integrity: impl FnOnce()) {
        if self.simulation.is_some() {
            check_integrity();
        }
    }

    fn fail_here(&self, part: Part, concerns: Option<SequenceId>) {
        let failpoint = match part {
            Part::Device => &self.failpoints.device,
            Part::Scheduler => &self.failpoints.scheduler,
            Part::Cache => &self.failpoints.cache,
            Part::Pager => &self.failpoints.pager,
        };
        failpoint.trip(concerns);
    }

    fn has_recovery(&self) -> bool {
        !self.has_no_recovery
    }
}

impl Part {
    fn label(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Scheduler => "scheduler",
            Self::Cache => "cache",
            Self::Pager => "pager",
        }
    }
}

impl<T> fmt::Debug for InjectedQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InjectedQueue")
    }
}

impl<T: Send> Queue<T> for InjectedQueue<T> {
    fn enqueue(&self, job: T, never_full: &str) -> bool {
        match self {
            Self::Thread(queue) => queue.enqueue(job, never_full),
            Self::Task(queue) => {
                let sent = queue.try_send(job);
                let is_full = matches!(sent, Err(mpsc::error::TrySendError::Full(_)));
                assert!(!is_full, "{never_full}");
                sent.is_ok()
            }
        }
    }
}
