//! The device as a task, which pretends to compute.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::turn::Turn;
use super::{Clock, Dock, Table};
use crate::fuse::Fuse;
use crate::simulation::Simulation;
use motet_core::protocol::{Outcome, Work};
use motet_model::{Model, Parcel};

/// Serves the scheduler until that ends it, as the device thread does.
pub(super) async fn serve<M: Model>(
    model: M,
    dock: Dock<Parcel<M>>,
    work: mpsc::Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
    fuse: Fuse,
    simulation: Simulation,
) {
    let mut device = SimulatedDevice {
        model,
        table: Table::with_dock(dock),
        work,
        outcomes,
        fuse,
        clock: Clock::default(),
        more: true,
        ready_at: VecDeque::new(),
        simulation,
    };
    while device.take_turn().await {
        device.simulation.handed_over.notify_one();
    }
}

/// The same belongings as the device thread's.
struct SimulatedDevice<M: Model> {
    model: M,
    table: Table<M>,
    work: mpsc::Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
    fuse: Fuse,
    clock: Clock,
    more: bool,
    /// When what is under way is ready, oldest first.
    ready_at: VecDeque<Instant>,
    simulation: Simulation,
}

impl<M: Model> SimulatedDevice<M> {
    /// False when the device is to end.
    async fn take_turn(&mut self) -> bool {
        match self.table.turn(self.more) {
            Turn::End => return false,
            Turn::Receive => match self.work.recv().await {
                Some(work) => self.launch(work),
                None => self.more = false,
            },
            Turn::Watch => {
                let ready_at = self.ready_at();
                tokio::select! {
                    biased;
                    work = self.work.recv() => match work {
                        Some(work) => self.launch(work),
                        None => self.more = false,
                    },
                    () = sleep_until(ready_at) => return self.land(),
                }
            }
            Turn::Draw => self.table.draw(&mut self.model),
            Turn::Land => {
                sleep_until(self.ready_at()).await;
                return self.land();
            }
        }
        true
    }

    fn launch(&mut self, work: Work) {
        let takes = self.simulation.fate.work(&work);
        let now = Instant::now();
        let begins = self.ready_at.back().map_or(now, |before| now.max(*before));
        self.clock.launching(self.table.under_way());
        self.table.launch(&mut self.model, work);
        self.ready_at.push_back(begins + takes);
    }

    /// When the oldest work is ready: at once, where it has failed before it landed.
    fn ready_at(&self) -> Instant {
        match self.table.is_over() {
            true => Instant::now(),
            false => self.ready_at[0],
        }
    }

    fn land(&mut self) -> bool {
        self.ready_at.pop_front();
        let outcome = self.clock.outcome(&mut self.table, &mut self.model);
        self.fuse.burn(None);
        self.outcomes.try_send(outcome).is_ok()
    }
}
