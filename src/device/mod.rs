//! The device thread: the one place where plans meet arrays.
//!
//! It owns the [`Model`] and every array that the model hands out, and keeps the
//! only table that turns ids into arrays. Work comes in over a bounded channel and
//! one outcome goes back for each; between the two nothing is awaited or locked.
//!
//! Two works may be under way. The second is launched while the device computes the
//! first, fed by tokens that the host has not seen yet; its own tokens are drawn when
//! the first has landed, so that draws know all that came before. The device has the
//! second's forward pass to compute meanwhile (SGLang's overlap schedule and vLLM's
//! asynchronous one do likewise).
//!
//! **Invariant.** What the thread holds is a function of the work it was sent:
//! edits are carried out in order, before the step that comes with them.

mod edit;
mod loader;
mod next_action;
mod sampling;
mod simulated;
mod table;
#[cfg(test)]
mod tests;
mod transfer_queue;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use loader::{Loader, Loading};
pub use table::Table;
pub(crate) use table::panic_text;
pub use transfer_queue::{
    DeviceEnd, Export, ExportQueue, HostEnd, ImportQueue, NextExport, transfer_queue,
};

use crate::failpoint::Failpoint;
use crate::simulation::{Simulation, WorkerSender};
use loader::DeviceFactory;
use motet_core::protocol::{ModelError, ModelSpec, Outcome, Work};
use motet_model::{DetachedState, Model};
use next_action::NextAction;

/// The shortest time after which the thread looks whether a flight is ready.
const POLL_INTERVAL_MIN: Duration = Duration::from_micros(20);
/// And at most.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(1);

/// The scheduler's end of the device thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Device {
    work: WorkerSender<Work>,
    /// Outcomes, in the order of the work.
    pub outcomes: mpsc::Receiver<Outcome>,
}

/// A device thread that runs, and a model on it.
#[expect(
    missing_debug_implementations,
    reason = "a packer need not say what it is"
)]
pub struct Started<M: Model> {
    /// The scheduler's end.
    pub device: Device,
    /// Starts another thread in this one's place, and says when the last one is gone.
    pub loader: Loader,
    /// What the model is.
    pub spec: ModelSpec,
    /// Packs what the model hands over.
    pub packer: M::Packer,
    /// The copy threads' end of the dock.
    pub host_end: HostEnd<DetachedState<M>>,
}

impl Device {
    /// Starts the thread and builds the model on it. `failpoint` lets a test have threads die.
    ///
    /// In a simulated house it is a task: what the model computes takes no time, and what
    /// its work takes, fate says.
    ///
    /// # Errors
    ///
    /// What `build` said, or that it panicked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the thread once the model is built.
    pub async fn start<M: Model>(
        build: impl Fn() -> Result<M, ModelError> + Send + Sync + 'static,
        failpoint: Failpoint,
        simulation: Option<Simulation>,
    ) -> Result<Started<M>, ModelError> {
        let (prototype, host_end) = transfer_queue();
        let device_factory = Arc::new(DeviceFactory {
            build,
            prototype,
            failpoint,
            simulation,
        });
        let (loading, model) = Loading::start(&device_factory, None);
        let (device, gone) = loading.wait().await?;
        let model = model.await;
        let (spec, packer) = model.expect("a model that is ready has said what it is");
        let loader = Loader::new(device_factory, spec.clone(), gone);
        Ok(Started {
            device,
            loader,
            spec,
            packer,
            host_end,
        })
    }

    /// Sends work; its outcome follows. False when the thread is gone.
    ///
    /// # Panics
    ///
    /// When more than [`WORK_IN_FLIGHT_MAX`] would be under way.
    #[must_use]
    pub fn send(&self, work: Work) -> bool {
        let never_full = "the scheduler sends no more work than may be under way";
        self.work.send(work, never_full)
    }
}

/// Serves the scheduler until that ends it.
fn serve<M: Model>(
    model: M,
    transfer_queue: DeviceEnd<DetachedState<M>>,
    work: Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
    failpoint: Failpoint,
) {
    let mut thread = DeviceThread {
        model,
        table: Table::with_transfer_queue(transfer_queue),
        work,
        outcomes,
        failpoint,
        clock: Clock::default(),
        may_receive: true,
    };
    while thread.run_next_action() {}
}

/// The device thread's belongings.
struct DeviceThread<M: Model> {
    model: M,
    table: Table<M>,
    work: Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
    failpoint: Failpoint,
    clock: Clock,
    /// Whether work may still come.
    may_receive: bool,
}

impl<M: Model> DeviceThread<M> {
    /// False when the thread is to end.
    fn run_next_action(&mut self) -> bool {
        match self.table.next_action(self.may_receive) {
            NextAction::End => return false,
            NextAction::Receive => match self.work.recv() {
                Ok(work) => self.submit(work),
                Err(_) => self.may_receive = false,
            },
            NextAction::ReceiveOrFinish => match self.receive_until_ready() {
                Some(work) => self.submit(work),
                None => return self.finish(),
            },
            NextAction::Sample => self.table.sample(&mut self.model),
            NextAction::Finish => return self.finish(),
        }
        true
    }

    /// The next work, unless the oldest flight is ready first. Looks at the flight less
    /// and less often: it is noticed late by no more than an eighth of its time, and
    /// [`POLL_INTERVAL_MAX`].
    fn receive_until_ready(&mut self) -> Option<Work> {
        let started_at = Instant::now();
        loop {
            let timeout = match self.table.is_ready(&self.model) {
                true => Duration::ZERO,
                false => (started_at.elapsed() / 8).clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX),
            };
            match self.work.recv_timeout(timeout) {
                Ok(work) => return Some(work),
                Err(RecvTimeoutError::Timeout) if timeout.is_zero() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.may_receive = false;
                    return None;
                }
            }
        }
    }

    fn submit(&mut self, work: Work) {
        // A launch may wait for the device to take all of it, which then works already.
        self.clock.on_submit(self.table.in_flight());
        self.table.submit(&mut self.model, work);
    }

    fn finish(&mut self) -> bool {
        let outcome = self.clock.outcome(&mut self.table, &mut self.model);
        self.failpoint.trip(None);
        self.outcomes.try_send(outcome).is_ok()
    }
}

/// Tells the time that the device works from the time that it has nothing to do.
#[derive(Debug, Default)]
struct Clock {
    /// Since when it works on what lands next; meaningless while nothing is under way.
    since: Option<Instant>,
    /// The gap before what lands next.
    gap: Duration,
    last_finished_at: Option<Instant>,
}

impl Clock {
    /// Work is launched while so many are under way.
    fn on_submit(&mut self, in_flight: usize) {
        if in_flight == 0 {
            let now = Instant::now();
            self.gap = self
                .last_finished_at
                .map_or(Duration::ZERO, |last_finished_at| now - last_finished_at);
            self.since = Some(now);
        }
    }

    /// Waits for the oldest work.
    fn outcome<M: Model>(&mut self, table: &mut Table<M>, model: &mut M) -> Outcome {
        let result = table.finish(model);
        let (busy, gap) = self.on_finish();
        Outcome {
            result,
            busy,
            gap,
            memory: model.memory(),
            lost: table.take_lost(),
        }
    }

    /// How long what landed took, and the gap before it.
    fn on_finish(&mut self) -> (Duration, Duration) {
        let now = Instant::now();
        let since = self.since.replace(now).unwrap_or(now);
        self.last_finished_at = Some(now);
        (now - since, std::mem::take(&mut self.gap))
    }
}
