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

mod dock;
mod draws;
mod edit;
mod loader;
mod simulated;
mod table;
#[cfg(test)]
mod tests;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use dock::{Arrived, Dock, ExportQueue, Leaving, NextExport, Quay, dock};
pub use loader::{Loader, Loading};
pub use table::Table;
pub(crate) use table::panic_text;

use crate::fuse::Fuse;
use crate::simulation::{Simulation, Way};
use loader::Maker;
use motet_core::protocol::{ModelError, ModelSpec, Outcome, Work};
use motet_model::{Model, Parcel};
use turn::Turn;

/// The shortest time after which the thread looks whether a flight is ready.
const WATCH_MIN: Duration = Duration::from_micros(20);
/// And at most.
const WATCH_MAX: Duration = Duration::from_millis(1);

/// The scheduler's end of the device thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Device {
    work: Way<Work>,
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
    pub quay: Quay<Parcel<M>>,
}

impl Device {
    /// Starts the thread and builds the model on it. `fuse` lets a test have threads die.
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
        fuse: Fuse,
        simulation: Option<Simulation>,
    ) -> Result<Started<M>, ModelError> {
        let (prototype, quay) = dock();
        let maker = Arc::new(Maker {
            build,
            prototype,
            fuse,
            simulation,
        });
        let (loading, model) = Loading::start(&maker, None);
        let (device, gone) = loading.wait().await?;
        let model = model.await;
        let (spec, packer) = model.expect("a model that is ready has said what it is");
        let loader = Loader::new(maker, spec.clone(), gone);
        Ok(Started {
            device,
            loader,
            spec,
            packer,
            quay,
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
    dock: Dock<Parcel<M>>,
    work: Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
    fuse: Fuse,
) {
    let mut thread = DeviceThread {
        model,
        table: Table::with_dock(dock),
        work,
        outcomes,
        fuse,
        clock: Clock::default(),
        more: true,
    };
    while thread.take_turn() {}
}

/// The device thread's belongings.
struct DeviceThread<M: Model> {
    model: M,
    table: Table<M>,
    work: Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
    fuse: Fuse,
    clock: Clock,
    /// Whether work may still come.
    more: bool,
}

impl<M: Model> DeviceThread<M> {
    /// False when the thread is to end.
    fn take_turn(&mut self) -> bool {
        match self.table.turn(self.more) {
            Turn::End => return false,
            Turn::Receive => match self.work.recv() {
                Ok(work) => self.launch(work),
                Err(_) => self.more = false,
            },
            Turn::Watch => match self.watch() {
                Some(work) => self.launch(work),
                None => return self.land(),
            },
            Turn::Draw => self.table.draw(&mut self.model),
            Turn::Land => return self.land(),
        }
        true
    }

    /// The next work, unless the oldest flight is ready first. Looks at the flight less
    /// and less often: it is noticed late by no more than an eighth of its time, and
    /// [`WATCH_MAX`].
    fn watch(&mut self) -> Option<Work> {
        let begun = Instant::now();
        loop {
            let patience = match self.table.is_ready(&self.model) {
                true => Duration::ZERO,
                false => (begun.elapsed() / 8).clamp(WATCH_MIN, WATCH_MAX),
            };
            match self.work.recv_timeout(patience) {
                Ok(work) => return Some(work),
                Err(RecvTimeoutError::Timeout) if patience.is_zero() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.more = false;
                    return None;
                }
            }
        }
    }

    fn launch(&mut self, work: Work) {
        // A launch may wait for the device to take all of it, which then works already.
        self.clock.launching(self.table.under_way());
        self.table.launch(&mut self.model, work);
    }

    fn land(&mut self) -> bool {
        let outcome = self.clock.outcome(&mut self.table, &mut self.model);
        self.fuse.burn(None);
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
    landed: Option<Instant>,
}

impl Clock {
    /// Work is launched while so many are under way.
    fn launching(&mut self, under_way: usize) {
        if under_way == 0 {
            let now = Instant::now();
            self.gap = self.landed.map_or(Duration::ZERO, |landed| now - landed);
            self.since = Some(now);
        }
    }

    /// Waits for the oldest work.
    fn outcome<M: Model>(&mut self, table: &mut Table<M>, model: &mut M) -> Outcome {
        let result = table.land(model);
        let (busy, gap) = self.landed();
        Outcome {
            result,
            busy,
            gap,
            memory: model.memory(),
            lost: table.take_lost(),
        }
    }

    /// How long what landed took, and the gap before it.
    fn landed(&mut self) -> (Duration, Duration) {
        let now = Instant::now();
        let since = self.since.replace(now).unwrap_or(now);
        self.landed = Some(now);
        (now - since, std::mem::take(&mut self.gap))
    }
}
