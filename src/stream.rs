//! The caller's end of a sequence.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use kameo::actor::WeakActorRef;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::actors::scheduler::{AskQueuePosition, Resume, Scheduler, Stop};
use crate::actors::sequence::Output;
use crate::request::{Completion, Piece};
use motet_core::SequenceId;
use motet_core::protocol::{ContextLimit, Finish, GenerateError, QueuePosition};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;

/// The tokens of one sequence as they are generated, with their text.
///
/// Dropping the stream cancels the sequence: it leaves the device by the next step boundary,
/// and everything it held is freed. State that it computed may stay in the cache for other
/// sequences.
///
/// A stream that is not read pauses its own sequence and no other, once the sequence is
/// `scheduler.unread_tokens_max` tokens ahead. Reading resumes it.
///
/// It is also a [`Stream`] of the same items as [`next`](TokenStream::next).
#[derive(Debug)]
pub struct TokenStream {
    pub(crate) sequence: SequenceId,
    pub(crate) prompt_tokens: usize,
    pub(crate) output: mpsc::Receiver<Output>,
    pub(crate) cancel: CancelFlag,
    pub(crate) credits: Credits,
    pub(crate) scheduler: WeakActorRef<Scheduler>,
    pub(crate) wakeup: Arc<Notify>,
    /// Behaviour of the sequence and its forks when the context is full.
    pub(crate) at_limit: ContextLimit,
    /// The stream of the sequence that this one replaces, held until this one's first output.
    pub(crate) replaced: Option<Box<TokenStream>>,
    pub(crate) finish: Option<Finish>,
    pub(crate) is_finished: bool,
}

impl TokenStream {
    /// Returns the sequence's id, unique within the engine.
    #[must_use]
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Returns the number of prompt tokens, after template and tokenising; for a fork, the
    /// tokens that it appends.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Returns the next piece, or `None` when the sequence has finished. Then
    /// [`finish`](TokenStream::finish) says how it ended.
    ///
    /// # Errors
    ///
    /// [`GenerateError`] when the sequence ends without its whole output; it is the last item.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a piece is either returned or stays for the next call.
    pub async fn next(&mut self) -> Option<Result<Piece, GenerateError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Returns how the sequence ended. `None` before [`next`](TokenStream::next) has returned
    /// `None`, and after an error.
    #[must_use]
    pub fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// Returns the sequence's position in the queue; `None` once it has started or finished.
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

    /// Waits for the whole output and returns it.
    ///
    /// # Errors
    ///
    /// [`GenerateError`] when the sequence ends without its whole output.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the stream, and so cancels the sequence.
    pub async fn collect(mut self) -> Result<Completion, GenerateError> {
        let (mut tokens, mut text, mut logprobs) = (Vec::new(), String::new(), Vec::new());
        while let Some(piece) = self.next().await {
            let piece = piece?;
            tokens.extend(piece.token);
            text.push_str(&piece.text);
            logprobs.extend(piece.logprobs);
        }
        let finish = self.finish.ok_or(GenerateError::Lost)?;
        Ok(Completion {
            tokens,
            text,
            logprobs,
            finish,
        })
    }
}

impl TokenStream {
    /// Tells the scheduler that the reader has caught up with this sequence.
    fn resume(&self) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            // A full mailbox means that the scheduler is awake; the wakeup makes it scan the
            // flags.
            if scheduler.tell(Resume(self.sequence)).try_send().is_err() {
                self.wakeup.notify_one();
            }
        }
    }
}

impl Stream for TokenStream {
    type Item = Result<Piece, GenerateError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_finished {
            return Poll::Ready(None);
        }
        let output = ready!(self.output.poll_recv(cx));
        self.replaced = None;
        let item = match output {
            Some(Output::Piece(piece)) => {
                if piece.token.is_some() && self.credits.read() {
                    self.resume();
                }
                return Poll::Ready(Some(Ok(piece)));
            }
            Some(Output::Finish(finish)) => {
                self.finish = Some(finish);
                None
            }
            Some(Output::Failed(error)) => Some(Err(error)),
            None => Some(Err(GenerateError::Lost)),
        };
        self.is_finished = true;
        Poll::Ready(item)
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if self.cancel.cancel()
            && let Some(scheduler) = self.scheduler.upgrade()
        {
            // A full mailbox means that the scheduler is awake; the wakeup makes it scan the
            // flags.
            if scheduler.tell(Stop(self.sequence)).try_send().is_err() {
                self.wakeup.notify_one();
            }
        }
    }
}
