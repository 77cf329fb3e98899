//! The stream of a message's events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use motet::chat::{AnswerEnd, ChatEvent, Delta};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::answer::{ContentBlock, MessageBody, MessageUsage, Stop, signature};
use super::errors::ErrorBody;
use super::events::{BlockDelta, MessageEvent};
use crate::app::App;
use crate::conversation::{AnswerEvent, Answers};

/// After this time without an event, a ping keeps the connection open.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// Turns an answer's pieces into blocks: one begins where the kind of piece changes.
#[derive(Debug, Default)]
struct Blocks {
    /// The index of the next block.
    next: usize,
    open: Option<OpenBlock>,
}

/// The block that the next piece may continue.
#[derive(Debug)]
enum OpenBlock {
    Text,
    /// With the digest of its text so far.
    Thinking(Sha256),
    Call,
}

struct Streaming {
    answers: Answers,
    blocks: Blocks,
    stop_strings: Vec<String>,
    /// Events that are not sent yet.
    pending: VecDeque<sse::Event>,
    is_finished: bool,
}

/// Streams each piece as it comes. When the client disconnects, the stream and its answer are
/// dropped. A client that reads slowly pauses it.
pub(super) fn streamed(app: Arc<App>, answers: Answers, stop_strings: Vec<String>) -> Response {
    let usage = MessageUsage::of_prompt(answers.prompt_tokens());
    let message = MessageBody::new(&app, usage);
    let start = [
        MessageEvent::MessageStart { message },
        MessageEvent::Ping {},
    ];
    let streaming = Streaming {
        answers,
        blocks: Blocks::default(),
        stop_strings,
        pending: start.iter().map(event).collect(),
        is_finished: false,
    };
    let events = stream::unfold(streaming, |mut streaming| async {
        let event = streaming.next().await?;
        Some((Ok::<_, Infallible>(event), streaming))
    });
    let ping = event(&MessageEvent::Ping {});
    let keep_alive = KeepAlive::new().interval(PING_INTERVAL).event(ping);
    Sse::new(events).keep_alive(keep_alive).into_response()
}

impl Streaming {
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.is_finished {
                return None;
            }
            let (_, answer_event) = self.answers.next().await?;
            self.spell(answer_event);
        }
    }

    fn spell(&mut self, answer_event: AnswerEvent) {
        match answer_event {
            Ok(ChatEvent::Prefilled(_)) => {}
            Ok(ChatEvent::Delta { delta, .. }) => {
                let events = self.blocks.push(delta);
                self.pending.extend(events.iter().map(event));
            }
            Ok(ChatEvent::Ended { end, usage }) => self.end(end, usage.into()),
            // The status was already sent, so the error is the last event.
            Err(error) => {
                self.is_finished = true;
                let error = ErrorBody::new(&error, None);
                self.pending.push_back(named("error", &error));
            }
        }
    }

    fn end(&mut self, end: AnswerEnd, usage: MessageUsage) {
        self.is_finished = true;
        let delta = Stop::new(end, &self.stop_strings);
        let mut events = self.blocks.close();
        events.push(MessageEvent::MessageDelta { delta, usage });
        events.push(MessageEvent::MessageStop {});
        self.pending.extend(events.iter().map(event));
    }
}

impl Blocks {
    /// The events of a part.
    fn push(&mut self, delta: Delta) -> Vec<MessageEvent> {
        match delta {
            Delta::Text(text) if text.is_empty() => Vec::new(),
            Delta::Text(text) => {
                let mut events = match self.open {
                    Some(OpenBlock::Text) => Vec::new(),
                    _ => self.open(OpenBlock::Text, ContentBlock::text()),
                };
                events.push(self.delta(BlockDelta::Text { text }));
                events
            }
            Delta::Reasoning(thinking) => {
                let mut events = match self.open {
                    Some(OpenBlock::Thinking(_)) => Vec::new(),
                    _ => {
                        let open = OpenBlock::Thinking(Sha256::new());
                        self.open(open, ContentBlock::thinking())
                    }
                };
                if let Some(OpenBlock::Thinking(digest)) = &mut self.open {
                    digest.update(&thinking);
                }
                events.push(self.delta(BlockDelta::Thinking { thinking }));
                events
            }
            Delta::CallStarted { id, name, .. } => {
                self.open(OpenBlock::Call, ContentBlock::call(id, name))
            }
            Delta::CallArguments { json, .. } => {
                vec![self.delta(BlockDelta::InputJson { partial_json: json })]
            }
            Delta::CallEnded { .. } => self.close(),
        }
    }

    /// Closes the open block and opens another.
    fn open(&mut self, block: OpenBlock, content_block: ContentBlock) -> Vec<MessageEvent> {
        let mut events = self.close();
        self.open = Some(block);
        let index = self.next;
        self.next += 1;
        events.push(MessageEvent::ContentBlockStart {
            index,
            content_block,
        });
        events
    }

    /// Closes the open block, if there is one.
    fn close(&mut self) -> Vec<MessageEvent> {
        let Some(open) = self.open.take() else {
            return Vec::new();
        };
        let mut events = Vec::new();
        if let OpenBlock::Thinking(digest) = open {
            let signature = signature(digest);
            events.push(self.delta(BlockDelta::Signature { signature }));
        }
        let index = self.next - 1;
        events.push(MessageEvent::ContentBlockStop { index });
        events
    }

    /// More of the block that was opened last.
    fn delta(&self, delta: BlockDelta) -> MessageEvent {
        let index = self.next.saturating_sub(1);
        MessageEvent::ContentBlockDelta { index, delta }
    }
}

fn event(event: &MessageEvent) -> sse::Event {
    named(event.name(), event)
}

fn named(name: &str, body: &impl Serialize) -> sse::Event {
    let data = serde_json::to_string(body).expect("its keys are strings");
    sse::Event::default().event(name).data(data)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn blocks_begin_where_the_kind_changes() {
        let mut blocks = Blocks::default();
        let started = |index, id: &str| Delta::CallStarted {
            index,
            id: id.to_owned(),
            name: "clock".to_owned(),
        };
        let pieces = [
            Delta::Reasoning("a".into()),
            Delta::Reasoning("b".into()),
            Delta::Text("c".into()),
            Delta::Text(String::new()),
            started(0, "x"),
            Delta::CallArguments {
                index: 0,
                json: "{}".into(),
            },
            Delta::CallEnded {
                index: 0,
                is_complete: true,
            },
            started(1, "y"),
        ];
        let events = pieces.into_iter().flat_map(|piece| blocks.push(piece));
        let mut events: Vec<MessageEvent> = events.collect();
        events.extend(blocks.close());
        let events: Vec<Value> = events
            .iter()
            .map(|event| serde_json::to_value(event).expect("JSON"))
            .collect();
        let kinds: Vec<(&str, u64)> = events
            .iter()
            .map(|event| {
                let kind = event["type"].as_str().expect("a type");
                let index = event["index"].as_u64().expect("an index");
                (kind.strip_prefix("content_block_").expect("a block"), index)
            })
            .collect();
        let expected = [
            ("start", 0),
            ("delta", 0),
            ("delta", 0),
            ("delta", 0), // the signature
            ("stop", 0),
            ("start", 1),
            ("delta", 1),
            ("stop", 1),
            ("start", 2),
            ("delta", 2),
            ("stop", 2),
            ("start", 3),
            ("stop", 3),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(events[0]["content_block"]["thinking"], "");
        let digest = signature(Sha256::new_with_prefix("ab"));
        let expected = json!({"type": "signature_delta", "signature": digest});
        assert_eq!(events[3]["delta"], expected);
        assert_eq!(events[8]["content_block"]["input"], json!({}));
    }
}
