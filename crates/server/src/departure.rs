//! Notices a client that disconnects while its request is answered.
//!
//! HTTP sees the end of a connection when it reads, and it does not read while bytes of a further
//! request wait in its buffer. One byte after a body would keep a sequence running for a client
//! that is gone. The socket is therefore watched beside HTTP.
//!
//! A client that only closes its writing side has disconnected too: it cannot be told from one
//! that is gone. Its request is still read to the end, so that an answer that is ready by then, as
//! an error is, gets sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;

use crate::socket::ClientSide;

/// Whether a connection has a request that was read and not answered in full.
#[derive(Clone)]
pub(crate) struct Answering(Arc<watch::Sender<bool>>);

/// A body that notes its end: of a request when answering begins, of an answer when it ends.
pub(crate) struct NotedBody<B> {
    body: B,
    answering: Answering,
    /// The value after this body.
    then: bool,
}

impl Answering {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Wraps the body of a request.
    pub(crate) fn begin_after<B>(&self, body: B) -> NotedBody<B> {
        self.note(body, true)
    }

    /// Wraps the body of an answer.
    pub(crate) fn end_after<B>(&self, body: B) -> NotedBody<B> {
        self.note(body, false)
    }

    fn note<B>(&self, body: B, then: bool) -> NotedBody<B> {
        NotedBody {
            body,
            answering: self.clone(),
            then,
        }
    }

    /// Returns when the client has disconnected and an answer would not reach it. A client that
    /// disconnects at any other time is left to HTTP.
    pub(crate) async fn abandoned(self, client: ClientSide) {
        client.closed().await;
        let mut answering = self.0.subscribe();
        let begun = answering.wait_for(|answering| *answering).await;
        begun.map(drop).expect("this has the sender");
    }
}

impl<B: Body + Unpin> Body for NotedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for NotedBody<B> {
    fn drop(&mut self) {
        self.answering.0.send_replace(self.then);
    }
}
