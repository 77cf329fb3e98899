//! A streamed reply.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use tokio::time::timeout;

use super::error::ServerError;
use super::events::Events;
use super::wire::{Cost, Part};

/// The data of a stream's last event.
const DONE: &str = "[DONE]";
/// Characters of unexpected data that an error quotes.
const SHOWN_CHARACTERS: usize = 80;

/// A streamed reply. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Incoming,
    events: Events,
    silence_max: Duration,
    /// Whether the server has sent a finish reason.
    is_whole: bool,
}

/// A part of a reply.
#[derive(Debug, Default)]
pub(crate) struct ReplyChunk {
    /// May be empty.
    pub(crate) text: String,
    /// The last chunk's usage, if the server reports it.
    pub(crate) cost: Option<Cost>,
}

impl Answer {
    pub(super) fn new(body: Incoming, silence_max: Duration) -> Self {
        Self {
            body,
            events: Events::default(),
            silence_max,
            is_whole: false,
        }
    }

    /// Returns the next chunk, or `None` when the reply is complete.
    pub(crate) async fn next(&mut self) -> Result<Option<ReplyChunk>, ServerError> {
        loop {
            match self.events.next() {
                Some(event) if event == DONE => return Ok(None),
                Some(event) => return self.read(&event).map(Some),
                None => {}
            }
            match self.portion().await? {
                Some(bytes) => {
                    let pushed = self.events.push(&bytes);
                    pushed.map_err(|_| ServerError::NotAnEvent("it has no end".into()))?;
                }
                // Some servers end the stream without `[DONE]`.
                None if self.is_whole => return Ok(None),
                None => return Err(ServerError::Disconnected),
            }
        }
    }

    async fn portion(&mut self) -> Result<Option<Bytes>, ServerError> {
        loop {
            let frame = timeout(self.silence_max, self.body.frame()).await;
            let frame = frame.map_err(|_| ServerError::Silent(self.silence_max))?;
            match frame {
                None => return Ok(None),
                Some(Err(_)) => return Err(ServerError::Disconnected),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    fn read(&mut self, event: &str) -> Result<ReplyChunk, ServerError> {
        let part: Part = serde_json::from_str(event)
            .map_err(|_| ServerError::NotAnEvent(event.chars().take(SHOWN_CHARACTERS).collect()))?;
        if let Some(error) = part.error() {
            return Err(ServerError::GaveUp(error));
        }
        self.is_whole |= part.is_last();
        Ok(ReplyChunk {
            text: part.text(),
            cost: part.cost(),
        })
    }
}
