//! How much is received at once, over all connections.
//!
//! A body of up to [`SMALL_BYTES`] is received at once: there are no more of these than
//! connections. A longer one needs room for all of it before it goes on: as much as its
//! length says, or as much as a body may have where none is said. Whoever waits for that
//! holds nothing that another waits for, so that no two bodies wait for each other. Room is
//! given in the order of arrival.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::arguments::Conduct;
use crate::error::ApiError;

/// Bodies of at most so many bytes wait for no room, and are read where they come.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Longer bodies that are read at once: on threads for blocking work.
const READERS: usize = 2;
/// Room is counted in units of so many bytes.
const UNIT_BYTES: usize = 1 << 10;
/// A client for whose body there was no room is told to come again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The room for bodies that are being received and read.
#[derive(Debug)]
pub(crate) struct Receiving {
    room: Arc<Semaphore>,
    readers: Arc<Semaphore>,
}

/// A whole body, and its room.
#[derive(Debug)]
pub(super) struct Received {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl Receiving {
    pub(crate) fn new(conduct: &Conduct) -> Self {
        let units = conduct.receiving_bytes_max.div_ceil(UNIT_BYTES);
        Self {
            room: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// Waits for a body, as long as it may take.
    pub(super) async fn receive(
        &self,
        request: Request,
        conduct: &Conduct,
    ) -> Result<Received, ApiError> {
        let body_bytes_max = conduct.body_bytes_max;
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > body_bytes_max) {
            return Err(too_long(body_bytes_max));
        }
        let mut received = Received {
            bytes: Vec::new(),
            room: None,
        };
        if length.is_some_and(|length| length > SMALL_BYTES) {
            received.room = Some(self.room(length.unwrap_or_default(), conduct).await?);
        }
        received.bytes.reserve_exact(length.unwrap_or_default());
        let arriving = async {
            let mut parts = request.into_body().into_data_stream();
            while let Some(part) = parts.next().await {
                let part = part.map_err(|error| {
                    let message = format!("the body did not come whole: {error}");
                    ApiError::request(StatusCode::BAD_REQUEST, message)
                })?;
                let bytes = received.bytes.len() + part.len();
                if bytes > body_bytes_max {
                    return Err(too_long(body_bytes_max));
                }
                if bytes > SMALL_BYTES && received.room.is_none() {
                    received.room = Some(self.room(body_bytes_max, conduct).await?);
                }
                received.bytes.extend_from_slice(&part);
            }
            Ok(received)
        };
        match conduct.arrival_time() {
            None => arriving.await,
            Some(time) => timeout(time, arriving).await.unwrap_or_else(|_| {
                let message = format!("the body has not come within {} seconds", time.as_secs());
                Err(ApiError::request(StatusCode::REQUEST_TIMEOUT, message))
            }),
        }
    }

    /// Reads a body: a long one on another thread, which keeps its room until it is done.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        received: Received,
        read: fn(&[u8]) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let Received { bytes, room } = received;
        let Some(room) = room else {
            return read(&bytes);
        };
        let reader = Arc::clone(&self.readers).acquire_owned().await;
        let reader = reader.expect("readers are never closed");
        let reading = tokio::task::spawn_blocking(move || {
            let read = read(&bytes);
            drop((bytes, room, reader));
            read
        });
        reading.await.unwrap_or_else(|_| {
            let message = "the body could not be read";
            Err(ApiError::request(
                StatusCode::INTERNAL_SERVER_ERROR,
                message,
            ))
        })
    }

    async fn room(
        &self,
        bytes: usize,
        conduct: &Conduct,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(units);
        let room = match conduct.arrival_time() {
            None => room.await,
            Some(time) => timeout(time, room).await.map_err(|_| {
                let message = format!(
                    "as much is being received as may be, {} bytes; there was no room for {bytes} \
                     within {} seconds",
                    conduct.receiving_bytes_max,
                    time.as_secs()
                );
                ApiError::no_room(message, RETRY_AFTER)
            })?,
        };
        Ok(room.expect("the room is never closed"))
    }
}

fn too_long(body_bytes_max: usize) -> ApiError {
    let message = format!("the body is longer than {body_bytes_max} bytes");
    ApiError::request(StatusCode::PAYLOAD_TOO_LARGE, message)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::{Body, Bytes};
    use clap::Parser;
    use futures_util::stream;

    use super::*;
    use crate::arguments::Arguments;

    const LARGE: usize = 1 << 20;

    /// Room for one body of the longest.
    fn conduct() -> Conduct {
        let words = "server --oracle --arrival-seconds 1 --body-bytes-max 1048576 \
                     --receiving-bytes-max 1048576";
        Arguments::parse_from(words.split_whitespace()).conduct
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

    /// Bytes that come, and then no more, although more are awaited.
    fn stuck(bytes: usize) -> Body {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(vec![b' '; bytes]))]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test]
    async fn long_bodies_wait_for_room_and_short_ones_do_not() {
        let conduct = conduct();
        let receiving = Receiving::new(&conduct);
        let receive = |length, body| receiving.receive(request(length, body), &conduct);
        let status = |received: Result<Received, ApiError>| received.err().map(|e| e.status);

        let (first, second, third, short) = tokio::join!(
            // It holds all the room for a second, and sends nothing.
            receive(Some(LARGE), stuck(0)),
            async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                // Of unknown length: it has room for nothing more, and is next.
                receive(None, stuck(SMALL_BYTES + 1)).await
            },
            async {
                tokio::time::sleep(Duration::from_millis(600)).await;
                receive(Some(LARGE), Body::from(vec![b' '; LARGE])).await
            },
            async {
                tokio::time::sleep(Duration::from_millis(600)).await;
                receive(Some(SMALL_BYTES), Body::from(vec![b' '; SMALL_BYTES])).await
            },
        );
        let short = short.map(|short| short.bytes.len());
        assert_eq!(short.ok(), Some(SMALL_BYTES), "it waits for nobody");
        assert_eq!(status(first), Some(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(status(second), Some(StatusCode::REQUEST_TIMEOUT));
        let third = third.map(|third| third.bytes.len());
        assert_eq!(third.ok(), Some(LARGE), "it had its turn after the others");

        let held = receive(Some(LARGE), Body::from(vec![b' '; LARGE])).await;
        let held = held.expect("there is room");
        let refused = receive(Some(LARGE), Body::from(vec![b' '; LARGE])).await;
        let refused = refused.expect_err("there is none");
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        let message = refused.body()["error"]["message"].to_string();
        assert!(message.contains("1048576 bytes"), "{message}");
        drop(held);
        receive(None, Body::from(vec![b' '; LARGE]))
            .await
            .expect("room again");
    }

    #[tokio::test]
    async fn a_body_that_is_longer_than_it_may_be_is_refused() {
        let conduct = conduct();
        let receiving = Receiving::new(&conduct);
        let long = LARGE + 1;
        for length in [Some(long), None] {
            let body = Body::from(vec![b' '; long]);
            let refused = receiving.receive(request(length, body), &conduct).await;
            let refused = refused.expect_err("too long");
            assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[tokio::test]
    async fn room_is_kept_until_a_body_is_read_although_its_client_has_left() {
        let conduct = conduct();
        let receiving = Receiving::new(&conduct);
        let body = Body::from(vec![b' '; LARGE]);
        let received = receiving
            .receive(request(Some(LARGE), body), &conduct)
            .await;
        let received = received.expect("room");
        // The reader is told which gate to wait at.
        let (open, gate) = std::sync::mpsc::channel::<()>();
        *GATE.lock().expect("one test uses it") = Some(gate);
        let reading = receiving.read(received, |_| {
            let gate = GATE.lock().expect("one test uses it").take();
            gate.expect("it was put there").recv().ok();
            Ok(())
        });
        assert!(timeout(Duration::from_millis(1), reading).await.is_err());
        assert_eq!(receiving.room.available_permits(), 0);
        drop(open);
        let all = receiving
            .room
            .acquire_many((LARGE / UNIT_BYTES) as u32)
            .await;
        drop(all.expect("the reader gave it back"));
    }

    static GATE: std::sync::Mutex<Option<std::sync::mpsc::Receiver<()>>> =
        std::sync::Mutex::new(None);
}
