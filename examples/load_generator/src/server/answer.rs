//! A reply as it comes in.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use tokio::time::timeout;

use super::error::ServerError;
use super::events::Events;
use super::wire::{Cost, Part};

/// What ends a stream.
const DONE: &str = "[DONE]";
/// Bytes that an error repeats of what it does not understand.
const SHOWN_CHARACTERS: usize = 80;

/// A reply as it comes in. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Incoming,
    events: Events,
    silence_max: Duration,
    /// Whether the server has said that nothing more is to be said.
    is_whole: bool,
}

/// What came of a reply.
#[derive(Debug, Default)]
pub(crate) struct ReplyChunk {
    /// May be empty.
    pub(crate) text: String,
    /// Comes last, if at all.
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

    /// What comes next; none when the reply is whole.
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
                // Not all servers say that they are done.
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
