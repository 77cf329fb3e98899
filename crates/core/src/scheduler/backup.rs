//! Live sequences are copied as they go, so that what a device loses with its thread need not
//! be computed again.
//!
//! The scheduler says when: each time that enough tokens have landed. The cache says what, and
//! the sequence goes on meanwhile: nothing waits for a copy.

use super::entry::EntryKey;
use super::{Effect, SchedulerCore};
use crate::cache;

/// A sequence is copied again when it has grown by one part in so many, but not sooner than the
/// configuration says. Thus the copies of a long sequence are few.
const GROWN_PARTS: usize = 8;

impl SchedulerCore {
    /// The same scheduler where live sequences are copied each time that they have `tokens`
    /// tokens more, or an eighth more. 0 is never.
    #[must_use]
    pub fn with_backups(mut self, tokens: usize) -> Self {
        // What ends within a sequence can be gone on from in no other model.
        if self.spec.resumes_anywhere() {
            self.backup_tokens = tokens;
        }
        self
    }

    /// Has the cache copy what a sequence has computed, if that has become enough.
    pub(super) fn back_up_if_due(&mut self, key: EntryKey, effects: &mut Vec<Effect>) {
        let tokens_min = self.backup_tokens;
        let Some(entry) = self.entries.get_mut(key).filter(|_| tokens_min > 0) else {
            return;
        };
        let (sequence, ends) = (entry.sequence, entry.over.is_some() || !entry.is_whole());
        let Some(running) = entry.running_mut().filter(|running| !running.giving_way) else {
            return;
        };
        let (computed, backed_up) = (running.computed, running.backed_up);
        let due_at = backed_up + tokens_min.max(backed_up / GROWN_PARTS);
        if ends || computed < due_at {
            return;
        }
        running.backed_up = computed;
        let generated = entry.news_for_cache();
        let back_up = cache::Message::BackUp {
            sequence,
            computed,
            generated,
        };
        self.ask(back_up, effects);
    }
}
