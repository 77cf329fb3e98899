//! The device thread, the only part that works with arrays.
//!
//! It owns the [`Model`] and every array that the model returns, and keeps the only table from
//! ids to arrays. Work arrives over a bounded channel, and one outcome returns for each;
//! between the two the thread awaits and locks nothing.
//!
//! Two works may be in flight. The second is submitted while the device computes the first. Its
//! token sources are tokens that the host has not seen yet. Its own tokens are sampled when the
//! first has finished, so that sampling knows all earlier tokens. Meanwhile the device computes
//! the second's forward pass (SGLang's overlap scheduler and vLLM's asynchronous scheduling do
//! likewise).
//!
//! A draft model, if there is one, works between steps: the thread waits for it when its orders
//! arrive, and no other work is in flight.
//!
//! **Invariant.** The thread's state is a function of the work that it received: edits are
//! carried out in order, before the step that comes with them.

mod loader;
#[cfg(motet_injected)]
mod simulated;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) use loader::{DeviceGone, Loader, Loading};

use crate::runtime::{EngineRuntime, JobQueue, Part, Queue, Runtime};
use loader::{BuiltDevice, DeviceFactory};
use motet_device::{DraftModel, HostEnd, NextAction, Table, draft_or_drop, transfer_queue};
use motet_model::{DetachedState, Model};
use motet_protocol::time::eighth;
use motet_protocol::{
    DraftForget, DraftModelSpec, DraftOrder, DraftReply, ModelError, ModelSpec, Outcome, Work,
};

/// Shortest interval between two checks whether a step is ready.
const POLL_INTERVAL_MIN: Duration = Duration::from_micros(20);
/// Longest interval between two such checks.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(1);
/// Pause after which the model returns unused memory to the system.
const TRIM_AFTER: Duration = Duration::from_secs(1);

/// The scheduler's end of the device thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Device {
    work: JobQueue<Work>,
    /// Outcomes, in the order of the work.
    pub(crate) outcomes: mpsc::Receiver<Outcome>,
}

/// The models of a device thread.
pub(crate) struct Loaded<M> {
    pub(crate) model: M,
    pub(crate) draft_model: Option<Box<dyn DraftModel>>,
}

/// A running device thread with a model.
pub(crate) struct Started<M: Model> {
    /// The scheduler's end.
    pub(crate) device: Device,
    /// Starts another thread in place of this one, after the previous thread has ended.
    pub(crate) loader: Loader,
    /// The model's specification.
    pub(crate) spec: ModelSpec,
    /// The draft model's.
    pub(crate) draft_model: Option<DraftModelSpec>,
    /// Packs states that the model has exported.
    pub(crate) packer: M::Packer,
    /// The copy workers' end of the transfer queue.
    pub(crate) host_end: HostEnd<DetachedState<M>>,
}

impl Device {
    /// Starts the thread and builds the model on it.
    ///
    /// # Errors
    ///
    /// The error of `build`, or its panic.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the thread once the model is built.
    pub(crate) async fn start<M: Model>(
        build: impl Fn() -> Result<Loaded<M>, ModelError> + Send + Sync + 'static,
        runtime: EngineRuntime,
    ) -> Result<Started<M>, ModelError> {
        let (prototype, host_end) = transfer_queue();
        let device_factory = Arc::new(DeviceFactory {
            build,
            prototype,
            runtime,
        });
        let (loading, model) = Loading::start(&device_factory, None);
        let (device, gone) = loading.wait().await?;
        let model = model.await;
        let (spec, draft_model, packer) = model.expect("a loaded model has sent its specification");
        let loader = Loader::new(device_factory, spec.clone(), gone);
        Ok(Started {
            device,
            loader,
            spec,
            draft_model,
            packer,
            host_end,
        })
    }

    /// Sends work; its outcome follows. Returns false when the thread is gone.
    ///
    /// # Panics
    ///
    /// When more than [`WORK_IN_FLIGHT_MAX`] works would be in flight.
    #[must_use]
    pub(crate) fn send(&self, work: Work) -> bool {
        let never_full = "the scheduler sends no more than `WORK_IN_FLIGHT_MAX` works";
        self.work.enqueue(work, never_full)
    }
}

/// Runs the device thread until the scheduler closes its channel.
fn serve<M: Model>(device: BuiltDevice<M>, work: Receiver<Work>) {
    let mut thread = DeviceThread {
        model: device.model,
        drafts: Drafts::new(device.draft_model),
        table: Table::with_transfer_queue(device.transfer_queue),
        work,
        outcomes: device.outcomes,
        runtime: device.runtime,
        clock: Clock::default(),
        may_receive: true,
        is_trimmed: false,
    };
    while thread.run_next_action() {}
}

/// The state of the device thread.
struct DeviceThread<M: Model> {
    model: M,
    drafts: Drafts,
    table: Table<M>,
    work: Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
    runtime: EngineRuntime,
    clock: Clock,
    /// Whether more work may arrive.
    may_receive: bool,
    /// Whether the model has given back unused memory since the last work.
    is_trimmed: bool,
}

impl<M: Model> DeviceThread<M> {
    /// Carries out the next action. Returns false when the thread is to end.
    fn run_next_action(&mut self) -> bool {
        match self.table.next_action(self.may_receive) {
            NextAction::End => return false,
            NextAction::Receive => match self.receive() {
                Some(work) => self.submit(work),
                None => self.may_receive = false,
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

    /// Returns the next work, or none when the scheduler has closed its channel. The model gives
    /// back unused memory in a long pause.
    fn receive(&mut self) -> Option<Work> {
        if !self.is_trimmed {
            match self.work.recv_timeout(TRIM_AFTER) {
                Ok(work) => return Some(work),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    self.model.trim();
                    self.drafts.trim();
                    self.is_trimmed = true;
                }
            }
        }
        self.work.recv().ok()
    }

    /// Returns the next work, unless the oldest step is ready first. The interval between
    /// checks grows with the time waited: a step is noticed late by at most an eighth of its
    /// time, and by at most [`POLL_INTERVAL_MAX`].
    fn receive_until_ready(&mut self) -> Option<Work> {
        let started_at = Instant::now();
        loop {
            let timeout = if self.table.is_ready(&self.model) {
                Duration::ZERO
            } else {
                eighth(started_at.elapsed()).clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX)
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

    fn submit(&mut self, mut work: Work) {
        // Submission may block until the device has accepted all of it, and the device works
        // meanwhile.
        self.is_trimmed = false;
        self.clock.on_submit(self.table.in_flight());
        let drafts = self.drafts.take_from(&mut work);
        self.table.submit(&mut self.model, work);
        self.drafts.carry_out(drafts);
    }

    fn finish(&mut self) -> bool {
        let drafts = self.drafts.take();
        let outcome = self.clock.outcome(&mut self.table, &mut self.model, drafts);
        self.runtime.fail_here(Part::Device, None);
        self.outcomes.try_send(outcome).is_ok()
    }
}

/// The draft model, and its replies to the work in flight.
struct Drafts {
    draft_model: Option<Box<dyn DraftModel>>,
    replies: Result<Vec<DraftReply>, Box<ModelError>>,
}

impl Drafts {
    fn new(draft_model: Option<Box<dyn DraftModel>>) -> Self {
        Self {
            draft_model,
            replies: Ok(Vec::new()),
        }
    }

    /// Takes from work what the draft model is to do, once the work's edits are carried out.
    fn take_from(&self, work: &mut Work) -> (Vec<DraftForget>, Vec<DraftOrder>) {
        let orders = std::mem::take(&mut work.draft_orders);
        (std::mem::take(&mut work.draft_forgets), orders)
    }

    /// Has the draft model carry it out, and waits for it.
    fn carry_out(&mut self, (forgets, orders): (Vec<DraftForget>, Vec<DraftOrder>)) {
        let replies = draft_or_drop(&mut self.draft_model, &forgets, &orders);
        if let Err(error) = &replies {
            tracing::warn!("the draft model has failed, and is not used any more: {error}");
        }
        if !orders.is_empty() {
            self.replies = replies;
        }
    }

    /// Takes the replies to the oldest work in flight.
    fn take(&mut self) -> Result<Vec<DraftReply>, Box<ModelError>> {
        std::mem::replace(&mut self.replies, Ok(Vec::new()))
    }

    fn trim(&mut self) {
        if let Some(draft_model) = &mut self.draft_model {
            draft_model.trim();
        }
    }
}

/// Measures the time that the device works and the time that it is idle.
#[derive(Debug, Default)]
struct Clock {
    /// Since when the device has worked on the next work to finish; meaningless while none is
    /// in flight.
    since: Option<Instant>,
    /// The idle gap before the next work to finish.
    gap: Duration,
    last_finished_at: Option<Instant>,
}

impl Clock {
    /// Records a submission while this many works are in flight.
    fn on_submit(&mut self, in_flight: usize) {
        if in_flight == 0 {
            let now = Instant::now();
            self.gap = self
                .last_finished_at
                .map_or(Duration::ZERO, |last_finished_at| {
                    now.saturating_duration_since(last_finished_at)
                });
            self.since = Some(now);
        }
    }

    /// Waits for the oldest work.
    fn outcome<M: Model>(
        &mut self,
        table: &mut Table<M>,
        model: &mut M,
        drafts: Result<Vec<DraftReply>, Box<ModelError>>,
    ) -> Outcome {
        let result = table.finish(model);
        let (busy, gap) = self.on_finish();
        Outcome {
            result,
            drafts,
            busy,
            gap,
            memory: model.memory(),
            lost: table.take_lost(),
        }
    }

    /// Returns how long the finished work took, and the idle gap before it.
    fn on_finish(&mut self) -> (Duration, Duration) {
        let now = Instant::now();
        let since = self.since.replace(now).unwrap_or(now);
        self.last_finished_at = Some(now);
        let busy = now.saturating_duration_since(since);
        (busy, std::mem::take(&mut self.gap))
    }
}
