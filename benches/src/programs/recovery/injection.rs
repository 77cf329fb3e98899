//! Additions of `--cfg motet_injected` to an engine: a device thread that can be killed, and an
//! engine without recovery. Without the cfg the program is built, and starts no engine.

use motet::EngineBuilder;
#[cfg(motet_injected)]
use motet::failpoint::Failpoints;

use crate::programs::Result;

/// The injection of one engine.
#[derive(Clone, Default)]
pub(crate) struct Injection {
    #[cfg(motet_injected)]
    failpoints: Failpoints,
}

#[cfg(motet_injected)]
impl Injection {
    pub(crate) fn into_builder(
        self,
        builder: EngineBuilder,
        recovers: bool,
    ) -> Result<EngineBuilder> {
        let builder = builder.failpoints(self.failpoints);
        Ok(if recovers {
            builder
        } else {
            builder.without_recovery()
        })
    }

    /// Kills the device thread at its next outcome.
    pub(crate) fn kill(&self) {
        self.failpoints.device.arm(1);
    }

    /// Whether the device thread is still to be killed.
    pub(crate) fn is_due(&self) -> bool {
        self.failpoints.device.is_armed()
    }
}

#[cfg(not(motet_injected))]
impl Injection {
    pub(crate) fn into_builder(self, _: EngineBuilder, _: bool) -> Result<EngineBuilder> {
        Err("built without `--cfg motet_injected`: run `cargo xtask bench recovery`".into())
    }

    pub(crate) fn kill(&self) {}

    pub(crate) fn is_due(&self) -> bool {
        false
    }
}
