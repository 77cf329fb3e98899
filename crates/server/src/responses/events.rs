//! The events of a streamed response.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use axum::body::{Body as AnswerBody, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use super::items::{Item, Logprobs, Part, SummaryPart};
use super::response::ResponseBody;
use crate::api::KEEP_ALIVE;
use crate::error::ErrorCode;
use crate::pieces::{self, Pieces, Text};

/// Keeps the connection open: clients ignore it.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// An event. `sequence_number` counts the events of a stream from 0.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "ResponseEvent")]
pub(crate) enum ResponseEvent {
    /// The first event
    #[serde(rename = "response.created")]
    Created {
        sequence_number: u64,
        response: Arc<ResponseBody>,
    },
    #[serde(rename = "response.in_progress")]
    InProgress {
        sequence_number: u64,
        response: Arc<ResponseBody>,
    },
    /// The last event of a complete answer
    #[serde(rename = "response.completed")]
    Completed {
        sequence_number: u64,
        response: Arc<ResponseBody>,
    },
    /// The last event of an answer that its greatest length cut off
    #[serde(rename = "response.incomplete")]
    Incomplete {
        sequence_number: u64,
        response: Arc<ResponseBody>,
    },
    /// The last event of an answer that failed
    #[serde(rename = "response.failed")]
    Failed {
        sequence_number: u64,
        response: Arc<ResponseBody>,
    },
    #[serde(rename = "response.output_item.added")]
    OutputItemAdded {
        sequence_number: u64,
        output_index: usize,
        item: Arc<Item>,
    },
    #[serde(rename = "response.output_item.done")]
    OutputItemDone {
        sequence_number: u64,
        output_index: usize,
        item: Arc<Item>,
    },
    #[serde(rename = "response.content_part.added")]
    ContentPartAdded {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        content_index: usize,
        part: Part,
    },
    #[serde(rename = "response.content_part.done")]
    ContentPartDone {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        content_index: usize,
        part: Part,
    },
    #[serde(rename = "response.output_text.delta")]
    OutputTextDelta {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        logprobs: Logprobs,
    },
    #[serde(rename = "response.output_text.done")]
    OutputTextDone {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: Text,
        logprobs: Logprobs,
    },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningTextDelta {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
    },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningTextDone {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: Text,
    },
    #[serde(rename = "response.reasoning_summary_part.added")]
    SummaryPartAdded {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        summary_index: usize,
        part: SummaryPart,
    },
    #[serde(rename = "response.reasoning_summary_part.done")]
    SummaryPartDone {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        summary_index: usize,
        part: SummaryPart,
    },
    #[serde(rename = "response.reasoning_summary_text.delta")]
    SummaryTextDelta {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        summary_index: usize,
        delta: String,
    },
    #[serde(rename = "response.reasoning_summary_text.done")]
    SummaryTextDone {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        summary_index: usize,
        text: Text,
    },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        delta: String,
    },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        sequence_number: u64,
        item_id: String,
        output_index: usize,
        name: String,
        arguments: Text,
    },
    /// The reason of the failure that the next event, the last, reports
    #[serde(rename = "error")]
    Error {
        sequence_number: u64,
        code: Option<ErrorCode>,
        message: String,
        param: Option<String>,
    },
}

/// Numbers the events of one response, and keeps them until they are sent.
#[derive(Debug)]
pub(super) struct EventLog {
    /// Whether the response is streamed; else no event is made.
    is_streamed: bool,
    next_number: u64,
    /// Events of one piece of the answer, or of its end. Long parts of them are shared.
    events: VecDeque<ResponseEvent>,
}

impl EventLog {
    pub(super) fn new(is_streamed: bool) -> Self {
        Self {
            is_streamed,
            next_number: 0,
            events: VecDeque::new(),
        }
    }

    /// Adds the event that has the next number.
    pub(super) fn push(&mut self, event: impl FnOnce(u64) -> ResponseEvent) {
        if self.is_streamed {
            self.events.push_back(event(self.next_number));
            self.next_number += 1;
        }
    }

    /// Takes the oldest event.
    pub(super) fn pop(&mut self) -> Option<ResponseEvent> {
        self.events.pop_front()
    }
}

impl ResponseEvent {
    /// The event as it is sent, under its type's name. Its parts are made when they are reached.
    pub(super) fn sent(&self) -> Pieces {
        let mut data = pieces::pieces(self);
        let first = data.next().unwrap_or_default();
        let head = str::from_utf8(&first).expect("JSON is text");
        let head = format!("event: {}\ndata: ", name(head));
        let end = Bytes::from_static(b"\n\n");
        let pieces = [Bytes::from(head), first].into_iter().chain(data);
        pieces::coalesced(Box::new(pieces.chain([end])))
    }
}

/// Gives the events of a response, in their order.
pub(super) trait EventSource: Send + 'static {
    /// The next event; `None` after the last. Cancel safe: an event is either returned or stays.
    fn next(&mut self) -> impl Future<Output = Option<Result<ResponseEvent, HandedOver>>> + Send;
}

/// The server ends, and the next one goes on with the answer. The connection breaks, so that its client
/// asks again for the events after the last that it has.
#[derive(Debug)]
pub(super) struct HandedOver;

impl fmt::Display for HandedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server ends, and goes on with the response after its restart")
    }
}

impl std::error::Error for HandedOver {}

/// Streams the events as they come. When the client disconnects, the source is dropped. A client that
/// reads slowly pauses it.
pub(super) fn streamed(source: impl EventSource) -> Response {
    // The source is kept until its last event is sent.
    let sending = (source, None::<Pieces>);
    let events = stream::unfold(sending, |(mut source, mut sent)| async {
        loop {
            if let Some(piece) = sent.as_mut().and_then(Iterator::next) {
                return Some((Ok(piece), (source, sent)));
            }
            match timeout(KEEP_ALIVE, source.next()).await {
                Ok(event) => match event? {
                    Ok(event) => sent = Some(event.sent()),
                    Err(handed_over) => return Some((Err(handed_over), (source, None))),
                },
                Err(_) => return Some((Ok(COMMENT), (source, None))),
            }
        }
    });
    let kind = (header::CONTENT_TYPE, "text/event-stream");
    let uncached = (header::CACHE_CONTROL, "no-cache");
    ([kind, uncached], AnswerBody::from_stream(events)).into_response()
}

/// The type of a serialized event, which is its first field.
fn name(data: &str) -> &str {
    let rest = data.strip_prefix("{\"type\":\"");
    rest.and_then(|rest| rest.split('"').next())
        .expect("a tagged enum begins with its tag")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_has_the_name_of_its_type() {
        let event = ResponseEvent::ArgumentsDelta {
            sequence_number: 3,
            item_id: "fc".into(),
            output_index: 0,
            delta: "{\"type\":\"x\"".into(),
        };
        let data = serde_json::to_string(&event).expect("JSON");
        assert_eq!(name(&data), "response.function_call_arguments.delta");
    }

    #[test]
    fn events_are_numbered_where_they_are_sent() {
        let error = |sequence_number| ResponseEvent::Error {
            sequence_number,
            code: None,
            message: String::new(),
            param: None,
        };
        let mut log = EventLog::new(true);
        for number in 0..3 {
            log.push(error);
            let event = serde_json::to_value(log.pop().expect("one")).expect("JSON");
            assert_eq!(event["sequence_number"], number);
            assert_eq!(event["type"], "error");
        }
        let mut whole = EventLog::new(false);
        whole.push(|_| unreachable!("no event is made"));
        assert!(whole.pop().is_none());
    }
}
