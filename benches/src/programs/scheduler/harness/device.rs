//! The device: the device thread's table, and a clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use motet::UserId;
use motet::model::Model;
use motet_core::cache;
use motet_core::scheduler::policy::step_cost::{StepCost, StepLoad};
use motet_device::Table;
use motet_protocol::SlotId;
use motet_protocol::{Edit, Outcome, Work};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Callers, index};

/// A real device's times vary: by at most this part.
const JITTER: f64 = 0.05;

/// A decode step of SmolLM2-135M in f32 on two cores, as in docs/performance.md: 16 ms alone,
/// 43 ms at batch 16, and 770 tokens of a prompt in a second.
pub(crate) const SMALL_DEVICE: StepCost = StepCost {
    base: 15e-3,
    per_token: 1.4e-3,
    per_attended: 3e-7,
};

/// A device on which a batch costs little more than one: 20,000 tokens of a prompt in a second,
/// 20 ms for a step.
pub(crate) const LARGE_DEVICE: StepCost = StepCost {
    base: 20e-3,
    per_token: 5e-5,
    per_attended: 1e-8,
};

/// The duration of works.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// This cost, on a virtual clock.
    Virtual(StepCost),
    /// Their real duration: the clock is the machine's, since this moment.
    Real(Instant),
}

/// The work of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    /// Evaluated tokens of prompts and of outputs for each user, without lost work that was
    /// done again.
    pub(crate) evaluated: BTreeMap<UserId, Evaluated>,
    /// Tokens that all sequences with a slot have cached, this step's included.
    pub(crate) cached_tokens: usize,
    /// Users with waiting requests.
    pub(crate) backlogged: Vec<UserId>,
    /// Tokens that it evaluated.
    pub(crate) tokens: usize,
}

/// Tokens of one user in one step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evaluated {
    pub(crate) prompt: usize,
    pub(crate) output: usize,
}

pub(super) struct VirtualDevice<M: Model> {
    table: Table<M>,
    pace: Pace,
    slots: BTreeMap<SlotId, Slot>,
    /// Tokens of each caller that were evaluated before.
    evaluated: BTreeMap<usize, usize>,
    in_flight: VecDeque<InFlightWork>,
    finished_at: Duration,
    numbers: ChaCha8Rng,
    /// The host's own time for table and model.
    pub(super) host: Duration,
}

struct Slot {
    caller: usize,
    tokens: usize,
}

#[derive(Clone, Copy)]
struct InFlightWork {
    submitted_at: Duration,
    takes: Duration,
    gap: Duration,
}

impl<M: Model> VirtualDevice<M> {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            table: Table::new(),
            pace,
            slots: BTreeMap::new(),
            evaluated: BTreeMap::new(),
            in_flight: VecDeque::new(),
            finished_at: Duration::ZERO,
            numbers: ChaCha8Rng::seed_from_u64(1),
            host: Duration::ZERO,
        }
    }

    /// Learns the owner of each slot from the cache.
    pub(super) fn track_slots(&mut self, answers: &[cache::Effect]) {
        for answer in answers {
            if let cache::Effect::SlotOpened {
                sequence,
                slot,
                cached_tokens,
                ..
            } = answer
            {
                let slots = &mut self.slots;
                slots.retain(|_, other| other.caller != index(*sequence));
                let opened = Slot {
                    caller: index(*sequence),
                    tokens: *cached_tokens,
                };
                slots.insert(*slot, opened);
            }
        }
    }

    /// The time at which the oldest work finishes.
    pub(super) fn finishes_at(&self, now: Duration) -> Option<Duration> {
        let first = self.in_flight.front()?;
        match self.pace {
            Pace::Virtual(_) => {
                let work_started_at = self.finished_at.max(first.submitted_at);
                Some((work_started_at + first.takes).max(now))
            }
            Pace::Real(_) => Some(now),
        }
    }

    /// Submits work. Returns nothing for work without a step.
    pub(super) fn submit(
        &mut self,
        model: &mut M,
        work: Work,
        now: &mut Duration,
        callers: &Callers,
    ) -> Option<Step> {
        let (step, load) = self.survey(&work, callers);
        let gap = if self.in_flight.is_empty() {
            now.saturating_sub(self.finished_at)
        } else {
            Duration::ZERO
        };
        let takes = match self.pace {
            Pace::Virtual(cost) if load.tokens > 0 => {
                let jitter = self.numbers.random_range(1.0 - JITTER..=1.0 + JITTER);
                Duration::from_secs_f64(cost.of(load) * jitter)
            }
            _ => Duration::ZERO,
        };
        let submitted_at = *now;
        let started_at = Instant::now();
        self.table.submit(model, work);
        if self.in_flight.is_empty() {
            self.table.sample(model);
        }
        self.host += started_at.elapsed();
        self.in_flight.push_back(InFlightWork {
            submitted_at,
            takes,
            gap,
        });
        *now = self.time(*now);
        (load.tokens > 0).then_some(step)
    }

    /// Finishes the oldest work.
    pub(super) fn finish(&mut self, model: &mut M, now: &mut Duration) -> Outcome {
        let work = self.in_flight.pop_front().expect("some work is in flight");
        let started_at = Instant::now();
        let result = self.table.finish(model);
        self.table.sample(model);
        self.host += started_at.elapsed();
        *now = self.time(*now);
        let work_started_at = self.finished_at.max(work.submitted_at);
        self.finished_at = *now;
        Outcome {
            result,
            drafts: Ok(Vec::new()),
            busy: now.saturating_sub(work_started_at),
            gap: work.gap,
            memory: model.memory(),
            lost: self.table.take_lost(),
        }
    }

    /// The machine's clock, if that is used; otherwise `now`.
    fn time(&self, now: Duration) -> Duration {
        match self.pace {
            Pace::Virtual(_) => now,
            Pace::Real(started_at) => started_at.elapsed(),
        }
    }

    fn survey(&mut self, work: &Work, callers: &Callers) -> (Step, StepLoad) {
        for edit in &work.edits {
            if let Edit::Close { slot } | Edit::SealInPlace { slot, .. } = edit {
                self.slots.remove(slot);
            }
        }
        let mut step = Step::default();
        let mut load = StepLoad::default();
        for span in &work.spans {
            let slot = self
                .slots
                .get_mut(&span.slot)
                .expect("steps name open slots");
            let tokens = span.token_source.tokens();
            load = load.and(StepLoad::span(tokens, slot.tokens));
            let caller = &callers.all[slot.caller];
            let before = self.evaluated.entry(slot.caller).or_default();
            // Other sequences evaluated the tokens that were cached when it started.
            let from = (*before).max(slot.tokens);
            slot.tokens += tokens;
            let to = from.max(slot.tokens);
            *before = to;
            let prompt = to.min(caller.prompt.len()) - from.min(caller.prompt.len());
            let counts = step.evaluated.entry(caller.user).or_default();
            counts.prompt += prompt;
            counts.output += to - from - prompt;
        }
        step.tokens = load.tokens;
        step.cached_tokens = self.slots.values().map(|slot| slot.tokens).sum();
        let backlogged = callers.waiting.iter().filter(|(_, waiting)| **waiting > 0);
        step.backlogged = backlogged.map(|(user, _)| *user).collect();
        (step, load)
    }
}
