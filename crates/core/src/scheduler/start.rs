//! From the queue to the cache: who starts, whose place it takes, and who has waited
//! too long.

use std::collections::BTreeSet;
use std::time::Duration;

use super::cost::StepLoad;
use super::entry::{EntryKey, Over, Phase};
use super::queue::{self, Begun, Needy, Next, Places, Waiting};
use super::turns::{TURN_TOKENS, TURN_WAIT_STEPS_MAX};
use super::{Effect, SchedulerCore};
use crate::cache::{self, LOOKS_MAX, Look};
use crate::protocol::{
    Deadline, FinishReason, GenerateError, Priority, QueuePlace, WORK_IN_FLIGHT_MAX,
};
use crate::{SequenceId, UserId};

/// The queue is looked through at least so often, since those in it age, and users go.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a deadline is for.
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
    /// A sequence's place in the queue, if it is in it: by class and service, whatever
    /// may be in the cache.
    #[must_use]
    pub fn queue_place(&self, sequence: SequenceId) -> Option<QueuePlace> {
        let key = *self.names.get(&sequence)?;
        match self.entries[key].phase {
            Phase::Queued => {}
            // The cache has its turn.
            Phase::Starting { .. } => {
                return Some(QueuePlace {
                    position: 0,
                    estimated_start: None,
                });
            }
            Phase::Running(_) => return None,
        }
        let rank = |key: EntryKey| {
            let entry = &self.entries[key];
            let service = self.service.of(entry.user);
            (std::cmp::Reverse(entry.class), service, entry.sequence)
        };
        let own = rank(key);
        let waiting = self.queue.iter().map(|key| rank(*key));
        let position = waiting.filter(|other| *other < own).count();
        let estimated_start = self
            .start_interval
            .map(|interval| interval * (position as u32 + 1));
        Some(QueuePlace {
            position,
            estimated_start,
        })
    }

    /// Puts a sequence into the queue, where it belongs by its arrival.
    pub(super) fn enqueue(&mut self, key: EntryKey) {
        let entry = &mut self.entries[key];
        entry.queued_at = self.now;
        let sequence = entry.sequence;
        let entries = &self.entries;
        let place = self
            .queue
            .partition_point(|queued| entries[*queued].sequence < sequence);
        self.queue.insert(place, key);
        // Not worth a look where all slots are taken by others who keep them.
        let may_start = self.has_slots() || self.would_make_way(&self.newcomer(key)).is_some();
        self.may_start |= may_start && self.is_needed(key, &self.served_in_time());
    }

    /// Asks the cache for slots, in the order of the policy. Where there is none for a
    /// sequence of a higher class than one that runs, that one gives way.
    pub(super) fn start_queued(&mut self, effects: &mut Vec<Effect>) {
        if self.queue.is_empty() && self.unanswered == 0 {
            self.room_tight = false;
        }
        self.may_start |= self.now >= self.looked_at + LOOK_INTERVAL;
        while self.may_start && !self.queue.is_empty() && !self.device_away {
            // One who waits for what the pager brings may yet be refused.
            if self.room_tight && (self.unanswered > 0 || !self.starting.is_empty()) {
                self.starts_when_answered = true;
                return;
            }
            self.starts_when_answered = false;
            self.looked_at = self.now;
            // A sequence whose caller does not read has no use for a slot.
            let reads = |key: &EntryKey| self.entries[*key].paused_since.is_none();
            let keys: Vec<EntryKey> = self.queue.iter().copied().filter(reads).collect();
            let in_time = self.served_in_time();
            let waiting = keys.iter().map(|key| self.waiting(*key, &in_time));
            let waiting: Vec<Waiting> = waiting.collect();
            let locality_service = self.config.locality_service;
            let next = queue::next(&waiting, locality_service, &self.turns, self.places());
            let Some(next) = next else {
                // What they wait for says so when it is there.
                self.may_start = false;
                return;
            };
            let class = waiting[next.index].class;
            if self.is_blocked(class) {
                let may_start = |one: &Waiting| one.class == class && one.ready && one.needed;
                let in_class = (0..keys.len()).filter(|index| may_start(&waiting[*index]));
                let service = |index: &usize| waiting[*index].service;
                let least = in_class.min_by(|a, b| service(a).total_cmp(&service(b)));
                let needy = self.newcomer(keys[least.unwrap_or(next.index)]);
                self.make_way(&needy, effects);
                self.may_start = !self.is_blocked(class);
                continue;
            }
            if !waiting[next.index].in_turn {
                for index in queue::overtaken(&waiting, next.index, locality_service) {
                    self.entries[keys[index]].overtaken += 1;
                }
            }
            let key = keys[next.index];
            self.queue.retain(|queued| *queued != key);
            self.start(key, next, effects);
        }
    }

    /// Where one that waits may start.
    fn places(&self) -> Places {
        let taken = self.slots_taken();
        let classes = [Priority::Background, Priority::Normal, Priority::Urgent];
        Places {
            slots: self.config.sequences_max.saturating_sub(taken),
            open: classes.map(|class| !self.is_blocked(class)),
        }
    }

    /// Whether its prompt would be computed soon if it had a slot.
    fn is_needed(&self, key: EntryKey, in_time: &[f64; Priority::COUNT]) -> bool {
        let entry = &self.entries[key];
        self.service.of(entry.user) < in_time[entry.class as usize]
    }

    /// From which service on the prompts that have slots fill the next steps.
    fn served_in_time(&self) -> [f64; Priority::COUNT] {
        let holders = self.running.iter().chain(&self.starting);
        let begun = holders.map(|key| {
            let entry = &self.entries[*key];
            Begun {
                class: entry.class,
                service: self.service.of(entry.user),
                tokens: entry.prompt_tokens_left(),
            }
        });
        let tokens = WORK_IN_FLIGHT_MAX * self.config.step_tokens_max;
        queue::served_in_time(&mut begun.collect::<Vec<_>>(), tokens)
    }

    /// Whether it goes on from a sequence that is over and has not landed: a step later
    /// what that has generated is in the cache.
    fn continues_landing(&self, key: EntryKey) -> bool {
        let tokens = &self.entries[key].tokens;
        self.landing.iter().any(|landing| {
            let before = &self.entries[*landing];
            let prompt = before.prompt.len();
            before.over == Some(Over::Close)
                && before.salt == self.entries[key].salt
                && tokens.get(prompt) == before.generated.first()
                && tokens.starts_with(&before.prompt)
        })
    }

    /// A sequence has a slot, or is to have one.
    pub(super) fn take_slot(&mut self, user: UserId) {
        *self.slots_of.entry(user).or_default() += 1;
    }

    /// And has it no more.
    pub(super) fn free_slot(&mut self, user: UserId) {
        let taken = self
            .slots_of
            .get_mut(&user)
            .expect("who frees a slot took it");
        *taken -= 1;
        if *taken == 0 {
            self.slots_of.remove(&user);
        }
    }

    /// Whether nobody of this class can start now.
    fn is_blocked(&self, class: Priority) -> bool {
        let reads = |key: &&EntryKey| self.entries[**key].paused_since.is_none();
        let cramped = self.cramped.iter().filter(reads);
        let cramped = cramped.map(|key| self.entries[*key].class).max();
        let refused = self.refused.map(|key| self.entries[key].class_for_room());
        !self.has_slots()
            || refused.is_some_and(|refused| class <= refused)
            || cramped.is_some_and(|cramped| class <= cramped)
    }

    /// Who gives way is in no further step.
    pub(super) fn has_slots(&self) -> bool {
        self.slots_taken() < self.config.sequences_max
    }

    fn slots_taken(&self) -> usize {
        self.running.len() + self.starting.len() - self.giving_way
    }

    /// Notes a start, and that it is in the turn of its class.
    fn begin_turn(&mut self, key: EntryKey, is_turn: bool) {
        let entry = &mut self.entries[key];
        if is_turn && !entry.is_in_turn() {
            entry.turn_tokens_left = TURN_TOKENS;
            entry.turn_waited_steps = 0;
            self.turns.begin(entry.class);
        } else {
            self.turns.start(entry.class);
        }
    }

    /// The sequence is not in the turn of its class any more: it has had all of it, or has
    /// no use for it. Others may take its slot.
    pub(super) fn end_turn(&mut self, key: EntryKey) {
        let entry = &mut self.entries[key];
        if entry.is_in_turn() {
            entry.turn_tokens_left = 0;
            self.turns.end(entry.class);
            self.may_start = true;
        }
    }

    /// A step is planned: turns are charged for it. A sequence that has waited long enough
    /// for memory gives its turn up, and its user comes after the others of the class.
    pub(super) fn step_turns(&mut self) {
        let without_slot = self.queue.iter().chain(&self.starting);
        let waits = |key: &&EntryKey| self.entries[**key].waits_for_room_in_turn();
        let waiting: Vec<EntryKey> = without_slot.filter(waits).copied().collect();
        for key in waiting {
            let entry = &mut self.entries[key];
            entry.turn_waited_steps += 1;
            let is_over = entry.turn_waited_steps >= TURN_WAIT_STEPS_MAX;
            self.turns.wait_for_room(entry.class);
            if is_over {
                self.give_turn_up(key);
            }
        }
        self.turns.step();
    }

    fn give_turn_up(&mut self, key: EntryKey) {
        self.end_turn(key);
        self.refused = self.refused.filter(|refused| *refused != key);
        let entry = &self.entries[key];
        self.turned_away.insert((entry.class, entry.user));
        // Users who have gone are forgotten.
        let without_slot = self.queue.iter().chain(&self.starting);
        let there = without_slot.map(|key| (self.entries[*key].class, self.entries[*key].user));
        let there: BTreeSet<(Priority, UserId)> = there.collect();
        self.turned_away.retain(|turned| there.contains(turned));
    }

    /// A sequence that is to start, as the policy sees it.
    fn newcomer(&self, key: EntryKey) -> Needy {
        let entry = &self.entries[key];
        let taken = self.slots_of.get(&entry.user).copied().unwrap_or(0);
        Needy::Newcomer {
            class: entry.class,
            service: self.service.of(entry.user),
            slots: (taken + 1) as f64 / entry.weight,
        }
    }

    fn start(&mut self, key: EntryKey, next: Next, effects: &mut Vec<Effect>) {
        if let Some(finish_by) = self.entries[key].finish_by
            && self.now.saturating_add(self.prefill_time(key)) > finish_by
        {
            // It costs nobody anything more.
            self.queue.push(key);
            match self.entries[key].started {
                true => self.finish(key, FinishReason::Deadline, effects),
                false => self.miss(key, Deadline::Finish, finish_by, effects),
            }
            return;
        }
        self.begin_turn(key, next.is_turn);
        let granted = self.first_grant(key);
        let entry = &mut self.entries[key];
        entry.queued_for += self.now.saturating_sub(entry.queued_at);
        entry.phase = Phase::Starting {
            asked: self.asked + 1,
            granted,
            waits: false,
        };
        let user = entry.user;
        self.starting.push(key);
        self.take_slot(user);
        let entry = &self.entries[key];
        let begin = entry.begin(granted, self.token_time(key));
        self.ask(cache::Message::Begin(begin), effects);
    }

    /// How long a token of its prompt takes, as far as is known.
    fn token_time(&self, key: EntryKey) -> Option<Duration> {
        let tokens = self.entries[key].tokens.len();
        let cost = self.cost.cost()?;
        let load = StepLoad::span(tokens, 0);
        let steps = tokens.div_ceil(self.config.step_tokens_max) as f64;
        let seconds = cost.base * steps + cost.marginal(load);
        Duration::try_from_secs_f64(seconds / tokens as f64).ok()
    }

    /// How long its prompt takes at least, alone on the device, as far as is known: all
    /// of it may be in the cache.
    fn prefill_time(&self, key: EntryKey) -> Duration {
        let entry = &self.entries[key];
        let most = entry.tokens.len() - 1;
        let resident = entry
            .resident_tokens
            .map_or(most, |tokens| tokens.min(most));
        let load = StepLoad::span(entry.tokens.len() - resident, resident);
        let seconds = self.cost.cost().map_or(0.0, |cost| cost.of(load));
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Ends a sequence that cannot meet a deadline.
    fn miss(&mut self, key: EntryKey, deadline: Deadline, at: Duration, effects: &mut Vec<Effect>) {
        let error = GenerateError::DeadlineMissed {
            deadline,
            needed: self.prefill_time(key),
            left: at.saturating_sub(self.now),
        };
        self.fail(key, error, Over::Close, effects);
    }

    /// Ends those whose time is over.
    pub(super) fn expire(&mut self, effects: &mut Vec<Effect>) {
        while let Some((at, sequence, timer)) = self.timers.first().copied()
            && at <= self.now
        {
            self.timers.pop_first();
            let Some(key) = self.names.get(&sequence).copied() else {
                continue;
            };
            let entry = &self.entries[key];
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
                    // It may have read since, and paused again.
                    if let Some(waited) = paused_for.filter(|waited| *waited >= timeout) {
                        let unread = self.config.unread_tokens_max;
                        let error = GenerateError::SlowReader { unread, waited };
                        self.fail(key, error, Over::Close, effects);
                    }
                }
            }
        }
    }

    /// Asks the cache how much of the prompts of those who wait it holds.
    pub(super) fn look(&mut self, effects: &mut Vec<Effect>) {
        if self.queue.is_empty() || self.looking.is_some() {
            return;
        }
        let from = self.look_from % self.queue.len();
        let (before, after) = self.queue.split_at(from);
        let looks = after.iter().chain(before).take(LOOKS_MAX);
        let looks: Vec<Look> = looks
            .map(|key| {
                let entry = &self.entries[*key];
                Look {
                    sequence: entry.sequence,
                    salt: entry.salt.clone(),
                    tokens: entry.tokens.clone(),
                }
            })
            .collect();
        self.look_from = from + looks.len();
        self.looking = Some(self.asked + 1);
        self.ask(cache::Message::Look { sequences: looks }, effects);
    }

    /// A sequence has started: notes how often that happens while somebody waits.
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

    /// Whether it has waited so long that its class is to have a turn.
    fn is_aged(&self, key: EntryKey) -> bool {
        let entry = &self.entries[key];
        let waited = entry.queued_for + self.now.saturating_sub(entry.queued_at);
        self.config.ageing.is_some_and(|ageing| waited >= ageing)
    }

    fn waiting(&self, key: EntryKey, in_time: &[f64; Priority::COUNT]) -> Waiting {
        let entry = &self.entries[key];
        Waiting {
            sequence: entry.sequence,
            class: entry.class,
            aged: self.is_aged(key),
            in_turn: entry.is_in_turn(),
            ready: !self.continues_landing(key),
            needed: self.is_needed(key, in_time),
            turned_away: self.turned_away.contains(&(entry.class, entry.user)),
            service: self.service.of(entry.user),
            resident_tokens: entry.resident_tokens.unwrap_or(0),
            overtaken: entry.overtaken,
        }
    }
}
