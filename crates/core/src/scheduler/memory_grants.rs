//! Grants of memory to slots, and preemption when memory runs out.
//!
//! A sequence starts with memory for its prompt and some headroom, not for the longest output
//! that it may have: most end sooner. The cache extends the grant as the slot grows, and evicts
//! unused segments for it. When that does not suffice, the cheapest sequence is preempted. Its
//! computed state goes to the trie and stays there while there is memory. The sequence returns
//! to its place in the queue with its history.
//!
//! After each such preemption new sequences get more headroom, and so fewer start. Without
//! preemptions the headroom shrinks again (as SGLang's ratio of new tokens does).

use std::cmp::Reverse;

use super::policy::turns::TURN_TOKENS;
use super::policy::waiting::{self, PreemptFor, RunningView};
use super::sequence::{Finished, GrantRequest, SequenceKey};
use super::{Effect, SchedulerCore};
use crate::protocol::{GenerateError, Priority};
use crate::{SequenceId, cache};
use motet_sync::injected::{self, Bug};

/// Tokens by which a grant is extended.
const GRANT_TOKENS: usize = 64;
/// Tokens left in a grant at which the slot asks for more, so that the answer comes in time.
const GRANT_AHEAD_TOKENS: usize = 16;
// A sequence in its turn never waits for memory.
const _: () = assert!(TURN_TOKENS <= GRANT_AHEAD_TOKENS);
/// Tokens for which a sequence that was preempted before keeps its slot, if another can be
/// preempted.
const FRESH_TOKENS: usize = 32;

/// Part of its longest output for which a new sequence gets memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headroom(f64);

impl Headroom {
    const LEAST: f64 = 0.1;
    /// Factor by which it shrinks after each step.
    const DECAY: f64 = 0.998;

    fn tokens(self, output_left: usize) -> usize {
        (self.0 * output_left as f64) as usize
    }

    /// Widens the headroom after a preemption.
    fn widen(&mut self) {
        self.0 = (self.0 * 1.5).min(1.0);
    }

    /// Narrows the headroom after a step.
    pub(super) fn narrow(&mut self) {
        self.0 = (self.0 * Self::DECAY).max(Self::LEAST);
    }
}

impl Default for Headroom {
    fn default() -> Self {
        Self(0.5)
    }
}

impl SchedulerCore {
    /// Returns the tokens of a new slot's grant. A slot that will be shifted gets its whole
    /// context, which it fills anyway.
    pub(super) fn first_grant(&self, key: SequenceKey) -> usize {
        let entry = &self.sequences[key];
        let (known, most) = (entry.tokens.len(), entry.tokens_max());
        if entry.keep().is_some() {
            return most;
        }
        let output_left = most.saturating_sub(known);
        let headroom = if entry.minimal_grant {
            GRANT_AHEAD_TOKENS
        } else {
            self.headroom.tokens(output_left).max(GRANT_TOKENS)
        };
        known.saturating_add(headroom).min(most)
    }

    /// Asks for a larger grant for a slot that is almost full.
    pub(super) fn extend_grant(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let entry = &mut self.sequences[key];
        let most = entry.tokens_max();
        let sequence = entry.sequence;
        let is_stalled = entry.finished.is_some() || entry.paused_since.is_some();
        let Some(running) = entry.running_mut() else {
            return;
        };
        let near = running.grant_left() < GRANT_AHEAD_TOKENS && running.granted < most;
        if is_stalled || !near || running.grant_request != GrantRequest::None {
            return;
        }
        running.grant_request = GrantRequest::Pending;
        let tokens_max = running.granted.saturating_add(GRANT_TOKENS).min(most);
        let extend_grant = cache::Message::ExtendGrant {
            sequence,
            tokens_max,
        };
        self.ask(extend_grant, effects);
    }

    /// Records an extended grant.
    pub(super) fn grant_extended(&mut self, key: SequenceKey, tokens_max: usize) {
        if let Some(running) = self.sequences[key].running_mut() {
            running.granted = running.granted.max(tokens_max);
            running.grant_request = GrantRequest::None;
        }
    }

    /// Records a denied extension.
    pub(super) fn grant_denied(&mut self, key: SequenceKey) {
        if let Some(running) = self.sequences[key].running_mut() {
            running.grant_request = GrantRequest::Denied;
            self.starved.push(key);
        }
    }

    /// Repeats the denied requests, since memory may have been freed.
    pub(super) fn retry_grants(&mut self, effects: &mut Vec<Effect>) {
        let mut starved = std::mem::take(&mut self.starved);
        starved.sort_by_key(|key| self.rank(*key));
        for key in starved {
            if let Some(running) = self.sequences[key].running_mut() {
                running.grant_request = GrantRequest::None;
            }
            self.extend_grant(key, effects);
        }
    }

    /// Preempts a sequence for one that stands still for want of memory, unless something is
    /// pending that may free memory.
    pub(super) fn preempt_for_starved(&mut self, effects: &mut Vec<Effect>) {
        if self.starved.is_empty() || self.preempting > 0 || self.pending_answers > 0 {
            return;
        }
        let is_stalled = |key: &&SequenceKey| {
            let entry = &self.sequences[**key];
            entry.paused_since.is_none() && entry.running().is_some_and(|r| r.grant_left() == 0)
        };
        let stalled = self.starved.iter().filter(is_stalled).copied();
        let Some(requester) = stalled.min_by_key(|key| self.rank(*key)) else {
            return;
        };
        // A finished sequence frees its slot when it has drained.
        if !self.draining.is_empty() {
            return;
        }
        if self.running.len() == 1 && self.starting.is_empty() {
            // Its own cached prefix may take the memory that it lacks.
            if std::mem::replace(&mut self.sequences[requester].ignore_cache, true) {
                let error = GenerateError::OutOfMemory;
                self.fail(requester, error, Finished::Close, effects);
            } else {
                self.preempt_after_step(requester, effects);
            }
            return;
        }
        let requester = PreemptFor::Running(self.sequences[requester].class);
        self.headroom.widen();
        self.preempt_for(&requester, effects);
    }

    /// Returns the order in which starved sequences get memory: the highest class first, then
    /// the earliest arrival.
    fn rank(&self, key: SequenceKey) -> (Reverse<Priority>, SequenceId) {
        let entry = &self.sequences[key];
        (Reverse(entry.class), entry.sequence)
    }

    /// Preempts a sequence for a queued one.
    pub(super) fn preempt_for_queued(&mut self, requester: &PreemptFor, effects: &mut Vec<Effect>) {
        self.starts_when_answered = self.pending_answers > 0;
        if self.preempting == 0 && self.pending_answers == 0 && self.draining.is_empty() {
            self.preempt_for(requester, effects);
        }
    }

    /// Returns the sequence that would be preempted.
    pub(super) fn preemption_victim(&self, requester: &PreemptFor) -> Option<SequenceKey> {
        let live = |key: &&SequenceKey| self.sequences[**key].finished.is_none();
        let keys: Vec<SequenceKey> = self.running.iter().filter(live).copied().collect();
        let running_views: Vec<RunningView> =
            keys.iter().map(|key| self.running_view(*key)).collect();
        let victim = waiting::victim(&running_views, requester, self.config.locality_service)?;
        Some(keys[victim])
    }

    fn preempt_for(&mut self, requester: &PreemptFor, effects: &mut Vec<Effect>) {
        if let Some(key) = self.preemption_victim(requester) {
            self.preempt_after_step(key, effects);
        }
    }

    /// Preempts a sequence as soon as it is in no step.
    fn preempt_after_step(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let running = self.sequences[key]
            .running_mut()
            .expect("the sequence runs");
        running.preempting = true;
        self.preempting += 1;
        if running.steps_in_flight == 0 {
            self.preempt_now(key, effects);
        }
    }

    /// Takes a sequence's slot and returns the sequence to its place in the queue.
    pub(super) fn preempt_now(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        self.leave_phase(key);
        self.end_turn(key);
        let entry = &mut self.sequences[key];
        let sequence = entry.sequence;
        let computed = entry.running().expect("the sequence runs").computed;
        let generated = entry.generated_for_cache();
        entry.preempted += 1;
        entry.restart();
        self.preempted += 1;
        effects.push(Effect::Preempted(sequence));
        let close = cache::Message::Close {
            sequence,
            computed,
            generated,
        };
        self.ask(close, effects);
        self.enqueue(key);
        self.start_forks_of(sequence, effects);
    }

    fn running_view(&self, key: SequenceKey) -> RunningView {
        let entry = &self.sequences[key];
        let running = entry.running().expect("the sequence runs");
        let at = running.computed + running.in_flight_tokens;
        RunningView {
            sequence: entry.sequence,
            class: entry.class,
            service: self.service.of(entry.user),
            slots: self.slots_of[&entry.user] as f64 / entry.weight,
            lost_tokens: at,
            paused: entry.paused_since.is_some(),
            fresh: entry.preempted > 0
                && entry.paused_since.is_none()
                && at < running.opening_tokens + FRESH_TOKENS,
            in_turn: entry.is_in_turn() && !injected::is_injected(Bug::TurnTaken),
        }
    }
}
