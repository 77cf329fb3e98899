//! The device as a task of a simulation.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::loader::{BuiltDevice, DeviceWorker};
use super::{Clock, Drafts, Loaded};
use crate::runtime::clock::after;
use crate::runtime::injected::SimulatedWorker;
use crate::runtime::injected::simulation::Simulation;
use crate::runtime::{EngineRuntime, Part, Runtime};
use motet_device::{NextAction, Table};
use motet_model::Model;
use motet_protocol::{ModelError, Outcome, Work};

impl<M, B> SimulatedWorker for DeviceWorker<M, B>
where
    M: Model,
    B: Fn() -> Result<Loaded<M>, ModelError> + Send + Sync + 'static,
{
    async fn simulate(self, work: mpsc::Receiver<Work>, simulation: Simulation) {
        let exported = simulation.exported.clone();
        let (device, gone) = self.build();
        if let Some(device) = device {
            serve(device, work, simulation).await;
        }
        exported.notify_one();
        gone.send(()).ok();
    }
}

/// Runs the device until the scheduler closes its channel, as the device thread does. The model
/// computes in no time, and the fault schedule decides how long work takes.
async fn serve<M: Model>(
    device: BuiltDevice<M>,
    work: mpsc::Receiver<Work>,
    simulation: Simulation,
) {
    let mut device = SimulatedDevice {
        model: device.model,
        drafts: Drafts::new(device.draft_model),
        table: Table::with_transfer_queue(device.transfer_queue),
        work,
        outcomes: device.outcomes,
        runtime: device.runtime,
        clock: Clock::default(),
        may_receive: true,
        ready_at: VecDeque::new(),
        simulation,
    };
    while device.run_next_action().await {
        device.simulation.exported.notify_one();
    }
}

/// The state of a simulated device; compare the device thread's.
struct SimulatedDevice<M: Model> {
    model: M,
    drafts: Drafts,
    table: Table<M>,
    work: mpsc::Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
    runtime: EngineRuntime,
    clock: Clock,
    may_receive: bool,
    /// When each work in flight is ready, oldest first.
    ready_at: VecDeque<Instant>,
    simulation: Simulation,
}

impl<M: Model> SimulatedDevice<M> {
    /// Carries out the next action. Returns false when the device is to end.
    async fn run_next_action(&mut self) -> bool {
        match self.table.next_action(self.may_receive) {
            NextAction::End => return false,
            NextAction::Receive => match self.work.recv().await {
                Some(work) => self.submit(work),
                None => self.may_receive = false,
            },
            NextAction::ReceiveOrFinish => {
                let ready_at = self.ready_at();
                tokio::select! {
                    biased;
                    work = self.work.recv() => match work {
                        Some(work) => self.submit(work),
                        None => self.may_receive = false,
                    },
                    () = sleep_until(ready_at) => return self.finish(),
                }
            }
            NextAction::Sample => self.table.sample(&mut self.model),
            NextAction::Finish => {
                sleep_until(self.ready_at()).await;
                return self.finish();
            }
        }
        true
    }

    fn submit(&mut self, mut work: Work) {
        let takes = self.simulation.fault_schedule.work(&work);
        let now = Instant::now();
        let begins = self.ready_at.back().map_or(now, |before| now.max(*before));
        self.clock.on_submit(self.table.in_flight());
        let drafts = self.drafts.take_from(&mut work);
        self.table.submit(&mut self.model, work);
        self.drafts.carry_out(drafts);
        self.ready_at.push_back(after(begins, takes));
    }

    /// Returns when the oldest work is ready: now, if it failed before it finished.
    fn ready_at(&self) -> Instant {
        if self.table.is_finished() {
            Instant::now()
        } else {
            self.ready_at[0]
        }
    }

    fn finish(&mut self) -> bool {
        self.ready_at.pop_front();
        let drafts = self.drafts.take();
        let outcome = self.clock.outcome(&mut self.table, &mut self.model, drafts);
        self.runtime.fail_here(Part::Device, None);
        self.outcomes.try_send(outcome).is_ok()
    }
}
