//! The way to one sequence and its caller, and what both know of it.

use kameo::actor::ActorRef;
use kameo::error::SendError;
use tokio::sync::Notify;

use crate::actors::sequence::{Batch, News, Sequence};
use motet_core::TokenId;
use motet_core::scheduler::{self, Event, History, Submission};
use motet_sync::cancel::CancelWord;
use motet_sync::credits::Credits;

/// The way to one sequence. What its caller was told stands here as well: it is all that a
/// scheduler which takes the place of another needs.
pub(super) struct Link {
    pub(super) actor: ActorRef<Sequence>,
    pub(super) cancel: CancelWord,
    pub(super) credits: Credits,
    /// News that found the mailbox full; delivered with the next.
    pub(super) undelivered: Batch,
    pub(super) start: Start,
    /// Its tokens so far.
    pub(super) told: Vec<TokenId>,
    /// Whether it has had a slot.
    pub(super) started: bool,
    /// Whether it is to stop.
    pub(super) stops: bool,
    /// How often a core has panicked at it and at no other since its last token.
    pub(super) suspected: u32,
}

/// What a sequence begins with.
pub(super) enum Start {
    /// This.
    Submitted(Submission),
    /// What another has had until then: not known yet.
    Forks(scheduler::Fork),
}

impl Link {
    pub(super) fn new(
        start: Start,
        actor: ActorRef<Sequence>,
        cancel: CancelWord,
        credits: Credits,
    ) -> Self {
        Self {
            actor,
            cancel,
            credits,
            undelivered: Batch::new(),
            start,
            told: Vec::new(),
            started: false,
            stops: false,
            suspected: 0,
        }
    }

    /// Brings a token to the sequence. Where it `keeps` no books it cannot begin anew.
    pub(super) fn token(&mut self, token: TokenId, news: News, doorbell: &Notify, keeps: bool) {
        self.credits.sent();
        if keeps {
            self.told.push(token);
            self.suspected = 0;
        }
        self.tell(news, doorbell);
    }

    /// Brings news to the sequence. A full mailbox keeps it for the next time; a
    /// sequence that is gone is stopped.
    pub(super) fn tell(&mut self, news: News, doorbell: &Notify) {
        match (self.undelivered.last_mut(), &news) {
            // The later tells all that the earlier did.
            (Some(last @ News::Prefilled(_)), News::Prefilled(_)) => *last = news,
            _ => self.undelivered.push(news),
        }
        let batch = std::mem::take(&mut self.undelivered);
        match self.actor.tell(batch).try_send() {
            Ok(()) => {}
            Err(SendError::MailboxFull(batch)) => self.undelivered = batch,
            Err(_) => {
                self.cancel.cancel();
                doorbell.notify_one();
            }
        }
    }

    /// What its caller knows of it; what it continues, where that is not known yet.
    pub(super) fn event(&self, paused: bool) -> Event {
        match &self.start {
            Start::Forks(fork) => Event::Fork(fork.clone()),
            Start::Submitted(submission) => Event::GoOn(History {
                submission: submission.clone(),
                generated: self.told.clone(),
                started: self.started,
                paused,
            }),
        }
    }
}
