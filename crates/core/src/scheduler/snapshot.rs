//! Snapshots of the scheduler's sequences.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::SchedulerCore;
use super::sequence::{Phase, Sequence, SequenceKey, Slot};
use crate::snapshot::{SEQUENCES_MAX, SchedulerSnapshot, SequenceView, Stage, USERS_MAX, UserView};
use motet_protocol::{SequenceId, SlotId, UserId};

impl SchedulerCore {
    /// Returns a snapshot of sequences and users. Costs a walk over all of them.
    #[must_use]
    pub fn snapshot(&self) -> SchedulerSnapshot {
        let inside = self.sequences.live().len();
        let waiting = self.slots.starting().iter().chain(self.waiting.queued());
        let mut running: Vec<SequenceKey> = self.slots.running().to_vec();
        running.sort_by_key(|key| self.sequences[*key].id());
        // A finished sequence may still have a slot, but is not shown.
        let running = running
            .iter()
            .filter(|key| !self.sequences[**key].is_finished());
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
        let running = self.slots.running().iter();
        let running = running.map(|key| &self.sequences[*key]);
        running.filter_map(|entry| Some((entry.slot()?.id(), entry.id())))
    }

    /// Returns the users, those with the most sequences first.
    fn users(&self) -> Vec<UserView> {
        let mut users: BTreeMap<UserId, UserView> = BTreeMap::new();
        for key in self.sequences.live() {
            let entry = &self.sequences[key];
            let user = users.entry(entry.user()).or_insert_with(|| UserView {
                user: entry.user(),
                service: self.service.of(entry.user()),
                ..UserView::default()
            });
            user.paused += usize::from(entry.is_paused());
            if entry.slot().is_some() {
                user.running += 1;
            } else {
                user.waiting += 1;
                user.waiting_tokens += entry.history().tokens().len();
                let waited = entry.queue_time().since_entered(self.now);
                user.longest_wait = user.longest_wait.max(waited);
            }
        }
        let mut users: Vec<UserView> = users.into_values().collect();
        users.sort_by_key(|user| (Reverse(user.running + user.waiting), user.user));
        users
    }

    fn shown(&self, entry: &Sequence) -> SequenceView {
        let time = entry.queue_time();
        let waited = match entry.phase() {
            Phase::Queued => time.total(self.now),
            Phase::Starting { .. } | Phase::Running(_) => time.before(),
        };
        let history = entry.history();
        SequenceView {
            sequence: entry.id(),
            user: entry.user(),
            class: entry.class(),
            stage: stage(entry),
            prompt_tokens: history.prompt().len(),
            computed_tokens: entry.slot().map_or(0, Slot::computed),
            output_tokens: history.generated().len(),
            output_tokens_max: entry.submission().output_tokens_max,
            preempted: entry.preempted(),
            waited,
        }
    }
}

fn stage(entry: &Sequence) -> Stage {
    match entry.phase() {
        _ if entry.is_paused() => Stage::Paused,
        Phase::Queued => Stage::Queued,
        Phase::Starting { waits: true, .. } => Stage::AwaitingPrefix,
        Phase::Starting { .. } => Stage::Starting,
        Phase::Running(_) if entry.is_prefilling() => Stage::Prefill,
        Phase::Running(_) => Stage::Decode,
    }
}
