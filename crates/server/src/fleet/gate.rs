//! A gate before a ZeroMQ socket, which bounds what its readers can take of the server.
//!
//! The `zeromq` crate (0.7) has no limits of its own: it reserves as many bytes as a frame
//! announces, so that ten bytes could end this process, it keeps every subscription and every frame of
//! a message that goes on, and it queues 100,000 batches for a reader that does not read. Its socket
//! therefore listens on loopback, and readers reach it through here.
//!
//! | limit | against |
//! |---|---|
//! | number of readers | descriptors, and a queue of each |
//! | bytes of a message | frames that announce too much, and messages that go on |
//! | bytes of all messages of a reader, at the publisher | subscriptions without end |
//! | time for written data to be read | queues of readers that do not read |
//! | time for a reader's introduction | connections that send nothing |
//! | time without a sign of the reader's machine | connections whose other end is gone |

use std::io::{Error, ErrorKind, Result as IoResult};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use zeromq::{Endpoint, Socket};

/// Most readers of one socket.
const READERS_MAX: usize = 64;
/// Longest message of a reader. A subscription is a topic, and a question is a number.
const MESSAGE_BYTES_MAX: u64 = 4 << 10;
/// A reader that takes no data for this time is disconnected. It sees by the numbers what it has
/// missed.
const UNREAD_TIME: Duration = Duration::from_secs(30);
/// A reader that has not introduced itself within this time is disconnected.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// A connection that is idle for this time is probed. A reader may have nothing to say for as long as
/// it likes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// Time between two probes. The system ends a connection after several without an answer.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// Time after which a failed accept is tried again.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Bytes with which each side introduces itself.
const GREETING_BYTES: usize = 64;
/// Flags of a frame.
const MORE: u8 = 1;
const LONG: u8 = 2;
/// Not kept: a heartbeat, for example.
const COMMAND: u8 = 4;

/// The open gate. Dropping it closes all connections through it.
pub(super) struct Gate {
    /// Where readers connect.
    pub(super) address: String,
    _readers: JoinSet<()>,
}

/// Opens a gate at `requested` before this socket, which is bound. `message_bytes_max` is the most
/// that one reader may send in all of its messages.
///
/// # Errors
///
/// When the address is none, or cannot be listened at.
pub(super) async fn open(
    requested: &str,
    socket: &mut impl Socket,
    message_bytes_max: u64,
) -> Result<Gate> {
    let Endpoint::Tcp(host, port) = requested.parse::<Endpoint>()? else {
        bail!("expected an address such as tcp://127.0.0.1:5557");
    };
    let listener = TcpListener::bind((host.to_string(), port)).await?;
    let port = listener.local_addr().context("it has no port")?.port();
    let inner = socket.bind("tcp://127.0.0.1:0").await?;
    let Endpoint::Tcp(_, inner) = inner else {
        bail!("the socket is not on loopback");
    };
    let inner = SocketAddr::from((Ipv4Addr::LOCALHOST, inner));
    let mut readers = JoinSet::new();
    readers.spawn(accept(listener, inner, message_bytes_max));
    Ok(Gate {
        address: Endpoint::Tcp(host, port).to_string(),
        _readers: readers,
    })
}

async fn accept(listener: TcpListener, inner: SocketAddr, message_bytes_max: u64) {
    let permits = Arc::new(Semaphore::new(READERS_MAX));
    let mut readers = JoinSet::new();
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        while readers.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((reader, from)) => {
                readers.spawn(async move {
                    if let Err(error) = relay(reader, inner, message_bytes_max).await {
                        tracing::debug!(%error, %from, "a reader of KV events was disconnected");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a reader of KV events cannot connect");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Passes bytes on in both directions until a side ends.
async fn relay(reader: TcpStream, inner: SocketAddr, message_bytes_max: u64) -> IoResult<()> {
    probe_when_idle(&reader)?;
    let socket = TcpStream::connect(inner).await?;
    // Batches and questions are sent at once. A connection without this works too.
    reader.set_nodelay(true).and(socket.set_nodelay(true)).ok();
    let mut reader = TimeoutStream::new(reader);
    reader.set_write_timeout(Some(UNREAD_TIME));
    let (mut from_reader, mut to_reader) = tokio::io::split(Box::pin(reader));
    let (mut from_socket, mut to_socket) = socket.into_split();
    tokio::select! {
        passed = pass_messages(&mut from_reader, &mut to_socket, message_bytes_max) => passed,
        copied = tokio::io::copy(&mut from_socket, &mut to_reader) => copied.map(drop),
    }
}

/// Has the system find out when the other end is gone without a word.
fn probe_when_idle(reader: &TcpStream) -> IoResult<()> {
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER);
    let probes = probes.with_interval(PROBE_INTERVAL);
    SockRef::from(reader).set_tcp_keepalive(&probes)
}

/// Passes a reader's greeting and its frames on, as long as they are within the limits.
async fn pass_messages(
    reader: &mut (impl AsyncRead + Unpin),
    socket: &mut (impl AsyncWrite + Unpin),
    message_bytes_max: u64,
) -> IoResult<()> {
    let mut messages = Messages::new(message_bytes_max);
    // The first frame is the rest of the introduction: a reader sends it at once.
    let introduction = timeout(HANDSHAKE_TIME, async {
        let mut greeting = [0; GREETING_BYTES];
        reader.read_exact(&mut greeting).await?;
        socket.write_all(&greeting).await?;
        messages.pass_frame(reader, socket).await
    });
    introduction.await??;
    loop {
        messages.pass_frame(reader, socket).await?;
    }
}

/// The bytes that a reader has sent, and its limit.
#[derive(Debug)]
struct Messages {
    all_bytes: u64,
    all_bytes_max: u64,
    /// Bytes of the message that goes on.
    message_bytes: u64,
}

impl Messages {
    fn new(all_bytes_max: u64) -> Self {
        Self {
            all_bytes: 0,
            all_bytes_max,
            message_bytes: 0,
        }
    }

    async fn pass_frame(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        socket: &mut (impl AsyncWrite + Unpin),
    ) -> IoResult<()> {
        let flags = reader.read_u8().await?;
        let mut frame = vec![flags];
        let length = if flags & LONG == 0 {
            let length = reader.read_u8().await?;
            frame.push(length);
            u64::from(length)
        } else {
            let length = reader.read_u64().await?;
            frame.extend(length.to_be_bytes());
            length
        };
        // An empty frame takes memory too.
        let frame_bytes = length.saturating_add(frame.len() as u64);
        self.message_bytes = self.message_bytes.saturating_add(frame_bytes);
        if flags & COMMAND == 0 {
            self.all_bytes = self.all_bytes.saturating_add(frame_bytes);
        }
        if self.message_bytes > MESSAGE_BYTES_MAX || self.all_bytes > self.all_bytes_max {
            let what = "its messages are longer than a subscription or a question";
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let head = frame.len();
        frame.resize(frame_bytes as usize, 0);
        reader.read_exact(&mut frame[head..]).await?;
        socket.write_all(&frame).await?;
        if flags & MORE == 0 {
            self.message_bytes = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![flags | LONG];
        frame.extend((body.len() as u64).to_be_bytes());
        frame.extend(body);
        frame
    }

    /// Sends these bytes after a greeting. Returns those that are passed on after it.
    async fn passed(sent: &[u8], message_bytes_max: u64) -> Vec<u8> {
        let greeting = [7; GREETING_BYTES];
        let mut reader = &[&greeting, sent].concat()[..];
        let mut passed = Vec::new();
        let ended = pass_messages(&mut reader, &mut passed, message_bytes_max).await;
        ended.expect_err("it ends");
        assert_eq!(passed[..GREETING_BYTES], greeting);
        passed.split_off(GREETING_BYTES)
    }

    #[tokio::test(start_paused = true)]
    async fn readers_introduce_themselves_in_time_and_may_be_silent_then() {
        let introduction = [&[7; GREETING_BYTES][..], &[COMMAND, 1, 0]].concat();
        for sent in [0, 10, GREETING_BYTES, GREETING_BYTES + 2] {
            let (mut client, mut reader) = tokio::io::duplex(1 << 10);
            client.write_all(&introduction[..sent]).await.expect("open");
            let ended = pass_messages(&mut reader, &mut Vec::new(), u64::MAX).await;
            let error = ended.expect_err("it is not introduced");
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{sent} bytes");
        }
        let (mut client, mut reader) = tokio::io::duplex(1 << 10);
        client.write_all(&introduction).await.expect("open");
        let mut passed = Vec::new();
        let passing = pass_messages(&mut reader, &mut passed, u64::MAX);
        let day = Duration::from_secs(24 * 60 * 60);
        timeout(day, passing).await.expect_err("it goes on");
        assert_eq!(passed, introduction);
    }

    #[tokio::test]
    async fn idle_readers_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address);
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (reader, _) = accepted.expect("a connection");
        let is_probed = |reader: &TcpStream| SockRef::from(reader).keepalive();
        assert!(!is_probed(&reader).expect("an option"));
        probe_when_idle(&reader).expect("it can be set");
        assert!(is_probed(&reader).expect("an option"));
        drop(client);
    }

    #[tokio::test]
    async fn messages_within_the_limits_are_passed_on() {
        let fine = [
            vec![0, 3, 1, 2, 3],
            frame(MORE, b""),
            frame(0, &[1; 1_000]),
            frame(0, &[2; 3_000]),
        ];
        let fine = fine.concat();
        assert_eq!(passed(&fine, u64::MAX).await, fine);
        let with = |more: &[u8]| [&fine, more].concat();

        let announced = with(&[LONG, 0, 0, 16, 0, 0, 0, 0, 0]);
        assert_eq!(passed(&announced, u64::MAX).await, fine);
        let longest = with(&[LONG, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(passed(&longest, u64::MAX).await, fine);
        let endless = passed(&[MORE, 0].repeat(1 << 20), u64::MAX).await;
        assert!(endless.len() as u64 <= MESSAGE_BYTES_MAX);
        let subscriptions = passed(&[0, 2, 1, b'x'].repeat(1 << 20), 10_000).await;
        assert_eq!(subscriptions.len(), 10_000);
        let heartbeats = [COMMAND, 1, 0].repeat(10_000);
        assert_eq!(passed(&heartbeats, 10_000).await, heartbeats);
    }
}
