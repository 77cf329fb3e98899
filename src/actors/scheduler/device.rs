//! The scheduler's end of the device: a thread that answers, or one that is on its way.

use std::time::Duration;

use tokio::time::Instant;

use crate::device::{Device, Loader, Loading};
use motet_core::protocol::{ModelError, Outcome, Work};

/// Where the device is.
pub(super) struct DeviceEnd {
    loader: Loader,
    state: State,
}

enum State {
    Here(Device),
    /// Another thread loads the model.
    Loading(Option<Loading>),
    /// Another is started then.
    Waiting(Instant),
    /// There is none, and none will be.
    Gone,
}

/// What the device says, or is said of it.
pub(super) enum DeviceNews {
    /// It has answered.
    Outcome(Outcome),
    /// Its thread is gone.
    Dead,
    /// The model was loaded again, or not.
    Loaded(Result<(), ModelError>),
    /// It is time to load it.
    Due,
}

impl DeviceEnd {
    pub(super) fn new(device: Device, loader: Loader) -> Self {
        Self {
            loader,
            state: State::Here(device),
        }
    }

    /// What is next. Cancel safe. Never resolves where there is no device, and none will be.
    pub(super) async fn news(&mut self) -> DeviceNews {
        match &mut self.state {
            State::Here(device) => {
                let outcome = device.outcomes.recv().await;
                outcome.map_or(DeviceNews::Dead, DeviceNews::Outcome)
            }
            State::Loading(loading) => {
                let loaded = self.loader.loaded(loading).await;
                DeviceNews::Loaded(loaded.map(|device| self.state = State::Here(device)))
            }
            State::Waiting(until) => {
                tokio::time::sleep_until(*until).await;
                DeviceNews::Due
            }
            State::Gone => std::future::pending().await,
        }
    }

    pub(super) fn is_here(&self) -> bool {
        matches!(self.state, State::Here(_))
    }

    /// Sends work. A thread that is gone says so by closing its outcomes.
    ///
    /// # Panics
    ///
    /// When there is no thread.
    pub(super) fn send(&self, work: Work) {
        let State::Here(device) = &self.state else {
            panic!("no work is planned while there is no device")
        };
        let _is_there = device.send(work);
    }

    /// Leaves the thread behind. What it still says is heard by nobody.
    pub(super) fn leave(&mut self) {
        self.state = State::Gone;
    }

    /// Starts another thread, after so long.
    pub(super) fn load(&mut self, after: Duration) {
        self.state = match after {
            Duration::ZERO => State::Loading(Some(self.loader.load())),
            after => State::Waiting(Instant::now() + after),
        };
    }
}
