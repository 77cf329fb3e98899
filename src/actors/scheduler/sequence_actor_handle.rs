//! The handle of one sequence, with the history that its caller has.

use std::sync::Arc;
use std::task::Waker;

use kameo::actor::ActorRef;
use kameo::error::SendError;
use tokio::sync::Notify;

use crate::actors::sequence::{Batch, SequenceActor, SequenceEvent};
use motet_core::scheduler::{self, Event, History, Submission};
use motet_protocol::TokenId;
use motet_protocol::{ConstraintWalk, TokenLogprobs};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;

/// The handle of one sequence. It also holds everything that its caller has received: a rebuilt
/// scheduler needs nothing else.
pub(super) struct SequenceActorHandle {
    actor: ActorRef<SequenceActor>,
    cancel: CancelFlag,
    credits: Credits,
    /// Events that found the mailbox full, or belong to the next; delivered with that.
    outbox: Batch,
    start: Start,
    /// Tokens of the output so far.
    sent_tokens: Vec<TokenId>,
    /// Whether the sequence has had a slot.
    has_started: bool,
    /// Whether the sequence is to stop.
    is_stopping: bool,
    /// Panics blamed on this sequence alone since its last token.
    panics_blamed: u32,
}

/// The tokens that a sequence starts with.
pub(super) enum Start {
    /// Those of the submission.
    Submitted(Submission),
    /// Those of a source sequence at the fork, not known yet.
    Forked(scheduler::Fork),
}

impl SequenceActorHandle {
    pub(super) fn new(
        start: Start,
        actor: ActorRef<SequenceActor>,
        cancel: CancelFlag,
        credits: Credits,
    ) -> Self {
        let sent_tokens = match &start {
            Start::Submitted(submission) => submission.output_so_far.to_vec(),
            Start::Forked(_) => Vec::new(),
        };
        Self {
            actor,
            cancel,
            credits,
            outbox: Batch::new(),
            start,
            sent_tokens,
            has_started: false,
            is_stopping: false,
            panics_blamed: 0,
        }
    }

    /// Sends a token to the sequence. Unless `is_recorded`, the sequence cannot be restored.
    /// Returns true when the caller's unread tokens reach the limit.
    pub(super) fn send_token(
        &mut self,
        token: TokenId,
        logprobs: Option<Arc<TokenLogprobs>>,
        wakeup: &Notify,
        is_recorded: bool,
    ) -> bool {
        self.credits.sent();
        if is_recorded {
            self.sent_tokens.push(token);
            self.panics_blamed = 0;
        }
        self.deliver(SequenceEvent::Token(token, logprobs), wakeup);
        self.credits.pause_if_full()
    }

    /// Marks the next token as one that came as predicted. The mark goes with the token, so that it
    /// takes no place in the mailbox.
    pub(super) fn predicted(&mut self) {
        self.outbox.push(SequenceEvent::Predicted);
    }

    /// Sends an event to the sequence. If its mailbox is full, the event waits for the next
    /// one. A sequence that is gone is cancelled.
    pub(super) fn deliver(&mut self, sequence_event: SequenceEvent, wakeup: &Notify) {
        self.has_started |= matches!(sequence_event, SequenceEvent::Started { .. });
        match (self.outbox.last_mut(), &sequence_event) {
            // The later report includes the earlier.
            (Some(last @ SequenceEvent::Prefilled(_)), SequenceEvent::Prefilled(_)) => {
                *last = sequence_event
            }
            _ => self.outbox.push(sequence_event),
        }
        let batch = std::mem::take(&mut self.outbox);
        match self.actor.tell(batch).try_send() {
            Ok(()) => {}
            Err(SendError::MailboxFull(batch)) => self.outbox = batch,
            Err(_) => {
                self.cancel.cancel();
                wakeup.notify_one();
            }
        }
    }

    /// Sends the last event. It is delivered even if the sequence's mailbox is full.
    pub(super) fn end(mut self, sequence_event: SequenceEvent) {
        self.cancel.finish();
        self.outbox.push(sequence_event);
        let Self { actor, outbox, .. } = self;
        if let Err(SendError::MailboxFull(batch)) = actor.tell(outbox).try_send() {
            // Rare, and the last event for this sequence: a task of its own waits.
            tokio::spawn(async move { actor.tell(batch).send().await.ok() });
        }
    }

    /// Whether the caller is gone, or wants no more tokens.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Whether the caller has read enough for the sequence to continue.
    pub(super) fn has_reader(&self) -> bool {
        !self.credits.is_paused()
    }

    /// Records that the sequence is to stop, for a rebuilt core.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Blames a panic on this sequence, and returns how many there are since its last token.
    pub(super) fn blame(&mut self) -> u32 {
        self.panics_blamed += 1;
        self.panics_blamed
    }

    /// Whether the tokens that the sequence starts with are those of a source, and not known.
    pub(super) fn is_fork(&self) -> bool {
        matches!(self.start, Start::Forked(_))
    }

    /// Records the tokens that a fork starts with.
    pub(super) fn fork_started(&mut self, submission: Submission) {
        self.start = Start::Submitted(submission);
    }

    /// Returns the event that restores the sequence: its history, or the fork where that is not
    /// known yet.
    pub(super) fn restore_event(&self, paused: bool) -> Event {
        match &self.start {
            Start::Forked(fork) => Event::Fork(fork.clone()),
            Start::Submitted(submission) => Event::Restore(History {
                submission: submission.clone(),
                generated: self.sent_tokens.clone(),
                started: self.has_started,
                paused,
            }),
        }
    }

    /// Returns the sequence's walk through its grammar, if it has one.
    pub(super) fn walk(&self) -> Option<Arc<dyn ConstraintWalk>> {
        let submission = match &self.start {
            Start::Submitted(submission) => submission,
            Start::Forked(fork) => &fork.submission,
        };
        submission
            .sampling_spec
            .as_ref()?
            .grammar
            .as_ref()?
            .sequence_walk()
    }

    /// Starts the computation of the mask for the whole output.
    pub(super) fn await_mask(&self) {
        if let Some(walk) = self.walk() {
            walk.await_mask(&self.sent_tokens);
        }
    }

    /// Makes the sequence's walk wake this waker when an awaited mask is ready.
    pub(super) fn wake_by_mask(&self, waker: impl FnOnce() -> Waker) {
        if let Some(walk) = self.walk() {
            walk.wake(waker());
        }
    }
}
