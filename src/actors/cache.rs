//! The cache's shell.
//!
//! What can wake it: a [`Message`] from the scheduler. Each is answered by exactly
//! one [`Answer`], in order.

use std::convert::Infallible;

use kameo::Actor;
use kameo::actor::ActorRef;
use kameo::message::Context;
use tokio::sync::mpsc;

use crate::cache::{CacheCore, CacheStats, Effect, Message};

/// What the cache says to one message.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) effects: Vec<Effect>,
    pub(crate) stats: CacheStats,
}

/// The actor. Owns the core.
pub(crate) struct CacheActor {
    core: CacheCore,
    answers: mpsc::Sender<Answer>,
}

impl Actor for CacheActor {
    type Args = (CacheCore, mpsc::Sender<Answer>);
    type Error = Infallible;

    async fn on_start(
        (core, answers): Self::Args,
        _actor_ref: ActorRef<Self>,
    ) -> Result<Self, Self::Error> {
        Ok(Self { core, answers })
    }
}

impl kameo::message::Message<Message> for CacheActor {
    type Reply = ();

    async fn handle(&mut self, message: Message, ctx: &mut Context<Self, Self::Reply>) {
        let effects = self.core.handle(message);
        let stats = self.core.stats();
        match self.answers.try_send(Answer { effects, stats }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => ctx.stop(),
            Err(mpsc::error::TrySendError::Full(_)) => {
                unreachable!("the scheduler has no more messages out than answers fit")
            }
        }
    }
}
