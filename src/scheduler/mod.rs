//! The scheduler: who runs in the next step.
//!
//! [`SchedulerCore`] is a plain state machine. An event only changes its queues; then
//! [`handle`](SchedulerCore::handle) starts what may start and, when no work is under
//! way on the device, asks [`plan`](mod@plan) for the next step.
//!
//! ```text
//!  Submit → queued → starting → running ──────────────→ finished
//!              ↑        │ (cache: no room)   │
//!              └────────┴────────────────────┘ (a step failed: history is kept)
//! ```
//!
//! | file | what happens there |
//! |---|---|
//! | [`mod@plan`] | the policy of a step, one pure function |
//! | `entry.rs` | one sequence: its history and how far it is |
//! | `answers.rs` | the conversation with the cache |
//! | `outcome.rs` | what a step has brought, or cost |
//! | `context.rs` | forks, and contexts that are full |

mod answers;
mod context;
mod entry;
mod outcome;
pub mod plan;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{self, CacheError, Salt};
use crate::config::SchedulerConfig;
use crate::device::{Edit, Outcome, PlannedSpan, Work};
use crate::error::GenerateError;
use crate::model::sampling::{Draw, DrawSpec, Sampling};
use crate::model::{ModelSpec, Want};
use crate::request::{ContextLimit, FinishReason, Priority};
use crate::{SequenceId, TokenId, UserId};
use context::DueFork;
use entry::{Entry, Phase};
use plan::{Candidate, Share};

/// Everything that can happen to the scheduler.
#[derive(Debug)]
pub enum Event {
    /// A new sequence.
    Submit(Submission),
    /// A new sequence that continues one that is not over.
    Fork(Fork),
    /// The cache is asked on behalf of a caller; [`Effect::Upkept`] brings the answer.
    Upkeep {
        /// The caller's name for it.
        ticket: u64,
        /// The question.
        message: cache::Message,
    },
    /// The sequence is to stop: its caller has left, or has all the text it wants.
    Stop(SequenceId),
    /// What the cache answered.
    Cache(Result<Vec<cache::Effect>, CacheError>),
    /// What the device answered.
    Outcome(Outcome),
    /// The device thread is gone.
    DeviceGone,
    /// All sequences end now.
    Abort,
}

/// A new sequence, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Its name.
    pub sequence: SequenceId,
    /// The prompt; at least one token.
    pub prompt: Arc<[TokenId]>,
    /// How many tokens it may generate; at least 1.
    pub output_tokens_max: usize,
    /// How its tokens are drawn.
    pub sampling: Sampling,
    /// What its draws want beyond that, if anything.
    pub draw_spec: Option<Arc<DrawSpec>>,
    /// Tokens that end it and are not part of its output: the model's, unless they are
    /// ignored, and its own.
    pub end_tokens: Arc<[TokenId]>,
    /// Whose it is.
    pub user: UserId,
    /// What its user's share is worth, beside that of others; positive.
    pub weight: f64,
    /// Its class.
    pub class: Priority,
    /// When it must have its first slot, as the engine's time.
    pub start_by: Option<Duration>,
    /// When it must be over, as the engine's time.
    pub finish_by: Option<Duration>,
    /// What happens when its context is full.
    pub at_limit: ContextLimit,
    /// With whom it shares cached state.
    pub salt: Salt,
    /// Offsets in its prompt at which it is to be restorable.
    pub restore_points: Vec<usize>,
    /// How dearly its cached state is kept.
    pub retention: u8,
}

/// A new sequence that continues one that is not over.
#[derive(Clone, Debug, PartialEq)]
pub struct Fork {
    /// The sequence to continue.
    pub source: SequenceId,
    /// How many of its tokens, prompt and output; all that it has, if none.
    pub at: Option<usize>,
    /// The new sequence. Its prompt follows the source's tokens, and may be empty; it
    /// has the source's salt and does the same when its context is full.
    pub submission: Submission,
}

/// What follows from an event.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// To the cache.
    Cache(cache::Message),
    /// To the device.
    Work(Work),
    /// The sequence has a new token.
    Token(SequenceId, TokenId),
    /// The sequence has its first slot.
    Started {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of its prompt; a fork's includes what it continues.
        prompt_tokens: usize,
        /// Of these, tokens that need not be computed.
        cached_tokens: usize,
    },
    /// The cache has answered an [`Event::Upkeep`].
    Upkept(u64, Result<(), CacheError>),
    /// The sequence is over.
    Finished(SequenceId, FinishReason),
    /// The sequence is over without its output.
    Failed(SequenceId, GenerateError),
}

/// Sums that anyone may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Sequences with a slot.
    pub running: usize,
    /// Sequences without one.
    pub waiting: usize,
    /// Of these, sequences that wait for another to compute what both begin with.
    pub awaiting_prefix: usize,
}

/// The scheduler's state machine. See the module's documentation.
#[derive(Debug)]
pub struct SchedulerCore {
    config: SchedulerConfig,
    spec: ModelSpec,
    entries: BTreeMap<SequenceId, Entry>,
    queue: VecDeque<SequenceId>,
    /// Sequences with a slot, in order of arrival.
    running: Vec<SequenceId>,
    starting: usize,
    /// The cache said that the head of the queue does not fit until one ends.
    room_awaited: bool,
    /// Somebody was refused: the queue is asked one by one, so that nobody small
    /// overtakes who is large.
    room_tight: bool,
    /// Edits for the next work, in the cache's order.
    edits: Vec<Edit>,
    /// The work under way, if any: who is in the step, and how many tokens each.
    in_flight: Option<Vec<(SequenceId, usize)>>,
    /// Messages sent to the cache, which answers each, in order.
    asked: u64,
    /// Messages that it has not answered yet.
    unanswered: usize,
    /// The last message that may have made room.
    room_made_at: u64,
    /// Callers' questions that the cache has not answered: its message, their ticket.
    tickets: VecDeque<(u64, u64)>,
    /// Forks whose source is in the step under way.
    forks_due: Vec<DueFork>,
    /// The next answers that speak of what a reset has wiped out.
    stale_answers: usize,
    /// The next answers that are due before a step may be planned: a tail that is
    /// to be sealed must not grow meanwhile.
    answers_before_step: usize,
    device_gone: bool,
}

impl SchedulerCore {
    /// A scheduler with nothing to do.
    #[must_use]
    pub fn new(spec: ModelSpec, config: SchedulerConfig) -> Self {
        Self {
            config,
            spec,
            entries: BTreeMap::new(),
            queue: VecDeque::new(),
            running: Vec::new(),
            starting: 0,
            room_awaited: false,
            room_tight: false,
            edits: Vec::new(),
            in_flight: None,
            asked: 0,
            unanswered: 0,
            room_made_at: 0,
            tickets: VecDeque::new(),
            forks_due: Vec::new(),
            stale_answers: 0,
            answers_before_step: 0,
            device_gone: false,
        }
    }

    /// Takes in one event and says what follows, in order.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Submit(submission) => self.submit(submission, &mut effects),
            Event::Fork(fork) => self.fork(fork, &mut effects),
            Event::Upkeep { ticket, message } => {
                assert!(message.is_upkeep(), "callers only keep and clear");
                self.tickets.push_back((self.asked + 1, ticket));
                self.ask(message, &mut effects);
            }
            Event::Stop(sequence) => self.stop(sequence, &mut effects),
            Event::Cache(answers) => self.answered(answers, &mut effects),
            Event::Outcome(outcome) => self.outcome(outcome, &mut effects),
            Event::DeviceGone => {
                self.device_gone = true;
                self.fail_all(&GenerateError::Lost, &mut effects);
            }
            Event::Abort => self.fail_all(&GenerateError::Shutdown, &mut effects),
        }
        self.start_queued(&mut effects);
        self.plan_step(&mut effects);
        effects
    }

    /// Sums that anyone may look at.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            running: self.running.len(),
            waiting: self.entries.len() - self.running.len(),
            awaiting_prefix: self
                .entries
                .values()
                .filter(|entry| matches!(entry.phase, Phase::Starting { waits: true, .. }))
                .count(),
        }
    }

    /// Whether no sequence is left and no work is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let quiet = self.in_flight.is_none() && self.forks_due.is_empty();
        self.entries.is_empty() && quiet && self.edits.is_empty()
    }

    /// Panics unless queues, phases and the step under way agree.
    pub fn check_integrity(&self) {
        let count =
            |wanted: fn(&Phase) -> bool| self.entries.values().filter(|e| wanted(&e.phase)).count();
        assert_eq!(
            count(|p| matches!(p, Phase::Queued)),
            self.queue.len(),
            "the queue holds the queued"
        );
        assert_eq!(
            count(|p| matches!(p, Phase::Starting { .. })),
            self.starting,
            "the starting are counted"
        );
        assert_eq!(
            count(|p| matches!(p, Phase::Running(_))),
            self.running.len(),
            "the running are listed"
        );
        for sequence in &self.running {
            assert!(
                self.entries[sequence].pending() >= 1,
                "a running sequence has work to do"
            );
        }
        let alive = |sequence: &SequenceId| self.entries.contains_key(sequence);
        for (sequence, _) in self.in_flight.iter().flatten().filter(|(s, _)| alive(s)) {
            assert!(self.running.contains(sequence), "who is in the step runs");
        }
    }

    fn submit(&mut self, submission: Submission, effects: &mut Vec<Effect>) {
        let sequence = submission.sequence;
        if self.device_gone {
            effects.push(Effect::Failed(sequence, GenerateError::Lost));
            return;
        }
        let context = self.spec.context_tokens_max;
        self.entries
            .insert(sequence, Entry::new(submission, context));
        self.enqueue(sequence);
    }

    /// Ends a sequence; one that is in the step ends with the step.
    fn stop(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let in_step = self.in_step(sequence);
        let Some(entry) = self.entries.get_mut(&sequence) else {
            if self.withdraw_fork(sequence) {
                effects.push(Effect::Finished(sequence, FinishReason::Cancelled));
            }
            return;
        };
        match in_step {
            true => entry.stopped = true,
            false => self.finish(sequence, FinishReason::Cancelled, effects),
        }
    }

    /// Puts a sequence into the queue, where it belongs by its arrival.
    fn enqueue(&mut self, sequence: SequenceId) {
        let place = self.queue.partition_point(|queued| *queued < sequence);
        self.queue.insert(place, sequence);
    }

    /// Asks the cache for slots, first come first served.
    fn start_queued(&mut self, effects: &mut Vec<Effect>) {
        if self.queue.is_empty() && self.unanswered == 0 {
            self.room_tight = false;
        }
        while !self.room_awaited
            && (!self.room_tight || self.unanswered == 0)
            && self.running.len() + self.starting < self.config.sequences_max
            && let Some(sequence) = self.queue.pop_front()
        {
            let entry = self
                .entries
                .get_mut(&sequence)
                .expect("the queued have entries");
            entry.phase = Phase::Starting {
                asked: self.asked + 1,
                waits: false,
            };
            self.starting += 1;
            let begin = entry.begin(sequence);
            self.ask(cache::Message::Begin(begin), effects);
        }
    }

    /// Sends the next work, unless some is under way or there is nothing to do.
    fn plan_step(&mut self, effects: &mut Vec<Effect>) {
        if self.in_flight.is_some() || self.answers_before_step > 0 || self.device_gone {
            return;
        }
        let candidates: Vec<Candidate> = self
            .running
            .iter()
            .map(|sequence| self.entries[sequence].candidate())
            .collect();
        let shares = plan::plan(&candidates, self.config.step_tokens_max);
        if shares.is_empty() && self.edits.is_empty() {
            return;
        }
        let spans = shares.iter().map(|share| self.span(share)).collect();
        self.in_flight = Some(
            shares
                .iter()
                .map(|share| (self.running[share.candidate], share.tokens))
                .collect(),
        );
        let edits = std::mem::take(&mut self.edits);
        effects.push(Effect::Work(Work { edits, spans }));
    }

    fn span(&self, share: &Share) -> PlannedSpan {
        let entry = &self.entries[&self.running[share.candidate]];
        let (slot, tokens) = entry.next_tokens(share.tokens);
        let want = match entry.pending() == share.tokens {
            true => Want::Token(Draw {
                sampling: entry.sampling,
                index: entry.generated.len() as u64,
            }),
            false => Want::Nothing,
        };
        PlannedSpan { slot, tokens, want }
    }

    fn in_step(&self, sequence: SequenceId) -> bool {
        self.in_flight
            .iter()
            .flatten()
            .any(|(stepped, _)| *stepped == sequence)
    }

    /// Takes a sequence out of every list. Its slot, if it has one, is still open.
    fn remove(&mut self, sequence: SequenceId) -> Option<Entry> {
        let entry = self.entries.remove(&sequence)?;
        match entry.phase {
            Phase::Queued => self.queue.retain(|queued| *queued != sequence),
            Phase::Starting { .. } => self.starting -= 1,
            Phase::Running(_) => self.running.retain(|running| *running != sequence),
        }
        Some(entry)
    }

    /// Ends a sequence and lets the cache publish what it computed.
    fn finish(&mut self, sequence: SequenceId, reason: FinishReason, effects: &mut Vec<Effect>) {
        let Some(entry) = self.remove(sequence) else {
            return;
        };
        match &entry.phase {
            Phase::Queued => {}
            Phase::Starting { .. } => self.ask(cache::Message::Discard { sequence }, effects),
            Phase::Running(running) => {
                let computed = running.computed;
                let generated = entry.news_for_cache();
                let close = cache::Message::Close {
                    sequence,
                    computed,
                    generated,
                };
                self.ask(close, effects);
            }
        }
        effects.push(Effect::Finished(sequence, reason));
    }

    /// Ends a sequence whose state is worthless.
    fn fail(&mut self, sequence: SequenceId, error: GenerateError, effects: &mut Vec<Effect>) {
        let Some(entry) = self.remove(sequence) else {
            return;
        };
        if !matches!(entry.phase, Phase::Queued) {
            self.ask(cache::Message::Discard { sequence }, effects);
        }
        effects.push(Effect::Failed(sequence, error));
    }

    fn fail_all(&mut self, error: &GenerateError, effects: &mut Vec<Effect>) {
        let all: Vec<SequenceId> = self.entries.keys().copied().collect();
        for sequence in all {
            self.fail(sequence, error.clone(), effects);
        }
        for fork in std::mem::take(&mut self.forks_due) {
            effects.push(Effect::Failed(fork.submission.sequence, error.clone()));
        }
    }
}
