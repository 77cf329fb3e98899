//! The caller's end of a sequence.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::sync::mpsc;

use crate::actors::sequence::Output;
use crate::handle::SequenceHandle;
use crate::request::{Completion, MeanLogprob, Piece};
use crate::results::ResultsReservation;
use motet_protocol::SequenceId;
use motet_protocol::{GenerateError, QueuePosition};
use motet_sync::credits::Credits;

/// The tokens of one sequence as they are generated, with their text.
///
/// Dropping the stream cancels the sequence: it leaves the device by the next step boundary,
/// and everything it held is freed. State that it computed may stay in the cache for other
/// sequences. A [handle](TokenStream::handle) does not keep the sequence alive.
///
/// A stream that is not read pauses its own sequence and no other, once the sequence is
/// `scheduler.unread_tokens_max` tokens ahead. Reading resumes it.
///
/// It is also a [`Stream`] of the same items as [`next`](TokenStream::next).
#[derive(Debug)]
pub struct TokenStream {
    pub(crate) handle: SequenceHandle,
    pub(crate) prompt_tokens: usize,
    pub(crate) output: mpsc::Receiver<Output>,
    pub(crate) credits: Credits,
    /// The bytes of the results that it keeps, shared with the sequence and with the other outputs
    /// of the request.
    pub(crate) results: Arc<ResultsReservation>,
    /// The stream of the sequence that this one replaces, held until this one's first output.
    pub(crate) replaced: Option<Box<TokenStream>>,
    pub(crate) is_finished: bool,
}

impl TokenStream {
    /// Returns the sequence's id, unique within the engine.
    #[must_use]
    pub fn sequence(&self) -> SequenceId {
        self.handle.sequence()
    }

    /// Returns a handle of the sequence, which may be kept when the stream moves away.
    #[must_use]
    pub fn handle(&self) -> SequenceHandle {
        self.handle.clone()
    }

    /// Returns the number of prompt tokens, after template and tokenising; for a fork, the
    /// tokens that it appends.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Returns the bytes that are reserved for results of its request, until the stream is dropped. A
    /// caller that keeps the log probabilities of a prompt longer than the stream keeps this too.
    #[must_use]
    pub fn results(&self) -> Arc<ResultsReservation> {
        Arc::clone(&self.results)
    }

    /// Returns the next piece, or `None` after the last. The last piece of a whole output says
    /// how the sequence finished: [`Piece::finish`].
    ///
    /// # Errors
    ///
    /// [`GenerateError`] when the sequence ends without its whole output. The error is then the
    /// last item, and no piece has a finish.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a piece is either returned or stays for the next call.
    pub async fn next(&mut self) -> Option<Result<Piece, GenerateError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Returns the sequence's position in the queue; `None` once it has started or finished.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn queue_position(&self) -> Option<QueuePosition> {
        self.handle.queue_position().await
    }

    /// Waits for the rest of the output and returns it.
    ///
    /// # Errors
    ///
    /// [`GenerateError`] when the sequence ends without its whole output.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the stream, and so cancels the sequence.
    pub async fn collect(self) -> Result<Completion, GenerateError> {
        let (completion, _) = self.read_whole(true).await?;
        Ok(completion)
    }

    /// Reads the rest of the output, and the mean of its log probabilities; these themselves are kept
    /// only if `keeps_logprobs`.
    pub(crate) async fn read_whole(
        mut self,
        keeps_logprobs: bool,
    ) -> Result<(Completion, MeanLogprob), GenerateError> {
        let (mut tokens, mut text, mut logprobs) = (Vec::new(), String::new(), Vec::new());
        let mut mean = MeanLogprob::default();
        let (mut prompt_logprobs, mut embedding) = (Vec::new(), None);
        let mut finish = None;
        while let Some(piece) = self.next().await {
            let piece = piece?;
            tokens.extend(piece.token);
            text.push_str(&piece.text);
            for token in &piece.logprobs {
                mean.add(token.logprob);
            }
            if keeps_logprobs {
                logprobs.extend(piece.logprobs);
            }
            prompt_logprobs.extend(piece.prompt_logprobs);
            embedding = embedding.or(piece.embedding);
            finish = piece.finish;
        }
        // A caller may have read the last item before.
        let finish = match finish {
            Some(finish) => finish,
            None => self.handle.finished().await?,
        };
        let completion = Completion {
            tokens,
            text,
            logprobs,
            prompt_logprobs,
            embedding,
            finish,
        };
        Ok((completion, mean))
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
            Some(Output::Token {
                token,
                text,
                has_held_text,
                logprobs,
            }) => {
                if self.credits.read() {
                    self.handle.resume();
                }
                return Poll::Ready(Some(Ok(Piece {
                    token: Some(token),
                    text,
                    has_held_text,
                    logprobs,
                    ..Piece::default()
                })));
            }
            Some(Output::Piece(piece)) => return Poll::Ready(Some(Ok(*piece))),
            Some(Output::Ended(ended)) => ended.map(|finish| Piece {
                finish: Some(finish),
                ..Piece::default()
            }),
            None => Err(GenerateError::Lost),
        };
        self.is_finished = true;
        Poll::Ready(Some(item))
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.handle.cancel();
    }
}

/// Lets a fork take a stream or a handle.
impl AsRef<SequenceHandle> for TokenStream {
    fn as_ref(&self) -> &SequenceHandle {
        &self.handle
    }
}
