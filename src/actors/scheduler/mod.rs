//! The scheduler's actor.
//!
//! Events that can wake it (a closed list), in the order in which it checks them:
//!
//! | event | from | bound, and the behaviour when it is full |
//! |---|---|---|
//! | `CacheAnswer` | cache | [`cache_handle::PENDING_ANSWERS_MAX`]; never full: no more messages are sent than answers fit |
//! | `Outcome`, or the end of the thread | device thread | one per work in flight; never full |
//! | the result of loading the model | a new device thread | one |
//! | a wakeup | streams, handles and sequences that found the mailbox full; computed masks | one pending wakeup; the scheduler then scans the flags |
//! | `Submit` | `Engine::submit` | the mailbox, [`MAILBOX_MAX`]; the caller awaits |
//! | `Fork` | `Engine::fork` | the mailbox; the caller awaits |
//! | `CacheCommand` | `Engine::pin`, `unpin`, `clear_cache`, `clear_all_caches` | the mailbox; the caller awaits the answer |
//! | `Stop` | sequences, `SequenceHandle::cancel`, dropped streams | the mailbox; sequences await, a handle or stream that finds it full sends a wakeup |
//! | `SubmitMany` | `Engine::submit_many` | the mailbox; the caller awaits |
//! | `Resume` | streams that were read | the mailbox; a stream that finds it full sends a wakeup |
//! | `AskQueuePosition` | `SequenceHandle::queue_position` | the mailbox; the caller awaits the answer |
//! | `TakeSchedulerSnapshot` | the snapshot task | the mailbox; a task that finds it full tries again later |
//! | `Abort` | `Engine::shutdown` | the mailbox; the caller awaits |
//! | the clock | deadlines, the time to plan the next step, and a device that does not answer | one timer, set again at each turn |
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the loop: what wakes the actor, and what it does then |
//! | `mailbox.rs` | messages from callers and sequences |
//! | `replaceable_core.rs` | the core in use, and what another one is created from |
//! | `device_handle.rs` | the device, and the work in flight |
//! | `cache_handle.rs` | the cache, and the messages that it has not answered |
//! | `cache_commands.rs` | callers that await the cache's answer to a command |
//! | `sequences.rs`, `sequence_actor_handle.rs` | the handles of sequences, with the histories that their callers have |
//! | `masks.rs` | sequences whose grammar masks are slow to compute |
//! | `supervision.rs` | decisions about failures: the blame, and when the engine gives up |
//! | `recovery.rs` | failed parts are rebuilt, or the engine gives up |
//! | `step_events.rs` | events about steps, for subscribers |

mod cache_commands;
mod cache_handle;
mod device_handle;
mod mailbox;
mod masks;
mod recovery;
mod replaceable_core;
mod sequence_actor_handle;
mod sequences;
mod step_events;
mod supervision;

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use kameo::Actor;
use kameo::actor::{ActorRef, WeakActorRef};
use kameo::error::{ActorStopReason, PanicError};
use kameo::mailbox::{MailboxReceiver, Signal};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::cache::CacheAnswer;
use super::sequence::SequenceEvent;
use crate::runtime::clock::after;
use crate::runtime::{EngineRuntime, Part, Runtime};
use crate::telemetry::{EngineEvent, Telemetry};
use cache_commands::CacheCommands;
pub(crate) use cache_handle::{CacheHandle, PENDING_ANSWERS_MAX};

use device_handle::DeviceEvent;
pub(crate) use device_handle::DeviceHandle;
pub(crate) use mailbox::{
    Abort, AbortKind, AskQueuePosition, CacheCommand, Fork, Resume, Submit, SubmitMany,
    TakeSchedulerSnapshot,
};
use motet_core::cache::{self, CacheError};
use motet_core::recovery::Fault;
use motet_core::scheduler::{Effect, Event};
use motet_protocol::{Outcome, Work};
use motet_protocol::{PinId, SequenceId};
pub(crate) use replaceable_core::CoreSettings;
use replaceable_core::ReplaceableCore;
use sequences::Sequences;
use step_events::StepEvents;
pub(crate) use supervision::Supervision;

/// Messages from callers and sequences that may wait for the scheduler.
pub(crate) const MAILBOX_MAX: usize = 1024;

/// The actor. Its parts own the state; it decides what happens in which order.
pub(crate) struct Scheduler {
    core: ReplaceableCore,
    device: DeviceHandle,
    cache: CacheHandle,
    cache_commands: CacheCommands,
    sequences: Sequences,
    supervision: Supervision,
    /// Steps in flight, for the events about them.
    steps: StepEvents,
    telemetry: Arc<Telemetry>,
    /// How all sequences are to end, once they are.
    aborted: Option<AbortKind>,
    /// Shutdowns that wait for the end of all sequences.
    aborts: Vec<oneshot::Sender<()>>,
    runtime: EngineRuntime,
    started_at: Instant,
}

/// Arguments of the scheduler's start.
pub(crate) struct SchedulerArgs {
    pub(crate) core: CoreSettings,
    pub(crate) device: DeviceHandle,
    pub(crate) cache: CacheHandle,
    pub(crate) supervision: Supervision,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) wakeup: Arc<Notify>,
    pub(crate) runtime: EngineRuntime,
    /// The engine's start, the origin of its clock.
    pub(crate) started_at: Instant,
}

/// Steps that follow when the effects of an event have been applied.
#[derive(Default)]
struct FollowUp {
    /// Sequences whose callers have too many unread tokens.
    full: Vec<SequenceId>,
    /// Sequences that wait for their masks.
    awaits_mask: Vec<SequenceId>,
    /// Pins whose callers are gone.
    unwanted: Vec<PinId>,
}

impl Actor for Scheduler {
    type Args = SchedulerArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(Self {
            core: ReplaceableCore::new(args.core),
            device: args.device,
            cache: args.cache,
            cache_commands: CacheCommands::default(),
            sequences: Sequences::new(args.wakeup),
            supervision: args.supervision,
            steps: StepEvents::default(),
            telemetry: args.telemetry,
            aborted: None,
            aborts: Vec::new(),
            runtime: args.runtime,
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
            self.tell_aborts();
            let wakes_at = self.core.get().wakes_at();
            let wakes_at = wakes_at.map(|at| after(self.started_at, at));
            let wakes_at = wakes_at.into_iter().chain(self.device_deadline()).min();
            let is_broken = self.supervision.is_broken();
            tokio::select! {
                biased;
                answer = self.cache.next_answer(), if !is_broken => match answer {
                    Some(answer) => self.on_answer(answer),
                    None => self.give_up("the cache is gone"),
                },
                event = self.device.next_event() => self.on_device(event),
                () = self.sequences.woken() => self.check_flags(),
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
        if self.supervision.is_broken() {
            return Ok(ControlFlow::Break(ActorStopReason::Panicked(panic)));
        }
        self.rebuild();
        Ok(ControlFlow::Continue(()))
    }
}

/// Handlers of the events that wake the actor.
impl Scheduler {
    fn on_answer(&mut self, answer: CacheAnswer) {
        self.telemetry.cache(answer.stats);
        if matches!(answer.result, Err(CacheError::Lost)) {
            self.lose_cache(answer.suspect);
            if self.supervision.is_broken() {
                return;
            }
        }
        if !answer.is_reply {
            self.handle_event(Event::CacheEffects(answer.result.unwrap_or_default()));
            return;
        }
        self.cache.message_answered();
        self.handle_event(Event::Cache(answer.result));
    }

    fn on_device(&mut self, device_event: DeviceEvent) {
        match device_event {
            DeviceEvent::Outcome(outcome) => self.on_outcome(outcome),
            DeviceEvent::Dead => self.lose_device(Fault::DeviceDead),
            DeviceEvent::ReloadDue => self.device.load(Duration::ZERO),
            DeviceEvent::Loaded(Ok(())) => {
                self.supervision.loaded();
                self.device.loaded(self.now());
                self.telemetry.device_alive(true);
                self.handle_event(Event::DeviceFound);
            }
            DeviceEvent::Loaded(Err(error)) => {
                let reason = format!("the model cannot be loaded again: {error}");
                self.reload(Fault::DeviceUnloadable, &reason);
            }
        }
    }

    fn on_outcome(&mut self, outcome: Outcome) {
        self.device.work_finished(self.now());
        self.telemetry.outcome(&outcome);
        if let Some(step) = self.steps.finished(self.now(), &outcome) {
            self.telemetry.emit(|| EngineEvent::Step(Arc::new(step)));
        }
        let idle_before = self.core.get().stats().device_idle;
        self.handle_event(Event::Outcome(outcome));
        // A rebuilt core counts idle time from zero.
        let idle = self.core.get().stats().device_idle;
        self.telemetry.device_idle(idle.saturating_sub(idle_before));
    }

    /// Scans the flags of streams and sequences that found the mailbox full.
    fn check_flags(&mut self) {
        for sequence in self.sequences.cancelled() {
            self.stop(sequence);
        }
        for sequence in self.sequences.readable() {
            self.resume(sequence);
        }
        for sequence in self.sequences.masked() {
            self.check_mask(sequence);
        }
    }

    /// Handles a timer: a device that did not answer in time, or the core's own timers.
    fn on_clock(&mut self) {
        let now = Instant::now();
        match self.device_deadline() {
            Some(at) if at <= now => self.lose_device(Fault::DeviceStuck),
            _ => self.handle_event(Event::TimePassed),
        }
    }

    /// Returns when an unanswered device is given up.
    fn device_deadline(&self) -> Option<Instant> {
        Some(after(self.started_at, self.device.deadline()?))
    }

    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }
}

/// Events reach the core, and the core's effects the other parts.
impl Scheduler {
    /// Tells shutdowns that no sequence is left, once that is so.
    fn tell_aborts(&mut self) {
        if self.supervision.is_broken() || !self.core.get().is_handing_over() {
            self.aborts.clear();
        }
    }

    /// Passes an event to the core and applies its effects. A panic in either discards the
    /// core.
    fn handle_event(&mut self, event: Event) {
        if self.supervision.is_broken() {
            return self.fail_all_sequences();
        }
        if !self.runtime.has_recovery() {
            return self.advance(event);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| self.advance(event)));
        if outcome.is_err() {
            self.rebuild();
        }
    }

    /// Passes an event to the core and applies its effects.
    fn advance(&mut self, event: Event) {
        self.runtime.on_message(Part::Scheduler, &event);
        self.runtime.on_scheduler_event(&event);
        let drafts_before = self.core.get().stats().drafts;
        let effects = self.core.handle(self.started_at.elapsed(), event);
        self.runtime.check(|| self.core.get().check_integrity());
        self.runtime.on_scheduler_effects(&effects);
        self.runtime.fail_here(Part::Scheduler, self.core.at());
        // Reported before any sequence's end, so that the sums include the end.
        let stats = self.core.get().stats();
        self.telemetry.scheduler(stats);
        self.telemetry.drafted(stats.drafts.since(drafts_before));
        let is_token = |effect: &&Effect| matches!(effect, Effect::Token(..));
        self.telemetry
            .sampled(effects.iter().filter(is_token).count());
        let mut follow_up = FollowUp::default();
        for effect in effects {
            self.apply(effect, &mut follow_up);
        }
        self.core.end_event();
        self.cache.send_queued();
        self.follow_up(follow_up);
    }

    fn apply(&mut self, effect: Effect, follow_up: &mut FollowUp) {
        match effect {
            Effect::Cache(message) => self.cache.queue(message),
            Effect::Work(work) => self.send_work(work),
            Effect::Token(sequence, token, logprobs) => {
                let is_recorded = self.runtime.has_recovery();
                let sequences = &mut self.sequences;
                if sequences.send_token(sequence, token, logprobs, is_recorded) {
                    follow_up.full.push(sequence);
                }
            }
            Effect::Preempted(sequence) => self.telemetry.preempted(sequence),
            Effect::AwaitMask(sequence) => follow_up.awaits_mask.push(sequence),
            Effect::Started {
                sequence,
                prompt_tokens,
                cached_tokens,
                miss,
            } => {
                let sequence_event = SequenceEvent::Started {
                    prompt_tokens,
                    cached_tokens,
                    miss,
                };
                self.sequences.deliver(sequence, sequence_event);
            }
            Effect::Prefilled(sequence, tokens) => {
                let sequence_event = SequenceEvent::Prefilled(tokens);
                self.sequences.deliver(sequence, sequence_event);
            }
            Effect::PromptLogprobs(sequence, first, logprobs) => {
                let sequence_event = SequenceEvent::PromptLogprobs(first, logprobs);
                self.sequences.deliver(sequence, sequence_event);
            }
            Effect::HiddenSum(sequence, rows, sum) => {
                let sequence_event = SequenceEvent::HiddenSum(rows, sum);
                self.sequences.deliver(sequence, sequence_event);
            }
            Effect::Shifted(sequence, tokens) => {
                let sequence_event = SequenceEvent::Shifted(tokens);
                self.sequences.deliver(sequence, sequence_event);
            }
            Effect::Predicted(sequence) => self.sequences.predicted(sequence),
            Effect::Forked {
                sequence,
                source,
                at,
            } => self.telemetry.forked(sequence, source, at),
            Effect::CommandDone(command_id, result) => {
                let unwanted = self.cache_commands.answer(command_id, result);
                follow_up.unwanted.extend(unwanted);
            }
            Effect::Finished(sequence, reason) => {
                let sequence_event = SequenceEvent::Finished(reason);
                self.sequences.end(sequence, sequence_event);
            }
            Effect::Failed(sequence, error) => {
                self.sequences.end(sequence, SequenceEvent::Failed(error));
            }
        }
    }

    fn send_work(&mut self, work: Work) {
        self.telemetry.work(&work);
        let is_watched = self.telemetry.is_watched();
        let slot_owners = is_watched.then(|| self.core.get().slot_owners());
        self.steps.submitted(&work, slot_owners);
        self.device.send(self.started_at.elapsed(), work);
    }

    fn follow_up(&mut self, follow_up: FollowUp) {
        for sequence in follow_up.full {
            // The last token may have reached the limit as well.
            if self.sequences.pause(sequence) {
                self.handle_event(Event::Pause(sequence));
            }
        }
        for sequence in follow_up.awaits_mask {
            if self.sequences.await_mask(sequence) {
                self.check_mask(sequence);
            }
        }
        for pin in follow_up.unwanted {
            let (reply, _) = oneshot::channel();
            self.run_cache_command(CacheCommand {
                message: cache::Message::Unpin { pin },
                reply,
                permit: None,
            });
        }
    }

    fn stop(&mut self, sequence: SequenceId) {
        if self.sequences.stop(sequence) {
            self.handle_event(Event::Stop(sequence));
        }
    }

    fn resume(&mut self, sequence: SequenceId) {
        if self.sequences.resume(sequence) {
            self.handle_event(Event::Resume(sequence));
        }
    }

    fn check_mask(&mut self, sequence: SequenceId) {
        if let Some(gate) = self.sequences.check_mask(sequence) {
            self.handle_event(Event::Mask(sequence, gate));
        }
    }

    fn run_cache_command(&mut self, cache_command: CacheCommand) {
        let event = self.cache_commands.register(cache_command);
        self.handle_event(event);
    }
}
