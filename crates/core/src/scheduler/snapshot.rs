//! Snapshots of the scheduler's sequences.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::SchedulerCore;
use super::sequence::{Phase, Sequence, SequenceKey, Slot};
use crate::snapshot::{SchedulerSnapshot, SequenceView, Stage, UserView};
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
        let shown = running
            .chain(waiting)
            .take(SchedulerSnapshot::SEQUENCES_MAX);
        let sequences: Vec<SequenceView> =
            shown.map(|key| self.shown(&self.sequences[*key])).collect();
        let mut users = self.users();
        let users_left_out = users.len().saturating_sub(SchedulerSnapshot::USERS_MAX);
        users.truncate(SchedulerSnapshot::USERS_MAX);
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
        running.filter_map(|sequence| Some((sequence.slot()?.id(), sequence.id())))
    }

    /// Returns the users, those with the most sequences first.
    fn users(&self) -> Vec<UserView> {
        let mut users: BTreeMap<UserId, UserView> = BTreeMap::new();
        for key in self.sequences.live() {
            let sequence = &self.sequences[key];
            let user = users.entry(sequence.user()).or_insert_with(|| UserView {
                user: sequence.user(),
                service: self.service.of(sequence.user()),
                ..UserView::default()
            });
            user.paused += usize::from(sequence.is_paused());
            if sequence.slot().is_some() {
                user.running += 1;
            } else {
                user.waiting += 1;
                user.waiting_tokens += sequence.history().tokens().len();
                let waited = sequence.queue_time().since_entered(self.now);
                user.longest_wait = user.longest_wait.max(waited);
            }
        }
        let mut users: Vec<UserView> = users.into_values().collect();
        users.sort_by_key(|user| (Reverse(user.running + user.waiting), user.user));
        users
    }

    fn shown(&self, sequence: &Sequence) -> SequenceView {
        let time = sequence.queue_time();
        let waited = match sequence.phase() {
            Phase::Queued => time.total(self.now),
            Phase::Starting { .. } | Phase::Running(_) => time.before(),
        };
        let history = sequence.history();
        SequenceView {
            sequence: sequence.id(),
            user: sequence.user(),
            priority: sequence.priority(),
            stage: stage(sequence),
            prompt_tokens: history.prompt().len(),
            computed_tokens: sequence.slot().map_or(0, Slot::computed),
            output_tokens: history.generated().len(),
            output_tokens_max: sequence.submission().output_tokens_max,
            preempted: sequence.preempted(),
            waited,
        }
    }
}

fn stage(sequence: &Sequence) -> Stage {
    match sequence.phase() {
        _ if sequence.is_paused() => Stage::Paused,
        Phase::Queued => Stage::Queued,
        Phase::Starting { waits: true, .. } => Stage::AwaitingPrefix,
        Phase::Starting { .. } => Stage::Starting,
        Phase::Running(_) if sequence.is_prefilling() => Stage::Prefill,
        Phase::Running(_) => Stage::Decode,
    }
}
