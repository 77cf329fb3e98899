//! The scheduler's core, which can be replaced by a new one.

use std::time::Duration;

use motet_core::config::SchedulerConfig;
use motet_core::scheduler::{Effect, Event, SchedulerCore};
use motet_protocol::SequenceId;
use motet_protocol::{DraftModelSpec, ModelSpec};

/// Everything that a core is created from.
pub(crate) struct CoreSettings {
    pub(crate) spec: ModelSpec,
    pub(crate) draft_model: Option<DraftModelSpec>,
    pub(crate) config: SchedulerConfig,
    /// Tokens after which a live sequence is backed up; 0 means never, as without a pager. See
    /// [`PagerConfig::backup_tokens`](motet_core::config::PagerConfig::backup_tokens).
    pub(crate) backup_tokens: usize,
}

/// The core in use, with the sequence to blame when it panics.
pub(super) struct ReplaceableCore {
    core: SchedulerCore,
    settings: CoreSettings,
    /// The sequence that the current event is about, if any.
    at: Option<SequenceId>,
}

impl CoreSettings {
    fn create(&self) -> SchedulerCore {
        let core = SchedulerCore::new(self.spec.clone(), self.config.clone());
        let core = core.with_backups(self.backup_tokens);
        match self.draft_model {
            Some(draft_model) => core.with_draft_model(draft_model),
            None => core,
        }
    }
}

impl ReplaceableCore {
    pub(super) fn new(settings: CoreSettings) -> Self {
        Self {
            core: settings.create(),
            settings,
            at: None,
        }
    }

    /// Returns the core, to be read.
    pub(super) fn get(&self) -> &SchedulerCore {
        &self.core
    }

    /// Passes an event to the core. Until [`end_event`](Self::end_event) a panic is about the
    /// event's sequence.
    pub(super) fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        self.at = event.concerns();
        self.core.handle(now, event)
    }

    /// Ends the current event: its effects have been applied.
    pub(super) fn end_event(&mut self) {
        self.at = None;
    }

    /// The sequence that the current event is about, if any.
    pub(super) fn at(&self) -> Option<SequenceId> {
        self.at
    }

    /// Ends an event at which the core has panicked, and returns its sequence.
    pub(super) fn take_suspect(&mut self) -> Option<SequenceId> {
        self.at.take()
    }

    /// Replaces the core by one that knows of nothing.
    pub(super) fn discard(&mut self) {
        self.core = self.settings.create();
    }
}
