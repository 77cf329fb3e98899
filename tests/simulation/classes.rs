//! A check of priority classes. It follows the scheduler's own events and effects, and panics
//! when
//!
//! * a class with an aged request has no token for too long;
//! * a sequence starts while more sequences of higher classes wait than there are free slots,
//!   unless its class is aged and this is its eighth start, or its turn may be in progress;
//! * a sequence loses its slot in its turn.
//!
//! No event announces that a sequence is about to free its slot. At most one does at a time, so
//! there may be one more free slot than the check knows of. The check recognizes a turn only by
//! a start that no other rule allows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use motet::SequenceId;
use motet::config::SchedulerConfig;
use motet::request::Priority;
use motet_core::cache::{self, Message};
use motet_core::scheduler::policy::turns::{AGED_TURN, TURN_TOKENS, TURN_WAIT_STEPS_MAX};
use motet_core::scheduler::{Effect, Event};
use tokio::time::Instant;

use crate::record::Record;

pub(crate) const CLASSES: [Priority; 3] =
    [Priority::Background, Priority::Normal, Priority::Urgent];
/// Counters of the tokens that each class has got.
pub(crate) const TOKENS: [&str; 3] = [
    "class: background tokens",
    "class: normal tokens",
    "class: urgent tokens",
];
/// Counters of starts of lower classes while more of a higher one wait than there are free
/// slots.
pub(crate) const TURNS: [&str; 2] = ["class: background turns", "class: normal turns"];

/// The longest prompt in a saturated class, in tokens.
pub(crate) const PROMPT_TOKENS_MAX: usize = 16;
/// The longest output in a saturated class, in tokens.
pub(crate) const OUTPUT_TOKENS_MAX: usize = 20;
/// The shortest time of a step.
const STEP: Duration = Duration::from_millis(2);

pub(crate) struct ClassWatch(Mutex<Inner>);

struct Inner {
    /// The classes that always have more requests than there are slots.
    saturates: [bool; 3],
    sequences_max: usize,
    ageing: Duration,
    /// Steps within which a class with an aged request has a token.
    steps_max: u64,
    sequences: BTreeMap<SequenceId, TrackedSequence>,
    /// Sequences that have asked for a slot and have not freed it, including finished ones that
    /// are part of a step in flight.
    slots: BTreeSet<SequenceId>,
    /// Starts of other classes since the last turn.
    starts_since: [u32; 3],
    steps: u64,
    /// Steps since the last token, while a request is aged.
    steps_without_token: [u64; 3],
}

/// A sequence that has not finished.
struct TrackedSequence {
    class: Priority,
    stage: Stage,
    paused: bool,
    queued_for: Duration,
    /// Tokens that it still gets before it can lose its slot.
    protected_tokens: usize,
    /// Steps without a slot since then. After so many it may have given up its turn.
    waited_steps: usize,
    /// Tokens for which it may be in a turn, as far as the check can tell.
    turn_tokens_max: usize,
}

enum Stage {
    Queued { since: Instant },
    Asked,
    Slot,
}

impl TrackedSequence {
    fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued { .. })
    }

    fn waited(&self) -> Duration {
        match self.stage {
            Stage::Queued { since } => self.queued_for + since.elapsed(),
            Stage::Asked | Stage::Slot => self.queued_for,
        }
    }

    fn end_turn(&mut self) {
        self.protected_tokens = 0;
        self.turn_tokens_max = 0;
    }

    fn queue(&mut self) {
        self.stage = Stage::Queued {
            since: Instant::now(),
        };
    }
}

impl ClassWatch {
    /// One seed in seven for each choice of saturated classes.
    pub(crate) fn new(seed: u64, config: &SchedulerConfig) -> Self {
        let choice = 1 + seed % 7;
        let ageing = config.fairness.ageing.expect("classes age");
        let context = PROMPT_TOKENS_MAX + OUTPUT_TOKENS_MAX;
        // The tokens to compute again include the output.
        let chunks = context.div_ceil(config.chunking.prefill_tokens_min);
        let prefill = chunks * (config.chunking.prefill_wait_steps_max + config.sequences_max);
        let turn = TURN_WAIT_STEPS_MAX + prefill + TURN_TOKENS;
        let life = prefill + OUTPUT_TOKENS_MAX;
        let aged = ageing.div_duration_f64(STEP) as usize;
        // Two turns are repaid, and a slot becomes free for the eighth start.
        let steps = aged + 2 * AGED_TURN as usize * turn + (AGED_TURN as usize + 1) * life;
        Self(Mutex::new(Inner {
            saturates: [0, 1, 2].map(|class| choice >> class & 1 == 1),
            sequences_max: config.sequences_max,
            ageing,
            steps_max: steps as u64,
            sequences: BTreeMap::new(),
            slots: BTreeSet::new(),
            starts_since: [0; 3],
            steps: 0,
            steps_without_token: [0; 3],
        }))
    }

    pub(crate) fn saturates(&self, class: Priority) -> bool {
        self.inner().saturates[class as usize]
    }

    /// Whether it has run long enough: twice the longest time in which any class could starve.
    pub(crate) fn is_done(&self) -> bool {
        let inner = self.inner();
        inner.steps > 2 * inner.steps_max
    }

    /// Records an event before the scheduler handles it.
    pub(crate) fn event(&self, event: &Event) {
        let mut inner = self.inner();
        match event {
            Event::Submit(submission) => {
                let tracked = TrackedSequence {
                    class: submission.priority,
                    stage: Stage::Queued {
                        since: Instant::now(),
                    },
                    paused: false,
                    queued_for: Duration::ZERO,
                    protected_tokens: 0,
                    waited_steps: 0,
                    turn_tokens_max: 0,
                };
                inner.sequences.insert(submission.sequence, tracked);
            }
            Event::Pause(sequence) => {
                if let Some(tracked) = inner.sequences.get_mut(sequence) {
                    tracked.paused = true;
                    tracked.end_turn();
                }
            }
            Event::Resume(sequence) => {
                if let Some(tracked) = inner.sequences.get_mut(sequence) {
                    tracked.paused = false;
                }
            }
            Event::Cache(Ok(answers)) | Event::CacheEffects(answers) => {
                for answer in answers {
                    match answer {
                        cache::Effect::OutOfMemory { sequence } => inner.start_failed(*sequence),
                        cache::Effect::SlotOpened { sequence, .. } => inner.slot_opened(*sequence),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks the effects that followed.
    pub(crate) fn effects(&self, effects: &[Effect], record: &Record) {
        let mut inner = self.inner();
        for effect in effects {
            match effect {
                Effect::Cache(Message::OpenSlot(open_slot)) => {
                    inner.starts(open_slot.sequence, record)
                }
                Effect::Cache(Message::Close { sequence, .. } | Message::Discard { sequence }) => {
                    inner.slots.remove(sequence);
                }
                Effect::Preempted(sequence) => inner.preempted(*sequence),
                Effect::Token(sequence, ..) => inner.token(*sequence, record),
                Effect::Finished(sequence, _) | Effect::Failed(sequence, _) => {
                    inner.sequences.remove(sequence);
                }
                Effect::Work(work) if !work.spans.is_empty() => inner.step(),
                _ => {}
            }
        }
    }

    /// Locks the state. A panic under the lock is what the test looks for, so poison is
    /// ignored.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn count_start(&mut self, class: Priority) {
        for other in CLASSES.into_iter().filter(|other| *other != class) {
            self.starts_since[other as usize] += 1;
        }
    }

    fn is_aged(&self, class: Priority) -> bool {
        let mut waiting = self.sequences.values();
        waiting.any(|tracked| {
            tracked.class == class
                && tracked.is_queued()
                && !tracked.paused
                && tracked.waited() >= self.ageing
        })
    }

    fn starts(&mut self, sequence: SequenceId, record: &Record) {
        let Some(tracked) = self.sequences.get(&sequence) else {
            return;
        };
        let (class, may_be_in_turn) = (tracked.class, tracked.turn_tokens_max > 0);
        let waits =
            |other: &&TrackedSequence| other.class > class && other.is_queued() && !other.paused;
        let above = self.sequences.values().filter(waits).count();
        let free = self.sequences_max.saturating_sub(self.slots.len());
        let since = self.starts_since[class as usize];
        let may_be_turn = class < Priority::Urgent && since + 1 >= AGED_TURN && self.is_aged(class);
        // While at most `free` of them wait, each may have a free slot of its own, and one more
        // may become free.
        let is_turn = above > free && !may_be_in_turn;
        assert!(
            !is_turn || may_be_turn,
            "{sequence} of class {class:?} starts while {above} wait above it for {free} free \
             slots, after {since} starts of others"
        );
        self.count_start(class);
        let tracked = self
            .sequences
            .get_mut(&sequence)
            .expect("it has not finished");
        tracked.queued_for = tracked.waited();
        tracked.stage = Stage::Asked;
        if may_be_turn {
            tracked.turn_tokens_max = TURN_TOKENS;
        }
        if is_turn {
            tracked.protected_tokens = TURN_TOKENS;
            tracked.waited_steps = 0;
            self.starts_since[class as usize] = 0;
            record.count(TURNS[class as usize], 1);
        }
        self.slots.insert(sequence);
    }

    fn slot_opened(&mut self, sequence: SequenceId) {
        if let Some(tracked) = self.sequences.get_mut(&sequence) {
            tracked.stage = Stage::Slot;
        }
    }

    /// Undoes a start for which the cache had no memory.
    fn start_failed(&mut self, sequence: SequenceId) {
        self.slots.remove(&sequence);
        let Some(tracked) = self.sequences.get_mut(&sequence) else {
            return;
        };
        tracked.queue();
        let class = tracked.class;
        for other in CLASSES.into_iter().filter(|other| *other != class) {
            let since = &mut self.starts_since[other as usize];
            *since = since.saturating_sub(1);
        }
    }

    fn preempted(&mut self, sequence: SequenceId) {
        if let Some(tracked) = self.sequences.get_mut(&sequence) {
            let remaining_tokens = tracked.protected_tokens;
            assert_eq!(remaining_tokens, 0, "{sequence} loses its slot in its turn");
            tracked.end_turn();
            tracked.queue();
        }
    }

    fn token(&mut self, sequence: SequenceId, record: &Record) {
        if let Some(tracked) = self.sequences.get_mut(&sequence) {
            tracked.protected_tokens = tracked.protected_tokens.saturating_sub(1);
            tracked.turn_tokens_max = tracked.turn_tokens_max.saturating_sub(1);
            self.steps_without_token[tracked.class as usize] = 0;
            record.count(TOKENS[tracked.class as usize], 1);
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        for tracked in self.sequences.values_mut() {
            tracked.waited_steps += usize::from(!matches!(tracked.stage, Stage::Slot));
            if tracked.waited_steps >= TURN_WAIT_STEPS_MAX {
                tracked.protected_tokens = 0;
            }
        }
        for class in CLASSES {
            let is_aged = self.is_aged(class);
            let steps_without_token = &mut self.steps_without_token[class as usize];
            *steps_without_token = if is_aged { *steps_without_token + 1 } else { 0 };
            assert!(
                *steps_without_token <= self.steps_max,
                "{class:?} starves: no token in {steps_without_token} steps"
            );
        }
    }
}
