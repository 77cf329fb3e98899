//! A connection's socket, which HTTP reads and writes while another part watches it.
//!
//! A socket that is closed with unread bytes in it discards what was written last. This one stops
//! writing first, and discards what the client still sends until the client closes too, within
//! [`FAREWELL_TIME`] and [`FAREWELL_BYTES`]. Otherwise a client whose headers or body are too long
//! would not see that answer.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Sleep, sleep};

/// Longest time for a client to close its side once the server has closed its own.
const FAREWELL_TIME: Duration = Duration::from_secs(1);
/// Most bytes that are discarded in that time.
const FAREWELL_BYTES: usize = 1 << 20;
/// Bytes that are discarded at once.
const DISCARDED_BYTES: usize = 8 << 10;
/// Interval at which a client's presence is checked where the system does not report its end apart
/// from bytes that are not read.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// On Linux, this reports a closed socket and no readable bytes: urgent bytes are not asked for.
#[cfg(target_os = "linux")]
const CLOSED: Interest = Interest::PRIORITY;
#[cfg(not(target_os = "linux"))]
const CLOSED: Interest = Interest::READABLE;

pub(crate) struct Socket {
    reader: Arc<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    farewell: Option<Farewell>,
}

/// The client's side of a socket.
pub(crate) struct ClientSide(Arc<OwnedReadHalf>);

/// The bytes and the time that a client has left once the server's side is closed.
struct Farewell {
    end: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl Socket {
    pub(crate) fn new(socket: TcpStream) -> Self {
        let (reader, writer) = socket.into_split();
        Self {
            reader: Arc::new(reader),
            writer,
            farewell: None,
        }
    }

    pub(crate) fn client_side(&self) -> ClientSide {
        ClientSide(Arc::clone(&self.reader))
    }

    /// Discards what comes, until the client closes or has had its time.
    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let farewell = self.farewell.get_or_insert_with(|| Farewell {
            end: Box::pin(sleep(FAREWELL_TIME)),
            bytes_left: FAREWELL_BYTES,
        });
        let mut discarded = [0; DISCARDED_BYTES];
        while farewell.bytes_left > 0 {
            let mut discarded = ReadBuf::new(&mut discarded);
            match poll_read(&self.reader, cx, &mut discarded) {
                Poll::Ready(Ok(())) if discarded.filled().is_empty() => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {
                    let read = discarded.filled().len();
                    farewell.bytes_left = farewell.bytes_left.saturating_sub(read);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return farewell.end.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }
}

impl ClientSide {
    /// Returns when the client has closed its side, even if bytes before that are not read.
    pub(crate) async fn closed(&self) {
        loop {
            match self.0.ready(CLOSED).await {
                Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(CHECK_INTERVAL).await,
                Ok(_) | Err(_) => return,
            }
        }
    }
}

fn poll_read(
    reader: &OwnedReadHalf,
    cx: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<Result<()>> {
    let stream: &TcpStream = reader.as_ref();
    loop {
        ready!(stream.poll_read_ready(cx))?;
        match stream.try_read_buf(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return Poll::Ready(read.map(drop)),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        poll_read(&self.reader, cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.writer).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.farewell.is_none() {
            let closed = ready!(Pin::new(&mut self.writer).poll_shutdown(cx));
            closed.or_else(ignore_gone)?;
        }
        self.poll_farewell(cx).map(Ok)
    }
}

/// A client that is gone needs no farewell.
fn ignore_gone(error: Error) -> Result<()> {
    if error.kind() == ErrorKind::NotConnected {
        Ok(())
    } else {
        Err(error)
    }
}
