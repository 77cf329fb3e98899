//! The scheduler's actor.
//!
//! Events that can wake it (a closed list), in the order in which it checks them:
//!
//! | event | from | bound, and the behaviour when it is full |
//! |---|---|---|
//! | `CacheAnswer` | cache | [`PENDING_ANSWERS_MAX`]; never full: no more messages are sent than answers fit |
//! | `Outcome`, or the end of the thread | device thread | one per work in flight; never full |
//! | the result of loading the model | a new device thread | one |
//! | a wakeup | streams and sequences that found the mailbox full; computed masks | one pending wakeup; the scheduler then scans the flags |
//! | `Submit` | `Engine::submit` | the mailbox, [`MAILBOX_MAX`]; the caller awaits |
//! | `Fork` | `Engine::fork` | the mailbox; the caller awaits |
//! | `CacheCommand` | `Engine::pin`, `unpin`, `clear_cache`, `clear_all_caches` | the mailbox; the caller awaits the answer |
//! | `Stop` | sequences, dropped streams | the mailbox; sequences await, a dropped stream that finds it full sends a wakeup |
//! | `SubmitMany` | `Engine::submit_many` | the mailbox; the caller awaits |
//! | `Resume` | streams that were read | the mailbox; a stream that finds it full sends a wakeup |
//! | `AskQueuePosition` | `TokenStream::queue_position` | the mailbox; the caller awaits the answer |
//! | `TakeSchedulerSnapshot` | the snapshot task | the mailbox; a task that finds it full tries again later |
//! | `Abort` | `Engine::shutdown` | the mailbox; the caller awaits |
//! | the clock | deadlines, the time to plan the next step, and a device that does not answer | one timer, set again at each turn |
//!
//! | file | content |
//! |---|---|
//! | `mailbox.rs` | messages from callers and sequences |
//! | `masks.rs` | sequences whose grammar masks are slow to compute |
//! | `sequence_handle.rs` | the handle of a sequence, with the history that its caller has |
//! | `device_handle.rs` | the scheduler's end of the device |
//! | `supervision.rs` | failed parts are rebuilt, or the engine gives up |
//! | `step_events.rs` | events about steps, for subscribers |

mod device_handle;
mod mailbox;
mod masks;
mod sequence_handle;
mod step_events;
mod supervision;

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

use super::cache::{CacheActor, CacheAnswer};
use super::sequence::SequenceEvent;
use crate::actors::breakdown::Breakdown;
use crate::device::{Device, Loader};
use crate::failpoint::Failpoint;
use crate::simulation::Simulation;
use crate::telemetry::Telemetry;
use device_handle::DeviceHandle;
pub(crate) use mailbox::{
    Abort, AskQueuePosition, CacheCommand, Fork, Resume, Stop, Submit, SubmitMany,
    TakeSchedulerSnapshot,
};
use motet_core::cache::{self, CacheError};
use motet_core::config::SchedulerConfig;
use motet_core::protocol::{ModelSpec, TokenLogprobs};
use motet_core::recovery::Breaker;
use motet_core::scheduler::{Effect, Event, SchedulerCore};
use motet_core::{PinId, SequenceId, TokenId};
use motet_sync::heartbeat::Heartbeat;
use sequence_handle::SequenceHandle;
use step_events::StepEvents;

/// Messages from callers and sequences that may wait for the scheduler.
pub(crate) const MAILBOX_MAX: usize = 1024;

/// Messages that the cache may have to answer at once. Further messages wait in the actor.
pub(crate) const PENDING_ANSWERS_MAX: usize = 256;

/// The actor. It owns the core, the device handle and a handle for each sequence.
pub(crate) struct Scheduler {
    core: SchedulerCore,
    /// Needed to create another core.
    spec: ModelSpec,
    config: SchedulerConfig,
    device: DeviceHandle,
    /// Steps in flight, for the events about them.
    steps: StepEvents,
    /// The epoch of the latest work that was sent.
    epoch: u64,
    /// Work that the device has not answered.
    in_flight: usize,
    cache: ActorRef<CacheActor>,
    answers: mpsc::Receiver<CacheAnswer>,
    pending_answers: usize,
    /// Messages to the cache beyond [`PENDING_ANSWERS_MAX`]; at most as many as sequences can
    /// cause.
    cache_outbox: VecDeque<cache::Message>,
    handles: FxHashMap<SequenceId, SequenceHandle>,
    /// Sequences whose callers do not read.
    paused: BTreeSet<SequenceId>,
    /// Sequences that steps do not wait for, since their masks are slow to compute.
    gated: BTreeSet<SequenceId>,
    /// Notified by senders that found the mailbox full, and by computed masks.
    wakeup: Arc<Notify>,
    /// Callers that await the cache's answer, each with the pin that it creates, if any. The
    /// engine bounds how many may wait at once.
    cache_commands: BTreeMap<u64, PendingCommand>,
    last_command_id: u64,
    /// Whether all sequences are to end.
    is_aborted: bool,
    /// The sequence that the current event is about, if any.
    at: Option<SequenceId>,
    /// The sequence failed most recently for panicking a core. Messages about it may still be
    /// in flight, so further panics about it are expected.
    culprit: Option<SequenceId>,
    breaker: Breaker,
    breakdown: Breakdown,
    failpoint: Failpoint,
    /// Whether the state is recorded that a rebuilt core needs.
    has_recovery: bool,
    /// Tokens after which a live sequence is backed up; 0 means never.
    backup_tokens: usize,
    telemetry: Arc<Telemetry>,
    heartbeat: Heartbeat,
    simulation: Option<Simulation>,
    started_at: Instant,
}

/// Arguments of the scheduler's start.
pub(crate) struct SchedulerArgs {
    pub(crate) spec: ModelSpec,
    pub(crate) config: SchedulerConfig,
    pub(crate) device: Device,
    pub(crate) loader: Loader,
    pub(crate) breaker: Breaker,
    /// Receives the reason when the engine is broken.
    pub(crate) breakdown: Breakdown,
    pub(crate) failpoint: Failpoint,
    /// Whether a panic rebuilds the core. False only in measurements: then a panic ends the
    /// actor.
    pub(crate) has_recovery: bool,
    /// See [`PagerConfig::backup_tokens`](motet_core::config::PagerConfig::backup_tokens); 0
    /// without a pager.
    pub(crate) backup_tokens: usize,
    pub(crate) cache: ActorRef<CacheActor>,
    pub(crate) answers: mpsc::Receiver<CacheAnswer>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) wakeup: Arc<Notify>,
    /// The simulation that the scheduler is part of, if any: then the core checks its
    /// integrity.
    pub(crate) simulation: Option<Simulation>,
    /// The engine's start, the origin of its clock.
    pub(crate) started_at: Instant,
}

/// A cache command that the cache has not answered.
struct PendingCommand {
    reply: oneshot::Sender<Result<(), CacheError>>,
    /// The pin that the command creates, if any.
    pin: Option<PinId>,
    /// Released with the answer.
    _permit: Option<OwnedSemaphorePermit>,
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
            device: DeviceHandle::new(args.device, args.loader),
            steps: StepEvents::default(),
            epoch: 0,
            in_flight: 0,
            cache: args.cache,
            answers: args.answers,
            pending_answers: 0,
            cache_outbox: VecDeque::new(),
            handles: FxHashMap::default(),
            paused: BTreeSet::new(),
            gated: BTreeSet::new(),
            wakeup: args.wakeup,
            cache_commands: BTreeMap::new(),
            last_command_id: 0,
            is_aborted: false,
            at: None,
            culprit: None,
            breaker: args.breaker,
            breakdown: args.breakdown,
            failpoint: args.failpoint,
            has_recovery: args.has_recovery,
            backup_tokens: args.backup_tokens,
            telemetry: args.telemetry,
            heartbeat: args.heartbeat,
            simulation: args.simulation,
            started_at: args.started_at,
        })
    }

    /// Handles answers and outcomes until a mailbox signal is due.
    async fn next(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        mailbox: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Self::Error> {
        loop {
            let wakes_at = self.core.wakes_at().map(|at| self.started_at + at);
            let wakes_at = wakes_at.into_iter().chain(self.device_deadline()).min();
            let is_broken = self.breakdown.reason().is_some();
            tokio::select! {
                biased;
                answer = self.answers.recv(), if !is_broken => match answer {
                    Some(answer) => self.on_answer(answer),
                    None => self.give_up("the cache is gone"),
                },
                event = self.device.next_event() => self.on_device(event),
                () = self.wakeup.notified() => self.check_flags(),
                signal = mailbox.recv() => return Ok(signal),
                () = tokio::time::sleep_until(wakes_at.unwrap_or(self.started_at)),
                    if wakes_at.is_some() => self.on_clock(),
            }
        }
    }

    /// A panic outside the core discards the core as well. On a broken engine the actor ends.
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
    /// Passes an event to the core and applies its effects.
    fn advance(&mut self, event: Event) {
        if let Some(simulation) = &self.simulation {
            simulation.fault_schedule.message("scheduler", &event);
            simulation.fault_schedule.scheduler_event(&event);
        }
        self.at = event.concerns();
        let effects = self.core.handle(self.started_at.elapsed(), event);
        if let Some(simulation) = &self.simulation {
            self.core.check_integrity();
            simulation.fault_schedule.scheduler_effects(&effects);
        }
        if self.has_recovery {
            self.failpoint.trip(self.at);
        }
        // Reported before any sequence's end, so that the sums include the end.
        self.telemetry.scheduler(self.core.stats());
        let (mut unwanted, mut full, mut awaits_mask) = (Vec::new(), Vec::new(), Vec::new());
        let is_token = |effect: &&Effect| matches!(effect, Effect::Token(..));
        self.telemetry
            .sampled(effects.iter().filter(is_token).count());
        for effect in effects {
            match effect {
                Effect::Cache(message) => self.cache_outbox.push_back(message),
                Effect::Work(work) => {
                    self.telemetry.work(&work);
                    self.heartbeat.work_sent(self.started_at.elapsed());
                    self.in_flight += 1;
                    self.record_submit(&work);
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
                    if let Some(handle) = self.handles.get_mut(&sequence) {
                        handle.started = true;
                        let sequence_event = SequenceEvent::Started {
                            prompt_tokens,
                            cached_tokens,
                            miss,
                        };
                        handle.deliver(sequence_event, &self.wakeup);
                    }
                }
                Effect::Prefilled(sequence, tokens) => {
                    if let Some(handle) = self.handles.get_mut(&sequence) {
                        handle.deliver(SequenceEvent::Prefilled(tokens), &self.wakeup);
                    }
                }
                Effect::Shifted(sequence, tokens) => {
                    if let Some(handle) = self.handles.get_mut(&sequence) {
                        handle.deliver(SequenceEvent::Shifted(tokens), &self.wakeup);
                    }
                }
                Effect::Forked {
                    sequence,
                    source,
                    at,
                } => self.telemetry.forked(sequence, source, at),
                Effect::CommandDone(command_id, result) => {
                    let pending = self
                        .cache_commands
                        .remove(&command_id)
                        .expect("a command id is used once");
                    if let (Err(Ok(())), Some(pin)) = (pending.reply.send(result), pending.pin) {
                        // The caller is gone, and no other part knows the pin's id.
                        unwanted.push(pin);
                    }
                }
                Effect::Finished(sequence, reason) => {
                    self.end_sequence(sequence, SequenceEvent::Finished(reason));
                }
                Effect::Failed(sequence, error) => {
                    self.end_sequence(sequence, SequenceEvent::Failed(error))
                }
            }
        }
        self.at = None;
        self.send_to_cache();
        for sequence in full {
            // The last token may have reached the limit as well.
            if self.handles.contains_key(&sequence) {
                self.paused.insert(sequence);
                self.handle_event(Event::Pause(sequence));
            }
        }
        for sequence in awaits_mask {
            self.await_mask(sequence);
        }
        for pin in unwanted {
            let message = cache::Message::Unpin { pin };
            let (reply, _) = oneshot::channel();
            self.run_cache_command(CacheCommand {
                message,
                reply,
                permit: None,
            });
        }
    }

    /// Sends a token to its sequence. Returns true when the caller's unread tokens reach the
    /// limit.
    fn token(
        &mut self,
        sequence: SequenceId,
        token: TokenId,
        logprobs: Option<Arc<TokenLogprobs>>,
    ) -> bool {
        let Some(handle) = self.handles.get_mut(&sequence) else {
            return false;
        };
        let sequence_event = SequenceEvent::Token(token, logprobs);
        handle.token(token, sequence_event, &self.wakeup, self.has_recovery);
        handle.credits.pause_if_full() && !self.paused.contains(&sequence)
    }

    fn stop(&mut self, sequence: SequenceId) {
        // A sequence that has finished needs no stop.
        if let Some(handle) = self.handles.get_mut(&sequence) {
            handle.is_stopping = true;
            self.handle_event(Event::Stop(sequence));
        }
    }

    fn resume(&mut self, sequence: SequenceId) {
        if self.paused.remove(&sequence) {
            self.handle_event(Event::Resume(sequence));
        }
    }

    /// Scans the flags of streams and sequences that found the mailbox full.
    fn check_flags(&mut self) {
        let handles = self.handles.iter();
        let cancelled = handles.filter(|(_, handle)| handle.cancel.is_cancelled());
        let mut cancelled: Vec<SequenceId> = cancelled.map(|(sequence, _)| *sequence).collect();
        cancelled.sort_unstable();
        for sequence in cancelled {
            self.stop(sequence);
        }
        let has_reader = |sequence: &&SequenceId| {
            let handle = self.handles.get(sequence);
            handle.is_some_and(|handle| !handle.credits.is_paused())
        };
        let readable: Vec<SequenceId> = self.paused.iter().filter(has_reader).copied().collect();
        for sequence in readable {
            self.resume(sequence);
        }
        self.check_masks();
    }

    fn run_cache_command(&mut self, cache_command: CacheCommand) {
        self.last_command_id += 1;
        let pin = match &cache_command.message {
            cache::Message::Pin(pin) => Some(pin.pin),
            _ => None,
        };
        let pending = PendingCommand {
            reply: cache_command.reply,
            pin,
            _permit: cache_command.permit,
        };
        self.cache_commands.insert(self.last_command_id, pending);
        self.handle_event(Event::CacheCommand {
            command_id: self.last_command_id,
            message: cache_command.message,
        });
    }

    fn send_to_cache(&mut self) {
        while self.pending_answers < PENDING_ANSWERS_MAX
            && let Some(message) = self.cache_outbox.pop_front()
        {
            match self.cache.tell(message).try_send() {
                Ok(()) => self.pending_answers += 1,
                Err(SendError::MailboxFull(message)) => {
                    // The mailbox also holds kameo's own signals. An answer is due, and the
                    // message is sent then.
                    self.cache_outbox.push_front(message);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Sends the last event to a sequence and drops its handle.
    fn end_sequence(&mut self, sequence: SequenceId, sequence_event: SequenceEvent) {
        let Some(mut handle) = self.handles.remove(&sequence) else {
            return;
        };
        self.paused.remove(&sequence);
        self.gated.remove(&sequence);
        handle.cancel.finish();
        handle.outbox.push(sequence_event);
        let batch = std::mem::take(&mut handle.outbox);
        if let Err(SendError::MailboxFull(batch)) = handle.actor.tell(batch).try_send() {
            // Rare, and the last event for this sequence: a task of its own waits.
            tokio::spawn(async move { handle.actor.tell(batch).send().await.ok() });
        }
    }
}
