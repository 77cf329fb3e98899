//! Who is inside, for those who watch.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::SchedulerCore;
use super::entry::{Entry, EntryKey, Phase};
use crate::snapshot::{HouseView, SEQUENCES_MAX, SequenceView, Stage, USERS_MAX, UserView};
use crate::{SequenceId, SlotId, UserId};

impl SchedulerCore {
    /// Who is inside. Costs a walk over all who are.
    #[must_use]
    pub fn house(&self) -> HouseView {
        let inside = self.names.len();
        let waiting = self.starting.iter().chain(&self.queue);
        let mut running: Vec<EntryKey> = self.running.clone();
        running.sort_by_key(|key| self.entries[*key].sequence);
        // One that is over and has a slot still is not inside any more.
        let running = running
            .iter()
            .filter(|key| self.entries[**key].over.is_none());
        let shown = running.chain(waiting).take(SEQUENCES_MAX);
        let sequences: Vec<SequenceView> =
            shown.map(|key| self.shown(&self.entries[*key])).collect();
        let mut users = self.users();
        let users_left_out = users.len().saturating_sub(USERS_MAX);
        users.truncate(USERS_MAX);
        HouseView {
            sequences_left_out: inside - sequences.len(),
            sequences,
            users,
            users_left_out,
        }
    }

    /// The slots of those who run.
    pub fn seats(&self) -> impl Iterator<Item = (SlotId, SequenceId)> + '_ {
        let running = self.running.iter().map(|key| &self.entries[*key]);
        running.filter_map(|entry| Some((entry.running()?.slot, entry.sequence)))
    }

    /// Those with most inside first.
    fn users(&self) -> Vec<UserView> {
        let mut users: BTreeMap<UserId, UserView> = BTreeMap::new();
        for key in self.names.values() {
            let entry = &self.entries[*key];
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

    fn shown(&self, entry: &Entry) -> SequenceView {
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

fn stage(entry: &Entry) -> Stage {
    match &entry.phase {
        _ if entry.paused_since.is_some() => Stage::Paused,
        Phase::Queued => Stage::Queued,
        Phase::Starting { waits: true, .. } => Stage::AwaitingPrefix,
        Phase::Starting { .. } => Stage::Starting,
        Phase::Running(_) if entry.fresh().is_empty() => Stage::Prefill,
        Phase::Running(_) => Stage::Decode,
    }
}
