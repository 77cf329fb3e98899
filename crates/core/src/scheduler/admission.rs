//! From the queue to the cache: which sequence starts, and which one is preempted for it.

use std::cmp::Reverse;
use std::time::Duration;

use super::policy::step_cost::StepLoad;
use super::policy::waiting::{
    self, AdmittedPrompt, NextStart, PreemptFor, QueuedView, StartLimits,
};
use super::sequence::{Phase, QueuedTerms, SequenceKey};
use super::{Effect, SchedulerCore};
use crate::cache;
use motet_protocol::SequenceId;
use motet_protocol::{Deadline, FinishReason, Priority, QueuePosition, WORK_IN_FLIGHT_MAX};

/// The service level, by class, at which prompts with slots fill the next steps.
type ServedInTime = [f64; Priority::COUNT];

impl SchedulerCore {
    /// Returns a sequence's position in the queue, if it is in it: by class and service,
    /// whatever may be cached.
    #[must_use]
    pub fn queue_position(&self, sequence: SequenceId) -> Option<QueuePosition> {
        let key = self.sequences.find(sequence)?;
        match self.sequences[key].phase() {
            Phase::Queued => {}
            // The cache is opening its slot.
            Phase::Starting { .. } => {
                return Some(QueuePosition::new(0, None));
            }
            Phase::Running(_) => return None,
        }
        let rank = |key: SequenceKey| {
            let sequence = &self.sequences[key];
            let service = self.service.of(sequence.user());
            (Reverse(sequence.priority()), service, sequence.id())
        };
        let own = rank(key);
        let waiting = self.waiting.queued().iter().map(|key| rank(*key));
        let position = waiting.filter(|other| *other < own).count();
        let estimated_start = self.waiting.estimated_start(position);
        Some(QueuePosition::new(position, estimated_start))
    }

    /// Inserts a sequence into the queue, in order of arrival.
    pub(super) fn enqueue(&mut self, key: SequenceKey) {
        self.sequences[key].enter_queue(self.now);
        self.waiting.insert(key, &self.sequences);
        // A scan is of no use where other sequences keep all slots.
        let may_start = self.slots.are_free()
            || self
                .preemption_victim(&self.queued_requester(key))
                .is_some();
        if may_start && self.is_needed(key, &self.served_in_time()) {
            self.waiting.request_scan();
        }
    }

    /// Asks the cache for slots, in the order of the policy. Where none is free, a running
    /// sequence may be preempted.
    pub(super) fn start_queued(&mut self, effects: &mut Vec<Effect>) {
        self.waiting
            .prepare_scan(self.now, self.cache.awaits_answers());
        while self.waiting.is_scan_due() && !self.pipeline.is_device_away() {
            // A sequence that waits for the pager may still be denied memory.
            let start_pending = self.cache.awaits_answers() || !self.slots.starting().is_empty();
            if !self.waiting.begin_scan(self.now, start_pending) {
                return;
            }
            let (keys, views) = self.queued_views();
            let limits = self.start_limits();
            let locality_service = self.config.fairness.locality_service;
            let Some(next) = self.waiting.choose(&views, locality_service, limits) else {
                return;
            };
            if self.is_blocked(views[next.index].priority) {
                self.preempt_for_class(&keys, &views, next.index, effects);
                continue;
            }
            if !views[next.index].in_turn {
                for index in waiting::overtaken(&views, next.index, locality_service) {
                    self.sequences[keys[index]].overtake();
                }
            }
            self.start(keys[next.index], next, effects);
        }
    }

    /// Returns the queued sequences that could start, as the policy sees them.
    fn queued_views(&self) -> (Vec<SequenceKey>, Vec<QueuedView>) {
        // A sequence whose caller does not read has no use for a slot.
        let reads = |key: &SequenceKey| !self.sequences[*key].is_paused();
        let queued = self.waiting.queued().iter().copied();
        let keys: Vec<SequenceKey> = queued.filter(reads).collect();
        let in_time = self.served_in_time();
        let views = keys.iter().map(|key| self.queued_view(*key, &in_time));
        let views = views.collect();
        (keys, views)
    }

    fn queued_view(&self, key: SequenceKey, in_time: &ServedInTime) -> QueuedView {
        let sequence = &self.sequences[key];
        let waited = sequence.queue_time().total(self.now);
        let terms = QueuedTerms {
            aged: self
                .config
                .fairness
                .ageing
                .is_some_and(|ageing| waited >= ageing),
            ready: !self.sequences.continues_draining(key),
            needed: self.is_needed(key, in_time),
            turned_away: self.waiting.is_turned_away(sequence),
        };
        sequence.queued_view(self.service.of(sequence.user()), terms)
    }

    /// Preempts a sequence, if any can be, for the class of the sequence at this index: for the
    /// one of the class whose user has received the least.
    fn preempt_for_class(
        &mut self,
        keys: &[SequenceKey],
        views: &[QueuedView],
        next: usize,
        effects: &mut Vec<Effect>,
    ) {
        let priority = views[next].priority;
        let may_start = |one: &QueuedView| one.priority == priority && one.ready && one.needed;
        let in_class = (0..keys.len()).filter(|index| may_start(&views[*index]));
        let service = |index: &usize| views[*index].service;
        let least = in_class.min_by(|a, b| service(a).total_cmp(&service(b)));
        let requester = self.queued_requester(keys[least.unwrap_or(next)]);
        self.preempt_for_queued(&requester, effects);
        let may_start = !self.is_blocked(priority);
        self.waiting.end_scan(may_start);
    }

    /// Returns the limits on the next start.
    fn start_limits(&self) -> StartLimits {
        let classes = [Priority::Background, Priority::Normal, Priority::Urgent];
        StartLimits {
            slots: self.slots.free(),
            open: classes.map(|priority| !self.is_blocked(priority)),
        }
    }

    /// Whether no sequence of this class can start now.
    fn is_blocked(&self, priority: Priority) -> bool {
        let blocks = |other: Option<Priority>| other.is_some_and(|other| priority <= other);
        !self.slots.are_free()
            || blocks(self.waiting.memory_priority(&self.sequences))
            || blocks(self.grants.starved_class(&self.sequences))
    }

    /// Whether its prompt would be computed soon if it had a slot.
    fn is_needed(&self, key: SequenceKey, in_time: &ServedInTime) -> bool {
        let sequence = &self.sequences[key];
        self.service.of(sequence.user()) < in_time[sequence.priority() as usize]
    }

    /// Returns the service level, by class, at which prompts with slots fill the next steps.
    fn served_in_time(&self) -> ServedInTime {
        let with_slots = self.slots.running().iter().chain(self.slots.starting());
        let admitted = with_slots.map(|key| {
            let sequence = &self.sequences[*key];
            AdmittedPrompt {
                priority: sequence.priority(),
                service: self.service.of(sequence.user()),
                tokens: sequence.prompt_tokens_left(),
            }
        });
        let tokens = self.config.chunking.step_tokens_max;
        let tokens = tokens.saturating_mul(WORK_IN_FLIGHT_MAX);
        waiting::served_in_time(&mut admitted.collect::<Vec<_>>(), tokens)
    }

    /// Returns a queued sequence as the preemption policy sees it.
    fn queued_requester(&self, key: SequenceKey) -> PreemptFor {
        let sequence = &self.sequences[key];
        let taken = self.slots.of(sequence.user());
        PreemptFor::Queued {
            priority: sequence.priority(),
            service: self.service.of(sequence.user()),
            slots: (taken + 1) as f64 / sequence.submission().weight,
        }
    }

    fn start(&mut self, key: SequenceKey, next: NextStart, effects: &mut Vec<Effect>) {
        let sequence = &self.sequences[key];
        if let Some(finish_by) = sequence.submission().finish_by
            && self.now.saturating_add(self.prefill_time(key)) > finish_by
        {
            // It ends before it costs other sequences anything.
            if sequence.is_started() {
                self.finish(key, FinishReason::Deadline, effects);
            } else {
                self.miss(key, Deadline::Finish, finish_by, effects);
            }
            return;
        }
        let granted = self.grants.first(sequence);
        let message = sequence.open_message(granted, self.token_time(key));
        let sequence = &mut self.sequences[key];
        self.waiting.take(key);
        self.waiting.start(sequence, next.is_turn);
        sequence.ask_for_slot(self.cache.next_message(), granted, self.now);
        self.slots.ask(key, sequence.user());
        self.ask(message, effects);
    }

    /// Returns the expected duration of one token of its prompt.
    fn token_time(&self, key: SequenceKey) -> Option<Duration> {
        let tokens = self.sequences[key].history().tokens().len();
        let cost = self.cost.cost()?;
        let load = StepLoad::span(tokens, 0);
        let steps = tokens.div_ceil(self.config.chunking.step_tokens_max);
        cost.time_per_token(load, steps)
    }

    /// Returns the least duration of its prefill, alone on the device. All of its prompt may be
    /// cached while the cache has not reported.
    pub(super) fn prefill_time(&self, key: SequenceKey) -> Duration {
        let (uncached, resident) = self.sequences[key].uncached(usize::MAX);
        let load = StepLoad::span(uncached, resident);
        let cost = self.cost.cost().unwrap_or_default();
        cost.time_of(load).unwrap_or(Duration::MAX)
    }

    /// Asks the cache how much of each queued prompt it holds.
    pub(super) fn probe_prefixes(&mut self, effects: &mut Vec<Effect>) {
        if !self.waiting.queued().is_empty() && self.cache.may_probe() {
            let sequences = self.waiting.next_probes(&self.sequences);
            self.ask(cache::Message::ProbePrefix { sequences }, effects);
        }
    }
}
