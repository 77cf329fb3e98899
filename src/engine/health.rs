//! Health, told at once: from words that are shared, by asking nobody.

use tokio::time::Instant;

use super::Engine;
use crate::shared::heartbeat::Pulse;

/// How an engine is, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// What may be expected of it.
    pub state: HealthState,
    /// Sequences with a slot on the device.
    pub running: usize,
    /// Sequences that wait for one.
    pub waiting: usize,
    /// Sequences that wait for their reader.
    pub paused: usize,
    /// The pager's disk fails or does not answer. All else goes on: what is there is
    /// computed again.
    pub disk_degraded: bool,
}

/// What may be expected of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// It has nothing to do.
    Ready,
    /// It is at work.
    Busy,
    /// It lets those inside finish, and takes no new requests.
    Draining,
    /// The device has been at one piece of work for longer than
    /// `scheduler.device_timeout`. It may yet come back: then it goes on.
    Stuck {
        /// When it came to that work.
        since: Instant,
    },
    /// The device thread or an actor is gone: start another engine.
    Dead,
}

impl Engine {
    /// How the engine is. Never waits, whatever is stuck.
    #[must_use]
    pub fn health(&self) -> Health {
        let (running, waiting, paused) = self.telemetry.sequences();
        Health {
            state: self.health_state(),
            running,
            waiting,
            paused,
            disk_degraded: self.telemetry.disk_degraded(),
        }
    }

    fn health_state(&self) -> HealthState {
        if !self.scheduler.is_alive() {
            return HealthState::Dead;
        }
        let worked_since = match self.heartbeat.pulse() {
            Pulse::Gone => return HealthState::Dead,
            Pulse::Idle => None,
            Pulse::Working { since } => Some(self.born + since),
        };
        let timeout = self.config.scheduler.device_timeout;
        match worked_since {
            Some(since) if since.elapsed() > timeout => HealthState::Stuck { since },
            _ if self.admission.is_shut() => HealthState::Draining,
            None if self.admission.inside() == 0 => HealthState::Ready,
            _ => HealthState::Busy,
        }
    }
}
