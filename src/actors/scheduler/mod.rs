//! The scheduler's shell.
//!
//! What can wake it (a closed list), in the order in which it looks:
//!
//! | what | from | bound, and what happens when it is full |
//! |---|---|---|
//! | `Answer` | cache | [`ASKED_MAX`]; never full: no more messages are out than answers fit |
//! | `Outcome`, or that it is gone | device thread | one per work under way; never full |
//! | that the model is loaded, or not | another device thread | one |
//! | the doorbell | streams and sequences that found the mailbox full | one ring; what there is to see stands in their words |
//! | `Submit` | `Engine::submit` | the mailbox, [`MAILBOX_MAX`]; the caller awaits |
//! | `Fork` | `Engine::fork` | the mailbox; the caller awaits |
//! | `Upkeep` | `Engine::pin`, `unpin`, `clear_cache`, `clear_all_caches` | the mailbox; the caller awaits the answer |
//! | `Stop` | sequences, dropped streams | the mailbox; sequences await, a dropped stream that finds it full rings the doorbell |
//! | `SubmitMany` | `Engine::submit_many` | the mailbox; the caller awaits |
//! | `Resume` | streams that were read | the mailbox; who finds it full rings the doorbell |
//! | `AskPlace` | `TokenStream::queue_place` | the mailbox; the caller awaits the answer |
//! | `ShowHouse` | those who watch | the mailbox; who finds it full tries again later |
//! | `Abort` | `Engine::shutdown` | the mailbox; the caller awaits |
//! | the clock | deadlines, the moment to plan the next step, and a device that does not answer | one; set anew each time |
//!
//! | file | what happens there |
//! |---|---|
//! | `messages.rs` | what callers and sequences tell it |
//! | `link.rs` | the way to a sequence, and what its caller knows |
//! | `device.rs` | the near end of the device |
//! | `recover.rs` | what fails is made anew, or given up |
//! | `steps.rs` | steps as they are told to those who watch |

mod device;
mod link;
mod masks;
mod messages;
mod recover;
mod steps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use kameo::Actor;
use kameo::actor::{ActorRef, WeakActorRef};
use kameo::error::{ActorStopReason, PanicError, SendError};
use kameo::mailbox::{MailboxReceiver, Signal};
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use super::cache::{Answer, CacheActor};
use super::sequence::News;
use crate::actors::breakdown::Breakdown;
use crate::device::{Device, Loader};
use crate::fuse::Fuse;
use crate::simulation::Simulation;
use crate::telemetry::Telemetry;
use device::DeviceEnd;
use link::Link;
pub(crate) use messages::{
    Abort, AskPlace, Fork, Resume, ShowHouse, Stop, Submit, SubmitMany, Upkeep,
};
use motet_core::cache::{self, CacheError};
use motet_core::config::SchedulerConfig;
use motet_core::protocol::{ModelSpec, TokenLogprobs};
use motet_core::recovery::Breaker;
use motet_core::scheduler::{Effect, Event, SchedulerCore};
use motet_core::{PinId, SequenceId, TokenId};
use motet_sync::heartbeat::Heartbeat;
use steps::StepsTold;

/// Messages that callers and sequences may have waiting for the scheduler.
pub(crate) const MAILBOX_MAX: usize = 1024;

/// Messages that the cache may have to answer at once. More wait in the shell.
pub(crate) const ASKED_MAX: usize = 256;

/// The actor. Owns the core, the device's near end and the way to each sequence.
pub(crate) struct Scheduler {
    core: SchedulerCore,
    /// What a core is made of.
    spec: ModelSpec,
    config: SchedulerConfig,
    device: DeviceEnd,
    /// What is told of them to those who watch.
    steps: StepsTold,
    /// The epoch of the last work that was sent.
    epoch: u64,
    /// Work that the device has not answered.
    under_way: usize,
    cache: ActorRef<CacheActor>,
    answers: mpsc::Receiver<Answer>,
    asked: usize,
    /// Messages to the cache beyond [`ASKED_MAX`]; as many as sequences can cause.
    unasked: VecDeque<cache::Message>,
    links: FxHashMap<SequenceId, Link>,
    /// Sequences whose callers do not read.
    paused: BTreeSet<SequenceId>,
    /// Sequences for whose masks no step waits.
    gated: BTreeSet<SequenceId>,
    /// Rung by those who found the mailbox full.
    doorbell: Arc<Notify>,
    /// Callers who await the cache's answer, and the pin that each wants; as many as
    /// the engine lets ask at once.
    upkeep: BTreeMap<u64, Asking>,
    tickets_made: u64,
    /// All sequences are to end.
    is_aborted: bool,
    /// The sequence that the event which is being handled is about, if one.
    at: Option<SequenceId>,
    /// Who failed last since cores panicked at it: they may once more, at what was under way.
    culprit: Option<SequenceId>,
    breaker: Breaker,
    breakdown: Breakdown,
    fuse: Fuse,
    /// Whether what a core that takes this one's place needs is kept.
    keeps_books: bool,
    /// Tokens after which a live sequence is to be copied; 0 is never.
    backup_tokens: usize,
    telemetry: Arc<Telemetry>,
    heartbeat: Heartbeat,
    simulation: Option<Simulation>,
    born: Instant,
}

/// What the scheduler starts with.
pub(crate) struct SchedulerArgs {
    pub(crate) spec: ModelSpec,
    pub(crate) config: SchedulerConfig,
    pub(crate) device: Device,
    pub(crate) loader: Loader,
    pub(crate) breaker: Breaker,
    /// Told when the engine is broken.
    pub(crate) breakdown: Breakdown,
    pub(crate) fuse: Fuse,
    /// Without it a panic ends the actor, which only a measurement wants.
    pub(crate) keeps_books: bool,
    /// See [`PagerConfig::backup_tokens`](motet_core::config::PagerConfig::backup_tokens); 0 where
    /// there is no pager.
    pub(crate) backup_tokens: usize,
    pub(crate) cache: ActorRef<CacheActor>,
    pub(crate) answers: mpsc::Receiver<Answer>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) doorbell: Arc<Notify>,
    /// What it is part of, if that is a simulation: then the core checks itself.
    pub(crate) simulation: Option<Simulation>,
    /// When the engine was started: its time counts from here.
    pub(crate) born: Instant,
}

/// A caller's question that the cache has not answered.
struct Asking {
    reply: oneshot::Sender<Result<(), CacheError>>,
    /// The pin that the caller wants, if any.
    pin: Option<PinId>,
    /// Held until it is answered.
    _turn: Option<OwnedSemaphorePermit>,
}

impl Actor for Scheduler {
    type Args = SchedulerArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(Self {
            core: SchedulerCore::new(args.spec.clone(), args.config.clone())
                .with_backups(args.backup_tokens),
            spec: args.spec,
            config: args.config,
            device: DeviceEnd::new(args.device, args.loader),
            steps: StepsTold::default(),
            epoch: 0,
            under_way: 0,
            cache: args.cache,
            answers: args.answers,
            asked: 0,
            unasked: VecDeque::new(),
            links: FxHashMap::default(),
            paused: BTreeSet::new(),
            gated: BTreeSet::new(),
            doorbell: args.doorbell,
            upkeep: BTreeMap::new(),
            tickets_made: 0,
            is_aborted: false,
            at: None,
            culprit: None,
            breaker: args.breaker,
            breakdown: args.breakdown,
            fuse: args.fuse,
            keeps_books: args.keeps_books,
            backup_tokens: args.backup_tokens,
            telemetry: args.telemetry,
            heartbeat: args.heartbeat,
            simulation: args.simulation,
            born: args.born,
        })
    }

    /// Serves answers and outcomes until a mailbox signal is due.
    async fn next(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        mailbox: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Self::Error> {
        loop {
            let wakes_at = self.core.wakes_at().map(|at| self.born + at);
            let wakes_at = wakes_at.into_iter().chain(self.patience_ends_at()).min();
            let is_broken = self.breakdown.reason().is_some();
            tokio::select! {
                biased;
                answer = self.answers.recv(), if !is_broken => match answer {
                    Some(answer) => self.on_answer(answer),
                    None => self.give_up("the cache is gone"),
                },
                news = self.device.news() => self.on_device(news),
                () = self.doorbell.notified() => self.look_at_words(),
                signal = mailbox.recv() => return Ok(signal),
                () = tokio::time::sleep_until(wakes_at.unwrap_or(self.born)),
                    if wakes_at.is_some() => self.on_clock(),
            }
        }
    }

    /// A panic beside the core costs the core as well. Of a broken engine the actor ends.
    async fn on_panic(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        panic: PanicError,
    ) -> Result<ControlFlow<ActorStopReason>, Self::Error> {
        if self.breakdown.reason().is_some() {
            return Ok(ControlFlow::Break(ActorStopReason::Panicked(panic)));
        }
        self.rebuild();
        Ok(ControlFlow::Continue(()))
    }
}

impl Scheduler {
    /// Feeds the core and carries out what follows.
    fn advance(&mut self, event: Event) {
        if let Some(simulation) = &self.simulation {
            simulation.fate.message("scheduler", &event);
            simulation.fate.scheduler_event(&event);
        }
        self.at = event.concerns();
        let effects = self.core.handle(self.born.elapsed(), event);
        if let Some(simulation) = &self.simulation {
            self.core.check_integrity();
            simulation.fate.scheduler_effects(&effects);
        }
        if self.keeps_books {
            self.fuse.burn(self.at);
        }
        // Before anyone is told of an end, so that the sums include it.
        self.telemetry.scheduler(self.core.stats());
        let (mut unwanted, mut full, mut awaits_mask) = (Vec::new(), Vec::new(), Vec::new());
        let drawn = |effect: &&Effect| matches!(effect, Effect::Token(..));
        self.telemetry.drawn(effects.iter().filter(drawn).count());
        for effect in effects {
            match effect {
                Effect::Cache(message) => self.unasked.push_back(message),
                Effect::Work(work) => {
                    self.telemetry.work(&work);
                    self.heartbeat.work_sent(self.born.elapsed());
                    self.under_way += 1;
                    self.note_launch(&work);
                    self.epoch = work.epoch;
                    self.device.send(work);
                }
                Effect::Token(sequence, token, logprobs) => {
                    if self.token(sequence, token, logprobs) {
                        full.push(sequence);
                    }
                }
                Effect::Preempted(sequence) => self.telemetry.preempted(sequence),
                Effect::AwaitMask(sequence) => awaits_mask.push(sequence),
                Effect::Started {
                    sequence,
                    prompt_tokens,
                    cached_tokens,
                    miss,
                } => {
                    if let Some(link) = self.links.get_mut(&sequence) {
                        link.started = true;
                        let news = News::Started {
                            prompt_tokens,
                            cached_tokens,
                            miss,
                        };
                        link.tell(news, &self.doorbell);
                    }
                }
                Effect::Prefilled(sequence, tokens) => {
                    if let Some(link) = self.links.get_mut(&sequence) {
                        link.tell(News::Prefilled(tokens), &self.doorbell);
                    }
                }
                Effect::Shifted(sequence, tokens) => {
                    if let Some(link) = self.links.get_mut(&sequence) {
                        link.tell(News::Shifted(tokens), &self.doorbell);
                    }
                }
                Effect::Forked {
                    sequence,
                    source,
                    at,
                } => self.telemetry.forked(sequence, source, at),
                Effect::Upkept(ticket, result) => {
                    let asking = self.upkeep.remove(&ticket).expect("a ticket is made once");
                    if let (Err(Ok(())), Some(pin)) = (asking.reply.send(result), asking.pin) {
                        // Nobody waits any more who knows the pin's name.
                        unwanted.push(pin);
                    }
                }
                Effect::Finished(sequence, reason) => {
                    self.part(sequence, News::Finished(reason));
                }
                Effect::Failed(sequence, error) => self.part(sequence, News::Failed(error)),
            }
        }
        self.at = None;
        self.ask_cache();
        for sequence in full {
            // Its last token may have been one too many, too.
            if self.links.contains_key(&sequence) {
                self.paused.insert(sequence);
                self.feed(Event::Pause(sequence));
            }
        }
        for sequence in awaits_mask {
            self.await_mask(sequence);
        }
        for pin in unwanted {
            let message = cache::Message::Unpin { pin };
            let (reply, _) = oneshot::channel();
            self.keep(Upkeep {
                message,
                reply,
                turn: None,
            });
        }
    }

    /// Brings a token to a sequence. True when its caller has as many to read as may be.
    fn token(
        &mut self,
        sequence: SequenceId,
        token: TokenId,
        logprobs: Option<Arc<TokenLogprobs>>,
    ) -> bool {
        let Some(link) = self.links.get_mut(&sequence) else {
            return false;
        };
        let news = News::Token(token, logprobs);
        link.token(token, news, &self.doorbell, self.keeps_books);
        link.credits.pause_if_full() && !self.paused.contains(&sequence)
    }

    fn stop(&mut self, sequence: SequenceId) {
        // One that is over already needs no stopping.
        if let Some(link) = self.links.get_mut(&sequence) {
            link.stops = true;
            self.feed(Event::Stop(sequence));
        }
    }

    fn resume(&mut self, sequence: SequenceId) {
        if self.paused.remove(&sequence) {
            self.feed(Event::Resume(sequence));
        }
    }

    /// Looks for those who could not say that they have left, or have read.
    fn look_at_words(&mut self) {
        let links = self.links.iter();
        let left = links.filter(|(_, link)| link.cancel.is_cancelled());
        let mut left: Vec<SequenceId> = left.map(|(sequence, _)| *sequence).collect();
        left.sort_unstable();
        for sequence in left {
            self.stop(sequence);
        }
        let reads = |sequence: &&SequenceId| {
            let link = self.links.get(sequence);
            link.is_some_and(|link| !link.credits.is_paused())
        };
        let read: Vec<SequenceId> = self.paused.iter().filter(reads).copied().collect();
        for sequence in read {
            self.resume(sequence);
        }
        self.look_at_masks();
    }

    fn keep(&mut self, upkeep: Upkeep) {
        self.tickets_made += 1;
        let pin = match &upkeep.message {
            cache::Message::Pin(pin) => Some(pin.pin),
            _ => None,
        };
        let asking = Asking {
            reply: upkeep.reply,
            pin,
            _turn: upkeep.turn,
        };
        self.upkeep.insert(self.tickets_made, asking);
        self.feed(Event::Upkeep {
            ticket: self.tickets_made,
            message: upkeep.message,
        });
    }

    fn ask_cache(&mut self) {
        while self.asked < ASKED_MAX
            && let Some(message) = self.unasked.pop_front()
        {
            match self.cache.tell(message).try_send() {
                Ok(()) => self.asked += 1,
                Err(SendError::MailboxFull(message)) => {
                    // Its mailbox also holds kameo's own signals; an answer is due.
                    self.unasked.push_front(message);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Brings the last news to a sequence and forgets the way to it.
    fn part(&mut self, sequence: SequenceId, news: News) {
        let Some(mut link) = self.links.remove(&sequence) else {
            return;
        };
        self.paused.remove(&sequence);
        self.gated.remove(&sequence);
        link.cancel.finish();
        link.undelivered.push(news);
        let batch = std::mem::take(&mut link.undelivered);
        if let Err(SendError::MailboxFull(batch)) = link.actor.tell(batch).try_send() {
            // Rare, and the last word to this sequence: a task of its own waits.
            tokio::spawn(async move { link.actor.tell(batch).send().await.ok() });
        }
    }
}
