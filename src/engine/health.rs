//! Health, told at once: from words that are shared, by asking nobody.

use tokio::time::Instant;

use super::Engine;
use motet_sync::heartbeat::Pulse;

/// How an engine is, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// What may be expected of it.
    pub state: HealthState,
    /// Sequences with a slot on the device.
    pub running: usize,
    /// Sequences that wait for one.
    pub waiting: usize,
    /// Sequences that wait for their reader.
    pub paused: usize,
    /// The pager's disk does not answer, or has failed and not worked since. All else goes
    /// on: what is there is computed again.
    pub disk_degraded: bool,
    /// The pager has panicked too often. All else goes on: what it kept is computed again.
    pub pager_lost: bool,
}

/// What may be expected of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// It has nothing to do.
    Ready,
    /// It is at work.
    Busy,
    /// It lets those inside finish, and takes no new requests.
    Draining,
    /// It was drained or aborted, and nothing is inside any more: it can be shut down.
    Stopped,
    /// The device thread has died, or been at one piece of work for longer than
    /// `scheduler.device_timeout`: the model is loaded again on another. Those inside wait,
    /// and go on then; new requests are taken in.
    Recovering {
        /// When it failed; of one that does not answer, when it came to that work.
        since: Instant,
    },
    /// Too much has failed: all that was inside has ended, and nothing is taken in. Start
    /// another engine.
    Broken {
        /// What failed last.
        reason: String,
    },
    /// An actor is gone: start another engine.
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
            pager_lost: self.telemetry.is_pager_lost(),
        }
    }

    fn health_state(&self) -> HealthState {
        if let Some(reason) = self.breakdown.reason() {
            let reason = reason.to_owned();
            return HealthState::Broken { reason };
        }
        if !self.scheduler.is_alive() {
            return HealthState::Dead;
        }
        let timeout = self.config.scheduler.device_timeout;
        let is_idle = match self.heartbeat.pulse() {
            Pulse::Gone => return HealthState::Dead,
            Pulse::Recovering { since } => {
                let since = self.started_at + since;
                return HealthState::Recovering { since };
            }
            Pulse::Working { since } => {
                let since = self.started_at + since;
                if since.elapsed() > timeout {
                    return HealthState::Recovering { since };
                }
                false
            }
            Pulse::Idle => self.admission.inside() == 0,
        };
        match is_idle {
            _ if self.admission.is_shut() => match self.admission.inside() {
                0 => HealthState::Stopped,
                _ => HealthState::Draining,
            },
            true => HealthState::Ready,
            false => HealthState::Busy,
        }
    }
}
