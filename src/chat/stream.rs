//! The events of one answer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use motet_protocol::GenerateError;

use super::{Answer, AnswerReader, ChatEvent};
use crate::handle::SequenceHandle;
use crate::stream::TokenStream;

/// The events of one answer as they are generated.
///
/// As of a [`TokenStream`]: dropping it cancels the answer, and not reading it pauses this answer and
/// no other. It is also a [`Stream`] of the same items as [`next`](ChatStream::next).
#[derive(Debug)]
pub struct ChatStream {
    tokens: TokenStream,
    reader: AnswerReader,
    /// Events that have been read and not returned.
    pending: VecDeque<ChatEvent>,
}

impl ChatStream {
    pub(super) fn new(tokens: TokenStream, reader: AnswerReader) -> Self {
        Self {
            tokens,
            reader,
            pending: VecDeque::new(),
        }
    }

    /// Returns a handle of the answer's sequence, which may be kept when the stream moves away.
    #[must_use]
    pub fn handle(&self) -> SequenceHandle {
        self.tokens.handle()
    }

    /// Returns the number of prompt tokens.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.tokens.prompt_tokens()
    }

    /// Returns the next event, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`GenerateError`] when the sequence ends before the answer is whole. The error is then the
    /// last item.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: an event is either returned or stays for the next call.
    pub async fn next(&mut self) -> Option<Result<ChatEvent, GenerateError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Waits for the rest of the answer and returns it.
    ///
    /// # Errors
    ///
    /// [`GenerateError`] when the sequence ends before the answer is whole.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the stream, and so cancels the answer.
    pub async fn collect(mut self) -> Result<Answer, GenerateError> {
        let mut answer = Answer::default();
        while let Some(event) = self.next().await {
            answer.add(event?);
        }
        Ok(answer)
    }
}

impl Stream for ChatStream {
    type Item = Result<ChatEvent, GenerateError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let piece = match ready!(Pin::new(&mut self.tokens).poll_next(cx)) {
                Some(Ok(piece)) => piece,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
            let events = self.reader.read(piece);
            self.pending.extend(events);
            if self.reader.is_complete() {
                // Only the first call of it counts.
                self.tokens.handle.cancel();
            }
        }
    }
}
