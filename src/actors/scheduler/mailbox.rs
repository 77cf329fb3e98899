//! Messages from callers and sequences to the scheduler.

use kameo::actor::ActorRef;
use kameo::message::{Context, Message};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Scheduler;
use super::sequence_actor_handle::{SequenceActorHandle, Start};
use crate::actors::sequence::{SequenceActor, SequenceEvent, Stop};
use motet_core::cache::{self, CacheError};
use motet_core::scheduler::{self, Event, Submission};
use motet_core::snapshot::SchedulerSnapshot;
use motet_protocol::SequenceId;
use motet_protocol::{GenerateError, QueuePosition};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;

/// A new sequence, with its actor.
pub(crate) struct Submit {
    pub(crate) submission: Submission,
    pub(crate) actor: ActorRef<SequenceActor>,
    pub(crate) cancel: CancelFlag,
    pub(crate) credits: Credits,
}

/// A new sequence that continues another, with its actor.
pub(crate) struct Fork {
    pub(crate) fork: scheduler::Fork,
    pub(crate) actor: ActorRef<SequenceActor>,
    pub(crate) cancel: CancelFlag,
    pub(crate) credits: Credits,
}

/// New sequences with the same prompt, all or none: the first as submitted, the others as forks
/// of the first at the end of its prompt.
pub(crate) struct SubmitMany {
    pub(crate) first: Submit,
    /// Submissions with empty prompts.
    pub(crate) forks: Vec<Submit>,
}

/// A caller's command for the cache.
pub(crate) struct CacheCommand {
    pub(crate) message: cache::Message,
    pub(crate) reply: oneshot::Sender<Result<(), CacheError>>,
    /// The caller's permit to send commands, released with the answer.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// Resumes a sequence, if it was paused: its caller has caught up.
pub(crate) struct Resume(pub(crate) SequenceId);

/// A request for a sequence's position in the queue.
pub(crate) struct AskQueuePosition {
    pub(crate) sequence: SequenceId,
    pub(crate) reply: oneshot::Sender<Option<QueuePosition>>,
}

/// A request for the scheduler's part of a snapshot.
pub(crate) struct TakeSchedulerSnapshot {
    pub(crate) reply: oneshot::Sender<SchedulerSnapshot>,
}

/// Ends all sequences.
pub(crate) struct Abort {
    pub(crate) how: AbortKind,
    /// Dropped when they have ended.
    pub(crate) ended: oneshot::Sender<()>,
}

/// How sequences are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortKind {
    /// Now.
    Now,
    /// When the steps in flight have finished: they go on elsewhere.
    HandOver,
}

impl AbortKind {
    pub(super) fn event(self) -> Event {
        match self {
            Self::Now => Event::Abort,
            Self::HandOver => Event::HandOver,
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
            self.fork(Fork {
                fork: scheduler::Fork {
                    source,
                    at: Some(prompt_tokens),
                    replaces: false,
                    submission: fork.submission,
                },
                actor: fork.actor,
                cancel: fork.cancel,
                credits: fork.credits,
            });
        }
    }
}

impl Message<Resume> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, Resume(sequence): Resume, _ctx: &mut Context<Self, Self::Reply>) {
        self.resume(sequence);
    }
}

impl Message<AskQueuePosition> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, ask: AskQueuePosition, _ctx: &mut Context<Self, Self::Reply>) {
        // The receiver may have gone.
        ask.reply
            .send(self.core.get().queue_position(ask.sequence))
            .ok();
    }
}

impl Message<TakeSchedulerSnapshot> for Scheduler {
    type Reply = ();

    async fn handle(
        &mut self,
        request: TakeSchedulerSnapshot,
        _ctx: &mut Context<Self, Self::Reply>,
    ) {
        // The receiver may have gone.
        request.reply.send(self.core.get().snapshot()).ok();
    }
}

impl Message<Fork> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, fork: Fork, _ctx: &mut Context<Self, Self::Reply>) {
        self.fork(fork);
    }
}

impl Message<CacheCommand> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, cache_command: CacheCommand, _ctx: &mut Context<Self, Self::Reply>) {
        self.run_cache_command(cache_command);
    }
}

impl Message<Stop> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, Stop(sequence): Stop, _ctx: &mut Context<Self, Self::Reply>) {
        self.stop(sequence);
    }
}

impl Message<Abort> for Scheduler {
    type Reply = ();

    async fn handle(&mut self, abort: Abort, _ctx: &mut Context<Self, Self::Reply>) {
        // Sequences that have ended are not handed over any more.
        let how = self.aborted.filter(|how| *how == AbortKind::Now);
        let how = how.unwrap_or(abort.how);
        self.aborted = Some(how);
        self.aborts.push(abort.ended);
        self.handle_event(how.event());
    }
}

impl Scheduler {
    fn submit(&mut self, submit: Submit) {
        let sequence = submit.submission.sequence;
        let so_far = submit.submission.output_so_far.len();
        let start = Start::Submitted(submit.submission.clone());
        let handle = SequenceActorHandle::new(start, submit.actor, submit.cancel, submit.credits);
        self.sequences.insert(sequence, handle);
        if let Some(how) = self.aborted {
            return self.end_aborted(sequence, how, so_far);
        }
        self.handle_event(Event::Submit(submit.submission));
        self.stop_if_cancelled(sequence);
    }

    fn fork(&mut self, fork: Fork) {
        let sequence = fork.fork.submission.sequence;
        let start = Start::Forked(fork.fork.clone());
        let handle = SequenceActorHandle::new(start, fork.actor, fork.cancel, fork.credits);
        self.sequences.insert(sequence, handle);
        if let Some(how) = self.aborted {
            return self.end_aborted(sequence, how, 0);
        }
        self.handle_event(Event::Fork(fork.fork));
        self.record_start(sequence);
        self.stop_if_cancelled(sequence);
    }

    /// Fails a sequence that was admitted before the engine closed its admission, and that
    /// arrived after all others were aborted. Its output has so many tokens.
    fn end_aborted(&mut self, sequence: SequenceId, how: AbortKind, output_tokens: usize) {
        let error = match how {
            AbortKind::Now => GenerateError::Shutdown,
            AbortKind::HandOver => GenerateError::HandedOver { output_tokens },
        };
        self.sequences.end(sequence, SequenceEvent::Failed(error));
    }

    /// Stops a sequence whose caller has already gone. Its wakeup may have come before this
    /// handle existed.
    fn stop_if_cancelled(&mut self, sequence: SequenceId) {
        if self.sequences.is_cancelled(sequence) {
            self.stop(sequence);
        }
    }
}
