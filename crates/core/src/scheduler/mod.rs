//! The scheduler: who runs in the next step.
//!
//! [`SchedulerCore`] is a plain state machine. An event only changes its queues; then
//! [`handle`](SchedulerCore::handle) starts what may start and, while the device can
//! take more work, asks [`plan`](mod@plan) for the next step. Two steps are under way at
//! once: one is planned while another is computed, and what that draws goes from one
//! to the other on the device.
//!
//! ```text
//!  Submit → queued → starting → running ──────────────→ over
//!              ↑        │ (no room)  │
//!              └────────┴────────────┘ (a step failed, or it gave way: history is kept)
//! ```
//!
//! | file | what happens there |
//! |---|---|
//! | [`mod@plan`] | the policy of a step, one pure function |
//! | [`queue`] | who starts next and who gives way, pure functions |
//! | [`turns`] | what lower classes have while a higher one saturates |
//! | [`fair`] | what each user has had |
//! | [`cost`] | what a step costs, learned |
//! | `entry.rs` | one sequence: its history and how far it is |
//! | `start.rs` | from the queue to the cache, deadlines |
//! | `answers.rs` | the conversation with the cache |
//! | `steps.rs` | steps go to the device |
//! | `outcome.rs` | what a step has brought, or cost |
//! | `room.rs` | slots grow, and when there is no room, somebody gives way |
//! | `context.rs` | forks, and contexts that are full |
//! | `rewind.rs` | a sequence ends, and another goes on in its slot |
//! | `recover.rs` | the device, the cache or the scheduler is lost |
//! | `inspect.rs` | who is inside, for those who watch |

mod answers;
mod backup;
mod context;
pub mod cost;
mod entry;
pub mod fair;
mod inspect;
mod masks;
mod outcome;
pub mod plan;
pub mod queue;
mod recover;
mod rewind;
mod room;
mod start;
mod steps;
pub mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use slotmap::SlotMap;

use crate::cache::{self, CacheError, Miss, Salt};
use crate::config::SchedulerConfig;
use crate::protocol::{
    ContextLimit, DrawSpec, DrawerStart, Edit, FinishReason, GenerateError, ModelSpec, Outcome,
    Priority, Sampling, TokenLogprobs, Work,
};
use crate::{SequenceId, SlotId, TokenId, UserId};
use context::DueFork;
use cost::CostModel;
use entry::{Entry, EntryKey, Over, Phase};
use fair::Service;
pub use masks::MaskGate;
pub use recover::{History, Leftover};
use room::HeadRoom;
use start::Timer;
use steps::Flight;
use turns::Turns;

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
    /// The sequence is as far ahead of its caller's reading as it may be.
    Pause(SequenceId),
    /// Its caller has read.
    Resume(SequenceId),
    /// Whether the sequence's masks let it be part of a step.
    Mask(SequenceId, MaskGate),
    /// What the cache answered.
    Cache(Result<Vec<cache::Effect>, CacheError>),
    /// What the cache says without having been asked.
    News(Vec<cache::Effect>),
    /// What the device answered.
    Outcome(Outcome),
    /// Time has passed: see [`SchedulerCore::wakes_at`].
    Tick,
    /// The device thread is gone, or was left behind, for this reason. No outcome of work
    /// that was sent to it comes any more.
    DeviceLost(String),
    /// There is another device, which is empty.
    DeviceFound,
    /// The cache has failed, and is empty. Whoever has made it fail each time fails, if that
    /// is known.
    CacheLost(Option<(SequenceId, GenerateError)>),
    /// This scheduler takes the place of one that has failed: its first event.
    TakeOver(Leftover),
    /// A sequence that the one before it had goes on.
    GoOn(History),
    /// All sequences end now.
    Abort,
}

/// A new sequence, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Its name. Names are given in order of arrival.
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
    /// Whether its caller wants to know how far its prompt is computed.
    pub tells_prefill: bool,
}

/// A new sequence that continues one that is not over.
#[derive(Clone, Debug, PartialEq)]
pub struct Fork {
    /// The sequence to continue.
    pub source: SequenceId,
    /// How many of its tokens, prompt and output; all that it has, if none.
    pub at: Option<usize>,
    /// Whether the source ends: then the new sequence has its slot, where it can go on in it.
    pub replaces: bool,
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
    /// The sequence has a new token, with what it was chosen among, if it asked.
    Token(SequenceId, TokenId, Option<Arc<TokenLogprobs>>),
    /// The sequence has its first slot.
    Started {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of its prompt; a fork's includes what it continues.
        prompt_tokens: usize,
        /// Of these, tokens that need not be computed.
        cached_tokens: usize,
        /// Why there are no more of them, where there might have been.
        miss: Option<Miss>,
    },
    /// Of the sequence's prompt, so many tokens are computed: told where
    /// [`Submission::tells_prefill`] is set.
    Prefilled(SequenceId, usize),
    /// The sequence's context was full: so many of its tokens are forgotten by now, in all. One
    /// that is computed anew forgets the same tokens again, and this is told again.
    Shifted(SequenceId, usize),
    /// The sequence continues another from so many of its tokens on.
    Forked {
        /// The new sequence.
        sequence: SequenceId,
        /// The other.
        source: SequenceId,
        /// How many of the other's tokens it begins with.
        at: usize,
    },
    /// The sequence has given way, and will go on later.
    Preempted(SequenceId),
    /// The sequence has a slot again, and its grammar is to be where its output is:
    /// [`Event::Mask`] opens its gate.
    AwaitMask(SequenceId),
    /// The cache has answered an [`Event::Upkeep`].
    Upkept(u64, Result<(), CacheError>),
    /// The sequence is over.
    Finished(SequenceId, FinishReason),
    /// The sequence is over without its output.
    Failed(SequenceId, GenerateError),
}

/// Sums that anyone may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SchedulerStats {
    /// Sequences with a slot.
    pub running: usize,
    /// Sequences without one.
    pub waiting: usize,
    /// Of these, sequences that wait for another to compute what both begin with.
    pub awaiting_prefix: usize,
    /// Sequences whose callers do not read.
    pub paused: usize,
    /// Times that a sequence has given way so far.
    pub preempted: u64,
    /// Time that the device had nothing to do although there was work, so far.
    pub device_idle: Duration,
}

/// The scheduler's state machine. See the module's documentation.
#[derive(Debug)]
pub struct SchedulerCore {
    config: SchedulerConfig,
    spec: ModelSpec,
    now: Duration,
    entries: SlotMap<EntryKey, Entry>,
    /// Where those are that are not over.
    names: BTreeMap<SequenceId, EntryKey>,
    /// Sequences without a slot, in order of arrival.
    queue: Vec<EntryKey>,
    /// Sequences with a slot.
    running: Vec<EntryKey>,
    /// Sequences for which the cache was asked for a slot.
    starting: Vec<EntryKey>,
    /// Sequences that are over and part of a step under way.
    landing: Vec<EntryKey>,
    paused: usize,
    awaiting_prefix: usize,
    service: Service,
    cost: CostModel,
    head_room: HeadRoom,
    /// Deadlines.
    timers: BTreeSet<(Duration, SequenceId, Timer)>,
    /// Slots that each user has, or is to have.
    slots_of: BTreeMap<UserId, usize>,
    turns: Turns,
    /// Users whose sequences have given their turns up for want of memory since the cache
    /// last had room for a turn of that class.
    turned_away: BTreeSet<(Priority, UserId)>,
    /// Something has changed that may let somebody start.
    may_start: bool,
    /// Somebody may start when the cache has answered everything.
    starts_when_answered: bool,
    /// When the queue was last looked through.
    looked_at: Duration,
    /// Time between two starts lately, and the last.
    start_interval: Option<Duration>,
    started_at: Option<Duration>,
    /// Whom the cache had no room for until one ends, if somebody waits for that.
    refused: Option<EntryKey>,
    /// Somebody was refused: the queue is asked one by one, so that nobody small
    /// overtakes who is large.
    room_tight: bool,
    /// Sequences that are to give way once they have landed.
    giving_way: usize,
    /// Sequences whose slots the cache had no room to let grow.
    cramped: Vec<EntryKey>,
    /// Edits for the next work, in the cache's order.
    edits: Vec<Edit>,
    /// Of what the cache wants to hear when they are carried out.
    clearings: Vec<u64>,
    /// What the device must know to draw for sequences of the next work.
    drawers: Vec<DrawerStart>,
    /// The work under way, oldest first.
    flights: VecDeque<Flight>,
    /// A step has failed that one under way was launched on top of.
    is_in_doubt: bool,
    /// How often everything was lost: the device has said so, or the device or the cache
    /// was lost itself.
    epoch: u64,
    /// There was something to do when the last work landed.
    had_work: bool,
    /// Messages sent to the cache, which answers each, in order.
    asked: u64,
    /// Messages that it has not answered yet.
    unanswered: usize,
    /// The last message that may have made room.
    room_made_at: u64,
    /// The last that was about a reset of the device.
    reset_asked: u64,
    /// The message about who is resident, if one is out.
    looking: Option<u64>,
    /// Where in the queue the next such message begins.
    look_from: usize,
    /// Messages whose answers must come before their sequence's next step.
    barriers: VecDeque<(u64, EntryKey, SlotId)>,
    /// Callers' questions that the cache has not answered: its message, their ticket.
    tickets: VecDeque<(u64, u64)>,
    /// Flushes that wait for sequences that are over to land.
    flushes: Vec<WaitingFlush>,
    /// Forks whose source is in a step under way.
    forks_due: Vec<DueFork>,
    /// The next answers that speak of what a reset has wiped out.
    stale_answers: usize,
    /// There is no device now; there may be one later.
    device_away: bool,
    /// The device has not heard of the epoch, and holds what nobody knows any more: work is
    /// sent for that alone.
    clears_device: bool,
    preempted: u64,
    device_idle: Duration,
    /// Tokens after which a live sequence is to be copied; 0 is never.
    backup_tokens: usize,
}

/// A caller's flush, which is to include what these sequences have computed.
#[derive(Debug)]
struct WaitingFlush {
    ticket: u64,
    message: cache::Message,
    landing: Vec<EntryKey>,
}

impl SchedulerCore {
    /// A scheduler with nothing to do.
    #[must_use]
    pub fn new(spec: ModelSpec, config: SchedulerConfig) -> Self {
        let turns = Turns::new(config.sequences_max);
        Self {
            service: Service::new(config.credit_service),
            config,
            spec,
            now: Duration::ZERO,
            entries: SlotMap::with_key(),
            names: BTreeMap::new(),
            queue: Vec::new(),
            running: Vec::new(),
            starting: Vec::new(),
            landing: Vec::new(),
            paused: 0,
            awaiting_prefix: 0,
            cost: CostModel::default(),
            head_room: HeadRoom::default(),
            timers: BTreeSet::new(),
            slots_of: BTreeMap::new(),
            turns,
            turned_away: BTreeSet::new(),
            may_start: false,
            starts_when_answered: false,
            looked_at: Duration::ZERO,
            start_interval: None,
            started_at: None,
            refused: None,
            room_tight: false,
            giving_way: 0,
            cramped: Vec::new(),
            edits: Vec::new(),
            clearings: Vec::new(),
            drawers: Vec::new(),
            flights: VecDeque::new(),
            is_in_doubt: false,
            epoch: 0,
            had_work: false,
            asked: 0,
            unanswered: 0,
            room_made_at: 0,
            reset_asked: 0,
            looking: None,
            look_from: 0,
            barriers: VecDeque::new(),
            tickets: VecDeque::new(),
            flushes: Vec::new(),
            forks_due: Vec::new(),
            stale_answers: 0,
            device_away: false,
            clears_device: false,
            preempted: 0,
            device_idle: Duration::ZERO,
            backup_tokens: 0,
        }
    }

    /// Takes in one event and says what follows, in order. `now` is the time since a
    /// moment that never changes; it only goes on.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        let mut effects = Vec::new();
        match event {
            Event::Submit(submission) => self.submit(submission),
            Event::Fork(fork) => self.fork(fork, &mut effects),
            Event::Upkeep { ticket, message } => {
                assert!(message.is_upkeep(), "callers only keep and clear");
                self.keep(ticket, message, &mut effects);
            }
            Event::Stop(sequence) => self.stop(sequence, &mut effects),
            Event::Pause(sequence) => self.pause(sequence),
            Event::Resume(sequence) => self.resume(sequence),
            Event::Mask(sequence, gate) => self.set_mask_gate(sequence, gate),
            Event::Cache(answers) => self.answered(answers, &mut effects),
            Event::News(news) => self.heard(news, &mut effects),
            Event::Outcome(outcome) => self.outcome(outcome, &mut effects),
            Event::Tick => {}
            Event::DeviceLost(reason) => self.lose_device(&reason, &mut effects),
            Event::DeviceFound => self.find_device(&mut effects),
            Event::CacheLost(culprit) => self.lose_cache(culprit, &mut effects),
            Event::TakeOver(left) => self.take_over(left, &mut effects),
            Event::GoOn(history) => self.go_on(history, &mut effects),
            Event::Abort => self.fail_all(&GenerateError::Shutdown, &mut effects),
        }
        self.flush_landed(&mut effects);
        self.expire(&mut effects);
        self.relieve(&mut effects);
        self.start_queued(&mut effects);
        self.plan_steps(&mut effects);
        // Prompts of which the last part has gone make room for the next.
        self.start_queued(&mut effects);
        effects
    }

    /// When [`handle`](Self::handle) wants to be called again if nothing else happens.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        let timer = self.timers.first().map(|(at, ..)| *at);
        timer.into_iter().chain(self.next_launch_at()).min()
    }

    /// Sums that anyone may look at.
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

    /// What each user has had.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Whether no sequence is left and no work is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let quiet = self.flights.is_empty() && self.forks_due.is_empty();
        self.entries.is_empty() && quiet && self.edits.is_empty()
    }

    /// Panics unless queues, phases and the steps under way agree.
    pub fn check_integrity(&self) {
        let count =
            |wanted: fn(&Entry) -> bool| self.entries.values().filter(|e| wanted(e)).count();
        let queued = count(|e| matches!(e.phase, Phase::Queued));
        assert_eq!(queued, self.queue.len(), "the queue holds the queued");
        let starting = count(|e| matches!(e.phase, Phase::Starting { .. }));
        assert_eq!(starting, self.starting.len(), "the starting are listed");
        let awaiting = count(|e| matches!(e.phase, Phase::Starting { waits: true, .. }));
        assert_eq!(awaiting, self.awaiting_prefix, "those who wait are counted");
        let running = count(|e| e.running().is_some());
        assert_eq!(running, self.running.len(), "the running are listed");
        let slots: usize = self.slots_of.values().sum();
        assert_eq!(slots, running + starting, "slots are counted by user");
        assert!(
            slots <= self.config.sequences_max + self.giving_way,
            "no more run than may"
        );
        let paused = count(|e| e.paused_since.is_some());
        assert_eq!(paused, self.paused, "the paused are counted");
        let giving_way = count(|e| e.running().is_some_and(|running| running.giving_way));
        assert_eq!(
            giving_way, self.giving_way,
            "those who give way are counted"
        );
        let mut in_turn = [0; Priority::COUNT];
        for entry in self.entries.values().filter(|e| e.is_in_turn()) {
            assert!(entry.over.is_none() && entry.paused_since.is_none());
            in_turn[entry.class as usize] += 1;
        }
        assert_eq!(in_turn, self.turns.held(), "those in turns are counted");
        let over = count(|e| e.over.is_some());
        assert_eq!(over, self.landing.len(), "those who land are listed");
        assert_eq!(
            self.names.len() + over,
            self.entries.len(),
            "who is not over has a name"
        );
        for (place, key) in self.running.iter().enumerate() {
            let entry = &self.entries[*key];
            let running = entry.running().expect("the running run");
            assert_eq!(running.place, place, "the running know their places");
            let flights = self.flights.iter().flat_map(|flight| &flight.members);
            let own: Vec<_> = flights
                .filter(|m| m.key == *key && m.slot == running.slot)
                .collect();
            assert_eq!(own.len(), running.flights, "steps under way are counted");
            let tokens: usize = own.iter().map(|member| member.tokens).sum();
            assert_eq!(tokens, running.launched, "tokens under way are counted");
            assert!(
                running.computed + running.launched <= running.granted,
                "grants are kept"
            );
            assert!(
                entry.over.is_none() || running.flights > 0,
                "who is over is landing"
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
        let entry = Entry::new(submission, self.spec.context_tokens_max, self.now);
        let key = self.entries.insert(entry);
        self.names.insert(sequence, key);
        self.enqueue(key);
    }

    /// Ends a sequence at its caller's wish.
    fn stop(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        match self.names.get(&sequence).copied() {
            Some(key) => self.finish(key, FinishReason::Cancelled, effects),
            None if self.withdraw_fork(sequence, effects) => {
                effects.push(Effect::Finished(sequence, FinishReason::Cancelled));
            }
            None => {}
        }
    }

    fn pause(&mut self, sequence: SequenceId) {
        let Some(key) = self.names.get(&sequence).copied() else {
            return;
        };
        let entry = &mut self.entries[key];
        if entry.paused_since.is_none() {
            entry.paused_since = Some(self.now);
            self.paused += 1;
            self.service.leave(entry.user, entry.class);
            self.end_turn(key);
            if let Some(at) = self.unread_end(self.now) {
                self.timers.insert((at, sequence, Timer::Unread));
            }
            if self.refused == Some(key) {
                self.refused = None;
            }
            // Whoever waits may take its slot.
            self.may_start = true;
        }
    }

    /// When a sequence is ended whose caller has not read since then.
    fn unread_end(&self, since: Duration) -> Option<Duration> {
        since.checked_add(self.config.unread_timeout?)
    }

    fn resume(&mut self, sequence: SequenceId) {
        if let Some(key) = self.names.get(&sequence).copied()
            && self.end_pause(key)
        {
            let entry = &self.entries[key];
            self.service.enter(entry.user, entry.class);
            self.may_start = true;
        }
    }

    /// Its caller has read, or has no more to read. False where it was not paused.
    fn end_pause(&mut self, key: EntryKey) -> bool {
        let entry = &mut self.entries[key];
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

    /// Ends a sequence and lets the cache publish what it computed.
    fn finish(&mut self, key: EntryKey, reason: FinishReason, effects: &mut Vec<Effect>) {
        let sequence = self.entries[key].sequence;
        effects.push(Effect::Finished(sequence, reason));
        self.end(key, Over::Close, effects);
    }

    /// Ends a sequence without its output.
    fn fail(&mut self, key: EntryKey, error: GenerateError, over: Over, effects: &mut Vec<Effect>) {
        let sequence = self.entries[key].sequence;
        effects.push(Effect::Failed(sequence, error));
        self.end(key, over, effects);
    }

    /// Its caller knows: nobody may ask for it any more, and it gives up its slot as
    /// soon as it is in no step.
    fn end(&mut self, key: EntryKey, over: Over, effects: &mut Vec<Effect>) {
        self.leave_caller(key);
        let entry = &mut self.entries[key];
        entry.over = Some(over);
        match entry.in_flight() {
            true => self.landing.push(key),
            false => self.vacate(key, over, effects),
        }
    }

    /// Nobody may ask for it any more: its caller knows that it is over.
    fn leave_caller(&mut self, key: EntryKey) {
        self.end_turn(key);
        let was_paused = self.end_pause(key);
        let entry = &mut self.entries[key];
        self.names.remove(&entry.sequence);
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

    /// Gives up the slot of a sequence that is over, or its place in the queue.
    fn vacate(&mut self, key: EntryKey, over: Over, effects: &mut Vec<Effect>) {
        self.leave_phase(key);
        self.landing.retain(|landing| *landing != key);
        let entry = self.entries.remove(key).expect("who is over was here");
        let sequence = entry.sequence;
        match (&entry.phase, over) {
            (Phase::Queued, _) => {}
            (Phase::Running(running), Over::Close) => {
                let close = cache::Message::Close {
                    sequence,
                    computed: running.computed,
                    generated: entry.news_for_cache(),
                };
                self.ask(close, effects);
            }
            (Phase::Starting { .. }, _) | (Phase::Running(_), Over::Discard) => {
                self.ask(cache::Message::Discard { sequence }, effects);
            }
        }
        self.start_forks_of(sequence, effects);
    }

    /// Takes a sequence out of the list that it is in by its phase.
    fn leave_phase(&mut self, key: EntryKey) {
        let entry = &self.entries[key];
        match &entry.phase {
            Phase::Queued => {
                self.queue.retain(|queued| *queued != key);
                self.refused = self.refused.filter(|refused| *refused != key);
                if self.queue.is_empty() {
                    self.started_at = None;
                }
            }
            Phase::Starting { waits, .. } => {
                self.starting.retain(|starting| *starting != key);
                self.awaiting_prefix -= usize::from(*waits);
                let user = entry.user;
                self.free_slot(user);
            }
            Phase::Running(running) => {
                let user = entry.user;
                self.giving_way -= usize::from(running.giving_way);
                self.cramped.retain(|cramped| *cramped != key);
                let place = running.place;
                self.running.swap_remove(place);
                self.free_slot(user);
                if let Some(moved) = self.running.get(place) {
                    let moved = self.entries[*moved].running_mut();
                    moved.expect("the running run").place = place;
                }
            }
        }
        self.may_start = true;
    }

    /// Ends all sequences; what they have computed may serve the next start.
    fn fail_all(&mut self, error: &GenerateError, effects: &mut Vec<Effect>) {
        for fork in std::mem::take(&mut self.forks_due) {
            effects.push(Effect::Failed(fork.submission.sequence, error.clone()));
        }
        let all: Vec<EntryKey> = self.names.values().copied().collect();
        for key in all {
            self.fail(key, error.clone(), Over::Close, effects);
        }
    }
}
