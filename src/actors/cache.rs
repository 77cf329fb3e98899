//! The cache's actor.
//!
//! Events that can wake it:
//!
//! - a [`Message`] from the scheduler, each answered by exactly one [`CacheAnswer`], in order;
//! - a [`Message::Paged`] from the pager; its effects, if any, go to the scheduler in a
//!   [`CacheAnswer`];
//! - an [`Inspect`] or a [`Follow`] from the engine, or a [`TakeTrieSnapshot`] from the snapshot
//!   task: the sender awaits the reply;
//! - the clock, while the pager's mailbox was full.
//!
//! Subscribers to block events are notified after each message. A subscriber with a full
//! channel misses the batch: the cache never waits for a reader.
//!
//! A core that panics is rebuilt empty, and the scheduler receives [`CacheError::Lost`]: all
//! sequences continue from their histories. The pager stays, and receives a reset.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use kameo::Actor;
use kameo::actor::{ActorRef, WeakActorRef};
use kameo::error::{ActorStopReason, PanicError, SendError};
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::message::Context;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use super::pager::{AwaitWritten, PagerActor};
use crate::error::FollowError;
use crate::failpoint::Failpoint;
use crate::simulation::Simulation;
use motet_core::SequenceId;
use motet_core::cache::{
    BlockEvent, CacheCore, CacheError, CacheStats, Effect, Message, Salt, TreeView,
};
use motet_core::pager;
use motet_core::recovery::{Breaker, Fault, Verdict};
use motet_core::snapshot::CopyView;
use motet_core::snapshot::TrieView;

/// Changes that happened together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBatch {
    /// Number of batches before it in this subscription. A gap means that the reader was too
    /// slow for a batch.
    pub number: u64,
    /// The changes, in order.
    pub events: Arc<[BlockEvent]>,
}

/// Time until a message to a pager with a full mailbox is sent again.
const RETRY: Duration = Duration::from_millis(1);
/// Most subscribers to block events. The first batch of each lists all cached blocks.
const FOLLOWERS_MAX: usize = 8;

/// The answer of the cache to one message.
#[derive(Debug)]
pub(crate) struct CacheAnswer {
    pub(crate) result: Result<Vec<Effect>, CacheError>,
    pub(crate) stats: CacheStats,
    /// Whether it answers a message from the scheduler.
    pub(crate) is_reply: bool,
    /// The sequence that the message was about, if any, where the core panicked at the message.
    pub(crate) suspect: Option<SequenceId>,
}

/// The actor. It owns the core.
pub(crate) struct CacheActor {
    core: CacheCore,
    answers: mpsc::Sender<CacheAnswer>,
    /// Answers that did not fit, in order: events from the pager come in addition to replies.
    answer_outbox: VecDeque<CacheAnswer>,
    pager: Option<ActorRef<PagerActor>>,
    /// Messages that found the pager's mailbox full; at most as many as sequences can cause.
    pager_outbox: VecDeque<pager::Message>,
    followers: Vec<Follower>,
    /// Callers that wait until no flush is in progress.
    flushers: VecDeque<AwaitWritten>,
    simulation: Option<Simulation>,
    /// Counts panics outside messages to the core, which the scheduler may not learn about.
    breaker: Breaker,
    failpoint: Failpoint,
    has_recovery: bool,
    started_at: Instant,
}

/// Arguments of the cache's start.
pub(crate) struct CacheArgs {
    pub(crate) core: CacheCore,
    pub(crate) answers: mpsc::Sender<CacheAnswer>,
    /// The simulation that the cache is part of, if any: then the core checks its integrity.
    pub(crate) simulation: Option<Simulation>,
    pub(crate) breaker: Breaker,
    pub(crate) failpoint: Failpoint,
    /// Whether a panic rebuilds the core. False only in measurements: then a panic ends the
    /// actor.
    pub(crate) has_recovery: bool,
}

/// Connects the cache to its pager.
pub(crate) struct AttachPager(pub(crate) ActorRef<PagerActor>);

/// A request for a subscription to block events.
pub(crate) struct Follow {
    pub(crate) follower: mpsc::Sender<BlockBatch>,
    /// Released with the answer.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A caller's request for an answer once all that is being flushed has been written.
pub(crate) struct AwaitFlushed {
    /// Receives whether there is more to flush.
    pub(crate) reply: oneshot::Sender<bool>,
    /// Released when the message is handled.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A subscriber to block events.
struct Follower {
    batches: mpsc::Sender<BlockBatch>,
    /// Batches sent to it so far, including those that found its channel full.
    batches_sent: u64,
}

/// A request for a view of the trie.
pub(crate) struct Inspect {
    pub(crate) salt: Salt,
    /// Released with the answer.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A request for the cache's part of a snapshot.
pub(crate) struct TakeTrieSnapshot {
    /// The pager's copies.
    pub(crate) offloaded_copies: Vec<CopyView>,
    /// Released with the answer.
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Actor for CacheActor {
    type Args = CacheArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(Self {
            core: args.core,
            answers: args.answers,
            simulation: args.simulation,
            breaker: args.breaker,
            failpoint: args.failpoint,
            has_recovery: args.has_recovery,
            answer_outbox: VecDeque::new(),
            pager: None,
            pager_outbox: VecDeque::new(),
            followers: Vec::new(),
            flushers: VecDeque::new(),
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
            let flushed = !self.flushers.is_empty() && !self.core.is_flushing();
            let is_full = self.pager.is_some() && (flushed || !self.pager_outbox.is_empty());
            tokio::select! {
                biased;
                permit = self.answers.reserve(), if !self.answer_outbox.is_empty() => {
                    match permit {
                        Ok(permit) => permit.send(self.answer_outbox.pop_front().expect("the outbox is not empty")),
                        Err(_) => return Ok(None),
                    }
                    continue;
                }
                signal = mailbox.recv() => return Ok(signal),
                () = tokio::time::sleep(RETRY), if is_full => {}
            }
            if !self.send_to_pager() && !self.lose_pager() {
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
        self.notify_followers();
        let stats = self.core.stats();
        // If the receiver is gone, handling the next message will notice.
        let _is_delivered = self.send(CacheAnswer {
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
        if let Some(simulation) = &self.simulation {
            simulation.fault_schedule.message("cache", &message);
        }
        let (result, stats) = if self.has_recovery {
            self.handle_guarded(message, concerns)
        } else {
            let result = self.core.handle(self.started_at.elapsed(), message);
            (result, self.core.stats())
        };
        self.notify_followers();
        let is_lost = matches!(result, Err(CacheError::Lost));
        let has_effects = result.as_ref().is_ok_and(|effects| !effects.is_empty());
        let must_send = is_reply || is_lost || has_effects;
        let answer = CacheAnswer {
            result,
            stats,
            is_reply,
            suspect: concerns.filter(|_| is_lost),
        };
        let mut is_delivered = !must_send || self.send(answer);
        if !self.send_to_pager() {
            is_delivered &= self.lose_pager();
        }
        if !is_delivered {
            ctx.stop();
        }
    }
}

impl kameo::message::Message<AttachPager> for CacheActor {
    type Reply = ();

    async fn handle(
        &mut self,
        AttachPager(pager): AttachPager,
        _ctx: &mut Context<Self, Self::Reply>,
    ) {
        self.pager = Some(pager);
    }
}

impl kameo::message::Message<AwaitFlushed> for CacheActor {
    type Reply = ();

    async fn handle(&mut self, flushed: AwaitFlushed, _ctx: &mut Context<Self, Self::Reply>) {
        let AwaitFlushed { reply, permit } = flushed;
        self.flushers.retain(|flusher| !flusher.reply.is_closed());
        self.flushers.push_back(AwaitWritten {
            reply,
            has_more: false,
        });
        drop(permit);
        self.forward_flushers();
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
        drop(inspect.permit);
        Inspected(tree)
    }
}

impl kameo::message::Message<Follow> for CacheActor {
    type Reply = Result<(), FollowError>;

    async fn handle(
        &mut self,
        Follow { follower, permit }: Follow,
        _ctx: &mut Context<Self, Self::Reply>,
    ) -> Result<(), FollowError> {
        self.followers.retain(Follower::is_there);
        if self.followers.len() == FOLLOWERS_MAX {
            let followers_max = FOLLOWERS_MAX;
            return Err(FollowError::TooMany { followers_max });
        }
        let all = self.core.follow_blocks().into();
        let mut follower = Follower {
            batches: follower,
            batches_sent: 0,
        };
        follower.send_batch(&all);
        self.followers.push(follower);
        drop(permit);
        Ok(())
    }
}

impl Follower {
    fn is_there(&self) -> bool {
        !self.batches.is_closed()
    }

    /// Sends a batch if the channel has space; else the number of the next batch shows the gap.
    fn send_batch(&mut self, events: &Arc<[BlockEvent]>) {
        let batch = BlockBatch {
            number: self.batches_sent,
            events: Arc::clone(events),
        };
        self.batches_sent += 1;
        self.batches.try_send(batch).ok();
    }
}

impl kameo::message::Message<TakeTrieSnapshot> for CacheActor {
    type Reply = TrieSnapshot;

    async fn handle(
        &mut self,
        request: TakeTrieSnapshot,
        _ctx: &mut Context<Self, Self::Reply>,
    ) -> TrieSnapshot {
        let overview = self.core.overview(&request.offloaded_copies);
        drop(request.permit);
        TrieSnapshot(overview)
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
            if self.simulation.is_some() {
                self.core.check_integrity();
            }
            self.failpoint.trip(concerns);
            (result, self.core.stats())
        }));
        handled.unwrap_or_else(|_| {
            let lost = self.rebuild_core();
            (Err(lost), self.core.stats())
        })
    }

    /// Sends the changed blocks to all subscribers.
    fn notify_followers(&mut self) {
        if self.followers.is_empty() {
            return;
        }
        self.followers.retain(Follower::is_there);
        let events: Arc<[BlockEvent]> = self.core.take_block_events().into();
        if !events.is_empty() {
            self.followers
                .iter_mut()
                .for_each(|follower| follower.send_batch(&events));
        }
        if self.followers.is_empty() {
            self.core.unfollow_blocks();
        }
    }

    /// Discards the core's state, and returns the error for the scheduler.
    fn rebuild_core(&mut self) -> CacheError {
        tracing::warn!("the cache has panicked: it is rebuilt empty");
        self.core.reset();
        CacheError::Lost
    }

    /// Sends an answer after those that are still waiting. Returns false when the receiver is
    /// gone.
    fn send(&mut self, answer: CacheAnswer) -> bool {
        if !self.answer_outbox.is_empty() {
            self.answer_outbox.push_back(answer);
            return true;
        }
        match self.answers.try_send(answer) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(answer)) => {
                self.answer_outbox.push_back(answer);
                true
            }
        }
    }

    /// Continues without a pager, for which no sequence waits any more. Returns false when the
    /// scheduler is gone.
    fn lose_pager(&mut self) -> bool {
        self.pager_outbox.clear();
        self.flushers.clear();
        self.pager = None;
        let gone = Message::Paged(pager::PagerEvent::Gone);
        let result = self.core.handle(self.started_at.elapsed(), gone);
        self.notify_followers();
        let answer = CacheAnswer {
            result,
            stats: self.core.stats(),
            is_reply: false,
            suspect: None,
        };
        self.send(answer)
    }

    /// Sends pending messages to the pager. Returns false when the pager is gone.
    fn send_to_pager(&mut self) -> bool {
        self.pager_outbox.extend(self.core.take_outbox());
        let Some(pager) = &self.pager else {
            return true;
        };
        while let Some(message) = self.pager_outbox.pop_front() {
            match pager.tell(message).try_send() {
                Ok(()) => {}
                // Sent again with the next message, or after a while.
                Err(SendError::MailboxFull(message)) => {
                    if let Some(simulation) = &self.simulation {
                        simulation.fault_schedule.full("pager");
                    }
                    self.pager_outbox.push_front(message);
                    return true;
                }
                Err(_) => return false,
            }
        }
        self.forward_flushers();
        true
    }

    /// Passes flush requests on to the pager once no flush is in progress: then the pager has
    /// received every offload candidate.
    fn forward_flushers(&mut self) {
        if self.flushers.is_empty() || self.core.is_flushing() || !self.pager_outbox.is_empty() {
            return;
        }
        let Some(pager) = &self.pager else {
            // Without a pager no write happens: the waiting callers see their channel closed.
            return self.flushers.clear();
        };
        let has_more = self.core.has_not_offloaded();
        while let Some(flusher) = self.flushers.pop_front() {
            let flusher = AwaitWritten {
                has_more,
                ..flusher
            };
            // Sent again with the next message, or after a while.
            if let Err(SendError::MailboxFull(flusher)) = pager.tell(flusher).try_send() {
                return self.flushers.push_front(flusher);
            }
        }
    }
}

/// A view of the trie.
#[derive(kameo::Reply)]
pub(crate) struct Inspected(pub(crate) TreeView);

/// The cache's part of a snapshot.
#[derive(kameo::Reply)]
pub(crate) struct TrieSnapshot(pub(crate) TrieView);

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
                simulation: None,
                breaker: Breaker::new(recovery.clone()),
                failpoint: Failpoint::default(),
                has_recovery: true,
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
