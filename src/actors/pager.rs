//! The pager's shell.
//!
//! What can wake it, in the order in which it looks:
//!
//! | what | from | bound, and what happens when it is full |
//! |---|---|---|
//! | `Done` | copy threads | [`DONE_MAX`]; a thread waits, which holds up nobody else |
//! | `Message` | cache | the mailbox, [`PAGER_MAILBOX_MAX`]; the cache keeps what does not fit |
//! | the clock | a disk that does not answer; a cache whose mailbox was full | one |
//!
//! A pager that panics ends: nobody waits for it any more, all goes on without, and what
//! is on the disk is found at the next start.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kameo::Actor;
use kameo::actor::{ActorRef, WeakActorRef};
use kameo::error::{ActorStopReason, PanicError, SendError};
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::message::Context;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::cache::CacheActor;
use crate::cache;
use crate::pager::carrier::Carriers;
use crate::pager::{Done, Effect, Message, PagerCore, Told};
use crate::recovery::Fuse;
use crate::simulation::Simulation;
use crate::telemetry::Telemetry;

/// Jobs that may be done and not heard of.
pub(crate) const DONE_MAX: usize = 64;
/// Messages that the cache may have waiting for the pager.
pub(crate) const PAGER_MAILBOX_MAX: usize = 1024;
/// After so long a cache whose mailbox was full is told again.
const RETRY: Duration = Duration::from_millis(1);

/// The actor. Owns the core, and the way to the copy threads.
pub(crate) struct PagerActor {
    core: PagerCore,
    carriers: Carriers,
    done: mpsc::Receiver<Done>,
    /// Not kept alive by its pager.
    cache: WeakActorRef<CacheActor>,
    /// News that found the cache's mailbox full; as many as sequences can cause.
    untold: VecDeque<Told>,
    telemetry: Arc<Telemetry>,
    flush_time: Duration,
    simulation: Option<Simulation>,
    fuse: Fuse,
    born: Instant,
}

/// What the pager starts with.
pub(crate) struct PagerArgs {
    pub(crate) core: PagerCore,
    pub(crate) carriers: Carriers,
    pub(crate) done: mpsc::Receiver<Done>,
    pub(crate) cache: WeakActorRef<CacheActor>,
    pub(crate) telemetry: Arc<Telemetry>,
    /// For so long what is in host memory is written to the disk at the end.
    pub(crate) flush_time: Duration,
    /// What it is part of, if that is a simulation: then the core checks itself.
    pub(crate) simulation: Option<Simulation>,
    pub(crate) fuse: Fuse,
}

impl Actor for PagerActor {
    type Args = PagerArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(Self {
            core: args.core,
            carriers: args.carriers,
            done: args.done,
            cache: args.cache,
            untold: VecDeque::new(),
            telemetry: args.telemetry,
            flush_time: args.flush_time,
            simulation: args.simulation,
            fuse: args.fuse,
            born: Instant::now(),
        })
    }

    /// Serves the copy threads until a mailbox signal is due.
    async fn next(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        mailbox: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Self::Error> {
        loop {
            let retry = (!self.untold.is_empty()).then(|| Instant::now() + RETRY);
            let wakes_at = self.core.wakes_at().map(|at| self.born + at);
            let wakes_at = wakes_at.into_iter().chain(retry).min();
            tokio::select! {
                biased;
                done = self.done.recv() => match done {
                    Some(done) => self.feed(Message::Done(done)),
                    // The copy threads are gone: nothing can be kept or brought.
                    None => {
                        self.telemetry.pager_lost();
                        return Ok(None);
                    }
                },
                signal = mailbox.recv() => return Ok(signal),
                () = tokio::time::sleep_until(wakes_at.unwrap_or(self.born)),
                    if wakes_at.is_some() => self.feed(Message::Tick),
            }
        }
    }

    async fn on_panic(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        panic: PanicError,
    ) -> Result<ControlFlow<ActorStopReason>, Self::Error> {
        tracing::warn!("the pager has panicked: all goes on without it");
        self.telemetry.pager_lost();
        Ok(ControlFlow::Break(ActorStopReason::Panicked(panic)))
    }

    /// Writes what the disk does not have yet, for a while: the next start finds it. Not
    /// after a panic, since nothing is known of what is where then.
    async fn on_stop(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        reason: ActorStopReason,
    ) -> Result<(), Self::Error> {
        if matches!(reason, ActorStopReason::Panicked(_)) {
            return Ok(());
        }
        let until = Instant::now() + self.flush_time;
        while self.core.is_writing()
            && let Ok(Some(done)) = tokio::time::timeout_at(until, self.done.recv()).await
        {
            self.feed(Message::Done(done));
        }
        Ok(())
    }
}

impl kameo::message::Message<Message> for PagerActor {
    type Reply = ();

    async fn handle(&mut self, message: Message, _ctx: &mut Context<Self, Self::Reply>) {
        self.feed(message);
    }
}

impl Drop for PagerActor {
    /// Whoever waits for it computes instead.
    fn drop(&mut self) {
        let (cache, runtime) = (self.cache.upgrade(), Handle::try_current());
        if let (Some(cache), Ok(runtime)) = (cache, runtime) {
            let gone = cache::Message::Paged(Told::Gone);
            runtime.spawn(async move { cache.tell(gone).send().await.ok() });
        }
    }
}

impl PagerActor {
    /// Feeds the core and carries out what follows.
    fn feed(&mut self, message: Message) {
        if let Message::Done(done) = &message {
            self.telemetry.moved(done);
        }
        if let Some(simulation) = &self.simulation {
            simulation.fate.message("pager", &message);
        }
        let effects = self.core.handle(self.born.elapsed(), message);
        self.fuse.burn();
        for effect in effects {
            match effect {
                Effect::Tell(told) => self.untold.push_back(told),
                // Without the thread there is soon no pager.
                Effect::Do(job) => drop(self.carriers.carry(job)),
                Effect::Forget(copy) => self.carriers.forget(copy),
                Effect::Discard(copy) => self.carriers.discard(copy),
                Effect::DiscardAll => self.carriers.discard_all(),
            }
        }
        if self.simulation.is_some() {
            self.core.check_integrity();
        }
        self.telemetry.pager(self.core.stats());
        self.tell_cache();
    }

    fn tell_cache(&mut self) {
        let Some(cache) = self.cache.upgrade() else {
            return;
        };
        while let Some(told) = self.untold.pop_front() {
            match cache.tell(cache::Message::Paged(told)).try_send() {
                Ok(()) => {}
                Err(SendError::MailboxFull(cache::Message::Paged(told))) => {
                    self.untold.push_front(told);
                    return;
                }
                Err(_) => return,
            }
        }
    }
}
