//! Slots grow as their sequences do; when there is no room, somebody gives way.
//!
//! A sequence starts with room for its prompt and some head room, not for the longest
//! output that it may have: most end sooner. The cache lets its slot grow, and evicts
//! for that what nobody holds. When that is not enough the cheapest sequence gives way:
//! what it computed goes to the trie, where it stays as long as there is room, and it
//! goes back to its place in the queue with its history.
//!
//! Each time that happens newcomers are given more head room, and so fewer start; while
//! it does not, the head room shrinks again (as SGLang's ratio of new tokens does).

use std::cmp::Reverse;

use super::entry::{EntryKey, Growth, Over};
use super::queue::{self, Holder, Needy};
use super::turns::TURN_TOKENS;
use super::{Effect, SchedulerCore};
use crate::protocol::{GenerateError, Priority};
use crate::{SequenceId, cache};
use motet_sync::planted::{self, Bug};

/// Tokens by which a slot grows.
const GROW_TOKENS: usize = 64;
/// Tokens before its end at which a slot asks to grow, so that the answer is there in
/// time.
const GROW_AHEAD_TOKENS: usize = 16;
// A sequence in its turn never waits for room.
const _: () = assert!(TURN_TOKENS <= GROW_AHEAD_TOKENS);
/// Tokens that a sequence that has given way before has to itself, if anybody else can
/// give way instead.
const FRESH_TOKENS: usize = 32;

/// The part of its longest output that a newcomer is given room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadRoom(f64);

impl HeadRoom {
    const LEAST: f64 = 0.1;
    /// What is left of it after each step.
    const DECAY: f64 = 0.998;

    fn tokens(self, output_left: usize) -> usize {
        (self.0 * output_left as f64) as usize
    }

    /// Somebody had to give way.
    fn widen(&mut self) {
        self.0 = (self.0 * 1.5).min(1.0);
    }

    /// A step has landed.
    pub(super) fn narrow(&mut self) {
        self.0 = (self.0 * Self::DECAY).max(Self::LEAST);
    }
}

impl Default for HeadRoom {
    fn default() -> Self {
        Self(0.5)
    }
}

impl SchedulerCore {
    /// Tokens that a slot is to be begun with. One that will be shifted fills the
    /// context anyway.
    pub(super) fn first_grant(&self, key: EntryKey) -> usize {
        let entry = &self.entries[key];
        let (known, most) = (entry.tokens.len(), entry.tokens_max());
        if entry.keep().is_some() {
            return most;
        }
        let output_left = most.saturating_sub(known);
        let head_room = match entry.tight {
            true => GROW_AHEAD_TOKENS,
            false => self.head_room.tokens(output_left).max(GROW_TOKENS),
        };
        known.saturating_add(head_room).min(most)
    }

    /// Asks for room for a slot that is about to be full.
    pub(super) fn grow(&mut self, key: EntryKey, effects: &mut Vec<Effect>) {
        let entry = &mut self.entries[key];
        let most = entry.tokens_max();
        let sequence = entry.sequence;
        let stands = entry.over.is_some() || entry.paused_since.is_some();
        let Some(running) = entry.running_mut() else {
            return;
        };
        let near = running.room() < GROW_AHEAD_TOKENS && running.granted < most;
        if stands || !near || running.growth != Growth::None {
            return;
        }
        running.growth = Growth::Asked;
        let tokens_max = running.granted.saturating_add(GROW_TOKENS).min(most);
        let grow = cache::Message::Grow {
            sequence,
            tokens_max,
        };
        self.ask(grow, effects);
    }

    /// The slot may hold more.
    pub(super) fn grown(&mut self, key: EntryKey, tokens_max: usize) {
        if let Some(running) = self.entries[key].running_mut() {
            running.granted = running.granted.max(tokens_max);
            running.growth = Growth::None;
        }
    }

    /// The slot may not hold more now.
    pub(super) fn not_grown(&mut self, key: EntryKey) {
        if let Some(running) = self.entries[key].running_mut() {
            running.growth = Growth::Refused;
            self.cramped.push(key);
        }
    }

    /// There may be more room than before: those who had none ask again.
    pub(super) fn grow_again(&mut self, effects: &mut Vec<Effect>) {
        let mut cramped = std::mem::take(&mut self.cramped);
        cramped.sort_by_key(|key| self.rank(*key));
        for key in cramped {
            if let Some(running) = self.entries[key].running_mut() {
                running.growth = Growth::None;
            }
            self.grow(key, effects);
        }
    }

    /// Lets somebody give way for a sequence that stands still for want of room, if
    /// there is one and nothing is under way that may make room.
    pub(super) fn relieve(&mut self, effects: &mut Vec<Effect>) {
        if self.cramped.is_empty() || self.giving_way > 0 || self.unanswered > 0 {
            return;
        }
        let stands = |key: &&EntryKey| {
            let entry = &self.entries[**key];
            entry.paused_since.is_none() && entry.running().is_some_and(|r| r.room() == 0)
        };
        let standing = self.cramped.iter().filter(stands).copied();
        let Some(needy) = standing.min_by_key(|key| self.rank(*key)) else {
            return;
        };
        // Whoever is over gives up its slot when it has landed.
        if !self.landing.is_empty() {
            return;
        }
        if self.running.len() == 1 && self.starting.is_empty() {
            // What is cached of it may be what takes its room.
            match std::mem::replace(&mut self.entries[needy].afresh, true) {
                false => self.let_go(needy, effects),
                true => self.fail(needy, GenerateError::OutOfMemory, Over::Close, effects),
            }
            return;
        }
        let needy = Needy::Running(self.entries[needy].class);
        self.head_room.widen();
        self.preempt(&needy, effects);
    }

    /// Who is helped first: the highest class, then the first to come.
    fn rank(&self, key: EntryKey) -> (Reverse<Priority>, SequenceId) {
        let entry = &self.entries[key];
        (Reverse(entry.class), entry.sequence)
    }

    /// Lets somebody give way for a newcomer.
    pub(super) fn make_way(&mut self, needy: &Needy, effects: &mut Vec<Effect>) {
        self.starts_when_answered = self.unanswered > 0;
        if self.giving_way == 0 && self.unanswered == 0 && self.landing.is_empty() {
            self.preempt(needy, effects);
        }
    }

    /// Who would give way.
    pub(super) fn would_make_way(&self, needy: &Needy) -> Option<EntryKey> {
        let live = |key: &&EntryKey| self.entries[**key].over.is_none();
        let keys: Vec<EntryKey> = self.running.iter().filter(live).copied().collect();
        let holders: Vec<Holder> = keys.iter().map(|key| self.holder(*key)).collect();
        let victim = queue::victim(&holders, needy, self.config.locality_service)?;
        Some(keys[victim])
    }

    fn preempt(&mut self, needy: &Needy, effects: &mut Vec<Effect>) {
        if let Some(key) = self.would_make_way(needy) {
            self.let_go(key, effects);
        }
    }

    /// Has a sequence give way as soon as it is in no step.
    fn let_go(&mut self, key: EntryKey, effects: &mut Vec<Effect>) {
        let running = self.entries[key].running_mut().expect("holders run");
        running.giving_way = true;
        self.giving_way += 1;
        if running.flights == 0 {
            self.give_way(key, effects);
        }
    }

    /// Takes a sequence out of its slot, and back to its place in the queue.
    pub(super) fn give_way(&mut self, key: EntryKey, effects: &mut Vec<Effect>) {
        self.leave_phase(key);
        self.end_turn(key);
        let entry = &mut self.entries[key];
        let sequence = entry.sequence;
        let computed = entry.running().expect("who gives way runs").computed;
        let generated = entry.news_for_cache();
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

    fn holder(&self, key: EntryKey) -> Holder {
        let entry = &self.entries[key];
        let running = entry.running().expect("holders run");
        let at = running.computed + running.launched;
        Holder {
            sequence: entry.sequence,
            class: entry.class,
            service: self.service.of(entry.user),
            slots: self.slots_of[&entry.user] as f64 / entry.weight,
            lost_tokens: at,
            paused: entry.paused_since.is_some(),
            fresh: entry.preempted > 0
                && entry.paused_since.is_none()
                && at < running.begun_at + FRESH_TOKENS,
            in_turn: entry.is_in_turn() && !planted::errs(Bug::TurnTaken),
        }
    }
}
