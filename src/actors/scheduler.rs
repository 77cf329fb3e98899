//! The scheduler's shell.
//!
//! What can wake it (a closed list), in the order in which it looks:
//!
//! | what | from | bound, and what happens when it is full |
//! |---|---|---|
//! | `Answer` | cache | [`ASKED_MAX`]; never full: no more messages are out than answers fit |
//! | `Outcome` | device thread | one per work under way; never full |
//! | the doorbell | streams and sequences that found the mailbox full | one ring; what there is to see stands in their words |
//! | `Submit` | `Engine::submit` | the mailbox, [`MAILBOX_MAX`]; the caller awaits |
//! | `Fork` | `Engine::fork` | the mailbox; the caller awaits |
//! | `Upkeep` | `Engine::pin`, `unpin`, `clear` | the mailbox; the caller awaits the answer |
//! | `Stop` | sequences, dropped streams | the mailbox; sequences await, a dropped stream that finds it full rings the doorbell |
//! | `SubmitMany` | `Engine::submit_many` | the mailbox; the caller awaits |
//! | `Resume` | streams that were read | the mailbox; who finds it full rings the doorbell |
//! | `AskPlace` | `TokenStream::queue_place` | the mailbox; the caller awaits the answer |
//! | `Abort` | `Engine::shutdown` | the mailbox; the caller awaits |
//! | the clock | deadlines, and the moment to plan the next step | one; set anew each time |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use kameo::Actor;
use kameo::actor::{ActorRef, WeakActorRef};
use kameo::error::SendError;
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::message::{Context, Message};
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use super::cache::{Answer, CacheActor};
use super::sequence::{Batch, News, Sequence};
use crate::cache::{self, CacheError};
use crate::device::{Device, Outcome};
use crate::model::sampling::TokenLogprobs;
use crate::request::QueuePlace;
use crate::scheduler::{self, Effect, Event, SchedulerCore, Submission};
use crate::shared::cancel::CancelWord;
use crate::shared::credits::Credits;
use crate::shared::heartbeat::Heartbeat;
use crate::telemetry::Telemetry;
use crate::{PinId, SequenceId, TokenId};

/// Messages that callers and sequences may have waiting for the scheduler.
pub(crate) const MAILBOX_MAX: usize = 1024;

/// Messages that the cache may have to answer at once. More wait in the shell.
pub(crate) const ASKED_MAX: usize = 256;

/// The actor. Owns the core, the device's near end and the way to each sequence.
pub(crate) struct Scheduler {
    core: SchedulerCore,
    device: Device,
    device_gone: bool,
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
    /// Rung by those who found the mailbox full.
    doorbell: Arc<Notify>,
    /// Callers who await the cache's answer, and the pin that each wants; as many as
    /// the engine lets ask at once.
    upkeep: BTreeMap<u64, Asking>,
    tickets_made: u64,
    telemetry: Arc<Telemetry>,
    heartbeat: Heartbeat,
    born: Instant,
}

/// What the scheduler starts with.
pub(crate) struct SchedulerArgs {
    pub(crate) core: SchedulerCore,
    pub(crate) device: Device,
    pub(crate) cache: ActorRef<CacheActor>,
    pub(crate) answers: mpsc::Receiver<Answer>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) doorbell: Arc<Notify>,
    /// When the engine was started: its time counts from here.
    pub(crate) born: Instant,
}

/// The way to one sequence and its caller.
pub(crate) struct Link {
    pub(crate) actor: ActorRef<Sequence>,
    pub(crate) cancel: CancelWord,
    pub(crate) credits: Credits,
    /// News that found the mailbox full; delivered with the next.
    pub(crate) undelivered: Batch,
}

/// A new sequence, and the way to it.
pub(crate) struct Submit {
    pub(crate) submission: Submission,
    pub(crate) actor: ActorRef<Sequence>,
    pub(crate) cancel: CancelWord,
    pub(crate) credits: Credits,
}

/// A new sequence that continues another, and the way to it.
pub(crate) struct Fork {
    pub(crate) fork: scheduler::Fork,
    pub(crate) actor: ActorRef<Sequence>,
    pub(crate) cancel: CancelWord,
    pub(crate) credits: Credits,
}

/// New sequences that begin alike, all or none: the first as it is, the others as forks
/// of it at the end of its prompt.
pub(crate) struct SubmitMany {
    pub(crate) first: Submit,
    /// Their prompts are empty.
    pub(crate) forks: Vec<Submit>,
}

/// A caller's question to the cache.
pub(crate) struct Upkeep {
    pub(crate) message: cache::Message,
    pub(crate) reply: oneshot::Sender<Result<(), CacheError>>,
    /// The caller's turn to ask, given back with the answer.
    pub(crate) turn: Option<OwnedSemaphorePermit>,
}

/// A caller's question that the cache has not answered.
struct Asking {
    reply: oneshot::Sender<Result<(), CacheError>>,
    /// The pin that the caller wants, if any.
    pin: Option<PinId>,
    /// Held until it is answered.
    _turn: Option<OwnedSemaphorePermit>,
}

/// A sequence is to stop.
pub(crate) struct Stop(pub(crate) SequenceId);

/// A sequence's caller has caught up: it goes on if it was paused.
pub(crate) struct Resume(pub(crate) SequenceId);

/// A caller wants to know where its sequence stands in the queue.
pub(crate) struct AskPlace {
    pub(crate) sequence: SequenceId,
    pub(crate) reply: oneshot::Sender<Option<QueuePlace>>,
}

/// All sequences end now.
pub(crate) struct Abort;

impl Actor for Scheduler {
    type Args = SchedulerArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(Self {
            core: args.core,
            device: args.device,
            device_gone: false,
            under_way: 0,
            cache: args.cache,
            answers: args.answers,
            asked: 0,
            unasked: VecDeque::new(),
            links: FxHashMap::default(),
            paused: BTreeSet::new(),
            doorbell: args.doorbell,
            upkeep: BTreeMap::new(),
            tickets_made: 0,
            telemetry: args.telemetry,
            heartbeat: args.heartbeat,
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
            let wakes_at = self.core.wakes_at();
            tokio::select! {
                biased;
                answer = self.answers.recv() => match answer {
                    Some(answer) => self.on_answer(answer),
                    // The cache is gone, and every slot with it: all streams end as lost.
                    None => return Ok(None),
                },
                outcome = self.device.outcomes.recv(), if !self.device_gone => {
                    self.on_outcome(outcome);
                }
                () = self.doorbell.notified() => self.look_at_words(),
                signal = mailbox.recv() => return Ok(signal),
                () = tokio::time::sleep_until(self.born + wakes_at.unwrap_or_default()),
                    if wakes_at.is_some() => self.feed(Event::Tick),
            }
        }
    }
}

impl Message<Submit> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, submit: Submit, _ctx: &mut Context<Self, Self::Reply>) {
        self.submit(submit);
    }
}

impl Message<SubmitMany> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, many: SubmitMany, _ctx: &mut Context<Self, Self::Reply>) {
        let source = many.first.submission.sequence;
        let prompt_tokens = many.first.submission.prompt.len();
        self.submit(many.first);
        for fork in many.forks {
            let link = Link::new(fork.actor, fork.cancel, fork.credits);
            self.links.insert(fork.submission.sequence, link);
            self.feed(Event::Fork(scheduler::Fork {
                source,
                at: Some(prompt_tokens),
                submission: fork.submission,
            }));
        }
    }
}

impl Message<Resume> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, Resume(sequence): Resume, _ctx: &mut Context<Self, Self::Reply>) {
        self.resume(sequence);
    }
}

impl Message<AskPlace> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, ask: AskPlace, _ctx: &mut Context<Self, Self::Reply>) {
        // Who asked may have gone.
        ask.reply.send(self.core.queue_place(ask.sequence)).ok();
    }
}

impl Message<Fork> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, fork: Fork, _ctx: &mut Context<Self, Self::Reply>) {
        let sequence = fork.fork.submission.sequence;
        let link = Link::new(fork.actor, fork.cancel, fork.credits);
        self.links.insert(sequence, link);
        self.feed(Event::Fork(fork.fork));
    }
}

impl Message<Upkeep> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, upkeep: Upkeep, _ctx: &mut Context<Self, Self::Reply>) {
        self.keep(upkeep);
    }
}

impl Message<Stop> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, Stop(sequence): Stop, _ctx: &mut Context<Self, Self::Reply>) {
        self.feed(Event::Stop(sequence));
    }
}

impl Message<Abort> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, _abort: Abort, _ctx: &mut Context<Self, Self::Reply>) {
        self.feed(Event::Abort);
    }
}

impl Link {
    fn new(actor: ActorRef<Sequence>, cancel: CancelWord, credits: Credits) -> Self {
        Self {
            actor,
            cancel,
            credits,
            undelivered: Batch::new(),
        }
    }

    /// Brings news to the sequence. A full mailbox keeps it for the next time; a
    /// sequence that is gone is stopped.
    fn tell(&mut self, news: News, doorbell: &Notify) {
        self.undelivered.push(news);
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
}

impl Scheduler {
    fn submit(&mut self, submit: Submit) {
        let link = Link::new(submit.actor, submit.cancel, submit.credits);
        self.links.insert(submit.submission.sequence, link);
        self.feed(Event::Submit(submit.submission));
    }

    fn on_answer(&mut self, answer: Answer) {
        self.telemetry.cache(answer.stats);
        if !answer.asked {
            self.feed(Event::News(answer.result.unwrap_or_default()));
            return;
        }
        self.asked -= 1;
        self.feed(Event::Cache(answer.result));
    }

    fn on_outcome(&mut self, outcome: Option<Outcome>) {
        match outcome {
            Some(outcome) => {
                self.under_way -= 1;
                self.heartbeat
                    .work_landed(self.born.elapsed(), self.under_way);
                self.telemetry.outcome(&outcome);
                let idle_before = self.core.stats().device_idle;
                self.feed(Event::Outcome(outcome));
                let idle = self.core.stats().device_idle - idle_before;
                self.telemetry.device_idle(idle);
            }
            None => {
                self.device_gone = true;
                self.heartbeat.gone();
                self.telemetry.device_gone();
                self.feed(Event::DeviceGone);
            }
        }
    }

    /// Feeds the core and carries out what follows.
    fn feed(&mut self, event: Event) {
        let effects = self.core.handle(self.born.elapsed(), event);
        // Before anyone is told of an end, so that the sums include it.
        self.telemetry.scheduler(self.core.stats());
        let (mut unwanted, mut full) = (Vec::new(), Vec::new());
        let drawn = |effect: &&Effect| matches!(effect, Effect::Token(..));
        self.telemetry.drawn(effects.iter().filter(drawn).count());
        for effect in effects {
            match effect {
                Effect::Cache(message) => self.unasked.push_back(message),
                Effect::Work(work) => {
                    self.telemetry.work(&work);
                    self.heartbeat.work_sent(self.born.elapsed());
                    self.under_way += 1;
                    // A thread that is gone says so by closing its outcomes.
                    let _sent = self.device.send(work);
                }
                Effect::Token(sequence, token, logprobs) => {
                    if self.token(sequence, token, logprobs) {
                        full.push(sequence);
                    }
                }
                Effect::Preempted(_) => self.telemetry.preempted(1),
                Effect::Started {
                    sequence,
                    prompt_tokens,
                    cached_tokens,
                } => {
                    let news = News::Started {
                        prompt_tokens,
                        cached_tokens,
                    };
                    self.tell(sequence, news);
                }
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
        self.ask_cache();
        for sequence in full {
            // Its last token may have been one too many, too.
            if self.links.contains_key(&sequence) {
                self.paused.insert(sequence);
                self.feed(Event::Pause(sequence));
            }
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
        link.credits.sent();
        link.tell(News::Token(token, logprobs), &self.doorbell);
        link.credits.pause_if_full() && !self.paused.contains(&sequence)
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
            self.feed(Event::Stop(sequence));
        }
        let reads = |sequence: &&SequenceId| {
            let link = self.links.get(sequence);
            link.is_some_and(|link| !link.credits.is_paused())
        };
        let read: Vec<SequenceId> = self.paused.iter().filter(reads).copied().collect();
        for sequence in read {
            self.resume(sequence);
        }
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

    fn tell(&mut self, sequence: SequenceId, news: News) {
        if let Some(link) = self.links.get_mut(&sequence) {
            link.tell(news, &self.doorbell);
        }
    }

    /// Brings the last news to a sequence and forgets the way to it.
    fn part(&mut self, sequence: SequenceId, news: News) {
        let Some(mut link) = self.links.remove(&sequence) else {
            return;
        };
        self.paused.remove(&sequence);
        link.cancel.finish();
        link.undelivered.push(news);
        let batch = std::mem::take(&mut link.undelivered);
        if let Err(SendError::MailboxFull(batch)) = link.actor.tell(batch).try_send() {
            // Rare, and the last word to this sequence: a task of its own waits.
            tokio::spawn(async move { link.actor.tell(batch).send().await.ok() });
        }
    }
}
