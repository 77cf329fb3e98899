//! Snapshots of the scheduler's sequences.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::SchedulerCore;
use super::sequence::{Phase, Sequence, SequenceKey};
use crate::snapshot::{SEQUENCES_MAX, SchedulerSnapshot, SequenceView, Stage, USERS_MAX, UserView};
use crate::{SequenceId, SlotId, UserId};

impl SchedulerCore {
    /// Returns a snapshot of sequences and users. Costs a walk over all of them.
    #[must_use]
    pub fn snapshot(&self) -> SchedulerSnapshot {
        let inside = self.live_keys.len();
        let waiting = self.starting.iter().chain(&self.queue);
        let mut running: Vec<SequenceKey> = self.running.clone();
        running.sort_by_key(|key| self.sequences[*key].sequence);
        // A finished sequence may still have a slot, but is not shown.
        let running = running
            .iter()
            .filter(|key| self.sequences[**key].finished.is_none());
        let shown = running.chain(waiting).take(SEQUENCES_MAX);
        let sequences: Vec<SequenceView> =
            shown.map(|key| self.shown(&self.sequences[*key])).collect();
        let mut users = self.users();
        let users_left_out = users.len().saturating_sub(USERS_MAX);
        users.truncate(USERS_MAX);
        SchedulerSnapshot {
            sequences_left_out: inside - sequences.len(),
            sequences,
            users,
            users_left_out,
        }
    }

    /// Returns the slots of running sequences.
    pub fn slot_owners(&self) -> impl Iterator<Item = (SlotId, SequenceId)> + '_ {
        let running = self.running.iter().map(|key| &self.sequences[*key]);
        running.filter_map(|entry| Some((entry.running()?.slot, entry.sequence)))
    }

    /// Returns the users, those with the most sequences first.
    fn users(&self) -> Vec<UserView> {
        let mut users: BTreeMap<UserId, UserView> = BTreeMap::new();
        for key in self.live_keys.values() {
            let entry = &self.sequences[*key];
            let user = users.entry(entry.user).or_insert_with(|| UserView {
                user: entry.user,
                service: self.service.of(entry.user),
                ..UserView::default()
            });
            user.paused += usize::from(entry.paused_since.is_some());
            if entry.running().is_some() {
                user.running += 1;
            } else {
                user.waiting += 1;
                user.waiting_tokens += entry.tokens.len();
                let waited = self.now.saturating_sub(entry.queued_at);
                user.longest_wait = user.longest_wait.max(waited);
            }
        }
        let mut users: Vec<UserView> = users.into_values().collect();
        users.sort_by_key(|user| (Reverse(user.running + user.waiting), user.user));
        users
    }

    fn shown(&self, entry: &Sequence) -> SequenceView {
        let waits_now = match &entry.phase {
            Phase::Running(_) => None,
            Phase::Queued | Phase::Starting { .. } => self.now.checked_sub(entry.queued_at),
        };
        SequenceView {
            sequence: entry.sequence,
            user: entry.user,
            class: entry.class,
            stage: stage(entry),
            prompt_tokens: entry.prompt.len(),
            computed_tokens: entry.running().map_or(0, |running| running.computed),
            output_tokens: entry.generated.len(),
            output_tokens_max: entry.output_tokens_max,
            preempted: entry.preempted,
            waited: entry.queued_for + waits_now.unwrap_or_default(),
        }
    }
}

fn stage(entry: &Sequence) -> Stage {
    match &entry.phase {
        _ if entry.paused_since.is_some() => Stage::Paused,
        Phase::Queued => Stage::Queued,
        Phase::Starting { waits: true, .. } => Stage::AwaitingPrefix,
        Phase::Starting { .. } => Stage::Starting,
        Phase::Running(_) if entry.fresh().is_empty() => Stage::Prefill,
        Phase::Running(_) => Stage::Decode,
    }
}
