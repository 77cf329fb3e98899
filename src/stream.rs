//! The caller's end of a sequence.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use kameo::actor::WeakActorRef;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::actors::scheduler::{AskPlace, Resume, Scheduler, Stop};
use crate::actors::sequence::Output;
use crate::request::{Completion, Piece};
use motet_core::SequenceId;
use motet_core::protocol::{ContextLimit, Finish, GenerateError, QueuePlace};
use motet_sync::cancel::CancelWord;
use motet_sync::credits::Credits;

/// The tokens of one sequence as they come, with their text.
///
/// Dropping it cancels the sequence: by the next step boundary it runs no more and
/// everything it held is given back. What it computed may still serve others.
///
/// A stream that is not read pauses its sequence, and nobody else's, once it is
/// `scheduler.unread_tokens_max` tokens ahead; reading wakes it.
///
/// It is also a [`Stream`] of the same items as [`next`](TokenStream::next).
#[derive(Debug)]
pub struct TokenStream {
    pub(crate) sequence: SequenceId,
    pub(crate) prompt_tokens: usize,
    pub(crate) output: mpsc::Receiver<Output>,
    pub(crate) cancel: CancelWord,
    pub(crate) credits: Credits,
    pub(crate) scheduler: WeakActorRef<Scheduler>,
    pub(crate) doorbell: Arc<Notify>,
    /// What it does when its context is full, and its forks do too.
    pub(crate) at_limit: ContextLimit,
    /// The stream of the sequence that it has taken the place of, until it is heard of itself.
    pub(crate) replaced: Option<Box<TokenStream>>,
    pub(crate) finish: Option<Finish>,
    pub(crate) over: bool,
}

impl TokenStream {
    /// The sequence's name, unique within the engine.
    #[must_use]
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Tokens of the prompt, after templates and tokenising; of a fork, those that it
    /// appends.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The next piece; none when the sequence is over, and then
    /// [`finish`](TokenStream::finish) says how it ended.
    ///
    /// # Errors
    ///
    /// [`GenerateError`] when it ends without its whole output; it is the last item.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a piece is either returned or stays for the next call.
    pub async fn next(&mut self) -> Option<Result<Piece, GenerateError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// How the sequence ended; none before [`next`](TokenStream::next) has
    /// returned none, or when it ended in an error.
    #[must_use]
    pub fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// Where the sequence stands in the queue; none once it has started, or is over.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only asks.
    pub async fn queue_place(&self) -> Option<QueuePlace> {
        let scheduler = self.scheduler.upgrade()?;
        let (reply, place) = oneshot::channel();
        let ask = AskPlace {
            sequence: self.sequence,
            reply,
        };
        scheduler.tell(ask).send().await.ok()?;
        place.await.ok()?
    }

    /// Waits for the whole output.
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
    /// Tells the scheduler that this sequence has caught up with its reader.
    fn resume(&self) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            // A full mailbox means that the scheduler is awake; it will hear the bell.
            if scheduler.tell(Resume(self.sequence)).try_send().is_err() {
                self.doorbell.notify_one();
            }
        }
    }
}

impl Stream for TokenStream {
    type Item = Result<Piece, GenerateError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
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
        self.over = true;
        Poll::Ready(item)
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if self.cancel.cancel()
            && let Some(scheduler) = self.scheduler.upgrade()
        {
            // A full mailbox means that the scheduler is awake; it will hear the bell.
            if scheduler.tell(Stop(self.sequence)).try_send().is_err() {
                self.doorbell.notify_one();
            }
        }
    }
}
