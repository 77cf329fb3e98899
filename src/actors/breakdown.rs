//! The reason why an engine is broken. The scheduler writes it once; any thread may read it.

use std::sync::{Arc, OnceLock};

/// The reason, once there is one. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breakdown(Arc<OnceLock<String>>);

impl Breakdown {
    /// Marks the engine as broken. Only the first reason is kept.
    pub(crate) fn report(&self, reason: &str) {
        self.0.get_or_init(|| reason.to_owned());
    }

    /// Returns the reason; `None` while the engine is not broken.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
