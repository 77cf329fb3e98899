//! The slot of a running sequence: its progress, its grant, and what its next step waits for.

use std::ops::Range;

use smallvec::SmallVec;

use super::grant::Grant;
use motet_protocol::SlotId;

/// Inverse of the growth after which a sequence is copied again, but not sooner than the
/// configuration says. Long sequences therefore have few copies.
const BACKUP_GROWTH_PARTS: usize = 8;

/// A slot and its progress.
#[derive(Debug)]
pub(in crate::scheduler) struct Slot {
    id: SlotId,
    /// Its index among the running sequences.
    running_index: usize,
    progress: Progress,
    grant: Grant,
    holds: Holds,
    /// The number of computed tokens at which the cache is to be told.
    report_at: Option<usize>,
    /// Computed tokens that were copied, or on the way there, at the last backup.
    backed_up: usize,
    /// Whether the device has a sampler for it.
    has_sampler: bool,
    /// Steps that were planned without it since its last one.
    waited_steps: usize,
}

/// Tokens of a slot that are computed, or in a step.
#[derive(Debug, Default)]
struct Progress {
    /// Tokens whose state the slot holds, as of the finished steps.
    computed: usize,
    /// Tokens that steps in flight add to the computed ones, but for draft tokens.
    in_flight_tokens: usize,
    /// Tokens that steps in flight sample for the sequence.
    in_flight_samples: usize,
    /// Tokens that steps in flight sample in vain: others were appended in their place. These
    /// steps are older than those of `in_flight_samples`.
    void_samples: usize,
    /// Number of steps in flight that it is part of.
    steps_in_flight: usize,
    /// Tokens that were shifted out of the slot, all after the retained ones.
    shifted_out: usize,
}

/// Everything that must happen before the slot's next step.
#[derive(Debug, Default)]
struct Holds {
    /// Number of cache answers that must come first. A tail that is to be sealed must not grow
    /// meanwhile.
    barriers: usize,
    /// Number of forks that wait until it is in no step.
    forks_due: usize,
    /// Whether it will be preempted once it is in no step.
    preempting: bool,
    /// Whether its grammar must read its output again once it is in no step.
    rereads: bool,
    /// Positions whose state the cache is to seal.
    checkpoints: SmallVec<[Checkpoint; 2]>,
}

/// A range of positions, one of which must be the end of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Checkpoint {
    at: usize,
    until: usize,
}

impl Slot {
    pub(super) fn new(
        id: SlotId,
        cached_tokens: usize,
        granted: usize,
        running_index: usize,
    ) -> Self {
        Self {
            id,
            running_index,
            progress: Progress {
                computed: cached_tokens,
                ..Progress::default()
            },
            grant: Grant::new(granted),
            holds: Holds::default(),
            report_at: None,
            backed_up: cached_tokens,
            has_sampler: false,
            waited_steps: 0,
        }
    }

    /// Returns the slot of another sequence that continues in this one after this many tokens.
    pub(super) fn rewound(&self, retained_tokens: usize) -> Self {
        let granted = self.grant.tokens();
        let mut slot = Self::new(self.id, retained_tokens, granted, self.running_index);
        let checkpoints = self.holds.checkpoints.iter().copied();
        slot.holds.checkpoints = checkpoints
            .filter(|one| one.at <= retained_tokens)
            .collect();
        slot
    }

    pub(in crate::scheduler) fn id(&self) -> SlotId {
        self.id
    }

    pub(in crate::scheduler) fn running_index(&self) -> usize {
        self.running_index
    }

    /// Records that it has moved among the running sequences.
    pub(in crate::scheduler) fn moved_to(&mut self, running_index: usize) {
        self.running_index = running_index;
    }

    /// Returns the number of tokens whose state it holds, as of the finished steps.
    pub(in crate::scheduler) fn computed(&self) -> usize {
        self.progress.computed
    }

    /// Returns the number of tokens that are computed, or in a step.
    pub(in crate::scheduler) fn evaluated(&self) -> usize {
        self.progress.computed + self.progress.in_flight_tokens
    }

    /// Returns the number of tokens that steps in flight sample.
    pub(super) fn in_flight_samples(&self) -> usize {
        self.progress.in_flight_samples
    }

    pub(in crate::scheduler) fn steps_in_flight(&self) -> usize {
        self.progress.steps_in_flight
    }

    pub(in crate::scheduler) fn in_flight_tokens(&self) -> usize {
        self.progress.in_flight_tokens
    }

    pub(in crate::scheduler) fn is_in_step(&self) -> bool {
        self.progress.steps_in_flight > 0
    }

    pub(super) fn shifted_out(&self) -> usize {
        self.progress.shifted_out
    }

    pub(super) fn waited_steps(&self) -> usize {
        self.waited_steps
    }

    pub(in crate::scheduler) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Records that the cache has extended its grant. A grant is never shortened.
    pub(in crate::scheduler) fn extend_grant(&mut self, tokens: usize) {
        self.grant.extend(tokens);
    }

    /// Records that the cache had no memory for a larger grant.
    pub(in crate::scheduler) fn deny_grant(&mut self) {
        self.grant.deny();
    }

    /// Lets it ask again after a denial.
    pub(in crate::scheduler) fn retry_grant(&mut self) {
        self.grant.retry();
    }

    /// Returns the tokens to ask for if its grant is almost used up, and records the request.
    pub(super) fn request_grant(&mut self, most: usize) -> Option<usize> {
        self.grant.request_more(self.evaluated(), most)
    }

    /// Returns the number of tokens that still fit into its grant.
    pub(in crate::scheduler) fn grant_left(&self) -> usize {
        self.grant.left(self.evaluated())
    }

    /// Counts a step that is planned while it could take part.
    pub(in crate::scheduler) fn wait_for_step(&mut self) {
        self.waited_steps += 1;
    }

    /// Adds a step in flight. Returns whether the device has its sampler already; from now on
    /// the device has one if `needs_sampler` says so.
    pub(super) fn join_step(&mut self, tokens: usize, samples: bool, needs_sampler: bool) -> bool {
        self.progress.in_flight_tokens += tokens;
        self.progress.steps_in_flight += 1;
        self.progress.in_flight_samples += usize::from(samples);
        self.waited_steps = 0;
        std::mem::replace(&mut self.has_sampler, needs_sampler)
    }

    /// Finishes a step in flight, of whose draft tokens the first `accepted` are right. Returns
    /// whether its sample is void.
    pub(super) fn finish_step(&mut self, tokens: usize, accepted: usize, samples: bool) -> bool {
        let progress = &mut self.progress;
        progress.steps_in_flight -= 1;
        progress.in_flight_tokens -= tokens;
        progress.computed += tokens + accepted;
        let is_void = samples && progress.void_samples > 0;
        assert!(
            !is_void || accepted == 0,
            "the tokens of a void sample are in no slot"
        );
        if is_void {
            progress.void_samples -= 1;
        } else {
            progress.in_flight_samples -= usize::from(samples);
        }
        is_void
    }

    /// Makes the samples of the steps in flight void, since other tokens were appended in their
    /// place.
    pub(super) fn void_samples(&mut self) {
        let progress = &mut self.progress;
        progress.void_samples += std::mem::take(&mut progress.in_flight_samples);
    }

    /// Has the device get another sampler, since the one that it has does not know the whole
    /// output. If that takes a grammar, the slot is in no step until the grammar has read the
    /// output.
    pub(super) fn renew_sampler(&mut self, has_grammar: bool) {
        self.has_sampler = false;
        self.holds.rereads |= has_grammar;
    }

    /// Returns whether the grammar must read the output now, while the slot is in no step. It
    /// need not any more.
    pub(in crate::scheduler) fn take_reread(&mut self) -> bool {
        std::mem::take(&mut self.holds.rereads)
    }

    /// Accounts for a shift.
    pub(super) fn shift(&mut self, removed: &Range<usize>) {
        self.progress.computed -= removed.len();
        // A sequence that waited for dropped tokens restarts; the cache knows it.
        self.holds.checkpoints.retain(|one| one.at <= removed.start);
        self.progress.shifted_out += removed.len();
    }

    /// Whether something must happen before the next step: an answer of the cache, or an action
    /// that waits until it is in no step.
    pub(super) fn is_held(&self) -> bool {
        self.holds.stop_at(self.evaluated())
    }

    /// Returns the number of tokens after which its next chunk ends at the latest, for the
    /// grant or for the cache, which takes its state there; `None` if that is now.
    pub(super) fn stop_after(&self) -> Option<usize> {
        let checkpoint = self.holds.checkpoints.iter().map(|one| one.until).min();
        let limit = checkpoint.unwrap_or(usize::MAX).min(self.grant.tokens());
        limit.checked_sub(self.evaluated()).filter(|left| *left > 0)
    }

    /// Whether another sequence could take it over now: nothing is pending that concerns it.
    pub(in crate::scheduler) fn is_at_rest(&self) -> bool {
        let holds = &self.holds;
        !self.is_in_step() && holds.barriers == 0 && !self.grant.has_request() && !holds.preempting
    }

    /// Keeps it out of further steps until the cache has answered.
    pub(in crate::scheduler) fn raise_barrier(&mut self) {
        self.holds.barriers += 1;
    }

    pub(in crate::scheduler) fn lift_barrier(&mut self) {
        self.holds.barriers -= 1;
    }

    pub(in crate::scheduler) fn barriers(&self) -> usize {
        self.holds.barriers
    }

    /// Keeps it out of further steps until a fork has started.
    pub(in crate::scheduler) fn wait_for_fork(&mut self) {
        self.holds.forks_due += 1;
    }

    /// Records that all forks have started, or ended.
    pub(in crate::scheduler) fn forks_started(&mut self) {
        self.holds.forks_due = 0;
    }

    /// Returns the number of forks that wait until it is in no step, some of which may have been
    /// cancelled.
    pub(in crate::scheduler) fn forks_due(&self) -> usize {
        self.holds.forks_due
    }

    /// Keeps it out of further steps, since it will be preempted.
    pub(in crate::scheduler) fn preempt_after_step(&mut self) {
        self.holds.preempting = true;
    }

    pub(in crate::scheduler) fn is_preempting(&self) -> bool {
        self.holds.preempting
    }

    /// Records that the cache is to seal its state at one of the positions from `at` to `until`.
    pub(in crate::scheduler) fn add_checkpoint(&mut self, at: usize, until: usize) {
        self.holds.checkpoints.push(Checkpoint { at, until });
    }

    /// Forgets the checkpoints that are reached. Returns false if there are none, or if it is
    /// in a step.
    pub(in crate::scheduler) fn take_reached_checkpoints(&mut self) -> bool {
        if self.is_in_step() {
            return false;
        }
        let before = self.holds.checkpoints.len();
        let computed = self.progress.computed;
        self.holds.checkpoints.retain(|one| one.at > computed);
        self.holds.checkpoints.len() < before
    }

    /// Records that the cache is to be told once it has computed this many tokens.
    pub(in crate::scheduler) fn report_at(&mut self, tokens: usize) {
        self.report_at = Some(tokens);
    }

    /// Returns the number of computed tokens if the cache is to be told now, and forgets that.
    pub(super) fn take_report(&mut self) -> Option<usize> {
        let computed = self.progress.computed;
        let is_due = self.report_at.take_if(|at| *at <= computed);
        is_due.map(|_| computed)
    }

    /// Records a backup if enough tokens were computed since the last one: `tokens_min`, or an
    /// eighth of the copied ones if that is more. Returns whether it is due.
    pub(super) fn take_backup(&mut self, tokens_min: usize) -> bool {
        let growth = tokens_min.max(self.backed_up / BACKUP_GROWTH_PARTS);
        let is_due = !self.holds.preempting && self.progress.computed >= self.backed_up + growth;
        if is_due {
            self.backed_up = self.progress.computed;
        }
        is_due
    }
}

impl Holds {
    /// Whether no step may come before they are gone, at this position.
    fn stop_at(&self, evaluated: usize) -> bool {
        self.barriers > 0
            || self.forks_due > 0
            || self.preempting
            || self.rereads
            || self.checkpoints.iter().any(|one| one.at <= evaluated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(computed: usize) -> Slot {
        Slot::new(SlotId(1), computed, 100, 0)
    }

    #[test]
    fn chunk_ends_at_the_first_checkpoint_and_at_the_grant() {
        let mut slot = slot(10);
        assert_eq!(slot.stop_after(), Some(90));
        slot.add_checkpoint(40, 40);
        slot.add_checkpoint(20, 20);
        assert_eq!(slot.stop_after(), Some(10));
        slot.join_step(10, false, false);
        assert!(slot.is_held());
        assert!(!slot.take_reached_checkpoints(), "it is in a step");
        slot.finish_step(10, 0, false);
        assert!(slot.take_reached_checkpoints());
        assert!(!slot.is_held());
        assert_eq!(slot.stop_after(), Some(20));
    }

    #[test]
    fn chunk_may_end_anywhere_in_the_range_of_a_checkpoint() {
        let mut slot = slot(10);
        slot.add_checkpoint(20, 25);
        assert_eq!(slot.stop_after(), Some(15));
        slot.join_step(12, false, false);
        assert!(slot.is_held(), "it has reached the range");
        slot.finish_step(12, 0, false);
        assert!(slot.take_reached_checkpoints());
        assert_eq!(slot.stop_after(), Some(78));
    }

    #[test]
    fn report_comes_while_a_later_step_is_in_flight() {
        let mut slot = slot(10);
        slot.report_at(16);
        slot.join_step(8, false, false);
        slot.join_step(8, false, false);
        assert_eq!(slot.take_report(), None, "no step has finished");
        assert!(!slot.is_held());
        slot.finish_step(8, 0, false);
        assert_eq!(slot.take_report(), Some(18));
        assert_eq!(slot.take_report(), None, "it is reported once");
    }

    #[test]
    fn backups_come_with_growth() {
        let mut slot = slot(0);
        let mut backups = Vec::new();
        for computed in 1..=101 {
            slot.join_step(1, false, false);
            slot.finish_step(1, 0, false);
            if slot.take_backup(10) {
                backups.push(computed);
            }
        }
        assert_eq!(backups, [10, 20, 30, 40, 50, 60, 70, 80, 90, 101]);
        slot.preempt_after_step();
        assert!(!slot.take_backup(0));
    }

    #[test]
    fn samples_in_flight_are_void_after_tokens_were_appended() {
        let mut slot = slot(10);
        slot.join_step(1, true, false);
        slot.void_samples();
        assert_eq!(slot.in_flight_samples(), 0);
        slot.join_step(3, true, false);
        assert_eq!(slot.in_flight_samples(), 1);
        assert!(slot.finish_step(1, 0, true), "the older one is void");
        assert!(!slot.finish_step(3, 0, true));
        assert_eq!((slot.in_flight_samples(), slot.computed()), (0, 14));
    }

    #[test]
    fn slot_waits_until_its_grammar_has_read_the_output() {
        let mut slot = slot(10);
        slot.renew_sampler(false);
        assert!(!slot.is_held());
        slot.renew_sampler(true);
        assert!(slot.is_held());
        assert!(slot.take_reread() && !slot.take_reread());
        assert!(!slot.is_held());
    }

    #[test]
    fn rewound_slot_has_the_place_and_the_grant() {
        let mut slot = slot(50);
        slot.add_checkpoint(60, 60);
        slot.add_checkpoint(30, 30);
        let rewound = slot.rewound(30);
        assert_eq!((rewound.id(), rewound.computed()), (slot.id(), 30));
        assert_eq!(rewound.grant().tokens(), 100);
        assert!(
            rewound.is_held(),
            "a reached checkpoint is still to be reported"
        );
    }
}
