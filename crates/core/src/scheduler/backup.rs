//! Copies live sequences as they grow, so that state which a lost device held need not be
//! computed again.
//!
//! The scheduler decides when: each time that enough tokens are computed. The cache decides
//! what is copied. No sequence waits for a copy.

use super::sequence::SequenceKey;
use super::{Effect, SchedulerCore};
use crate::cache;

/// Inverse of the growth after which a sequence is copied again, but not sooner than the
/// configuration says. Long sequences therefore have few copies.
const BACKUP_GROWTH_PARTS: usize = 8;

impl SchedulerCore {
    /// Sets the growth after which a live sequence is copied again: `tokens` tokens, or an
    /// eighth of its copied tokens if that is more. 0 copies no live sequence.
    #[must_use]
    pub fn with_backups(mut self, tokens: usize) -> Self {
        // No other model can continue from a copy that ends within a sequence.
        if self.spec.resumes_anywhere() {
            self.backup_tokens = tokens;
        }
        self
    }

    /// Has the cache copy a sequence's computed state if it has grown enough.
    pub(super) fn back_up_if_due(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let tokens_min = self.backup_tokens;
        let Some(entry) = self.sequences.get_mut(key).filter(|_| tokens_min > 0) else {
            return;
        };
        let (sequence, ends) = (
            entry.sequence,
            entry.finished.is_some() || !entry.is_whole(),
        );
        let Some(running) = entry.running_mut().filter(|running| !running.preempting) else {
            return;
        };
        let (computed, backed_up) = (running.computed, running.backed_up);
        let due_at = backed_up + tokens_min.max(backed_up / BACKUP_GROWTH_PARTS);
        if ends || computed < due_at {
            return;
        }
        running.backed_up = computed;
        let generated = entry.generated_for_cache();
        let back_up = cache::Message::BackUp {
            sequence,
            computed,
            generated,
        };
        self.ask(back_up, effects);
    }
}
