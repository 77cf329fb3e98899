//! The pager's actor.
//!
//! Events that can wake it, in the order in which it checks them:
//!
//! | event | from | bound, and the behaviour when it is full |
//! |---|---|---|
//! | `Done` | copy workers | [`DONE_MAX`]; the copy worker waits, which delays no other part |
//! | `Asked` | questions to the remote tier | [`ASKED_MAX`]; the answer waits; the core bounds the questions |
//! | `Message` | cache | the mailbox, [`PAGER_MAILBOX_MAX`]; the cache keeps the rest |
//! | `AwaitWritten` | cache, for a caller that flushes | the mailbox; the cache keeps the rest |
//! | `ListCopies` | the snapshot task | the mailbox; a snapshot that finds it full lists no copies |
//! | the clock | a disk or a remote tier that does not answer; a cache whose mailbox was full | one |
//!
//! A core that panics is discarded and rebuilt from the [`RecoveryLog`], which the actor keeps.
//! The pager has a breaker of its own, since the engine can work without a pager. After too
//! many panics the pager ends: waiting sequences stop waiting for it, the engine continues
//! without it, and the next start finds the copies on the disk.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use kameo::Actor;
use kameo::actor::{ActorRef, WeakActorRef, WeakRecipient};
use kameo::error::{ActorStopReason, PanicError, SendError};
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::message::Context;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::copy_workers::CopyWorkers;
use crate::runtime::clock::after;
use crate::runtime::{EngineRuntime, Part, Runtime};
use crate::telemetry::Telemetry;
use motet_core::cache;
use motet_core::pager::{
    Asked, Done, Effect, Message, PagerCore, PagerEvent, PagerStats, RecoveryLog,
};
use motet_core::recovery::{Breaker, Fault, Verdict};
use motet_core::snapshot::CopyView;

/// Jobs that may be finished and not yet handled.
pub(crate) const DONE_MAX: usize = 64;
/// Answers of the remote tier that may wait to be handled.
pub(crate) const ASKED_MAX: usize = 64;
/// Messages from the cache that may wait for the pager.
pub(crate) const PAGER_MAILBOX_MAX: usize = 1024;
/// Time until a message to a cache with a full mailbox is sent again.
const RETRY: Duration = Duration::from_millis(1);

/// The actor. It owns the core and the sender to the copy workers.
pub(crate) struct PagerActor {
    core: PagerCore,
    /// State that a rebuild needs and cannot recreate.
    recovery_log: RecoveryLog,
    /// The latest statistics that were reported.
    stats: PagerStats,
    breaker: Breaker,
    /// The core has panicked too often, and the actor ends.
    is_given_up: bool,
    copy_workers: CopyWorkers,
    done: mpsc::Receiver<Done>,
    asked: mpsc::Receiver<Asked>,
    /// Weak: the pager does not keep the cache alive.
    cache: WeakRecipient<cache::Message>,
    /// Events that found the cache's mailbox full: as many as sequences and ended jobs can cause.
    outbox: VecDeque<PagerEvent>,
    /// Callers that wait until no write is in progress.
    flushers: Vec<AwaitWritten>,
    telemetry: Arc<Telemetry>,
    flush_time: Duration,
    runtime: EngineRuntime,
    started_at: Instant,
}

/// Arguments of the pager's start.
pub(crate) struct PagerArgs {
    pub(crate) core: PagerCore,
    pub(crate) recovery_log: RecoveryLog,
    pub(crate) breaker: Breaker,
    pub(crate) copy_workers: CopyWorkers,
    pub(crate) done: mpsc::Receiver<Done>,
    pub(crate) asked: mpsc::Receiver<Asked>,
    pub(crate) cache: WeakRecipient<cache::Message>,
    pub(crate) telemetry: Arc<Telemetry>,
    /// How long the final flush may write host memory to the disk.
    pub(crate) flush_time: Duration,
    pub(crate) runtime: EngineRuntime,
}

/// A caller's request for an answer once everything that can be written has been written.
pub(crate) struct AwaitWritten {
    pub(crate) reply: oneshot::Sender<bool>,
    /// The answer: whether the cache has more to flush.
    pub(crate) has_more: bool,
}

/// A request for the list of copies, for a snapshot.
pub(crate) struct ListCopies {
    pub(crate) reply: oneshot::Sender<Vec<CopyView>>,
}

impl Actor for PagerActor {
    type Args = PagerArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(Self {
            stats: args.core.stats(),
            core: args.core,
            recovery_log: args.recovery_log,
            breaker: args.breaker,
            is_given_up: false,
            copy_workers: args.copy_workers,
            done: args.done,
            asked: args.asked,
            cache: args.cache,
            outbox: VecDeque::new(),
            flushers: Vec::new(),
            telemetry: args.telemetry,
            flush_time: args.flush_time,
            runtime: args.runtime,
            started_at: Instant::now(),
        })
    }

    /// Handles finished jobs until a mailbox signal is due.
    async fn next(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        mailbox: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Self::Error> {
        while !self.is_given_up {
            let retry = (!self.outbox.is_empty()).then(|| after(Instant::now(), RETRY));
            let wakes_at = self.core.wakes_at().map(|at| after(self.started_at, at));
            let wakes_at = wakes_at.into_iter().chain(retry).min();
            tokio::select! {
                biased;
                done = self.done.recv() => match done {
                    Some(done) => self.handle_message(Message::Done(done)),
                    // The copy workers are gone: no state can be offloaded or loaded.
                    None => {
                        self.telemetry.pager_lost();
                        return Ok(None);
                    }
                },
                Some(asked) = self.asked.recv() => self.handle_message(Message::Asked(asked)),
                signal = mailbox.recv() => return Ok(signal),
                () = tokio::time::sleep_until(wakes_at.unwrap_or(self.started_at)),
                    if wakes_at.is_some() => self.handle_message(Message::TimePassed),
            }
        }
        Ok(None)
    }

    /// A panic outside the core discards the core as well.
    async fn on_panic(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        panic: PanicError,
    ) -> Result<ControlFlow<ActorStopReason>, Self::Error> {
        self.rebuild();
        Ok(if self.is_given_up {
            ControlFlow::Break(ActorStopReason::Panicked(panic))
        } else {
            ControlFlow::Continue(())
        })
    }

    /// Writes what the disk lacks, for at most `flush_time`, so that the next start finds it, and
    /// sends what other processes may need.
    async fn on_stop(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        _reason: ActorStopReason,
    ) -> Result<(), Self::Error> {
        let until = after(Instant::now(), self.flush_time);
        while !self.is_given_up
            && (self.core.is_writing() || self.core.is_sending())
            && let Ok(Some(done)) = tokio::time::timeout_at(until, self.done.recv()).await
        {
            self.handle_message(Message::Done(done));
        }
        Ok(())
    }
}

impl kameo::message::Message<Message> for PagerActor {
    type Reply = ();

    async fn handle(&mut self, message: Message, ctx: &mut Context<Self, Self::Reply>) {
        self.handle_message(message);
        if self.is_given_up {
            ctx.stop();
        }
    }
}

impl kameo::message::Message<AwaitWritten> for PagerActor {
    type Reply = ();

    async fn handle(&mut self, flusher: AwaitWritten, _ctx: &mut Context<Self, Self::Reply>) {
        self.flushers.retain(|flusher| !flusher.reply.is_closed());
        self.flushers.push(flusher);
        self.answer_flushers();
    }
}

impl kameo::message::Message<ListCopies> for PagerActor {
    type Reply = ();

    async fn handle(&mut self, request: ListCopies, _ctx: &mut Context<Self, Self::Reply>) {
        // The receiver may have gone.
        request.reply.send(self.core.hottest()).ok();
    }
}

impl Drop for PagerActor {
    /// Tells the cache that the pager is gone: waiting sequences compute their prefixes
    /// instead.
    fn drop(&mut self) {
        let (cache, runtime) = (self.cache.upgrade(), Handle::try_current());
        if let (Some(cache), Ok(runtime)) = (cache, runtime) {
            let gone = cache::Message::Paged(PagerEvent::Gone);
            runtime.spawn(async move { cache.tell(gone).send().await.ok() });
        }
    }
}

impl PagerActor {
    /// Passes the message to the core and applies its effects. A panic discards the core.
    fn handle_message(&mut self, message: Message) {
        if let Message::Done(done) = &message {
            self.telemetry.moved(done);
        }
        self.runtime.on_message(Part::Pager, &message);
        self.recovery_log.on_message(&message);
        let now = self.started_at.elapsed();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let effects = self.core.handle(now, message);
            self.runtime.fail_here(Part::Pager, None);
            effects
        }));
        match outcome {
            Ok(effects) => self.apply_effects(effects),
            Err(_) => self.rebuild(),
        }
    }

    fn apply_effects(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.recovery_log.on_effect(&effect);
            match effect {
                Effect::Notify(event) => self.outbox.push_back(event),
                // Without the copy worker the pager ends soon.
                Effect::Do(job) => drop(self.copy_workers.run_job(job)),
                Effect::Forget(copy) => self.copy_workers.forget(copy),
                Effect::Discard(copy) => self.copy_workers.discard(copy),
                Effect::DiscardAll => self.copy_workers.discard_all(),
                Effect::Ask(ask) => self.copy_workers.ask(ask),
            }
        }
        self.runtime.check(|| self.core.check_integrity());
        self.stats = self.core.stats();
        self.telemetry.pager(self.stats);
        self.send_to_cache();
        self.answer_flushers();
    }

    fn answer_flushers(&mut self) {
        if !self.core.is_writing() && !self.core.is_sending() {
            for flusher in self.flushers.drain(..) {
                // The receiver may have gone.
                flusher.reply.send(flusher.has_more).ok();
            }
        }
    }

    /// Rebuilds the core after a panic, or gives up after too many.
    fn rebuild(&mut self) {
        loop {
            let now = self.started_at.elapsed();
            if self.breaker.failed(now, Fault::Pager) == Verdict::GiveUp {
                return self.give_up();
            }
            tracing::warn!("the pager has panicked: it is rebuilt");
            self.telemetry.rebuilt(Fault::Pager);
            let rebuilt = catch_unwind(AssertUnwindSafe(|| {
                self.core.rebuild(now, &self.recovery_log, self.stats)
            }));
            if let Ok(effects) = rebuilt {
                return self.apply_effects(effects);
            }
        }
    }

    /// Ends the pager; the engine continues without it.
    fn give_up(&mut self) {
        tracing::warn!("the pager has panicked too often: the engine continues without it");
        self.is_given_up = true;
        self.telemetry.pager_lost();
        // Discards the states in the transfer queue: no other part will.
        self.done.close();
        while let Ok(done) = self.done.try_recv() {
            self.recovery_log.on_message(&Message::Done(done));
        }
        for event in self.outbox.drain(..) {
            if let PagerEvent::Loaded { copies, .. } = event {
                copies
                    .iter()
                    .for_each(|copy| self.copy_workers.discard(*copy));
            }
        }
        for detached_state in self.recovery_log.detached_states() {
            self.copy_workers.discard(*detached_state);
        }
    }

    fn send_to_cache(&mut self) {
        let Some(cache) = self.cache.upgrade() else {
            return;
        };
        while let Some(event) = self.outbox.pop_front() {
            match cache.tell(cache::Message::Paged(event)).try_send() {
                Ok(()) => {}
                Err(SendError::MailboxFull(cache::Message::Paged(event))) => {
                    self.outbox.push_front(event);
                    return;
                }
                Err(_) => return,
            }
        }
    }
}
