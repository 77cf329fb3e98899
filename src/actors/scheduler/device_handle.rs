//! The scheduler's handle to the device: a running thread, or one that is being started.

use std::time::Duration;

use tokio::time::Instant;

use crate::device::{Device, Loader, Loading};
use motet_core::protocol::{ModelError, Outcome, Work};

/// The device and its state.
pub(super) struct DeviceHandle {
    loader: Loader,
    state: State,
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
    pub(super) fn new(device: Device, loader: Loader) -> Self {
        Self {
            loader,
            state: State::Running(device),
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

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Sends work. The end of the thread shows when its outcomes close.
    ///
    /// # Panics
    ///
    /// When no device thread is running.
    pub(super) fn send(&self, work: Work) {
        let State::Running(device) = &self.state else {
            panic!("no work is planned while there is no device")
        };
        let _is_there = device.send(work);
    }

    /// Abandons the thread. Its later outcomes are dropped.
    pub(super) fn abandon(&mut self) {
        self.state = State::Gone;
    }

    /// Starts another thread after this delay.
    pub(super) fn load(&mut self, after: Duration) {
        self.state = match after {
            Duration::ZERO => State::Loading(Some(self.loader.load())),
            after => State::Delayed(Instant::now() + after),
        };
    }
}
