//! The scheduler's end of the device: a thread that answers, or one that is on its way.

use std::time::Duration;

use tokio::time::Instant;

use crate::device::{Device, Loader, Loading};
use motet_core::protocol::{ModelError, Outcome, Work};

/// Where the device is.
pub(super) struct DeviceHandle {
    loader: Loader,
    state: State,
}

enum State {
    Running(Device),
    /// Another thread loads the model.
    Loading(Option<Loading>),
    /// Another is started then.
    Delayed(Instant),
    /// There is none, and none will be.
    Gone,
}

/// What the device says, or is said of it.
pub(super) enum DeviceEvent {
    /// It has answered.
    Outcome(Outcome),
    /// Its thread is gone.
    Dead,
    /// The model was loaded again, or not.
    Loaded(Result<(), ModelError>),
    /// It is time to load it.
    ReloadDue,
}

impl DeviceHandle {
    pub(super) fn new(device: Device, loader: Loader) -> Self {
        Self {
            loader,
            state: State::Running(device),
        }
    }

    /// What is next. Cancel safe. Never resolves where there is no device, and none will be.
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

    /// Sends work. A thread that is gone says so by closing its outcomes.
    ///
    /// # Panics
    ///
    /// When there is no thread.
    pub(super) fn send(&self, work: Work) {
        let State::Running(device) = &self.state else {
            panic!("no work is planned while there is no device")
        };
        let _is_there = device.send(work);
    }

    /// Leaves the thread behind. What it still says is heard by nobody.
    pub(super) fn abandon(&mut self) {
        self.state = State::Gone;
    }

    /// Starts another thread, after so long.
    pub(super) fn load(&mut self, after: Duration) {
        self.state = match after {
            Duration::ZERO => State::Loading(Some(self.loader.load())),
            after => State::Delayed(Instant::now() + after),
        };
    }
}
