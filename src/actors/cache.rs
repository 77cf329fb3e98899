//! The cache's shell.
//!
//! What can wake it: a [`Message`] from the scheduler, each answered by exactly one
//! [`Answer`], in order; a [`Message::Paged`] from the pager, which is news for the
//! scheduler if anything follows from it; and an [`Inspect`] from the engine, which
//! awaits the reply.

use std::collections::VecDeque;
use std::convert::Infallible;

use kameo::Actor;
use kameo::actor::{ActorRef, WeakActorRef};
use kameo::error::SendError;
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::message::Context;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::pager::PagerActor;
use crate::cache::{CacheCore, CacheError, CacheStats, Effect, Message, Salt, TreeView};
use crate::pager;

/// What the cache says to one message.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: Result<Vec<Effect>, CacheError>,
    pub(crate) stats: CacheStats,
    /// Whether the scheduler asked for it.
    pub(crate) asked: bool,
}

/// The actor. Owns the core.
pub(crate) struct CacheActor {
    core: CacheCore,
    answers: mpsc::Sender<Answer>,
    /// Answers that did not fit, in order: news come beside what was asked for.
    unsent: VecDeque<Answer>,
    pager: Option<ActorRef<PagerActor>>,
    /// Messages that found the pager's mailbox full; as many as sequences can cause.
    untold: VecDeque<pager::Message>,
    born: Instant,
}

/// From now on there is a pager.
pub(crate) struct Attach(pub(crate) ActorRef<PagerActor>);

/// Somebody wants to look at the trie.
pub(crate) struct Inspect {
    pub(crate) salt: Salt,
    /// Given back when it has been answered.
    pub(crate) turn: OwnedSemaphorePermit,
}

impl Actor for CacheActor {
    type Args = (CacheCore, mpsc::Sender<Answer>);
    type Error = Infallible;

    async fn on_start(
        (core, answers): Self::Args,
        _actor_ref: ActorRef<Self>,
    ) -> Result<Self, Self::Error> {
        Ok(Self {
            core,
            answers,
            unsent: VecDeque::new(),
            pager: None,
            untold: VecDeque::new(),
            born: Instant::now(),
        })
    }

    /// Sends what did not fit until a mailbox signal is due.
    async fn next(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        mailbox: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Self::Error> {
        loop {
            tokio::select! {
                biased;
                permit = self.answers.reserve(), if !self.unsent.is_empty() => match permit {
                    Ok(permit) => permit.send(self.unsent.pop_front().expect("some are unsent")),
                    Err(_) => return Ok(None),
                },
                signal = mailbox.recv() => return Ok(signal),
            }
        }
    }
}

impl kameo::message::Message<Message> for CacheActor {
    type Reply = ();

    async fn handle(&mut self, message: Message, ctx: &mut Context<Self, Self::Reply>) {
        let asked = !matches!(message, Message::Paged(_));
        let result = self.core.handle(self.born.elapsed(), message);
        let stats = self.core.stats();
        let is_news = asked || result.as_ref().is_ok_and(|effects| !effects.is_empty());
        let answer = Answer {
            result,
            stats,
            asked,
        };
        let mut is_heard = !is_news || self.send(answer);
        if !self.tell_pager() {
            is_heard &= self.lose_pager();
        }
        if !is_heard {
            ctx.stop();
        }
    }
}

impl kameo::message::Message<Attach> for CacheActor {
    type Reply = ();

    async fn handle(&mut self, Attach(pager): Attach, _ctx: &mut Context<Self, Self::Reply>) {
        self.pager = Some(pager);
    }
}

impl kameo::message::Message<Inspect> for CacheActor {
    type Reply = Inspected;

    async fn handle(
        &mut self,
        inspect: Inspect,
        _ctx: &mut Context<Self, Self::Reply>,
    ) -> Inspected {
        let tree = self.core.tree(&inspect.salt);
        drop(inspect.turn);
        Inspected(tree)
    }
}

impl CacheActor {
    /// Sends an answer after those that are still to be sent. False when nobody is there.
    fn send(&mut self, answer: Answer) -> bool {
        if !self.unsent.is_empty() {
            self.unsent.push_back(answer);
            return true;
        }
        match self.answers.try_send(answer) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(answer)) => {
                self.unsent.push_back(answer);
                true
            }
        }
    }

    /// Goes on without a pager: nobody waits for it any more. False when nobody is there.
    fn lose_pager(&mut self) -> bool {
        self.untold.clear();
        self.pager = None;
        let gone = Message::Paged(pager::Told::Gone);
        let answer = Answer {
            result: self.core.handle(self.born.elapsed(), gone),
            stats: self.core.stats(),
            asked: false,
        };
        self.send(answer)
    }

    /// False when there is no pager any more.
    fn tell_pager(&mut self) -> bool {
        self.untold.extend(self.core.take_outbox());
        let Some(pager) = &self.pager else {
            return true;
        };
        while let Some(message) = self.untold.pop_front() {
            match pager.tell(message).try_send() {
                Ok(()) => {}
                // It has much to tell, and is heard when it does.
                Err(SendError::MailboxFull(message)) => {
                    self.untold.push_front(message);
                    return true;
                }
                Err(_) => return false,
            }
        }
        true
    }
}

/// What the trie looks like.
#[derive(kameo::Reply)]
pub(crate) struct Inspected(pub(crate) TreeView);
