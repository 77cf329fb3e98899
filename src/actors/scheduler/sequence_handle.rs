//! The way to one sequence and its caller, and what both know of it.

use kameo::actor::ActorRef;
use kameo::error::SendError;
use tokio::sync::Notify;

use crate::actors::sequence::{Batch, Sequence, SequenceEvent};
use motet_core::TokenId;
use motet_core::scheduler::{self, Event, History, Submission};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;

/// The way to one sequence. What its caller was told stands here as well: it is all that a
/// scheduler which takes the place of another needs.
pub(super) struct SequenceHandle {
    pub(super) actor: ActorRef<Sequence>,
    pub(super) cancel: CancelFlag,
    pub(super) credits: Credits,
    /// News that found the mailbox full; delivered with the next.
    pub(super) outbox: Batch,
    pub(super) start: Start,
    /// Its tokens so far.
    pub(super) sent_tokens: Vec<TokenId>,
    /// Whether it has had a slot.
    pub(super) started: bool,
    /// Whether it is to stop.
    pub(super) is_stopping: bool,
    /// How often a core has panicked at it and at no other since its last token.
    pub(super) panics_blamed: u32,
}

/// What a sequence begins with.
pub(super) enum Start {
    /// This.
    Submitted(Submission),
    /// What another has had until then: not known yet.
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

    /// Brings a token to the sequence. Where it `is_recorded` no books it cannot begin anew.
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

    /// Brings news to the sequence. A full mailbox keeps it for the next time; a
    /// sequence that is gone is stopped.
    pub(super) fn deliver(&mut self, sequence_event: SequenceEvent, wakeup: &Notify) {
        match (self.outbox.last_mut(), &sequence_event) {
            // The later tells all that the earlier did.
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

    /// What its caller knows of it; what it continues, where that is not known yet.
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
