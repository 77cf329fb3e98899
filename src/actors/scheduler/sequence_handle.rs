//! The handle of one sequence, with the history that its caller has.

use kameo::actor::ActorRef;
use kameo::error::SendError;
use tokio::sync::Notify;

use crate::actors::sequence::{Batch, Sequence, SequenceEvent};
use motet_core::TokenId;
use motet_core::scheduler::{self, Event, History, Submission};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;

/// The handle of one sequence. It also holds everything that its caller has received: a rebuilt
/// scheduler needs nothing else.
pub(super) struct SequenceHandle {
    pub(super) actor: ActorRef<Sequence>,
    pub(super) cancel: CancelFlag,
    pub(super) credits: Credits,
    /// Events that found the mailbox full; delivered with the next.
    pub(super) outbox: Batch,
    pub(super) start: Start,
    /// Tokens generated so far.
    pub(super) sent_tokens: Vec<TokenId>,
    /// Whether the sequence has had a slot.
    pub(super) started: bool,
    /// Whether the sequence is to stop.
    pub(super) is_stopping: bool,
    /// Panics blamed on this sequence alone since its last token.
    pub(super) panics_blamed: u32,
}

/// The tokens that a sequence starts with.
pub(super) enum Start {
    /// Those of the submission.
    Submitted(Submission),
    /// Those of a source sequence at the fork, not known yet.
    Forked(scheduler::Fork),
}

impl SequenceHandle {
    pub(super) fn new(
        start: Start,
        actor: ActorRef<Sequence>,
        cancel: CancelFlag,
        credits: Credits,
    ) -> Self {
        Self {
            actor,
            cancel,
            credits,
            outbox: Batch::new(),
            start,
            sent_tokens: Vec::new(),
            started: false,
            is_stopping: false,
            panics_blamed: 0,
        }
    }

    /// Sends a token to the sequence. Unless `is_recorded`, the sequence cannot be restored.
    pub(super) fn token(
        &mut self,
        token: TokenId,
        sequence_event: SequenceEvent,
        wakeup: &Notify,
        is_recorded: bool,
    ) {
        self.credits.sent();
        if is_recorded {
            self.sent_tokens.push(token);
            self.panics_blamed = 0;
        }
        self.deliver(sequence_event, wakeup);
    }

    /// Sends an event to the sequence. If its mailbox is full, the event waits for the next
    /// one. A sequence that is gone is cancelled.
    pub(super) fn deliver(&mut self, sequence_event: SequenceEvent, wakeup: &Notify) {
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

    /// Returns the event that restores the sequence: its history, or the fork where that is not
    /// known yet.
    pub(super) fn restore_event(&self, paused: bool) -> Event {
        match &self.start {
            Start::Forked(fork) => Event::Fork(fork.clone()),
            Start::Submitted(submission) => Event::Restore(History {
                submission: submission.clone(),
                generated: self.sent_tokens.clone(),
                started: self.started,
                paused,
            }),
        }
    }
}
