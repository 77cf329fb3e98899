//! One sequence: its components, and the decisions that take several of them.
//!
//! | file | contents |
//! |---|---|
//! | `history.rs` | its tokens |
//! | `slot.rs` | its slot: progress, and what its next step waits for |
//! | `grant.rs` | tokens that the slot may hold |
//! | `prompt_rows.rs` | the rows of its prompt that its caller waits for |
//! | `queue_time.rs` | its time in the queue |
//! | `start_terms.rs` | the terms on which it starts next |
//! | `turn.rs` | its part in the turn of its class |
//! | `failures.rs` | the failed steps that it was part of |
//! | `steps.rs` | how it joins a step, and what comes back |
//! | `context.rs` | the bounds of its slot, and shifts |
//! | `views.rs` | how the policies see it |
//! | `drafts.rs` | the drafts of its next tokens |
//! | `cache_messages.rs` | the messages to the cache that say what it has computed |

mod cache_messages;
mod context;
mod drafts;
mod failures;
mod grant;
mod history;
mod prompt_rows;
mod queue_time;
mod slot;
mod start_terms;
mod steps;
mod turn;
mod views;

use std::ops::Range;
use std::time::Duration;

use super::{MaskGate, Submission};
pub(super) use drafts::{DraftLimit, OwnDrafts, ROUND_READ_TOKENS_MAX};
use failures::Failures;
use history::TokenHistory;
use motet_protocol::{Priority, ReasoningTracker};
use motet_protocol::{SequenceId, SlotId, TokenId, UserId};
use prompt_rows::PromptRows;
use queue_time::QueueTime;
pub(super) use slot::Slot;
use start_terms::StartTerms;
use turn::Turn;
pub(super) use views::QueuedTerms;

slotmap::new_key_type! {
    /// Key of a sequence in the scheduler.
    pub(super) struct SequenceKey;
}

/// A sequence, until its slot, if any, is freed.
#[derive(Debug)]
pub(super) struct Sequence {
    submission: Submission,
    /// Upper bound on the tokens in its slot.
    context_tokens_max: usize,
    phase: Phase,
    history: TokenHistory,
    prompt_rows: PromptRows,
    /// Follows its reasoning, if that is bounded.
    reasoning: Option<ReasoningTracker>,
    queue_time: QueueTime,
    start: StartTerms,
    turn: Turn,
    failures: Failures,
    /// Whether it has had a slot.
    started: bool,
    /// Times that it was preempted.
    preempted: u32,
    /// Tokens already accounted to the user: charged, or taken over from a source that paid.
    charged_tokens: usize,
    /// Time since which its caller has not read; `None` if it is not paused.
    paused_since: Option<Duration>,
    /// Whether its masks let it be part of a step.
    mask_gate: MaskGate,
    /// Drafts of its next tokens, while it has a slot.
    drafts: Option<Box<OwnDrafts>>,
    /// How its slot is freed once it is in no step; set when it is finished.
    finished: Option<Finished>,
}

/// Treatment of the slot of a finished sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finished {
    /// Its computed state may serve other sequences.
    Close,
    /// Its state is unusable.
    Discard,
}

/// The phase of a sequence.
#[derive(Debug)]
pub(super) enum Phase {
    /// It is in the queue.
    Queued,
    /// The cache was asked for a slot.
    Starting {
        /// Number of the message.
        asked: u64,
        /// Tokens that the slot may hold.
        granted: usize,
        /// Whether another sequence is computing the common prefix.
        waits: bool,
    },
    /// It has a slot.
    Running(Slot),
}

impl Sequence {
    pub(super) fn new(submission: Submission, context_tokens_max: usize, now: Duration) -> Self {
        let history = TokenHistory::new(submission.prompt.clone());
        let prompt_rows = PromptRows::new(&submission);
        let reasoning = submission.reasoning.clone();
        Self {
            reasoning,
            submission,
            context_tokens_max,
            phase: Phase::Queued,
            history,
            prompt_rows,
            queue_time: QueueTime::new(now),
            start: StartTerms::default(),
            turn: Turn::default(),
            failures: Failures::default(),
            started: false,
            preempted: 0,
            charged_tokens: 0,
            paused_since: None,
            mask_gate: MaskGate::Open,
            drafts: None,
            finished: None,
        }
    }

    /// Creates a sequence that another scheduler had, with the tokens generated there.
    pub(super) fn restored(
        submission: Submission,
        generated: Vec<TokenId>,
        started: bool,
        context_tokens_max: usize,
        now: Duration,
    ) -> Self {
        let mut sequence = Self::new(submission, context_tokens_max, now);
        // A sequence that lost its slot goes before others. A newcomer with a beginning does not.
        sequence.failures = Failures::restored(started && !generated.is_empty());
        if !generated.is_empty() {
            // All results of the prompt came before its first token.
            sequence.prompt_rows = PromptRows::default();
        }
        if let Some(reasoning) = &mut sequence.reasoning {
            generated.iter().for_each(|token| reasoning.push(*token));
        }
        let prompt = sequence.submission.prompt.clone();
        sequence.history = TokenHistory::restored(prompt, generated);
        sequence.started = started;
        if started {
            // Its tokens so far are paid for.
            sequence.charged_tokens = sequence.history.tokens().len();
        }
        sequence
    }

    /// Creates a sequence that continues in the slot of another, with this many of its tokens.
    pub(super) fn in_slot_of(
        source: &Self,
        submission: Submission,
        retained_tokens: usize,
        context_tokens_max: usize,
        now: Duration,
    ) -> Self {
        let slot = source.slot().expect("the source has a slot");
        let mut sequence = Self::new(submission, context_tokens_max, now);
        sequence.phase = Phase::Running(slot.rewound(retained_tokens));
        sequence.started = true;
        // Its source has paid for these tokens.
        sequence.charged_tokens = retained_tokens;
        sequence
    }

    pub(super) fn id(&self) -> SequenceId {
        self.submission.sequence
    }

    pub(super) fn user(&self) -> UserId {
        self.submission.user
    }

    pub(super) fn priority(&self) -> Priority {
        self.submission.priority
    }

    /// Returns what it was submitted as.
    pub(super) fn submission(&self) -> &Submission {
        &self.submission
    }

    pub(super) fn history(&self) -> &TokenHistory {
        &self.history
    }

    pub(super) fn queue_time(&self) -> &QueueTime {
        &self.queue_time
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Returns its slot, if it runs.
    pub(super) fn slot(&self) -> Option<&Slot> {
        match &self.phase {
            Phase::Running(slot) => Some(slot),
            Phase::Queued | Phase::Starting { .. } => None,
        }
    }

    pub(super) fn slot_mut(&mut self) -> Option<&mut Slot> {
        match &mut self.phase {
            Phase::Running(slot) => Some(slot),
            Phase::Queued | Phase::Starting { .. } => None,
        }
    }

    pub(super) fn has_slot(&self, slot: SlotId) -> bool {
        self.slot().is_some_and(|own| own.id() == slot)
    }

    /// Whether it is part of a step in flight.
    pub(super) fn in_flight(&self) -> bool {
        self.slot().is_some_and(Slot::is_in_step)
    }

    /// Whether it has had a slot.
    pub(super) fn is_started(&self) -> bool {
        self.started
    }

    /// Returns the number of times that it was preempted.
    pub(super) fn preempted(&self) -> u32 {
        self.preempted
    }

    pub(super) fn failed_steps(&self) -> u32 {
        self.failures.steps()
    }

    // From the queue to a slot.

    pub(super) fn enter_queue(&mut self, now: Duration) {
        self.queue_time.enter(now);
    }

    /// Records that the cache was asked for a slot.
    pub(super) fn ask_for_slot(&mut self, asked: u64, granted: usize, now: Duration) {
        self.queue_time.leave(now);
        self.phase = Phase::Starting {
            asked,
            granted,
            waits: false,
        };
    }

    /// Records that it starts after another sequence which computes their common prefix. Returns
    /// whether that is new.
    pub(super) fn defer(&mut self) -> bool {
        match &mut self.phase {
            Phase::Starting { waits, .. } => !std::mem::replace(waits, true),
            Phase::Queued | Phase::Running(_) => false,
        }
    }

    /// Records its slot. Returns whether that is its first.
    pub(super) fn open_slot(
        &mut self,
        slot: SlotId,
        cached_tokens: usize,
        running_index: usize,
    ) -> bool {
        let Phase::Starting { granted, .. } = self.phase else {
            panic!("only a starting sequence gets a slot")
        };
        self.phase = Phase::Running(Slot::new(slot, cached_tokens, granted, running_index));
        self.start.allow();
        !std::mem::replace(&mut self.started, true)
    }

    /// Records that the cache has no memory for its slot, and returns it to the queue. It asks
    /// for a minimal grant from now on. Returns whether it did so before.
    pub(super) fn deny_slot(&mut self) -> bool {
        self.phase = Phase::Queued;
        self.start.deny()
    }

    /// Records the number of its tokens in the cache.
    pub(super) fn note_resident(&mut self, tokens: usize) {
        self.start.note_resident(tokens);
    }

    /// Counts a sequence that starts before it since more of that one's prompt is cached.
    pub(super) fn overtake(&mut self) {
        self.start.overtake();
    }

    /// From now on the sequence ignores the cache. Returns the previous setting.
    pub(super) fn ignore_cache(&mut self) -> bool {
        self.start.ignore_cache()
    }

    /// Returns the number of its tokens that the cache will not have, and the number that it
    /// will. At most `unknown` are taken for cached before the cache has reported.
    pub(super) fn uncached(&self, unknown: usize) -> (usize, usize) {
        let tokens = self.history.tokens().len();
        let (_, resident) = self.start.uncached(tokens, unknown);
        let resident = resident.min(self.reuse_max().unwrap_or(usize::MAX));
        (tokens - resident, resident)
    }

    /// Whether it continues a finished sequence whose generated tokens will be in the cache.
    pub(super) fn continues_closed(&self, before: &Self) -> bool {
        before.finished == Some(Finished::Close)
            && before.submission.key == self.submission.key
            && self.history.continues(&before.history)
    }

    // Turns.

    /// Whether it started in the turn of its class and the turn has not ended.
    pub(super) fn is_in_turn(&self) -> bool {
        self.turn.is_running()
    }

    /// Begins its part in the turn of its class, unless that runs already. Returns whether it
    /// begins.
    pub(super) fn begin_turn(&mut self) -> bool {
        let begins = !self.is_in_turn();
        if begins {
            self.turn.begin();
        }
        begins
    }

    /// Ends its part in the turn. Returns whether that was running.
    pub(super) fn end_turn(&mut self) -> bool {
        let ends = self.is_in_turn();
        self.turn.end();
        ends
    }

    /// Counts a step that it has waited for memory in its turn. Returns whether it has waited
    /// too long.
    pub(super) fn wait_for_memory_in_turn(&mut self) -> bool {
        self.turn.wait_for_memory()
    }

    /// Whether it is in its turn, was denied memory, and has no slot yet.
    pub(super) fn waits_for_memory_in_turn(&self) -> bool {
        self.is_in_turn() && self.start.is_minimal() && self.slot().is_none()
    }

    /// Returns the class with which it waits for memory. In its turn no other sequence goes
    /// first.
    pub(super) fn memory_priority(&self) -> Priority {
        if self.is_in_turn() {
            Priority::Urgent
        } else {
            self.priority()
        }
    }

    // Its caller.

    /// Whether its caller does not read.
    pub(super) fn is_paused(&self) -> bool {
        self.paused_since.is_some()
    }

    /// Returns the time since which its caller has not read.
    pub(super) fn paused_since(&self) -> Option<Duration> {
        self.paused_since
    }

    /// Pauses it. Returns false if it was paused.
    pub(super) fn pause(&mut self, now: Duration) -> bool {
        let is_new = self.paused_since.is_none();
        self.paused_since.get_or_insert(now);
        is_new
    }

    /// Ends its pause. Returns the time since which it was paused, if it was.
    pub(super) fn resume(&mut self) -> Option<Duration> {
        self.paused_since.take()
    }

    pub(super) fn set_mask_gate(&mut self, gate: MaskGate) {
        self.mask_gate = gate;
    }

    /// Shuts its gate if its grammar must read its output first. Returns whether that is the
    /// case.
    pub(super) fn await_mask(&mut self) -> bool {
        let awaits = self.has_grammar() && !self.history.generated().is_empty();
        if awaits {
            self.mask_gate = MaskGate::Shut;
        }
        awaits
    }

    pub(super) fn has_grammar(&self) -> bool {
        let spec = self.submission.sampling_spec.as_ref();
        spec.is_some_and(|spec| spec.grammar.is_some())
    }

    /// Ends it for its caller.
    pub(super) fn finish(&mut self, finished: Finished) {
        self.finished = Some(finished);
    }

    /// Returns how its slot is freed if it is finished.
    pub(super) fn finished(&self) -> Option<Finished> {
        self.finished
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished.is_some()
    }

    // Back to the queue.

    /// Returns it to the queue without a slot, with its history.
    pub(super) fn preempt(&mut self) {
        self.preempted += 1;
        self.restart();
    }

    /// Returns it to the queue since its state is lost. A blamed sequence runs alone once it has
    /// been in `alone_after` failed steps in a row.
    pub(super) fn lose_state(&mut self, is_blamed: bool, alone_after: u32) {
        if is_blamed {
            self.failures.blame(alone_after);
        }
        self.failures
            .lose_state(!self.history.generated().is_empty());
        self.restart();
    }

    /// Returns it to the queue without these tokens, as if they had never existed.
    pub(super) fn restart_without(&mut self, removed: &Range<usize>) {
        self.history.restart_without(removed);
        // The remaining tokens are paid for.
        self.charged_tokens = self.charged_tokens.saturating_sub(removed.len());
        self.phase = Phase::Queued;
    }

    fn restart(&mut self) {
        // While it waits, it takes no memory for drafts.
        self.drafts = None;
        self.history.restart();
        self.phase = Phase::Queued;
    }
}
