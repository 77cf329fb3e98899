//! Why an engine is broken: written once by the scheduler, read by anyone.

use std::sync::{Arc, OnceLock};

/// The reason, once there is one. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breakdown(Arc<OnceLock<String>>);

impl Breakdown {
    /// The engine is broken. Only the first reason counts.
    pub(crate) fn report(&self, reason: &str) {
        self.0.get_or_init(|| reason.to_owned());
    }

    /// None while the engine is not broken.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
