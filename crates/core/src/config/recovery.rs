//! Settings of recovery from failed parts.

use std::time::Duration;

use super::ConfigError;
use super::bounds::time;

/// Settings of recovery. A failed device thread or actor is rebuilt, and live sequences
/// continue from their histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Upper bound on the rebuilds within `rebuilds_window`. At the next failure the engine is
    /// broken: all requests end, and none is admitted any more. 0 gives up at the first
    /// failure. Leave headroom for a request that fails the device each time: it fails alone at
    /// the third attempt. Rebuilds of the pager are counted separately. With one too many, the
    /// engine continues without a pager.
    pub rebuilds_max: usize,
    /// Time for which a rebuild counts towards `rebuilds_max`. Choose more than `rebuilds_max`
    /// times `scheduler.device_timeout`. Otherwise a device that gets stuck each time never
    /// reaches the limit.
    pub rebuilds_window: Duration,
    /// Delay after a failed load of the model until the next attempt. It doubles with each
    /// further failed load in a row.
    pub reload_delay: Duration,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            rebuilds_max: 5,
            rebuilds_window: Duration::from_secs(600),
            reload_delay: Duration::from_millis(500),
        }
    }
}

impl RecoveryConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        time("recovery.rebuilds_window", self.rebuilds_window)?;
        time("recovery.reload_delay", self.reload_delay)
    }
}
