//! Receives bodies within a memory budget, over all connections.
//!
//! A body of up to [`SMALL_BYTES`] is received at once, since there are no more of these than
//! connections. A longer one must reserve all its bytes before it continues: its declared
//! length, or the longest allowed one if none is declared. A waiting body holds no bytes, so
//! no two bodies wait for each other. `budget.rs` decides which body is next: a caller whose
//! bodies never arrive leaves bytes for others. `pace.rs` leaves processors for steps.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout};

use super::budget::{ByteBudget, Owner, Reservation};
use super::pace::Pace;
use crate::arguments::AccessSettings;
use crate::error::ApiError;

/// Bodies of at most this many bytes never wait, and are parsed on the thread that received them.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Most longer bodies that are parsed at once, each on a thread of its own.
const READERS_MAX: usize = 2;
/// Increment of such a thread's nice value, so that steps have priority if cores are few.
#[cfg(target_os = "linux")]
const READER_NICE: i32 = 10;
/// Time after which a client may retry if its body did not fit.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The budget for bodies that are being received and parsed.
#[derive(Debug)]
pub(crate) struct BodyReceiver {
    budget: ByteBudget,
    pace: Pace,
    readers: Arc<Semaphore>,
}

/// A whole body, and its reservation.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    bytes: Vec<u8>,
    reservation: Option<Reservation>,
}

/// The time that a client has taken of its limit.
#[derive(Debug)]
struct Arrival {
    time: Option<Duration>,
    waited: Duration,
}

impl BodyReceiver {
    pub(crate) fn new(access: &AccessSettings) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            budget: ByteBudget::new(access.receiving_bytes_max),
            pace: Pace::new(cores),
            readers: Arc::new(Semaphore::new((cores / 2).clamp(1, READERS_MAX))),
        }
    }

    /// Receives a body. The time limit is for the client: waits for the budget and for the pace are
    /// the server's own and do not count.
    pub(crate) async fn receive(
        &self,
        head: &Parts,
        body: Body,
        access: &AccessSettings,
    ) -> Result<ReceivedBody, ApiError> {
        let body_bytes_max = access.body_bytes_max;
        let length = head.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > body_bytes_max) {
            return Err(too_long(body_bytes_max));
        }
        let owner = Owner::of(&head.extensions);
        let mut received = ReceivedBody {
            bytes: Vec::new(),
            reservation: None,
        };
        if length.is_some_and(|length| length > SMALL_BYTES) {
            let length = length.unwrap_or_default();
            received.reservation = Some(self.reserve_budget(owner.clone(), length, access).await?);
        }
        received.bytes.reserve_exact(length.unwrap_or_default());
        let mut parts = body.into_data_stream();
        let mut arrival = Arrival::new(access.arrival_time());
        while let Some(part) = arrival.wait(parts.next()).await? {
            let part = part.map_err(|error| incomplete(&error))?;
            let bytes = received.bytes.len() + part.len();
            if bytes > body_bytes_max {
                return Err(too_long(body_bytes_max));
            }
            if bytes > SMALL_BYTES && received.reservation.is_none() {
                let reservation = self.reserve_budget(owner.clone(), body_bytes_max, access);
                received.reservation = Some(reservation.await?);
            }
            received.reserve(bytes, body_bytes_max);
            received.bytes.extend_from_slice(&part);
            if received.reservation.is_some() {
                let part_bytes = part.len();
                drop(part);
                self.pace.keep(part_bytes).await;
            }
        }
        Ok(received)
    }

    /// Receives the one message of a gRPC request, after a byte and its length in four. All of it is
    /// within the budget, also if it is short: a connection may have many requests.
    #[cfg(feature = "grpc")]
    pub(crate) async fn receive_message(
        &self,
        head: &Parts,
        body: Body,
        bytes_max: usize,
        access: &AccessSettings,
    ) -> Result<ReceivedBody, ApiError> {
        let mut parts = body.into_data_stream();
        let mut arrival = Arrival::new(access.arrival_time());
        let mut received = ReceivedBody {
            bytes: Vec::new(),
            reservation: None,
        };
        while let Some(part) = arrival.wait(parts.next()).await? {
            let part = part.map_err(|error| incomplete(&error))?;
            if let Some(reservation) = &received.reservation
                && received.bytes.len() + part.len() > reservation.bytes()
            {
                let message = "the message is longer than its prefix says";
                return Err(ApiError::request(StatusCode::BAD_REQUEST, message));
            }
            received.bytes.extend_from_slice(&part);
            let prefix = received.bytes.first_chunk::<5>();
            if received.reservation.is_none()
                && let Some([_, length @ ..]) = prefix
            {
                let length = u32::from_be_bytes(*length) as usize;
                let bytes = length.saturating_add(5).max(received.bytes.len());
                if bytes > bytes_max {
                    return Err(too_long(bytes_max));
                }
                let owner = Owner::of(&head.extensions);
                received.reservation = Some(self.reserve_budget(owner, bytes, access).await?);
                received.bytes.reserve_exact(bytes - received.bytes.len());
            }
            if received.bytes.len() > SMALL_BYTES {
                self.pace.keep(part.len()).await;
            }
        }
        Ok(received)
    }

    /// Parses a body. A long one is parsed on another thread, which keeps the reservation until it
    /// is done.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        received: ReceivedBody,
        read: fn(&[u8]) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let ReceivedBody { bytes, reservation } = received;
        let Some(reservation) = reservation else {
            return read(&bytes);
        };
        self.on_thread(move || {
            let read = read(&bytes);
            drop((bytes, reservation));
            read
        })
        .await?
    }

    /// Does work on so many bytes of a body: where they are many, on a thread of the bodies.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= SMALL_BYTES {
            return Ok(work());
        }
        self.on_thread(work).await
    }

    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let reader = Arc::clone(&self.readers).acquire_owned().await;
        let reader = reader.expect("readers are never closed");
        let (sender, reading) = oneshot::channel();
        let thread = thread::Builder::new().name("motet-body".into());
        let started = thread.spawn(move || {
            lower_thread_priority();
            let done = work();
            drop(reader);
            // If the client is gone, the result is dropped.
            sender.send(done).ok();
        });
        if let Err(error) = started {
            tracing::warn!(%error, "there is no thread to read a body");
            let message = "there is no thread to read the body".to_owned();
            return Err(ApiError::receiving_full(message, RETRY_AFTER));
        }
        reading.await.map_err(|_| {
            let message = "the body could not be read";
            ApiError::request(StatusCode::INTERNAL_SERVER_ERROR, message)
        })
    }

    async fn reserve_budget(
        &self,
        owner: Owner,
        bytes: usize,
        access: &AccessSettings,
    ) -> Result<Reservation, ApiError> {
        let reservation = self.budget.acquire(owner, bytes);
        let Some(time) = access.arrival_time() else {
            return Ok(reservation.await);
        };
        timeout(time, reservation).await.map_err(|_| {
            let message = format!(
                "there was no memory for a body of {bytes} bytes within {} seconds; bodies that are \
                 received at once share {} bytes, and one caller may hold as much as it leaves \
                 free for others",
                time.as_secs(),
                access.receiving_bytes_max
            );
            ApiError::receiving_full(message, RETRY_AFTER)
        })
    }
}

impl Arrival {
    fn new(time: Option<Duration>) -> Self {
        Self {
            time,
            waited: Duration::ZERO,
        }
    }

    /// Waits for the client.
    async fn wait<T>(&mut self, part: impl Future<Output = T>) -> Result<T, ApiError> {
        let Some(time) = self.time else {
            return Ok(part.await);
        };
        let began_at = Instant::now();
        let waited = timeout(time.saturating_sub(self.waited), part).await;
        self.waited = self.waited.saturating_add(began_at.elapsed());
        waited.map_err(|_| {
            let message = format!("the body has not arrived within {} seconds", time.as_secs());
            ApiError::request(StatusCode::REQUEST_TIMEOUT, message)
        })
    }
}

/// Lowers this thread's priority below that of the threads that compute steps.
fn lower_thread_priority() {
    // Without permission the thread keeps its priority.
    #[cfg(target_os = "linux")]
    rustix::process::nice(READER_NICE).ok();
}

impl ReceivedBody {
    /// The bytes, and the reservation that is to be held with them; short bodies have none.
    #[cfg(feature = "grpc")]
    pub(crate) fn into_parts(self) -> (Vec<u8>, Option<Reservation>) {
        (self.bytes, self.reservation)
    }

    /// Grows the buffer to this many bytes, but never beyond its reservation.
    fn reserve(&mut self, bytes: usize, body_bytes_max: usize) {
        if bytes > self.bytes.capacity() {
            let bytes_max = if self.reservation.is_some() {
                body_bytes_max
            } else {
                SMALL_BYTES
            };
            self.bytes.reserve_exact(bytes_max - self.bytes.len());
        }
    }
}

fn incomplete(error: &axum::Error) -> ApiError {
    let message = format!("the body is incomplete: {error}");
    ApiError::request(StatusCode::BAD_REQUEST, message)
}

fn too_long(body_bytes_max: usize) -> ApiError {
    let message = format!("the body is longer than {body_bytes_max} bytes");
    ApiError::request(StatusCode::PAYLOAD_TOO_LARGE, message)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Bytes;
    use axum::extract::Request;
    use clap::Parser;
    use futures_util::{FutureExt, stream};

    use super::*;
    use crate::addresses::Peer;
    use crate::arguments::Arguments;

    const LARGE: usize = 1 << 20;

    /// Settings with a budget for one body of the longest length.
    fn access() -> AccessSettings {
        let words = "server --oracle --arrival-seconds 1 --body-bytes-max 1048576 \
                     --receiving-bytes-max 1048576";
        Arguments::parse_from(words.split_whitespace()).access
    }

    async fn received(
        receiver: &BodyReceiver,
        request: Request,
        access: &AccessSettings,
    ) -> Result<ReceivedBody, ApiError> {
        let (head, body) = request.into_parts();
        receiver.receive(&head, body, access).await
    }

    fn request(length: Option<usize>, body: Body) -> Request {
        let mut request = Request::new(body);
        if let Some(length) = length {
            request
                .headers_mut()
                .insert(header::CONTENT_LENGTH, length.into());
        }
        request
    }

    /// A body that sends these bytes and then stalls.
    fn stuck(bytes: usize) -> Body {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(vec![b' '; bytes]))]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test]
    async fn long_bodies_wait_for_budget_and_short_ones_do_not() {
        let access = access();
        let body_receiver = BodyReceiver::new(&access);
        let receive = |length, body| received(&body_receiver, request(length, body), &access);
        let status = |received: Result<ReceivedBody, ApiError>| received.err().map(|e| e.status);

        let (first, second, third, short) = tokio::join!(
            // It reserves the whole budget for a second, and sends nothing.
            receive(Some(LARGE), stuck(0)),
            async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                // A body of unknown length: it waits, and is next.
                receive(None, stuck(SMALL_BYTES + 1)).await
            },
            async {
                // The second has the budget from the first second to the next.
                tokio::time::sleep(Duration::from_millis(1300)).await;
                receive(Some(LARGE), Body::from(vec![b' '; LARGE])).await
            },
            async {
                tokio::time::sleep(Duration::from_millis(600)).await;
                receive(Some(SMALL_BYTES), Body::from(vec![b' '; SMALL_BYTES])).await
            },
        );
        let short = short.map(|short| short.bytes.len());
        assert_eq!(short.ok(), Some(SMALL_BYTES), "a short body does not wait");
        assert_eq!(status(first), Some(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(status(second), Some(StatusCode::REQUEST_TIMEOUT));
        let third = third.map(|third| third.bytes.len());
        assert_eq!(third.ok(), Some(LARGE), "its turn comes after the others");

        let received = receive(Some(LARGE), Body::from(vec![b' '; LARGE])).await;
        let received = received.expect("the body fits");
        let rejected = receive(Some(LARGE), Body::from(vec![b' '; LARGE])).await;
        let rejected = rejected.expect_err("there is none");
        assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE);
        let body = serde_json::to_value(rejected.body()).expect("JSON");
        let message = body["error"]["message"].to_string();
        assert!(message.contains("1048576 bytes"), "{message}");
        drop(received);
        receive(None, Body::from(vec![b' '; LARGE]))
            .await
            .expect("the body fits again");
    }

    #[tokio::test]
    async fn too_long_body_is_rejected() {
        let access = access();
        let body_receiver = BodyReceiver::new(&access);
        let long = LARGE + 1;
        for length in [Some(long), None] {
            let body = Body::from(vec![b' '; long]);
            let rejected = received(&body_receiver, request(length, body), &access).await;
            let rejected = rejected.expect_err("too long");
            assert_eq!(rejected.status, StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[tokio::test]
    async fn budget_is_held_until_the_body_is_read_after_a_disconnect() {
        let access = access();
        let body_receiver = BodyReceiver::new(&access);
        let body = Body::from(vec![b' '; LARGE]);
        let received = received(&body_receiver, request(Some(LARGE), body), &access).await;
        let received = received.expect("the body fits");
        // The reader waits at this gate.
        let (open, gate) = std::sync::mpsc::channel::<()>();
        *GATE.lock().expect("one test uses it") = Some(gate);
        let reading = body_receiver.read(received, |_| {
            let gate = GATE.lock().expect("one test uses it").take();
            gate.expect("the gate is set").recv().ok();
            Ok(())
        });
        assert!(timeout(Duration::from_millis(1), reading).await.is_err());
        assert_eq!(body_receiver.budget.free_bytes(), 0);
        drop(open);
        // The reader frees its reservation.
        drop(body_receiver.budget.acquire(Owner::Unknown, LARGE).await);
    }

    #[tokio::test(start_paused = true)]
    async fn stuck_bodies_leave_budget_for_other_callers() {
        let mut access = access();
        access.receiving_bytes_max = 4 * LARGE;
        let body_receiver = BodyReceiver::new(&access);
        let from = |address: [u8; 4], body| {
            let mut request = request(Some(LARGE), body);
            request.extensions_mut().insert(Peer::of(address.into()));
            received(&body_receiver, request, &access)
        };
        let stuck = (0..16).map(|_| from([10, 0, 0, 1], stuck(0)));
        let stuck = futures_util::future::join_all(stuck);
        let other = from([10, 0, 0, 2], Body::from(vec![b' '; LARGE]));
        let received = tokio::select! {
            biased;
            _ = stuck => unreachable!("the other body arrives at once"),
            received = other => received.expect("the body fits"),
        };
        assert_eq!(received.bytes.len(), LARGE);
    }

    #[tokio::test]
    async fn body_of_unknown_length_stays_within_its_reservation() {
        let access = access();
        let body_receiver = BodyReceiver::new(&access);
        for (piece, count, bytes_max) in [(24 << 10, 2, SMALL_BYTES), (192 << 10, 5, LARGE)] {
            let pieces = vec![Bytes::from(vec![b' '; piece]); count];
            let pieces = stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
            let body = Body::from_stream(pieces);
            let received = received(&body_receiver, request(None, body), &access).await;
            let received = received.expect("the body fits");
            assert_eq!(received.bytes.len(), piece * count);
            let capacity = received.bytes.capacity();
            assert!(capacity <= bytes_max, "{capacity} bytes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_pace_do_not_count_as_the_clients() {
        let access = access();
        let body_receiver = Arc::new(BodyReceiver::new(&access));
        // Each part comes with a flood of other bodies, and at this time.
        let receive = |step: Duration| {
            let flooded = Arc::clone(&body_receiver);
            let parts = stream::iter(0..4).then(move |_| {
                let flooded = Arc::clone(&flooded);
                async move {
                    tokio::time::sleep(step).await;
                    flooded.pace.keep(8 << 30).now_or_never();
                    Ok::<_, Infallible>(Bytes::from(vec![b' '; LARGE / 4]))
                }
            });
            let request = request(Some(LARGE), Body::from_stream(parts));
            received(&body_receiver, request, &access)
        };
        let started_at = Instant::now();
        let received = receive(Duration::from_millis(200)).await;
        let received = received.expect("the client needs 0.8 of a second");
        assert_eq!(received.bytes.len(), LARGE);
        assert!(started_at.elapsed() > 2 * access.arrival_time().expect("it is set"));
        drop(received);
        let late = receive(Duration::from_millis(400)).await;
        let late = late.expect_err("the client needs 1.6 seconds");
        assert_eq!(late.status, StatusCode::REQUEST_TIMEOUT);
    }

    static GATE: std::sync::Mutex<Option<std::sync::mpsc::Receiver<()>>> =
        std::sync::Mutex::new(None);
}
