//! The cache's shell.
//!
//! What can wake it: a [`Message`] from the scheduler, each answered by exactly one
//! [`CacheAnswer`], in order; a [`Message::Paged`] from the pager, which is news for the
//! scheduler if anything follows from it; an [`Inspect`] or a [`Follow`] from the engine, or
//! a [`TakeTrieSnapshot`] for those who watch, who await the reply; and the clock, while the pager's
//! mailbox was full.
//!
//! Who follows what is cached is told after each message, and misses what there is no room
//! for: nobody here waits for a reader.
//!
//! A core that panics begins anew, empty, and the scheduler hears [`CacheError::Lost`]: all
//! sequences go on from their histories. The pager stays, and hears of a reset.

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
use crate::engine::BlockBatch;
use crate::error::FollowError;
use crate::failpoint::Failpoint;
use crate::simulation::Simulation;
use motet_core::SequenceId;
use motet_core::cache::{
    BlockEvent, CacheCore, CacheError, CacheStats, Effect, Message, Salt, TreeView,
};
use motet_core::pager::{self, CopyView};
use motet_core::recovery::{Breaker, Fault, Verdict};
use motet_core::snapshot::TrieView;

/// After so long a pager whose mailbox was full is told again.
const RETRY: Duration = Duration::from_millis(1);
/// Who may follow what is cached at once. Each is told everything at first.
const FOLLOWERS_MAX: usize = 8;

/// What the cache says to one message.
#[derive(Debug)]
pub(crate) struct CacheAnswer {
    pub(crate) result: Result<Vec<Effect>, CacheError>,
    pub(crate) stats: CacheStats,
    /// Whether the scheduler asked for it.
    pub(crate) is_reply: bool,
    /// Where the core has panicked at it, the sequence that the message was about, if one.
    pub(crate) suspect: Option<SequenceId>,
}

/// The actor. Owns the core.
pub(crate) struct CacheActor {
    core: CacheCore,
    answers: mpsc::Sender<CacheAnswer>,
    /// Answers that did not fit, in order: news come beside what was asked for.
    answer_outbox: VecDeque<CacheAnswer>,
    pager: Option<ActorRef<PagerActor>>,
    /// Messages that found the pager's mailbox full; as many as sequences can cause.
    pager_outbox: VecDeque<pager::Message>,
    followers: Vec<Follower>,
    /// Callers who wait until nothing is being flushed.
    flushers: VecDeque<AwaitWritten>,
    simulation: Option<Simulation>,
    /// Counts panics beside messages to the core, which the scheduler may not hear of.
    breaker: Breaker,
    failpoint: Failpoint,
    has_recovery: bool,
    started_at: Instant,
}

/// What the cache starts with.
pub(crate) struct CacheArgs {
    pub(crate) core: CacheCore,
    pub(crate) answers: mpsc::Sender<CacheAnswer>,
    /// What it is part of, if that is a simulation: then the core checks itself.
    pub(crate) simulation: Option<Simulation>,
    pub(crate) breaker: Breaker,
    pub(crate) failpoint: Failpoint,
    /// Without it a panic ends the actor, which only a measurement wants.
    pub(crate) has_recovery: bool,
}

/// From now on there is a pager.
pub(crate) struct AttachPager(pub(crate) ActorRef<PagerActor>);

/// Somebody wants to know which blocks are cached, from now on.
pub(crate) struct Follow {
    pub(crate) follower: mpsc::Sender<BlockBatch>,
    /// Given back when it has been answered.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A caller wants to know when what is being flushed is written.
pub(crate) struct AwaitFlushed {
    /// Told whether there is more to flush.
    pub(crate) reply: oneshot::Sender<bool>,
    /// Given back when it has been heard.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Who follows what is cached.
struct Follower {
    batches: mpsc::Sender<BlockBatch>,
    /// Batches that were for it, those counted that it had no room for.
    batches_sent: u64,
}

/// Somebody wants to look at the trie.
pub(crate) struct Inspect {
    pub(crate) salt: Salt,
    /// Given back when it has been answered.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Somebody watches what is cached.
pub(crate) struct TakeTrieSnapshot {
    /// What the pager keeps.
    pub(crate) offloaded_copies: Vec<CopyView>,
    /// Given back when it has been answered.
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

    /// Sends what did not fit until a mailbox signal is due. What the pager's mailbox had no
    /// room for is tried again: the pager may have nothing to say that would wake us.
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
                        Ok(permit) => permit.send(self.answer_outbox.pop_front().expect("some are unsent")),
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

    /// A panic beside a message to the core costs the core as well, and with one too many
    /// the actor ends: then the engine is broken.
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
        // Where nobody is there, the next message says so.
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

    /// Tells it, if it has room for that; else it sees by the number that it missed this.
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
    /// Feeds the core. A panic costs the core.
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

    /// Tells those who follow what is cached how that has changed.
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

    /// Throws the core's state away, and says what everybody is to know.
    fn rebuild_core(&mut self) -> CacheError {
        tracing::warn!("the cache has panicked: it begins anew");
        self.core.reset();
        CacheError::Lost
    }

    /// Sends an answer after those that are still to be sent. False when nobody is there.
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

    /// Goes on without a pager: nobody waits for it any more. False when nobody is there.
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

    /// False when there is no pager any more.
    fn send_to_pager(&mut self) -> bool {
        self.pager_outbox.extend(self.core.take_outbox());
        let Some(pager) = &self.pager else {
            return true;
        };
        while let Some(message) = self.pager_outbox.pop_front() {
            match pager.tell(message).try_send() {
                Ok(()) => {}
                // Tried again with the next message, or after a while.
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

    /// Once nothing is being flushed, the pager says when it is written. It has heard of all
    /// that was offered.
    fn forward_flushers(&mut self) {
        if self.flushers.is_empty() || self.core.is_flushing() || !self.pager_outbox.is_empty() {
            return;
        }
        let Some(pager) = &self.pager else {
            // Without a pager nobody writes: those who wait hear so.
            return self.flushers.clear();
        };
        let has_more = self.core.has_not_offloaded();
        while let Some(flusher) = self.flushers.pop_front() {
            let flusher = AwaitWritten {
                has_more,
                ..flusher
            };
            // Tried again with the next message, or after a while.
            if let Err(SendError::MailboxFull(flusher)) = pager.tell(flusher).try_send() {
                return self.flushers.push_front(flusher);
            }
        }
    }
}

/// What the trie looks like.
#[derive(kameo::Reply)]
pub(crate) struct Inspected(pub(crate) TreeView);

/// What of the cache counts.
#[derive(kameo::Reply)]
pub(crate) struct TrieSnapshot(pub(crate) TrieView);

#[cfg(test)]
mod tests {
    use kameo::actor::Spawn;

    use super::*;
    use motet_core::config::{CacheConfig, RecoveryConfig};
    use motet_model::oracle::OracleConfig;

    /// Where there is no time, each of its waits panics.
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
                assert!(lost <= recovery.rebuilds_max, "it goes on for ever");
            }
            assert_eq!(lost, recovery.rebuilds_max);
        });
    }
}
