//! The handle of a running sequence.

use std::sync::Arc;

use kameo::actor::WeakActorRef;
use tokio::sync::{Notify, oneshot, watch};

use crate::actors::scheduler::{AskQueuePosition, Resume, Scheduler};
use crate::actors::sequence::Ended;
use crate::actors::sequence::Stop;
use crate::request::{Milestones, SequenceTimes};
use motet_protocol::SequenceId;
use motet_protocol::{ContextLimit, Finish, GenerateError, QueuePosition};
use motet_sync::cancel::CancelFlag;

/// A handle of one sequence, for all that its [stream](crate::TokenStream) is not needed for:
/// cancel it, [fork](crate::Engine::fork) it, ask for its position in the queue, learn its usage.
///
/// Clones are cheap and mean the same sequence. A handle stays with the server while the stream
/// moves into a response body:
///
/// ```
/// # async fn example(engine: &motet::Engine) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = engine.submit(motet::Request::tokens([1, 2, 3])).await?;
/// let sequence = stream.handle();
/// tokio::spawn(async move {
///     // Also after a client has gone, and its stream has been dropped.
///     let finish = sequence.finished().await;
///     println!("{finish:?}");
/// });
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// The stream alone keeps its sequence alive: dropping the stream cancels the sequence, however
/// many handles there are. Dropping a handle has no effect.
#[derive(Clone, Debug)]
pub struct SequenceHandle {
    sequence: SequenceId,
    at_context_limit: ContextLimit,
    cancel: CancelFlag,
    scheduler: WeakActorRef<Scheduler>,
    wakeup: Arc<Notify>,
    ended: watch::Receiver<Ended>,
    milestones: Arc<Milestones>,
}

impl SequenceHandle {
    pub(crate) fn new(
        sequence: SequenceId,
        at_context_limit: ContextLimit,
        cancel: CancelFlag,
        scheduler: WeakActorRef<Scheduler>,
        wakeup: Arc<Notify>,
        ended: watch::Receiver<Ended>,
        milestones: Arc<Milestones>,
    ) -> Self {
        Self {
            sequence,
            at_context_limit,
            cancel,
            scheduler,
            wakeup,
            ended,
            milestones,
        }
    }

    /// Returns the sequence's id, unique within the engine.
    #[must_use]
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Cancels the sequence. It leaves the device by the next step boundary, and what it held is
    /// freed. Its stream then ends with [`FinishReason::Cancelled`], after the tokens that were
    /// generated before, unless the sequence ends or fails by itself before the scheduler learns of
    /// the call. [`finished`](Self::finished) returns the same finish.
    ///
    /// Returns false if the sequence had ended or been cancelled before.
    ///
    /// [`FinishReason::Cancelled`]: motet_protocol::FinishReason::Cancelled
    #[doc(alias = "abort")]
    pub fn cancel(&self) -> bool {
        let is_first = self.cancel.cancel();
        if is_first && let Some(scheduler) = self.scheduler.upgrade() {
            // A full mailbox means that the scheduler is awake; the wakeup makes it scan the
            // flags.
            if scheduler.tell(Stop(self.sequence)).try_send().is_err() {
                self.wakeup.notify_one();
            }
        }
        is_first
    }

    /// Waits for the end of the sequence and returns its finish, with reason and usage. Returns
    /// at once if the sequence has ended. Whether the stream was read or dropped does not matter,
    /// but a stream that is kept and not read pauses its sequence.
    ///
    /// # Errors
    ///
    /// [`GenerateError`] when the sequence ended without its whole output: the error that the
    /// stream gives.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn finished(&self) -> Result<Finish, GenerateError> {
        let mut ended = self.ended.clone();
        let ended = ended.wait_for(Option::is_some).await;
        let ended = ended.map_err(|_| GenerateError::Lost)?;
        ended.clone().expect("it was awaited")
    }

    /// Returns when the sequence reached its stages, as far as it has. The times count from the
    /// moment at which the request was admitted and tokenised.
    #[must_use]
    pub fn times(&self) -> SequenceTimes {
        self.milestones.times()
    }

    /// Returns the sequence's position in the queue; `None` once it has started or ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn queue_position(&self) -> Option<QueuePosition> {
        let scheduler = self.scheduler.upgrade()?;
        let (reply, position) = oneshot::channel();
        let ask = AskQueuePosition {
            sequence: self.sequence,
            reply,
        };
        scheduler.tell(ask).send().await.ok()?;
        position.await.ok()?
    }

    /// Tells the scheduler that the reader has caught up with this sequence.
    pub(crate) fn resume(&self) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            // As in `cancel`.
            if scheduler.tell(Resume(self.sequence)).try_send().is_err() {
                self.wakeup.notify_one();
            }
        }
    }

    /// Whether the sequence belongs to the engine with this scheduler.
    pub(crate) fn belongs_to(&self, scheduler: kameo::actor::ActorId) -> bool {
        self.scheduler.id() == scheduler
    }

    /// Behaviour of the sequence and its forks when the context is full.
    pub(crate) fn at_context_limit(&self) -> ContextLimit {
        self.at_context_limit
    }

    /// The flag that the stream, the scheduler and the sequence actor share.
    pub(crate) fn cancel_flag(&self) -> CancelFlag {
        self.cancel.clone()
    }
}

/// Lets a fork take a handle or a reference to one.
impl AsRef<SequenceHandle> for SequenceHandle {
    fn as_ref(&self) -> &SequenceHandle {
        self
    }
}
