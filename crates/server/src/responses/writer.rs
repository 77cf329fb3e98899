//! From the pieces of an answer to the items of a response and their events.
//!
//! A whole response and a streamed one are written by the same code, so that they agree.

use std::mem;
use std::sync::Arc;

use motet::chat::Delta;
use motet::text::TextCodec;

use super::events::{EventLog, ResponseEvent};
use super::ids::{IdKind, Ids};
use super::items::{
    Call, Item, ItemStatus, Logprobs, Message, Part, ReasoningItem, Role, SummaryPart,
};
use crate::conversation::ScoredToken;
use crate::pieces;

/// Every message and every reasoning has one part.
const PART: usize = 0;

/// Writes the items of one answer.
#[derive(Debug)]
pub(super) struct OutputWriter {
    ids: Ids,
    /// Whether reasoning has a summary.
    has_summary: bool,
    /// Spells the tokens of log probabilities.
    spelling: Option<TextCodec>,
    /// The complete items.
    items: Vec<Arc<Item>>,
    open: Option<OpenItem>,
    /// White space, which becomes a part of a message once text follows.
    held_back: Text,
}

/// The item that is being written.
#[derive(Debug)]
struct OpenItem {
    id: String,
    kind: OpenKind,
    text: Text,
}

#[derive(Debug, PartialEq)]
enum OpenKind {
    Message,
    Reasoning,
    Call { call_id: String, name: String },
}

#[derive(Debug, Default)]
struct Text {
    text: String,
    logprobs: Vec<ScoredToken>,
}

/// A text that is complete, for the events and the item that repeat it.
#[derive(Debug)]
struct WholeText {
    text: pieces::Text,
    logprobs: Logprobs,
}

impl OutputWriter {
    pub(super) fn new(ids: Ids, has_summary: bool, spelling: Option<TextCodec>) -> Self {
        Self {
            ids,
            has_summary,
            spelling,
            items: Vec::new(),
            open: None,
            held_back: Text::default(),
        }
    }

    /// The complete items.
    pub(super) fn items(&self) -> &[Arc<Item>] {
        &self.items
    }

    /// Takes the complete items.
    pub(super) fn take_items(&mut self) -> Vec<Arc<Item>> {
        mem::take(&mut self.items)
    }

    /// Adds a part. Log probabilities are kept with text only.
    pub(super) fn push(&mut self, delta: Delta, logprobs: Vec<ScoredToken>, log: &mut EventLog) {
        match delta {
            Delta::Reasoning(text) => self.reasoning(text, log),
            Delta::Text(text) => self.text(Text { text, logprobs }, log),
            Delta::CallStarted { index, name, .. } => {
                self.close(ItemStatus::Completed, log);
                self.held_back = Text::default();
                let call_id = self.ids.call(index);
                self.open(OpenKind::Call { call_id, name }, log);
            }
            Delta::CallArguments { json, .. } => self.arguments(json, log),
            Delta::CallEnded { is_complete, .. } => {
                let status = if is_complete {
                    ItemStatus::Completed
                } else {
                    ItemStatus::Incomplete
                };
                self.close(status, log);
            }
        }
    }

    /// Completes the last item. An answer without any item gets an empty message.
    pub(super) fn finish(&mut self, status: ItemStatus, log: &mut EventLog) {
        if self.items.is_empty() && self.open.is_none() {
            let text = mem::take(&mut self.held_back);
            self.open(OpenKind::Message, log);
            self.more_text(text, log);
        }
        self.close(status, log);
    }

    fn reasoning(&mut self, more: String, log: &mut EventLog) {
        if more.is_empty() {
            return;
        }
        self.open_text(OpenKind::Reasoning, log);
        let output_index = self.items.len();
        let Some(open) = &mut self.open else { return };
        open.text.text.push_str(&more);
        log.push(|sequence_number| ResponseEvent::ReasoningTextDelta {
            sequence_number,
            item_id: open.id.clone(),
            output_index,
            content_index: PART,
            delta: more.clone(),
        });
        if self.has_summary {
            log.push(|sequence_number| ResponseEvent::SummaryTextDelta {
                sequence_number,
                item_id: open.id.clone(),
                output_index,
                summary_index: PART,
                delta: more,
            });
        }
    }

    fn text(&mut self, more: Text, log: &mut EventLog) {
        let is_open = self
            .open
            .as_ref()
            .is_some_and(|open| open.kind == OpenKind::Message);
        if !is_open && more.text.trim().is_empty() {
            self.held_back.add(more);
            return;
        }
        let mut text = mem::take(&mut self.held_back);
        text.add(more);
        self.open_text(OpenKind::Message, log);
        self.more_text(text, log);
    }

    /// Adds to the open message.
    fn more_text(&mut self, more: Text, log: &mut EventLog) {
        let output_index = self.items.len();
        let spelling = self.spelling.as_ref();
        let Some(open) = &mut self.open else { return };
        if more.text.is_empty() && more.logprobs.is_empty() {
            return;
        }
        log.push(|sequence_number| ResponseEvent::OutputTextDelta {
            sequence_number,
            item_id: open.id.clone(),
            output_index,
            content_index: PART,
            delta: more.text.clone(),
            logprobs: Logprobs::new(more.logprobs.clone(), spelling),
        });
        open.text.add(more);
    }

    fn arguments(&mut self, more: String, log: &mut EventLog) {
        let output_index = self.items.len();
        let Some(open) = &mut self.open else { return };
        if more.is_empty() {
            return;
        }
        open.text.text.push_str(&more);
        log.push(|sequence_number| ResponseEvent::ArgumentsDelta {
            sequence_number,
            item_id: open.id.clone(),
            output_index,
            delta: more,
        });
    }

    /// Opens a message or reasoning, unless one is open.
    fn open_text(&mut self, kind: OpenKind, log: &mut EventLog) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close(ItemStatus::Completed, log);
            self.open(kind, log);
        }
    }

    fn open(&mut self, kind: OpenKind, log: &mut EventLog) {
        let output_index = self.items.len();
        let open = OpenItem {
            id: self.ids.output(kind.id_kind(), output_index),
            kind,
            text: Text::default(),
        };
        log.push(|sequence_number| ResponseEvent::OutputItemAdded {
            sequence_number,
            output_index,
            item: Arc::new(open.without_content()),
        });
        if open.kind == OpenKind::Reasoning && self.has_summary {
            log.push(|sequence_number| ResponseEvent::SummaryPartAdded {
                sequence_number,
                item_id: open.id.clone(),
                output_index,
                summary_index: PART,
                part: SummaryPart::new(pieces::Text::default()),
            });
        }
        if let Some(part) = open.part(&WholeText::empty()) {
            log.push(|sequence_number| ResponseEvent::ContentPartAdded {
                sequence_number,
                item_id: open.id.clone(),
                output_index,
                content_index: PART,
                part,
            });
        }
        self.open = Some(open);
    }

    /// Completes the open item, if there is one.
    fn close(&mut self, status: ItemStatus, log: &mut EventLog) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let output_index = self.items.len();
        let whole = mem::take(&mut open.text).whole(self.spelling.as_ref());
        open.done(&whole, output_index, self.has_summary, log);
        let item = Arc::new(open.item(&whole, status, self.has_summary));
        log.push(|sequence_number| ResponseEvent::OutputItemDone {
            sequence_number,
            output_index,
            item: Arc::clone(&item),
        });
        self.items.push(item);
    }
}

impl Text {
    fn add(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.logprobs.extend(more.logprobs);
    }

    fn whole(self, spelling: Option<&TextCodec>) -> WholeText {
        WholeText {
            text: self.text.into(),
            logprobs: Logprobs::new(self.logprobs, spelling),
        }
    }
}

impl WholeText {
    fn empty() -> Self {
        Text::default().whole(None)
    }
}

impl OpenKind {
    fn id_kind(&self) -> IdKind {
        match self {
            Self::Message => IdKind::Message,
            Self::Reasoning => IdKind::Reasoning,
            Self::Call { .. } => IdKind::Call,
        }
    }
}

impl OpenItem {
    /// The item as the stream announces it.
    fn without_content(&self) -> Item {
        let id = self.id.clone();
        let status = ItemStatus::InProgress;
        match &self.kind {
            OpenKind::Message => Item::Message(Message {
                id,
                role: Role::Assistant,
                status,
                content: Vec::new(),
            }),
            OpenKind::Reasoning => Item::Reasoning(ReasoningItem {
                id,
                status,
                summary: Vec::new(),
                content: Vec::new(),
                encrypted_content: (),
            }),
            OpenKind::Call { call_id, name } => Item::FunctionCall(Call {
                id,
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: pieces::Text::default(),
                status,
            }),
        }
    }

    /// Adds the events that complete the item's text.
    fn done(&self, whole: &WholeText, output_index: usize, has_summary: bool, log: &mut EventLog) {
        let item_id = || self.id.clone();
        let text = || whole.text.clone();
        match &self.kind {
            OpenKind::Message => log.push(|sequence_number| ResponseEvent::OutputTextDone {
                sequence_number,
                item_id: item_id(),
                output_index,
                content_index: PART,
                text: text(),
                logprobs: whole.logprobs.clone(),
            }),
            OpenKind::Reasoning => {
                log.push(|sequence_number| ResponseEvent::ReasoningTextDone {
                    sequence_number,
                    item_id: item_id(),
                    output_index,
                    content_index: PART,
                    text: text(),
                });
            }
            OpenKind::Call { name, .. } => {
                log.push(|sequence_number| ResponseEvent::ArgumentsDone {
                    sequence_number,
                    item_id: item_id(),
                    output_index,
                    name: name.clone(),
                    arguments: text(),
                })
            }
        }
        if let Some(part) = self.part(whole) {
            log.push(|sequence_number| ResponseEvent::ContentPartDone {
                sequence_number,
                item_id: item_id(),
                output_index,
                content_index: PART,
                part,
            });
        }
        if self.kind == OpenKind::Reasoning && has_summary {
            self.summary_done(whole, output_index, log);
        }
    }

    fn summary_done(&self, whole: &WholeText, output_index: usize, log: &mut EventLog) {
        log.push(|sequence_number| ResponseEvent::SummaryTextDone {
            sequence_number,
            item_id: self.id.clone(),
            output_index,
            summary_index: PART,
            text: whole.text.clone(),
        });
        log.push(|sequence_number| ResponseEvent::SummaryPartDone {
            sequence_number,
            item_id: self.id.clone(),
            output_index,
            summary_index: PART,
            part: SummaryPart::new(whole.text.clone()),
        });
    }

    /// The text as a part; a call has none.
    fn part(&self, whole: &WholeText) -> Option<Part> {
        let text = whole.text.clone();
        match self.kind {
            OpenKind::Message => Some(Part::output_text(text, whole.logprobs.clone())),
            OpenKind::Reasoning => Some(Part::ReasoningText { text }),
            OpenKind::Call { .. } => None,
        }
    }

    fn item(&self, whole: &WholeText, status: ItemStatus, has_summary: bool) -> Item {
        let mut item = self.without_content();
        let content = self.part(whole).into_iter().collect();
        match &mut item {
            Item::Message(message) => {
                message.status = status;
                message.content = content;
            }
            Item::Reasoning(reasoning) => {
                reasoning.status = status;
                if has_summary {
                    reasoning.summary = vec![SummaryPart::new(whole.text.clone())];
                }
                reasoning.content = content;
            }
            Item::FunctionCall(call) => {
                call.status = status;
                call.arguments = whole.text.clone();
            }
            Item::FunctionCallOutput(_) => unreachable!("the model gives no results"),
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reasoning(text: &str) -> Delta {
        Delta::Reasoning(text.into())
    }

    fn text(text: &str) -> Delta {
        Delta::Text(text.into())
    }

    fn call(index: usize, arguments: &[&str], is_complete: Option<bool>) -> Vec<Delta> {
        let start = Delta::CallStarted {
            index,
            id: format!("call{index}"),
            name: format!("tool{index}"),
        };
        let arguments = arguments.iter().map(|json| Delta::CallArguments {
            index,
            json: (*json).into(),
        });
        let end = is_complete.map(|is_complete| Delta::CallEnded { index, is_complete });
        std::iter::once(start).chain(arguments).chain(end).collect()
    }

    /// The items of an answer, and the events that its stream has.
    fn write(pieces: &[Delta], status: ItemStatus, is_streamed: bool) -> (Value, Vec<Value>) {
        let ids = Ids::of("x");
        let mut writer = OutputWriter::new(ids, true, None);
        let mut log = EventLog::new(is_streamed);
        for piece in pieces {
            writer.push(piece.clone(), Vec::new(), &mut log);
        }
        writer.finish(status, &mut log);
        let events = std::iter::from_fn(|| log.pop());
        let events = events.map(|event| serde_json::to_value(event).expect("JSON"));
        let events = events.collect();
        let items = serde_json::to_value(writer.take_items()).expect("JSON");
        (items, events)
    }

    /// The items as a client collects them from events, which it also checks.
    fn collected(events: &[Value]) -> Vec<Value> {
        let mut items: Vec<Value> = Vec::new();
        let mut is_open = false;
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number);
            let index = event["output_index"].as_u64().expect("an index") as usize;
            let kind = event["type"].as_str().expect("a type");
            if kind == "response.output_item.added" {
                assert!(!is_open && index == items.len(), "{event}");
                is_open = true;
                items.push(event["item"].clone());
                continue;
            }
            assert!(is_open && index + 1 == items.len(), "{event}");
            let item = &mut items[index];
            assert!(event["item_id"].is_null() || event["item_id"] == item["id"]);
            collect(item, kind, event);
            if kind == "response.output_item.done" {
                is_open = false;
                let mut expected = event["item"].clone();
                // Only the last event has the final status.
                expected["status"] = item["status"].clone();
                assert_eq!(*item, expected);
                *item = event["item"].clone();
            }
        }
        assert!(!is_open);
        items
    }

    fn collect(item: &mut Value, kind: &str, event: &Value) {
        let append = |text: &mut Value, more: &Value| {
            let more = more.as_str().expect("text");
            *text = json!(format!("{}{more}", text.as_str().expect("text")));
        };
        match kind {
            "response.content_part.added" => {
                let parts = item["content"].as_array_mut().expect("parts");
                assert_eq!(event["content_index"], parts.len());
                parts.push(event["part"].clone());
            }
            "response.reasoning_summary_part.added" => {
                let parts = item["summary"].as_array_mut().expect("parts");
                parts.push(event["part"].clone());
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                append(&mut item["content"][0]["text"], &event["delta"]);
            }
            "response.reasoning_summary_text.delta" => {
                append(&mut item["summary"][0]["text"], &event["delta"]);
            }
            "response.function_call_arguments.delta" => {
                append(&mut item["arguments"], &event["delta"]);
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], item["content"][0]["text"]);
            }
            "response.reasoning_summary_text.done" => {
                assert_eq!(event["text"], item["summary"][0]["text"]);
            }
            "response.function_call_arguments.done" => {
                assert_eq!(event["arguments"], item["arguments"]);
                assert_eq!(event["name"], item["name"]);
            }
            "response.content_part.done" => assert_eq!(event["part"], item["content"][0]),
            "response.reasoning_summary_part.done" => {
                assert_eq!(event["part"], item["summary"][0]);
            }
            "response.output_item.done" => {}
            other => panic!("unexpected event {other}"),
        }
    }

    /// The kind, the text and the status of each item, whole and streamed alike.
    fn check(pieces: &[Delta], status: ItemStatus, expected: &[(&str, &str, &str)]) {
        let (whole, none) = write(pieces, status, false);
        assert_eq!(none, Vec::<Value>::new());
        let (streamed, events) = write(pieces, status, true);
        assert_eq!(streamed, whole);
        assert_eq!(Value::Array(collected(&events)), whole);
        let items = whole.as_array().expect("items").iter();
        let items: Vec<_> = items
            .map(|item| {
                let text = match item["type"].as_str() {
                    Some("function_call") => &item["arguments"],
                    _ => &item["content"][0]["text"],
                };
                (&item["type"], text, &item["status"])
            })
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(kind, text, status)| (json!(kind), json!(text), json!(status)))
            .collect();
        let expected: Vec<_> = expected.iter().map(|(a, b, c)| (a, b, c)).collect();
        assert_eq!(items, expected);
    }

    #[test]
    fn streamed_items_join_to_the_whole() {
        let pieces = [
            vec![
                reasoning("Let "),
                reasoning("me see."),
                text("\n\n"),
                text("I "),
                text("look."),
            ],
            call(0, &["{\"a\"", ": 1}"], Some(true)),
            call(1, &["{}"], Some(true)),
            vec![text("\n"), reasoning("Hm."), text("Done"), text(" now")],
        ];
        let expected = [
            ("reasoning", "Let me see.", "completed"),
            ("message", "\n\nI look.", "completed"),
            ("function_call", "{\"a\": 1}", "completed"),
            ("function_call", "{}", "completed"),
            ("reasoning", "Hm.", "completed"),
            ("message", "\nDone now", "completed"),
        ];
        check(&pieces.concat(), ItemStatus::Completed, &expected);
    }

    #[test]
    fn white_space_between_items_is_no_message() {
        let pieces = [
            vec![reasoning("Hm."), text("\n")],
            call(0, &["{}"], Some(true)),
            vec![text("\n")],
        ];
        let expected = [
            ("reasoning", "Hm.", "completed"),
            ("function_call", "{}", "completed"),
        ];
        check(&pieces.concat(), ItemStatus::Completed, &expected);
    }

    #[test]
    fn answer_without_anything_is_an_empty_message() {
        check(&[], ItemStatus::Completed, &[("message", "", "completed")]);
        let expected = [("message", " \n", "incomplete")];
        check(&[text(" "), text("\n")], ItemStatus::Incomplete, &expected);
    }

    #[test]
    fn last_item_of_a_cut_answer_is_incomplete() {
        let cut = [vec![text("a")], call(0, &["{\"a"], None)].concat();
        let expected = [
            ("message", "a", "completed"),
            ("function_call", "{\"a", "incomplete"),
        ];
        check(&cut, ItemStatus::Incomplete, &expected);
        let invalid = [call(0, &["{\"a"], Some(false)), vec![text("b")]].concat();
        let expected = [
            ("function_call", "{\"a", "incomplete"),
            ("message", "b", "completed"),
        ];
        check(&invalid, ItemStatus::Completed, &expected);
    }

    #[test]
    fn ids_and_names_of_calls_are_kept() {
        let (items, events) = write(&call(0, &["{}"], Some(true)), ItemStatus::Completed, true);
        assert_eq!(items[0]["call_id"], Ids::of("x").call(0));
        assert_eq!(items[0]["name"], "tool0");
        assert_eq!(items[0]["id"], "fc_x_0");
        assert_eq!(events[0]["item"]["status"], "in_progress");
        assert_eq!(events[0]["item"]["name"], "tool0");
    }
}
