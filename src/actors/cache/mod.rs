//! The cache's actor.
//!
//! Events that can wake it:
//!
//! - a [`Message`] from the scheduler, each answered by exactly one [`CacheAnswer`], in order;
//! - a [`Message::Paged`] from the pager; its effects, if any, go to the scheduler in a
//!   [`CacheAnswer`];
//! - an [`Inspect`] or a [`Follow`] from the engine, or a [`TakeTrieSnapshot`] from the snapshot
//!   task: the sender awaits the reply;
//! - a [`SendAllBlocks`] from a subscriber, which is answered in its channel;
//! - the clock, while the pager's mailbox was full.
//!
//! Subscribers to block events are notified after each message. A subscriber with a full
//! channel misses the batch: the cache never waits for a reader.
//!
//! A core that panics is rebuilt empty, and the scheduler receives [`CacheError::Lost`]: all
//! sequences continue from their histories. The pager stays, and receives a reset.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the loop: messages to the core, and panics |
//! | `answers.rs` | answers to the scheduler, in order |
//! | `pager_handle.rs` | the pager, and what waits for it |
//! | `followers.rs` | subscribers to block events |
//! | `requests.rs` | messages from the engine and the snapshot task |

mod answers;
mod followers;
mod pager_handle;
mod requests;

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use kameo::Actor;
use kameo::actor::{ActorRef, WeakActorRef};
use kameo::error::{ActorStopReason, PanicError};
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::message::Context;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::runtime::{EngineRuntime, Part, Runtime};
use answers::AnswerSender;
pub(crate) use answers::CacheAnswer;
pub use followers::BlockBatch;
use followers::Followers;
use motet_core::cache::{CacheCore, CacheError, CacheStats, Effect, Message};
use motet_core::pager::PagerEvent;
use motet_core::recovery::{Breaker, Fault, Verdict};
use motet_protocol::SequenceId;
use pager_handle::PagerHandle;
pub(crate) use requests::{
    AttachPager, AwaitFlushed, Follow, Inspect, SendAllBlocks, TakeTrieSnapshot,
};

/// Time until a message to a pager with a full mailbox is sent again.
const RETRY: Duration = Duration::from_millis(1);

/// The actor. It owns the core.
pub(crate) struct CacheActor {
    core: CacheCore,
    answers: AnswerSender,
    pager: PagerHandle,
    followers: Followers,
    runtime: EngineRuntime,
    /// Counts panics outside messages to the core, which the scheduler may not learn about.
    breaker: Breaker,
    started_at: Instant,
}

/// Arguments of the cache's start.
pub(crate) struct CacheArgs {
    pub(crate) core: CacheCore,
    pub(crate) answers: mpsc::Sender<CacheAnswer>,
    pub(crate) runtime: EngineRuntime,
    pub(crate) breaker: Breaker,
}

impl Actor for CacheActor {
    type Args = CacheArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(Self {
            core: args.core,
            answers: AnswerSender::new(args.answers),
            runtime: args.runtime,
            breaker: args.breaker,
            pager: PagerHandle::default(),
            followers: Followers::default(),
            started_at: Instant::now(),
        })
    }

    /// Sends the answers that did not fit until a mailbox signal is due. Messages to a full
    /// pager mailbox are sent again after a while, since the pager may send nothing that wakes
    /// the cache.
    async fn next(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        mailbox: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Self::Error> {
        loop {
            let is_behind = self.pager.is_behind(&self.core);
            tokio::select! {
                biased;
                is_present = self.answers.send_waiting(), if self.answers.is_waiting() => {
                    if !is_present {
                        return Ok(None);
                    }
                    continue;
                }
                signal = mailbox.recv() => return Ok(signal),
                () = tokio::time::sleep(RETRY), if is_behind => {}
            }
            if !self.pager.send(&mut self.core, &self.runtime) && !self.lose_pager() {
                return Ok(None);
            }
        }
    }

    /// A panic outside a message to the core discards the core as well. After too many such
    /// panics the actor ends, and the engine is broken.
    async fn on_panic(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        panic: PanicError,
    ) -> Result<ControlFlow<ActorStopReason>, Self::Error> {
        if self.breaker.failed(self.started_at.elapsed(), Fault::Cache) == Verdict::GiveUp {
            tracing::error!("the cache has panicked too often: {panic}");
            return Ok(ControlFlow::Break(ActorStopReason::Panicked(panic)));
        }
        let lost = self.rebuild_core();
        self.followers.notify(&mut self.core);
        let stats = self.core.stats();
        // If the receiver is gone, handling the next message will notice.
        let _is_delivered = self.answers.send(CacheAnswer {
            result: Err(lost),
            stats,
            is_reply: false,
            suspect: None,
        });
        Ok(ControlFlow::Continue(()))
    }
}

impl kameo::message::Message<Message> for CacheActor {
    type Reply = ();

    async fn handle(&mut self, message: Message, ctx: &mut Context<Self, Self::Reply>) {
        let is_reply = !matches!(message, Message::Paged(_));
        let concerns = message.concerns();
        self.runtime.on_message(Part::Cache, &message);
        let (result, stats) = if self.runtime.has_recovery() {
            self.handle_guarded(message, concerns)
        } else {
            let result = self.core.handle(self.started_at.elapsed(), message);
            (result, self.core.stats())
        };
        self.followers.notify(&mut self.core);
        let is_lost = matches!(result, Err(CacheError::Lost));
        let has_effects = result.as_ref().is_ok_and(|effects| !effects.is_empty());
        let must_send = is_reply || is_lost || has_effects;
        let answer = CacheAnswer {
            result,
            stats,
            is_reply,
            suspect: concerns.filter(|_| is_lost),
        };
        let mut is_delivered = !must_send || self.answers.send(answer);
        if !self.pager.send(&mut self.core, &self.runtime) {
            is_delivered &= self.lose_pager();
        }
        if !is_delivered {
            ctx.stop();
        }
    }
}

impl CacheActor {
    /// Passes a message to the core. A panic discards the core.
    fn handle_guarded(
        &mut self,
        message: Message,
        concerns: Option<SequenceId>,
    ) -> (Result<Vec<Effect>, CacheError>, CacheStats) {
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let result = self.core.handle(self.started_at.elapsed(), message);
            self.runtime.check(|| self.core.check_integrity());
            self.runtime.fail_here(Part::Cache, concerns);
            (result, self.core.stats())
        }));
        handled.unwrap_or_else(|_| {
            let lost = self.rebuild_core();
            (Err(lost), self.core.stats())
        })
    }

    /// Discards the core's state, and returns the error for the scheduler.
    fn rebuild_core(&mut self) -> CacheError {
        tracing::warn!("the cache has panicked: it is rebuilt empty");
        self.core.reset();
        CacheError::Lost
    }

    /// Continues without a pager, for which no sequence waits any more. Returns false when the
    /// scheduler is gone.
    fn lose_pager(&mut self) -> bool {
        self.pager.forget();
        let gone = Message::Paged(PagerEvent::Gone);
        let result = self.core.handle(self.started_at.elapsed(), gone);
        self.followers.notify(&mut self.core);
        let answer = CacheAnswer {
            result,
            stats: self.core.stats(),
            is_reply: false,
            suspect: None,
        };
        self.answers.send(answer)
    }
}

#[cfg(test)]
mod tests {
    use kameo::actor::Spawn;

    use super::*;
    use motet_core::config::{CacheConfig, RecoveryConfig};
    use motet_model::oracle::OracleConfig;

    /// Without a tokio timer every wait of the actor panics.
    #[test]
    fn actor_that_panics_at_every_wait_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            let recovery = RecoveryConfig::default();
            let (sender, mut answers) = mpsc::channel(64);
            let _actor = CacheActor::spawn(CacheArgs {
                core: CacheCore::new(OracleConfig::default().spec(), CacheConfig::default()),
                answers: sender,
                runtime: EngineRuntime::default(),
                breaker: Breaker::new(recovery.clone()),
            });
            let mut lost = 0;
            while let Some(answer) = answers.recv().await {
                assert!(matches!(answer.result, Err(CacheError::Lost)));
                lost += 1;
                assert!(lost <= recovery.rebuilds_max, "the actor never ends");
            }
            assert_eq!(lost, recovery.rebuilds_max);
        });
    }
}
