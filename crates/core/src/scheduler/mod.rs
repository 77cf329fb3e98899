//! The scheduler: which sequences run in the next step.
//!
//! [`SchedulerCore`] is a sans-I/O state machine. An event only changes its queues. Then
//! [`handle`](SchedulerCore::handle) starts queued sequences and, while the device can take
//! more work, asks [`plan`](policy::plan) for the next step. Two steps are in flight at once:
//! one is planned while the device computes another. A token that one step samples goes to the
//! next step on the device.
//!
//! ```text
//!  Submit → queued → starting → running ──────────────→ finished
//!              ↑        │ (no memory) │
//!              └────────┴─────────────┘ (preempted, or a step failed: the history is kept)
//! ```
//!
//! | file | contents |
//! |---|---|
//! | [`policy::plan`] | the policy of a step, one pure function |
//! | [`policy::waiting`] | which sequence starts next and which is preempted, pure functions |
//! | [`policy::turns`] | what lower classes get while a higher one saturates |
//! | [`policy::fairness`] | the service that each user has received |
//! | [`policy::step_cost`] | what a step costs, learned |
//! | `sequence.rs` | one sequence: its history and its progress |
//! | `admission.rs` | from the queue to the cache; deadlines |
//! | `cache_client.rs` | the protocol with the cache |
//! | `pipeline.rs` | submits steps to the device |
//! | `outcome.rs` | results and failures of steps |
//! | `memory_grants.rs` | grants of memory, and preemption when memory runs out |
//! | `backup.rs` | copies of live sequences |
//! | `masks.rs` | sequences that wait for token masks |
//! | `forks.rs` | forks, and contexts that are full |
//! | `rewind.rs` | a sequence ends, and another continues in its slot |
//! | `recovery.rs` | loss of the device, the cache or the scheduler |
//! | `snapshot.rs` | snapshots of the scheduler's sequences |

mod admission;
mod backup;
mod cache_client;
mod forks;
mod masks;
mod memory_grants;
mod outcome;
mod pipeline;
pub mod policy;
mod recovery;
mod rewind;
mod sequence;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use slotmap::SlotMap;

use crate::cache::{self, CacheError, Miss, Salt};
use crate::config::SchedulerConfig;
use crate::protocol::{
    ContextLimit, Edit, FinishReason, GenerateError, ModelSpec, Outcome, Priority, SamplerStart,
    Sampling, SamplingSpec, TokenLogprobs, Work,
};
use crate::{SequenceId, SlotId, TokenId, UserId};
use admission::Timer;
use forks::DueFork;
pub use masks::MaskGate;
use memory_grants::Headroom;
use pipeline::InFlightStep;
use policy::fairness::Service;
use policy::step_cost::CostModel;
use policy::turns::Turns;
pub use recovery::{History, Predecessor};
use sequence::{Finished, Phase, Sequence, SequenceKey};

/// Everything that can happen to the scheduler.
#[derive(Debug)]
pub enum Event {
    /// A new sequence.
    Submit(Submission),
    /// A new sequence that continues one that is not finished.
    Fork(Fork),
    /// A cache command of a caller; [`Effect::CommandDone`] brings the result.
    CacheCommand {
        /// The caller's id for it.
        command_id: u64,
        /// The command.
        message: cache::Message,
    },
    /// The sequence must stop: its caller has left, or has all the text that it wants.
    Stop(SequenceId),
    /// The sequence is as far ahead of its caller's reading as it may be.
    Pause(SequenceId),
    /// The sequence's caller has read.
    Resume(SequenceId),
    /// Whether the sequence's masks let it be part of a step.
    Mask(SequenceId, MaskGate),
    /// The cache's answer to the oldest unanswered message.
    Cache(Result<Vec<cache::Effect>, CacheError>),
    /// Effects that the cache sends without a message to answer.
    CacheEffects(Vec<cache::Effect>),
    /// The device's answer to the oldest work in flight.
    Outcome(Outcome),
    /// Time has passed: see [`SchedulerCore::wakes_at`].
    TimePassed,
    /// The device thread ended or was abandoned, for this reason. The work that was sent to it
    /// gets no outcome.
    DeviceLost(String),
    /// There is another device, which is empty.
    DeviceFound,
    /// The cache has failed, and is empty. If one sequence is known to make it fail each time,
    /// that sequence fails with this error.
    CacheLost(Option<(SequenceId, GenerateError)>),
    /// This scheduler replaces one that has failed. This must be its first event.
    Rebuilt(Predecessor),
    /// A sequence of the failed scheduler continues.
    Restore(History),
    /// All sequences end now.
    Abort,
}

/// A new sequence, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Its id. Ids are given in order of arrival.
    pub sequence: SequenceId,
    /// The prompt; at least one token.
    pub prompt: Arc<[TokenId]>,
    /// Tokens that it may generate; at least 1.
    pub output_tokens_max: usize,
    /// How its tokens are sampled.
    pub sampling: Sampling,
    /// Sampling settings beyond these, if any.
    pub sampling_spec: Option<Arc<SamplingSpec>>,
    /// Tokens that end it and are not part of its output: the model's, unless they are ignored,
    /// and its own.
    pub end_tokens: Arc<[TokenId]>,
    /// The user that it belongs to.
    pub user: UserId,
    /// Weight of its user's share beside other users' shares; positive.
    pub weight: f64,
    /// Its priority class.
    pub class: Priority,
    /// Deadline for its first slot, as the engine's time.
    pub start_by: Option<Duration>,
    /// Deadline for its end, as the engine's time.
    pub finish_by: Option<Duration>,
    /// Behavior when its context is full.
    pub at_limit: ContextLimit,
    /// Its salt: it shares cached state with sequences of the same salt only.
    pub salt: Salt,
    /// Offsets in its prompt at which it must be restorable.
    pub restore_points: Vec<usize>,
    /// Priority with which its cached state is kept.
    pub retention: u8,
    /// Whether its caller receives [`Effect::Prefilled`].
    pub report_prefill_progress: bool,
}

/// A new sequence that continues one that is not finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Fork {
    /// The sequence to continue.
    pub source: SequenceId,
    /// Number of the source's tokens that it continues, prompt and output; `None` is all.
    pub at: Option<usize>,
    /// Whether the source ends. The new sequence then takes over its slot, if it can continue
    /// there.
    pub replaces: bool,
    /// The new sequence. Its prompt follows the source's tokens, and may be empty. It takes the
    /// source's salt and its behavior when the context is full.
    pub submission: Submission,
}

/// An action that an event requires.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// A message to the cache.
    Cache(cache::Message),
    /// Work for the device.
    Work(Work),
    /// The sequence has a new token, with the log probabilities of its candidates if requested.
    Token(SequenceId, TokenId, Option<Arc<TokenLogprobs>>),
    /// The sequence has its first slot.
    Started {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of its prompt; a fork's includes the tokens that it continues.
        prompt_tokens: usize,
        /// Tokens of the prompt whose state was cached.
        cached_tokens: usize,
        /// Why no more tokens were cached, if more might have been.
        miss: Option<Miss>,
    },
    /// Number of the sequence's prompt tokens that are computed. Sent if
    /// [`Submission::report_prefill_progress`] is set.
    Prefilled(SequenceId, usize),
    /// Number of the sequence's tokens that were dropped so far because its context was full. A
    /// sequence that is computed again drops the same tokens again, and this effect repeats.
    Shifted(SequenceId, usize),
    /// The sequence continues another.
    Forked {
        /// The new sequence.
        sequence: SequenceId,
        /// The other sequence.
        source: SequenceId,
        /// Number of the other's tokens with which it starts.
        at: usize,
    },
    /// The sequence was preempted, and continues later.
    Preempted(SequenceId),
    /// The sequence has a slot again, and its grammar must catch up with its output.
    /// [`Event::Mask`] opens its gate.
    AwaitMask(SequenceId),
    /// The cache has answered an [`Event::CacheCommand`].
    CommandDone(u64, Result<(), CacheError>),
    /// The sequence is finished.
    Finished(SequenceId, FinishReason),
    /// The sequence has failed, and its output is incomplete.
    Failed(SequenceId, GenerateError),
}

/// Gauges and counters of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SchedulerStats {
    /// Sequences with a slot.
    pub running: usize,
    /// Sequences without a slot.
    pub waiting: usize,
    /// Waiting sequences for which another sequence computes their common prefix.
    pub awaiting_prefix: usize,
    /// Sequences whose callers do not read.
    pub paused: usize,
    /// Preemptions so far.
    pub preempted: u64,
    /// Time so far in which the device was idle although there was work.
    pub device_idle: Duration,
}

/// The scheduler's state machine. See the module's documentation.
#[derive(Debug)]
pub struct SchedulerCore {
    config: SchedulerConfig,
    spec: ModelSpec,
    now: Duration,
    sequences: SlotMap<SequenceKey, Sequence>,
    /// Keys of the sequences that are not finished.
    live_keys: BTreeMap<SequenceId, SequenceKey>,
    /// Sequences without a slot, in order of arrival.
    queue: Vec<SequenceKey>,
    /// Sequences with a slot.
    running: Vec<SequenceKey>,
    /// Sequences for which the cache was asked for a slot.
    starting: Vec<SequenceKey>,
    /// Finished sequences that are part of a step in flight.
    draining: Vec<SequenceKey>,
    paused: usize,
    awaiting_prefix: usize,
    service: Service,
    cost: CostModel,
    headroom: Headroom,
    /// Deadlines.
    timers: BTreeSet<(Duration, SequenceId, Timer)>,
    /// Slots that each user has or has asked for.
    slots_of: BTreeMap<UserId, usize>,
    turns: Turns,
    /// Users whose sequences gave their turns up for want of memory. An entry lasts until the
    /// cache has memory for a turn of its class.
    turned_away: BTreeSet<(Priority, UserId)>,
    /// Whether something has changed that may let a queued sequence start.
    may_start: bool,
    /// Whether a queued sequence may start when the cache has answered everything.
    starts_when_answered: bool,
    /// Time of the last scan of the queue.
    queue_scanned_at: Duration,
    /// Mean time between recent starts, and the time of the last one.
    start_interval: Option<Duration>,
    started_at: Option<Duration>,
    /// The sequence that waits for memory until another ends, if any.
    memory_waiter: Option<SequenceKey>,
    /// Whether a start was denied for want of memory. The queue then starts one sequence at a
    /// time, so that no small one overtakes a large one.
    is_memory_short: bool,
    /// Number of sequences that will be preempted once they are in no step.
    preempting: usize,
    /// Sequences whose grants the cache could not extend.
    starved: Vec<SequenceKey>,
    /// Edits for the next work, in the cache's order.
    edits: Vec<Edit>,
    /// Fences behind these edits, which the cache expects to pass.
    fences: Vec<u64>,
    /// Samplers that the device must start for sequences of the next work.
    sampler_starts: Vec<SamplerStart>,
    /// The work in flight, oldest first.
    steps_in_flight: VecDeque<InFlightStep>,
    /// Whether a step has failed on top of which a step in flight was submitted.
    is_in_doubt: bool,
    /// Number of times that all state was lost: the device reported it, or the device, the
    /// cache or the scheduler was lost.
    epoch: u64,
    /// Whether there was something to do when the last work finished.
    had_work: bool,
    /// Number of messages sent to the cache, which answers each in order.
    asked: u64,
    /// Number of messages that the cache has not answered.
    pending_answers: usize,
    /// Number of the last message that may have freed memory.
    memory_freed_by: u64,
    /// Number of the last message about a reset of the device.
    reset_asked: u64,
    /// Number of the unanswered message that probes prefixes, if any.
    probe_message: Option<u64>,
    /// Index in the queue at which the next such message begins.
    probe_from: usize,
    /// Messages whose answers must come before their sequence's next step.
    barriers: VecDeque<(u64, SequenceKey, SlotId)>,
    /// Callers' commands that the cache has not answered: message number and command id.
    pending_commands: VecDeque<(u64, u64)>,
    /// Flushes that wait for finished sequences to drain.
    flushes: Vec<WaitingFlush>,
    /// Forks whose source is in a step in flight.
    forks_due: Vec<DueFork>,
    /// Number of next answers that concern state from before a reset.
    stale_answers: usize,
    /// Whether there is no device now; there may be one later.
    device_away: bool,
    /// Whether the device does not know the epoch yet and still holds lost state. Work is then
    /// sent for the epoch alone.
    device_needs_reset: bool,
    preempted: u64,
    device_idle: Duration,
    /// Tokens after which a live sequence is copied; 0 copies none.
    backup_tokens: usize,
}

/// A caller's flush, which must include the state of these draining sequences.
#[derive(Debug)]
struct WaitingFlush {
    command_id: u64,
    message: cache::Message,
    draining: Vec<SequenceKey>,
}

impl SchedulerCore {
    /// Creates a scheduler without sequences.
    #[must_use]
    pub fn new(spec: ModelSpec, config: SchedulerConfig) -> Self {
        let turns = Turns::new(config.sequences_max);
        Self {
            service: Service::new(config.credit_service),
            config,
            spec,
            now: Duration::ZERO,
            sequences: SlotMap::with_key(),
            live_keys: BTreeMap::new(),
            queue: Vec::new(),
            running: Vec::new(),
            starting: Vec::new(),
            draining: Vec::new(),
            paused: 0,
            awaiting_prefix: 0,
            cost: CostModel::default(),
            headroom: Headroom::default(),
            timers: BTreeSet::new(),
            slots_of: BTreeMap::new(),
            turns,
            turned_away: BTreeSet::new(),
            may_start: false,
            starts_when_answered: false,
            queue_scanned_at: Duration::ZERO,
            start_interval: None,
            started_at: None,
            memory_waiter: None,
            is_memory_short: false,
            preempting: 0,
            starved: Vec::new(),
            edits: Vec::new(),
            fences: Vec::new(),
            sampler_starts: Vec::new(),
            steps_in_flight: VecDeque::new(),
            is_in_doubt: false,
            epoch: 0,
            had_work: false,
            asked: 0,
            pending_answers: 0,
            memory_freed_by: 0,
            reset_asked: 0,
            probe_message: None,
            probe_from: 0,
            barriers: VecDeque::new(),
            pending_commands: VecDeque::new(),
            flushes: Vec::new(),
            forks_due: Vec::new(),
            stale_answers: 0,
            device_away: false,
            device_needs_reset: false,
            preempted: 0,
            device_idle: Duration::ZERO,
            backup_tokens: 0,
        }
    }

    /// Handles one event and returns its effects in order. `now` is the time since a moment
    /// that never changes, and never decreases.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        let mut effects = Vec::new();
        match event {
            Event::Submit(submission) => self.submit(submission),
            Event::Fork(fork) => self.fork(fork, &mut effects),
            Event::CacheCommand {
                command_id,
                message,
            } => {
                assert!(message.is_command(), "a caller sends cache commands only");
                self.send_command(command_id, message, &mut effects);
            }
            Event::Stop(sequence) => self.stop(sequence, &mut effects),
            Event::Pause(sequence) => self.pause(sequence),
            Event::Resume(sequence) => self.resume(sequence),
            Event::Mask(sequence, gate) => self.set_mask_gate(sequence, gate),
            Event::Cache(answers) => self.answered(answers, &mut effects),
            Event::CacheEffects(cache_effects) => {
                self.on_cache_effects(cache_effects, &mut effects)
            }
            Event::Outcome(outcome) => self.outcome(outcome, &mut effects),
            Event::TimePassed => {}
            Event::DeviceLost(reason) => self.lose_device(&reason, &mut effects),
            Event::DeviceFound => self.find_device(&mut effects),
            Event::CacheLost(culprit) => self.lose_cache(culprit, &mut effects),
            Event::Rebuilt(predecessor) => self.rebuild(predecessor, &mut effects),
            Event::Restore(history) => self.restore(history, &mut effects),
            Event::Abort => self.fail_all(&GenerateError::Shutdown, &mut effects),
        }
        self.send_drained_flushes(&mut effects);
        self.expire(&mut effects);
        self.preempt_for_starved(&mut effects);
        self.start_queued(&mut effects);
        self.plan_steps(&mut effects);
        // A prompt whose last chunk was submitted lets the next one start.
        self.start_queued(&mut effects);
        effects
    }

    /// Returns when [`handle`](Self::handle) must be called again if nothing else happens.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        let timer = self.timers.first().map(|(at, ..)| *at);
        timer.into_iter().chain(self.next_submit_at()).min()
    }

    /// Returns the gauges and counters.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            running: self.running.len(),
            waiting: self.queue.len() + self.starting.len(),
            awaiting_prefix: self.awaiting_prefix,
            paused: self.paused,
            preempted: self.preempted,
            device_idle: self.device_idle,
        }
    }

    /// Returns the service that each user has received.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Whether no sequence is left and no work is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let quiet = self.steps_in_flight.is_empty() && self.forks_due.is_empty();
        self.sequences.is_empty() && quiet && self.edits.is_empty()
    }

    /// Checks that queues, phases and the steps in flight agree.
    ///
    /// # Panics
    ///
    /// Panics if they do not.
    pub fn check_integrity(&self) {
        let count = |predicate: fn(&Sequence) -> bool| {
            self.sequences.values().filter(|e| predicate(e)).count()
        };
        let queued = count(|e| matches!(e.phase, Phase::Queued));
        assert_eq!(queued, self.queue.len(), "the queue is complete");
        let starting = count(|e| matches!(e.phase, Phase::Starting { .. }));
        assert_eq!(starting, self.starting.len(), "`starting` is complete");
        let awaiting = count(|e| matches!(e.phase, Phase::Starting { waits: true, .. }));
        assert_eq!(awaiting, self.awaiting_prefix, "waits are counted");
        let running = count(|e| e.running().is_some());
        assert_eq!(running, self.running.len(), "`running` is complete");
        let slots: usize = self.slots_of.values().sum();
        assert_eq!(slots, running + starting, "slots are counted by user");
        assert!(
            slots <= self.config.sequences_max + self.preempting,
            "at most `sequences_max` sequences run"
        );
        let paused = count(|e| e.paused_since.is_some());
        assert_eq!(paused, self.paused, "paused sequences are counted");
        let preempting = count(|e| e.running().is_some_and(|running| running.preempting));
        assert_eq!(
            preempting, self.preempting,
            "sequences to preempt are counted"
        );
        let mut in_turn = [0; Priority::COUNT];
        for entry in self.sequences.values().filter(|e| e.is_in_turn()) {
            assert!(entry.finished.is_none() && entry.paused_since.is_none());
            in_turn[entry.class as usize] += 1;
        }
        assert_eq!(in_turn, self.turns.held(), "sequences in turns are counted");
        let finished = count(|e| e.finished.is_some());
        assert_eq!(finished, self.draining.len(), "`draining` is complete");
        assert_eq!(
            self.live_keys.len() + finished,
            self.sequences.len(),
            "an unfinished sequence is found by its id"
        );
        for (running_index, key) in self.running.iter().enumerate() {
            let entry = &self.sequences[*key];
            let running = entry.running().expect("a running sequence has a slot");
            assert_eq!(
                running.running_index, running_index,
                "a running sequence knows its index"
            );
            let steps_in_flight = self.steps_in_flight.iter().flat_map(|step| &step.members);
            let own: Vec<_> = steps_in_flight
                .filter(|m| m.key == *key && m.slot == running.slot)
                .collect();
            assert_eq!(
                own.len(),
                running.steps_in_flight,
                "steps in flight are counted"
            );
            let tokens: usize = own.iter().map(|member| member.tokens).sum();
            assert_eq!(
                tokens, running.in_flight_tokens,
                "tokens in flight are counted"
            );
            assert!(
                running.computed + running.in_flight_tokens <= running.granted,
                "no slot exceeds its grant"
            );
            assert!(
                entry.finished.is_none() || running.steps_in_flight > 0,
                "a finished sequence with a slot is draining"
            );
        }
    }

    fn submit(&mut self, submission: Submission) {
        let sequence = submission.sequence;
        for (at, timer) in [
            (submission.start_by, Timer::Start),
            (submission.finish_by, Timer::Finish),
        ] {
            self.timers.extend(at.map(|at| (at, sequence, timer)));
        }
        self.service.enter(submission.user, submission.class);
        let entry = Sequence::new(submission, self.spec.context_tokens_max, self.now);
        let key = self.sequences.insert(entry);
        self.live_keys.insert(sequence, key);
        self.enqueue(key);
    }

    /// Ends a sequence at its caller's request.
    fn stop(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        match self.live_keys.get(&sequence).copied() {
            Some(key) => self.finish(key, FinishReason::Cancelled, effects),
            None if self.cancel_fork(sequence, effects) => {
                effects.push(Effect::Finished(sequence, FinishReason::Cancelled));
            }
            None => {}
        }
    }

    fn pause(&mut self, sequence: SequenceId) {
        let Some(key) = self.live_keys.get(&sequence).copied() else {
            return;
        };
        let entry = &mut self.sequences[key];
        if entry.paused_since.is_none() {
            entry.paused_since = Some(self.now);
            self.paused += 1;
            self.service.leave(entry.user, entry.class);
            self.end_turn(key);
            if let Some(at) = self.unread_end(self.now) {
                self.timers.insert((at, sequence, Timer::Unread));
            }
            if self.memory_waiter == Some(key) {
                self.memory_waiter = None;
            }
            // A waiting sequence may take its slot.
            self.may_start = true;
        }
    }

    /// Returns when a sequence fails whose caller has not read since then.
    fn unread_end(&self, since: Duration) -> Option<Duration> {
        since.checked_add(self.config.unread_timeout?)
    }

    fn resume(&mut self, sequence: SequenceId) {
        if let Some(key) = self.live_keys.get(&sequence).copied()
            && self.end_pause(key)
        {
            let entry = &self.sequences[key];
            self.service.enter(entry.user, entry.class);
            self.may_start = true;
        }
    }

    /// Ends a sequence's pause: its caller has read, or has no more to read. Returns false if
    /// it was not paused.
    fn end_pause(&mut self, key: SequenceKey) -> bool {
        let entry = &mut self.sequences[key];
        let sequence = entry.sequence;
        let Some(since) = entry.paused_since.take() else {
            return false;
        };
        self.paused -= 1;
        if let Some(at) = self.unread_end(since) {
            self.timers.remove(&(at, sequence, Timer::Unread));
        }
        true
    }

    /// Ends a sequence and lets the cache publish its computed state.
    fn finish(&mut self, key: SequenceKey, reason: FinishReason, effects: &mut Vec<Effect>) {
        let sequence = self.sequences[key].sequence;
        effects.push(Effect::Finished(sequence, reason));
        self.end(key, Finished::Close, effects);
    }

    /// Fails a sequence: it ends without its output.
    fn fail(
        &mut self,
        key: SequenceKey,
        error: GenerateError,
        finished: Finished,
        effects: &mut Vec<Effect>,
    ) {
        let sequence = self.sequences[key].sequence;
        effects.push(Effect::Failed(sequence, error));
        self.end(key, finished, effects);
    }

    /// Ends a sequence whose caller has its result. Its slot is freed as soon as it is in no
    /// step.
    fn end(&mut self, key: SequenceKey, finished: Finished, effects: &mut Vec<Effect>) {
        self.leave_caller(key);
        let entry = &mut self.sequences[key];
        entry.finished = Some(finished);
        if entry.in_flight() {
            self.draining.push(key);
        } else {
            self.free_slot(key, finished, effects);
        }
    }

    /// Removes a finished sequence from everything that finds it by id, and ends its deadlines.
    fn leave_caller(&mut self, key: SequenceKey) {
        self.end_turn(key);
        let was_paused = self.end_pause(key);
        let entry = &mut self.sequences[key];
        self.live_keys.remove(&entry.sequence);
        if !was_paused {
            self.service.leave(entry.user, entry.class);
        }
        for (at, timer) in [
            (entry.start_by, Timer::Start),
            (entry.finish_by, Timer::Finish),
        ] {
            if let Some(at) = at {
                self.timers.remove(&(at, entry.sequence, timer));
            }
        }
    }

    /// Frees the slot of a finished sequence, or its place in the queue.
    fn free_slot(&mut self, key: SequenceKey, finished: Finished, effects: &mut Vec<Effect>) {
        self.leave_phase(key);
        self.draining.retain(|draining| *draining != key);
        let entry = self.sequences.remove(key).expect("a sequence ends once");
        let sequence = entry.sequence;
        match (&entry.phase, finished) {
            (Phase::Queued, _) => {}
            (Phase::Running(running), Finished::Close) => {
                let close = cache::Message::Close {
                    sequence,
                    computed: running.computed,
                    generated: entry.generated_for_cache(),
                };
                self.ask(close, effects);
            }
            (Phase::Starting { .. }, _) | (Phase::Running(_), Finished::Discard) => {
                self.ask(cache::Message::Discard { sequence }, effects);
            }
        }
        self.start_forks_of(sequence, effects);
    }

    /// Removes a sequence from the list of its phase.
    fn leave_phase(&mut self, key: SequenceKey) {
        let entry = &self.sequences[key];
        match &entry.phase {
            Phase::Queued => {
                self.queue.retain(|queued| *queued != key);
                self.memory_waiter = self
                    .memory_waiter
                    .filter(|memory_waiter| *memory_waiter != key);
                if self.queue.is_empty() {
                    self.started_at = None;
                }
            }
            Phase::Starting { waits, .. } => {
                self.starting.retain(|starting| *starting != key);
                self.awaiting_prefix -= usize::from(*waits);
                let user = entry.user;
                self.uncount_slot(user);
            }
            Phase::Running(running) => {
                let user = entry.user;
                self.preempting -= usize::from(running.preempting);
                self.starved.retain(|starved| *starved != key);
                let running_index = running.running_index;
                self.running.swap_remove(running_index);
                self.uncount_slot(user);
                if let Some(moved) = self.running.get(running_index) {
                    let moved = self.sequences[*moved].running_mut();
                    moved.expect("a running sequence has a slot").running_index = running_index;
                }
            }
        }
        self.may_start = true;
    }

    /// Fails all sequences. Their computed state may serve the next start.
    fn fail_all(&mut self, error: &GenerateError, effects: &mut Vec<Effect>) {
        for fork in std::mem::take(&mut self.forks_due) {
            effects.push(Effect::Failed(fork.submission.sequence, error.clone()));
        }
        let all: Vec<SequenceKey> = self.live_keys.values().copied().collect();
        for key in all {
            self.fail(key, error.clone(), Finished::Close, effects);
        }
    }
}
