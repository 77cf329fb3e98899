//! Health, read from shared atomics without waiting for any actor.

use std::time::Instant;

use super::Engine;
use crate::runtime::clock::after;
use motet_sync::heartbeat::Pulse;

/// The health of an engine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The engine's state.
    pub state: HealthState,
    /// Sequences with a slot on the device.
    pub running: usize,
    /// Sequences that wait for a slot.
    pub waiting: usize,
    /// Sequences that are paused until their stream is read.
    pub paused: usize,
    /// Whether the pager's disk does not answer, or has not worked since its last failure. The
    /// engine continues: state on the disk is computed again.
    pub disk_degraded: bool,
    /// Whether the pager has ended after too many panics. The engine continues: the state that
    /// it kept is computed again.
    pub pager_lost: bool,
    /// Why the model's files cannot be trusted any more: one that is mapped was written to since it
    /// was opened. New requests are rejected. Those inside go on, and their answers may be wrong;
    /// once bytes are known to be others, they fail. Start another engine.
    pub files_changed: Option<String>,
}

/// The state of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// The engine is idle.
    Ready,
    /// The engine has requests.
    Busy,
    /// The engine lets the requests inside finish, and rejects new ones.
    Draining,
    /// The engine was drained or shut down, and no request is inside any more.
    Stopped,
    /// The device thread has died, or has worked on one step for longer than
    /// `scheduler.device_timeout`. The model is loaded again on a new thread. Requests inside
    /// wait and continue afterwards; new requests are accepted.
    Recovering {
        /// When the device failed; for a device that does not answer, when it started that
        /// work.
        since: Instant,
    },
    /// The engine has failed too often: all requests inside have failed, and new ones are
    /// rejected. Start another engine.
    Broken {
        /// The last failure.
        reason: String,
    },
    /// An actor has ended: start another engine.
    Dead,
}

impl Engine {
    /// Returns the engine's health. Never waits, even if an actor or the device is stuck.
    #[must_use]
    pub fn health(&self) -> Health {
        let (running, waiting, paused) = self.inner.telemetry.sequences();
        Health {
            state: self.health_state(),
            running,
            waiting,
            paused,
            disk_degraded: self.inner.telemetry.disk_degraded(),
            pager_lost: self.inner.telemetry.is_pager_lost(),
            files_changed: self.inner.files.reason().map(str::to_owned),
        }
    }

    fn health_state(&self) -> HealthState {
        if let Some(reason) = self.inner.breakdown.reason() {
            let reason = reason.to_owned();
            return HealthState::Broken { reason };
        }
        if self.inner.admission.is_shut() && self.inner.admission.inside() == 0 {
            return HealthState::Stopped;
        }
        if !self.inner.scheduler.is_alive() {
            return HealthState::Dead;
        }
        let timeout = self.inner.config.scheduler.device_timeout;
        let is_idle = match self.inner.heartbeat.pulse() {
            Pulse::Gone => return HealthState::Dead,
            Pulse::Recovering { since } => {
                let since = after(self.inner.started_at, since).into_std();
                return HealthState::Recovering { since };
            }
            Pulse::Working { since } => {
                let since = after(self.inner.started_at, since);
                if since.elapsed() > timeout {
                    let since = since.into_std();
                    return HealthState::Recovering { since };
                }
                false
            }
            Pulse::Idle => self.inner.admission.inside() == 0,
        };
        if self.inner.admission.is_shut() {
            return HealthState::Draining;
        }
        if is_idle {
            HealthState::Ready
        } else {
            HealthState::Busy
        }
    }
}
