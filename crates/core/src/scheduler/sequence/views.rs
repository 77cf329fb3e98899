//! A sequence as the policies see it.

use super::Sequence;
use crate::scheduler::policy::plan::Candidate;
use crate::scheduler::policy::waiting::{QueuedView, RunningView};
use motet_sync::injected::{self, Bug};

/// Tokens for which a sequence that was preempted before keeps its slot, if another can be
/// preempted.
const FRESH_TOKENS: usize = 32;

/// Facts about a waiting sequence that the sequence itself does not know.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct QueuedTerms {
    pub(in crate::scheduler) aged: bool,
    pub(in crate::scheduler) ready: bool,
    pub(in crate::scheduler) needed: bool,
    pub(in crate::scheduler) turned_away: bool,
}

impl Sequence {
    /// Returns what it could do in the next step. It is no candidate in these cases:
    ///
    /// * it is finished, or its caller does not read;
    /// * its mask is not ready;
    /// * an answer of the cache must come first;
    /// * a fork, a checkpoint or its preemption waits until it is in no step;
    /// * its grant is used up;
    /// * its last token is being sampled, or the end of its reasoning is about to be appended.
    ///
    /// `survival` is that of its [draft](Candidate::survival).
    pub(in crate::scheduler) fn candidate<'a>(
        &self,
        service: f64,
        survival: &'a [f32],
    ) -> Option<Candidate<'a>> {
        let slot = self.slot()?;
        if self.is_finished() || self.is_paused() || slot.is_held() {
            return None;
        }
        let generated = self.history.generated().len();
        if !self.mask_gate.allows(generated, slot.is_in_step()) {
            return None;
        }
        let known = self.pending();
        let expected = generated + slot.in_flight_samples();
        let is_full = expected >= self.submission.output_tokens_max;
        if known == 0 && (is_full || !self.reasoning_end().is_empty()) {
            return None;
        }
        Some(Candidate {
            arrival: self.id(),
            pending: known.max(1),
            decoding: self.history.is_decoding_at(expected),
            cached: slot.evaluated(),
            stop_after: Some(slot.stop_after()?),
            suspect: self.failures.is_suspect(),
            resumes: self.failures.resumes(),
            priority: self.priority(),
            service,
            waited_steps: slot.waited_steps(),
            survival,
        })
    }

    /// Returns it as one of the waiting sequences.
    pub(in crate::scheduler) fn queued_view(&self, service: f64, terms: QueuedTerms) -> QueuedView {
        QueuedView {
            sequence: self.id(),
            priority: self.priority(),
            aged: terms.aged,
            in_turn: self.is_in_turn(),
            ready: terms.ready,
            needed: terms.needed,
            turned_away: terms.turned_away,
            service,
            resident_tokens: self.uncached(0).1,
            overtaken: self.start.overtaken(),
        }
    }

    /// Returns it as one of the running sequences, whose user has this many slots.
    pub(in crate::scheduler) fn running_view(
        &self,
        service: f64,
        user_slots: usize,
    ) -> RunningView {
        let at = self.slot().expect("the sequence runs").evaluated();
        let opened_at = self.history.tokens().len();
        let paused = self.is_paused();
        RunningView {
            sequence: self.id(),
            priority: self.priority(),
            service,
            slots: user_slots as f64 / self.submission.weight,
            lost_tokens: at,
            paused,
            fresh: self.preempted > 0 && !paused && at < opened_at + FRESH_TOKENS,
            in_turn: self.is_in_turn() && !injected::is_injected(Bug::TurnTaken),
        }
    }
}
