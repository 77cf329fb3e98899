//! The cache's shell.
//!
//! What can wake it: a [`Message`] from the scheduler, each answered by exactly one
//! [`Answer`], in order; and an [`Inspect`] from the engine, which awaits the reply.

use std::convert::Infallible;

use kameo::Actor;
use kameo::actor::ActorRef;
use kameo::message::Context;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::cache::{CacheCore, CacheError, CacheStats, Effect, Message, Salt, TreeView};

/// What the cache says to one message.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: Result<Vec<Effect>, CacheError>,
    pub(crate) stats: CacheStats,
}

/// The actor. Owns the core.
pub(crate) struct CacheActor {
    core: CacheCore,
    answers: mpsc::Sender<Answer>,
    born: Instant,
}

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
            born: Instant::now(),
        })
    }
}

impl kameo::message::Message<Message> for CacheActor {
    type Reply = ();

    async fn handle(&mut self, message: Message, ctx: &mut Context<Self, Self::Reply>) {
        let result = self.core.handle(self.born.elapsed(), message);
        let stats = self.core.stats();
        match self.answers.try_send(Answer { result, stats }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => ctx.stop(),
            Err(mpsc::error::TrySendError::Full(_)) => {
                unreachable!("the scheduler has no more messages out than answers fit")
            }
        }
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

/// What the trie looks like.
#[derive(kameo::Reply)]
pub(crate) struct Inspected(pub(crate) TreeView);
