//! The scheduler's handle to the device: a running thread, or one that is being started, and the
//! work that it has not answered.

use std::time::Duration;

use tokio::time::Instant;

use crate::device::{Device, Loader, Loading};
use crate::runtime::clock::after;
use motet_core::scheduler::Predecessor;
use motet_protocol::{ModelError, Outcome, Work};
use motet_sync::heartbeat::{Heartbeat, Pulse};

/// The device, its state, and the work in flight.
pub(crate) struct DeviceHandle {
    loader: Loader,
    state: State,
    /// The epoch of the latest work that was sent.
    epoch: u64,
    /// Work that the device has not answered.
    in_flight: usize,
    heartbeat: Heartbeat,
    /// A device that does not answer for so long is given up.
    timeout: Duration,
}

enum State {
    Running(Device),
    /// A new thread loads the model.
    Loading(Option<Loading>),
    /// A new thread is started at this time.
    Delayed(Instant),
    /// There is no thread, and none will be started.
    Gone,
}

/// An event of the device.
pub(super) enum DeviceEvent {
    /// The device has answered.
    Outcome(Outcome),
    /// The device thread has ended.
    Dead,
    /// The model was loaded again, or failed to.
    Loaded(Result<(), ModelError>),
    /// The model is to be loaded again now.
    ReloadDue,
}

impl DeviceHandle {
    pub(crate) fn new(
        device: Device,
        loader: Loader,
        heartbeat: Heartbeat,
        timeout: Duration,
    ) -> Self {
        Self {
            loader,
            state: State::Running(device),
            epoch: 0,
            in_flight: 0,
            heartbeat,
            timeout,
        }
    }

    /// Waits for the next event. Cancel safe. Never resolves where there is no device and none
    /// will be started.
    pub(super) async fn next_event(&mut self) -> DeviceEvent {
        match &mut self.state {
            State::Running(device) => {
                let outcome = device.outcomes.recv().await;
                outcome.map_or(DeviceEvent::Dead, DeviceEvent::Outcome)
            }
            State::Loading(loading) => {
                let loaded = self.loader.loaded(loading).await;
                DeviceEvent::Loaded(loaded.map(|device| self.state = State::Running(device)))
            }
            State::Delayed(until) => {
                tokio::time::sleep_until(*until).await;
                DeviceEvent::ReloadDue
            }
            State::Gone => std::future::pending().await,
        }
    }

    /// Sends work. The end of the thread shows when its outcomes close.
    ///
    /// # Panics
    ///
    /// When no device thread is running.
    pub(super) fn send(&mut self, now: Duration, work: Work) {
        let State::Running(device) = &self.state else {
            panic!("no work is planned while there is no device")
        };
        self.heartbeat.work_sent(now);
        self.in_flight += 1;
        self.epoch = work.epoch;
        let _is_there = device.send(work);
    }

    /// Counts the oldest work as answered.
    pub(super) fn work_finished(&mut self, now: Duration) {
        self.in_flight -= 1;
        self.heartbeat.work_finished(now, self.in_flight);
    }

    /// Returns when the device is given up, unless it answers; counted from the engine's start.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let Pulse::Working { since } = self.heartbeat.pulse() else {
            return None;
        };
        since.checked_add(self.timeout)
    }

    /// Abandons the thread. Its later outcomes are dropped.
    pub(super) fn abandon(&mut self, now: Duration) {
        self.forget();
        self.heartbeat.recovering(now);
    }

    /// Abandons the thread, and starts no other.
    pub(super) fn give_up(&mut self) {
        self.heartbeat.gone();
        self.forget();
    }

    fn forget(&mut self) {
        self.state = State::Gone;
        self.in_flight = 0;
    }

    /// Starts another thread after this delay.
    pub(super) fn load(&mut self, delay: Duration) {
        self.state = match delay {
            Duration::ZERO => State::Loading(Some(self.loader.load())),
            delay => State::Delayed(after(Instant::now(), delay)),
        };
    }

    /// Another thread has loaded the model.
    pub(super) fn loaded(&self, now: Duration) {
        self.heartbeat.work_finished(now, 0);
    }

    /// Returns the state that a rebuilt core must know, beside the cache's answers that are due.
    pub(super) fn predecessor(&self, pending_answers: usize) -> Predecessor {
        Predecessor {
            epoch: self.epoch,
            pending_answers,
            in_flight: self.in_flight,
            device_away: !matches!(self.state, State::Running(_)),
        }
    }
}
