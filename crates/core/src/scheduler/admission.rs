//! From the queue to the cache: which sequence starts, which one is preempted for it, and which
//! deadlines have passed.

use std::collections::BTreeSet;
use std::time::Duration;

use super::policy::step_cost::StepLoad;
use super::policy::turns::{TURN_TOKENS, TURN_WAIT_STEPS_MAX};
use super::policy::waiting::{
    self, AdmittedPrompt, NextStart, PreemptFor, QueuedView, StartLimits,
};
use super::sequence::{Finished, Phase, SequenceKey};
use super::{Effect, SchedulerCore};
use crate::cache::{self, PROBES_MAX, ProbePrefix};
use crate::protocol::{
    Deadline, FinishReason, GenerateError, Priority, QueuePosition, WORK_IN_FLIGHT_MAX,
};
use crate::{SequenceId, UserId};

/// Time after which the queue is scanned again, since its sequences age and users leave.
const QUEUE_SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The first slot.
    Start,
    /// The end.
    Finish,
    /// The caller's reading.
    Unread,
}

impl SchedulerCore {
    /// Returns a sequence's position in the queue, if it is in it: by class and service,
    /// whatever may be cached.
    #[must_use]
    pub fn queue_position(&self, sequence: SequenceId) -> Option<QueuePosition> {
        let key = *self.live_keys.get(&sequence)?;
        match self.sequences[key].phase {
            Phase::Queued => {}
            // The cache is opening its slot.
            Phase::Starting { .. } => {
                return Some(QueuePosition {
                    position: 0,
                    estimated_start: None,
                });
            }
            Phase::Running(_) => return None,
        }
        let rank = |key: SequenceKey| {
            let entry = &self.sequences[key];
            let service = self.service.of(entry.user);
            (std::cmp::Reverse(entry.class), service, entry.sequence)
        };
        let own = rank(key);
        let waiting = self.queue.iter().map(|key| rank(*key));
        let position = waiting.filter(|other| *other < own).count();
        let estimated_start = self
            .start_interval
            .map(|interval| interval * (position as u32 + 1));
        Some(QueuePosition {
            position,
            estimated_start,
        })
    }

    /// Inserts a sequence into the queue, in order of arrival.
    pub(super) fn enqueue(&mut self, key: SequenceKey) {
        let entry = &mut self.sequences[key];
        entry.queued_at = self.now;
        let sequence = entry.sequence;
        let sequences = &self.sequences;
        let index = self
            .queue
            .partition_point(|queued| sequences[*queued].sequence < sequence);
        self.queue.insert(index, key);
        // A scan is of no use where other sequences keep all slots.
        let may_start = self.has_slots()
            || self
                .preemption_victim(&self.queued_requester(key))
                .is_some();
        self.may_start |= may_start && self.is_needed(key, &self.served_in_time());
    }

    /// Asks the cache for slots, in the order of the policy. Where none is free, a running
    /// sequence may be preempted.
    pub(super) fn start_queued(&mut self, effects: &mut Vec<Effect>) {
        if self.queue.is_empty() && self.pending_answers == 0 {
            self.is_memory_short = false;
        }
        self.may_start |= self.now >= self.queue_scanned_at + QUEUE_SCAN_INTERVAL;
        while self.may_start && !self.queue.is_empty() && !self.device_away {
            // A sequence that waits for the pager may still be denied memory.
            if self.is_memory_short && (self.pending_answers > 0 || !self.starting.is_empty()) {
                self.starts_when_answered = true;
                return;
            }
            self.starts_when_answered = false;
            self.queue_scanned_at = self.now;
            // A sequence whose caller does not read has no use for a slot.
            let reads = |key: &SequenceKey| self.sequences[*key].paused_since.is_none();
            let keys: Vec<SequenceKey> = self.queue.iter().copied().filter(reads).collect();
            let in_time = self.served_in_time();
            let waiting = keys.iter().map(|key| self.waiting(*key, &in_time));
            let waiting: Vec<QueuedView> = waiting.collect();
            let locality_service = self.config.locality_service;
            let next = waiting::next(&waiting, locality_service, &self.turns, self.start_limits());
            let Some(next) = next else {
                // The condition that they wait for causes an event.
                self.may_start = false;
                return;
            };
            let class = waiting[next.index].class;
            if self.is_blocked(class) {
                let may_start = |one: &QueuedView| one.class == class && one.ready && one.needed;
                let in_class = (0..keys.len()).filter(|index| may_start(&waiting[*index]));
                let service = |index: &usize| waiting[*index].service;
                let least = in_class.min_by(|a, b| service(a).total_cmp(&service(b)));
                let requester = self.queued_requester(keys[least.unwrap_or(next.index)]);
                self.preempt_for_queued(&requester, effects);
                self.may_start = !self.is_blocked(class);
                continue;
            }
            if !waiting[next.index].in_turn {
                for index in waiting::overtaken(&waiting, next.index, locality_service) {
                    self.sequences[keys[index]].overtaken += 1;
                }
            }
            let key = keys[next.index];
            self.queue.retain(|queued| *queued != key);
            self.start(key, next, effects);
        }
    }

    /// Returns the limits on the next start.
    fn start_limits(&self) -> StartLimits {
        let taken = self.slots_taken();
        let classes = [Priority::Background, Priority::Normal, Priority::Urgent];
        StartLimits {
            slots: self.config.sequences_max.saturating_sub(taken),
            open: classes.map(|class| !self.is_blocked(class)),
        }
    }

    /// Whether its prompt would be computed soon if it had a slot.
    fn is_needed(&self, key: SequenceKey, in_time: &[f64; Priority::COUNT]) -> bool {
        let entry = &self.sequences[key];
        self.service.of(entry.user) < in_time[entry.class as usize]
    }

    /// Returns the service level, by class, at which prompts with slots fill the next steps.
    fn served_in_time(&self) -> [f64; Priority::COUNT] {
        let with_slots = self.running.iter().chain(&self.starting);
        let admitted = with_slots.map(|key| {
            let entry = &self.sequences[*key];
            AdmittedPrompt {
                class: entry.class,
                service: self.service.of(entry.user),
                tokens: entry.prompt_tokens_left(),
            }
        });
        let tokens = WORK_IN_FLIGHT_MAX * self.config.step_tokens_max;
        waiting::served_in_time(&mut admitted.collect::<Vec<_>>(), tokens)
    }

    /// Whether it continues a finished sequence that has not drained. That one's generated
    /// tokens are in the cache a step later.
    fn continues_draining(&self, key: SequenceKey) -> bool {
        let tokens = &self.sequences[key].tokens;
        self.draining.iter().any(|draining| {
            let before = &self.sequences[*draining];
            let prompt = before.prompt.len();
            before.finished == Some(Finished::Close)
                && before.salt == self.sequences[key].salt
                && tokens.get(prompt) == before.generated.first()
                && tokens.starts_with(&before.prompt)
        })
    }

    /// Counts a slot that the user has or has asked for.
    pub(super) fn count_slot(&mut self, user: UserId) {
        *self.slots_of.entry(user).or_default() += 1;
    }

    /// Removes a slot from the user's count.
    pub(super) fn uncount_slot(&mut self, user: UserId) {
        let taken = self
            .slots_of
            .get_mut(&user)
            .expect("a slot is counted before it is freed");
        *taken -= 1;
        if *taken == 0 {
            self.slots_of.remove(&user);
        }
    }

    /// Whether no sequence of this class can start now.
    fn is_blocked(&self, class: Priority) -> bool {
        let reads = |key: &&SequenceKey| self.sequences[**key].paused_since.is_none();
        let starved = self.starved.iter().filter(reads);
        let starved = starved.map(|key| self.sequences[*key].class).max();
        let memory_waiter = self
            .memory_waiter
            .map(|key| self.sequences[key].memory_class());
        !self.has_slots()
            || memory_waiter.is_some_and(|memory_waiter| class <= memory_waiter)
            || starved.is_some_and(|starved| class <= starved)
    }

    /// Whether a slot is free. A sequence that will be preempted is in no further step, so its
    /// slot counts as free.
    pub(super) fn has_slots(&self) -> bool {
        self.slots_taken() < self.config.sequences_max
    }

    fn slots_taken(&self) -> usize {
        self.running.len() + self.starting.len() - self.preempting
    }

    /// Records a start, and whether it is in the turn of its class.
    fn begin_turn(&mut self, key: SequenceKey, is_turn: bool) {
        let entry = &mut self.sequences[key];
        if is_turn && !entry.is_in_turn() {
            entry.turn_tokens_left = TURN_TOKENS;
            entry.turn_waited_steps = 0;
            self.turns.begin(entry.class);
        } else {
            self.turns.start(entry.class);
        }
    }

    /// Ends the sequence's turn: it was used up, or is of no use to it. Other sequences may
    /// take its slot.
    pub(super) fn end_turn(&mut self, key: SequenceKey) {
        let entry = &mut self.sequences[key];
        if entry.is_in_turn() {
            entry.turn_tokens_left = 0;
            self.turns.end(entry.class);
            self.may_start = true;
        }
    }

    /// Charges the turns for a planned step. A sequence that has waited too long for memory
    /// gives its turn up, and its user goes after the others of the class.
    pub(super) fn step_turns(&mut self) {
        let without_slot = self.queue.iter().chain(&self.starting);
        let waits = |key: &&SequenceKey| self.sequences[**key].waits_for_memory_in_turn();
        let waiting: Vec<SequenceKey> = without_slot.filter(waits).copied().collect();
        for key in waiting {
            let entry = &mut self.sequences[key];
            entry.turn_waited_steps += 1;
            let is_expired = entry.turn_waited_steps >= TURN_WAIT_STEPS_MAX;
            self.turns.wait_for_memory(entry.class);
            if is_expired {
                self.give_turn_up(key);
            }
        }
        self.turns.step();
    }

    fn give_turn_up(&mut self, key: SequenceKey) {
        self.end_turn(key);
        self.memory_waiter = self
            .memory_waiter
            .filter(|memory_waiter| *memory_waiter != key);
        let entry = &self.sequences[key];
        self.turned_away.insert((entry.class, entry.user));
        // Forgets users without waiting sequences.
        let without_slot = self.queue.iter().chain(&self.starting);
        let there = without_slot.map(|key| (self.sequences[*key].class, self.sequences[*key].user));
        let there: BTreeSet<(Priority, UserId)> = there.collect();
        self.turned_away.retain(|turned| there.contains(turned));
    }

    /// Returns a queued sequence as the preemption policy sees it.
    fn queued_requester(&self, key: SequenceKey) -> PreemptFor {
        let entry = &self.sequences[key];
        let taken = self.slots_of.get(&entry.user).copied().unwrap_or(0);
        PreemptFor::Queued {
            class: entry.class,
            service: self.service.of(entry.user),
            slots: (taken + 1) as f64 / entry.weight,
        }
    }

    fn start(&mut self, key: SequenceKey, next: NextStart, effects: &mut Vec<Effect>) {
        if let Some(finish_by) = self.sequences[key].finish_by
            && self.now.saturating_add(self.prefill_time(key)) > finish_by
        {
            // It ends before it costs other sequences anything.
            self.queue.push(key);
            if self.sequences[key].started {
                self.finish(key, FinishReason::Deadline, effects);
            } else {
                self.miss(key, Deadline::Finish, finish_by, effects);
            }
            return;
        }
        self.begin_turn(key, next.is_turn);
        let granted = self.first_grant(key);
        let entry = &mut self.sequences[key];
        entry.queued_for += self.now.saturating_sub(entry.queued_at);
        entry.phase = Phase::Starting {
            asked: self.asked + 1,
            granted,
            waits: false,
        };
        let user = entry.user;
        self.starting.push(key);
        self.count_slot(user);
        let entry = &self.sequences[key];
        let begin = entry.begin(granted, self.token_time(key));
        self.ask(cache::Message::OpenSlot(begin), effects);
    }

    /// Returns the expected duration of one token of its prompt.
    fn token_time(&self, key: SequenceKey) -> Option<Duration> {
        let tokens = self.sequences[key].tokens.len();
        let cost = self.cost.cost()?;
        let load = StepLoad::span(tokens, 0);
        let steps = tokens.div_ceil(self.config.step_tokens_max) as f64;
        let seconds = cost.base * steps + cost.marginal(load);
        Duration::try_from_secs_f64(seconds / tokens as f64).ok()
    }

    /// Returns the least duration of its prefill, alone on the device. All of its prompt may be
    /// cached while the cache has not reported.
    fn prefill_time(&self, key: SequenceKey) -> Duration {
        let entry = &self.sequences[key];
        let most = entry.tokens.len() - 1;
        let resident = entry
            .resident_tokens
            .map_or(most, |tokens| tokens.min(most));
        let load = StepLoad::span(entry.tokens.len() - resident, resident);
        let seconds = self.cost.cost().map_or(0.0, |cost| cost.of(load));
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Fails a sequence that cannot meet a deadline.
    fn miss(
        &mut self,
        key: SequenceKey,
        deadline: Deadline,
        at: Duration,
        effects: &mut Vec<Effect>,
    ) {
        let error = GenerateError::DeadlineMissed {
            deadline,
            needed: self.prefill_time(key),
            left: at.saturating_sub(self.now),
        };
        self.fail(key, error, Finished::Close, effects);
    }

    /// Ends the sequences whose deadlines have passed.
    pub(super) fn expire(&mut self, effects: &mut Vec<Effect>) {
        while let Some((at, sequence, timer)) = self.timers.first().copied()
            && at <= self.now
        {
            self.timers.pop_first();
            let Some(key) = self.live_keys.get(&sequence).copied() else {
                continue;
            };
            let entry = &self.sequences[key];
            match timer {
                Timer::Start if entry.started => {}
                Timer::Finish if entry.started => {
                    self.finish(key, FinishReason::Deadline, effects);
                }
                Timer::Start => self.miss(key, Deadline::Start, at, effects),
                Timer::Finish => self.miss(key, Deadline::Finish, at, effects),
                Timer::Unread => {
                    let timeout = self.config.unread_timeout.unwrap_or_default();
                    let paused_for = entry.paused_since.map(|since| self.now - since);
                    // The caller may have read since, and the sequence paused again.
                    if let Some(waited) = paused_for.filter(|waited| *waited >= timeout) {
                        let unread = self.config.unread_tokens_max;
                        let error = GenerateError::SlowReader { unread, waited };
                        self.fail(key, error, Finished::Close, effects);
                    }
                }
            }
        }
    }

    /// Asks the cache how much of each queued prompt it holds.
    pub(super) fn probe_prefixes(&mut self, effects: &mut Vec<Effect>) {
        if self.queue.is_empty() || self.probe_message.is_some() {
            return;
        }
        let from = self.probe_from % self.queue.len();
        let (before, after) = self.queue.split_at(from);
        let probes = after.iter().chain(before).take(PROBES_MAX);
        let probes: Vec<ProbePrefix> = probes
            .map(|key| {
                let entry = &self.sequences[*key];
                ProbePrefix {
                    sequence: entry.sequence,
                    salt: entry.salt.clone(),
                    tokens: entry.tokens.clone(),
                }
            })
            .collect();
        self.probe_from = from + probes.len();
        self.probe_message = Some(self.asked + 1);
        self.ask(cache::Message::ProbePrefix { sequences: probes }, effects);
    }

    /// Records a start, for the time between starts while other sequences wait.
    pub(super) fn note_start(&mut self) {
        let before = self.started_at.replace(self.now);
        if let (Some(before), false) = (before, self.queue.is_empty()) {
            let since = self.now - before;
            // An exponential mean over about eight intervals.
            self.start_interval = Some(match self.start_interval {
                None => since,
                Some(mean) => (mean * 7 + since) / 8,
            });
        }
    }

    /// Whether it has waited so long that its class may have a turn.
    fn is_aged(&self, key: SequenceKey) -> bool {
        let entry = &self.sequences[key];
        let waited = entry.queued_for + self.now.saturating_sub(entry.queued_at);
        self.config.ageing.is_some_and(|ageing| waited >= ageing)
    }

    fn waiting(&self, key: SequenceKey, in_time: &[f64; Priority::COUNT]) -> QueuedView {
        let entry = &self.sequences[key];
        QueuedView {
            sequence: entry.sequence,
            class: entry.class,
            aged: self.is_aged(key),
            in_turn: entry.is_in_turn(),
            ready: !self.continues_draining(key),
            needed: self.is_needed(key, in_time),
            turned_away: self.turned_away.contains(&(entry.class, entry.user)),
            service: self.service.of(entry.user),
            resident_tokens: entry.resident_tokens.unwrap_or(0),
            overtaken: entry.overtaken,
        }
    }
}
