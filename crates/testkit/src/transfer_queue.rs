//! The transfer queue on paper: states on their way from the device, and to it.

use std::collections::BTreeMap;

use motet_core::pager::Label;
use motet_protocol::CopyId;

/// A state that can be copied: what a copy holds, or `()` where only its place matters.
pub trait PaperState: Clone + std::fmt::Debug {
    /// Checks that the state is the one that the label names.
    fn check(&self, label: &Label);
}

impl PaperState for () {
    fn check(&self, _: &Label) {}
}

/// Detached states. A copy that is loaded for several sequences waits once for each.
#[derive(Debug)]
pub struct PaperTransferQueue<S> {
    exports: BTreeMap<CopyId, S>,
    imports: BTreeMap<CopyId, Vec<S>>,
}

impl<S> Default for PaperTransferQueue<S> {
    fn default() -> Self {
        Self {
            exports: BTreeMap::new(),
            imports: BTreeMap::new(),
        }
    }
}

impl<S> PaperTransferQueue<S> {
    /// Whether no state is on its way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.exports.is_empty() && self.imports.is_empty()
    }

    /// The device has exported a state.
    pub fn export(&mut self, copy: CopyId, state: S) {
        let before = self.exports.insert(copy, state);
        assert!(before.is_none(), "{copy} is exported once");
    }

    /// Whether this state was exported, and is still there.
    #[must_use]
    pub fn is_exported(&self, copy: CopyId) -> bool {
        self.exports.contains_key(&copy)
    }

    /// Takes an exported state, if there is one.
    pub fn take_export(&mut self, copy: CopyId) -> Option<S> {
        self.exports.remove(&copy)
    }

    /// Adds a state for the device.
    pub fn import(&mut self, copy: CopyId, state: S) {
        self.imports.entry(copy).or_default().push(state);
    }

    /// Whether a state of this copy waits for the device.
    #[must_use]
    pub fn is_waiting(&self, copy: CopyId) -> bool {
        self.imports.contains_key(&copy)
    }

    /// Whether any state waits for the device.
    #[must_use]
    pub fn has_imports(&self) -> bool {
        !self.imports.is_empty()
    }

    /// Takes a state of this copy that waits for the device, if there is one.
    pub fn take_import(&mut self, copy: CopyId) -> Option<S> {
        let waiting = self.imports.get_mut(&copy)?;
        let state = waiting.pop();
        if waiting.is_empty() {
            self.imports.remove(&copy);
        }
        state
    }

    /// Discards all states that wait for the device.
    pub fn discard_imports(&mut self) {
        self.imports.clear();
    }
}
