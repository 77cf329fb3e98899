//! From the pieces of an answer to the items of a response and their events.
//!
//! A whole response and a streamed one are written by the same code, so that they agree.

use std::mem;

use super::events::{EventLog, ResponseEvent};
use super::ids::{IdKind, Ids};
use super::items::{Call, Item, ItemStatus, Logprob, Message, Part, ReasoningItem, Role, SummaryPart};
use crate::conversation::AnswerPiece;

/// Every message and every reasoning has one part.
const PART: usize = 0;

/// Writes the items of one answer.
#[derive(Debug)]
pub(super) struct OutputWriter {
    ids: Ids,
    /// Whether reasoning has a summary.
    has_summary: bool,
    /// The complete items.
    items: Vec<Item>,
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
    logprobs: Vec<Logprob>,
}

impl OutputWriter {
    pub(super) fn new(ids: Ids, has_summary: bool) -> Self {
        Self {
            ids,
            has_summary,
            items: Vec::new(),
            open: None,
            held_back: Text::default(),
        }
    }

    /// The complete items.
    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Takes the complete items.
    pub(super) fn take_items(&mut self) -> Vec<Item> {
        mem::take(&mut self.items)
    }

    /// Adds a piece. Log probabilities are kept with text only.
    pub(super) fn push(&mut self, piece: AnswerPiece, logprobs: Vec<Logprob>, log: &mut EventLog) {
        match piece {
            AnswerPiece::Reasoning(text) => self.reasoning(text, log),
            AnswerPiece::Text(text) => self.text(Text { text, logprobs }, log),
            AnswerPiece::CallStarted { id, name, .. } => {
                self.close(ItemStatus::Completed, log);
                self.held_back = Text::default();
                let call_id = id;
                self.open(OpenKind::Call { call_id, name }, log);
            }
            AnswerPiece::CallArguments { json, .. } => self.arguments(json, log),
            AnswerPiece::CallEnded { .. } => self.close(ItemStatus::Completed, log),
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
        let is_open = self.open.as_ref().is_some_and(|open| open.kind == OpenKind::Message);
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
            logprobs: more.logprobs.clone(),
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
            item: open.without_content(),
        });
        if open.kind == OpenKind::Reasoning && self.has_summary {
            log.push(|sequence_number| ResponseEvent::SummaryPartAdded {
                sequence_number,
                item_id: open.id.clone(),
                output_index,
                summary_index: PART,
                part: SummaryPart::new(String::new()),
            });
        }
        if let Some(part) = open.part() {
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
        let Some(open) = self.open.take() else { return };
        let output_index = self.items.len();
        open.done(output_index, self.has_summary, log);
        let item = open.into_item(status, self.has_summary);
        log.push(|sequence_number| ResponseEvent::OutputItemDone {
            sequence_number,
            output_index,
            item: item.clone(),
        });
        self.items.push(item);
    }
}

impl Text {
    fn add(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.logprobs.extend(more.logprobs);
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
                arguments: String::new(),
                status,
            }),
        }
    }

    /// Adds the events that complete the item's text.
    fn done(&self, output_index: usize, has_summary: bool, log: &mut EventLog) {
        let item_id = || self.id.clone();
        let text = || self.text.text.clone();
        match &self.kind {
            OpenKind::Message => log.push(|sequence_number| ResponseEvent::OutputTextDone {
                sequence_number,
                item_id: item_id(),
                output_index,
                content_index: PART,
                text: text(),
                logprobs: self.text.logprobs.clone(),
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
            OpenKind::Call { name, .. } => log.push(|sequence_number| ResponseEvent::ArgumentsDone {
                sequence_number,
                item_id: item_id(),
                output_index,
                name: name.clone(),
                arguments: text(),
            }),
        }
        if let Some(part) = self.part() {
            log.push(|sequence_number| ResponseEvent::ContentPartDone {
                sequence_number,
                item_id: item_id(),
                output_index,
                content_index: PART,
                part,
            });
        }
        if self.kind == OpenKind::Reasoning && has_summary {
            self.summary_done(output_index, log);
        }
    }

    fn summary_done(&self, output_index: usize, log: &mut EventLog) {
        log.push(|sequence_number| ResponseEvent::SummaryTextDone {
            sequence_number,
            item_id: self.id.clone(),
            output_index,
            summary_index: PART,
            text: self.text.text.clone(),
        });
        log.push(|sequence_number| ResponseEvent::SummaryPartDone {
            sequence_number,
            item_id: self.id.clone(),
            output_index,
            summary_index: PART,
            part: SummaryPart::new(self.text.text.clone()),
        });
    }

    /// The text so far as a part; a call has none.
    fn part(&self) -> Option<Part> {
        let text = self.text.text.clone();
        match self.kind {
            OpenKind::Message => Some(Part::output_text(text, self.text.logprobs.clone())),
            OpenKind::Reasoning => Some(Part::ReasoningText { text }),
            OpenKind::Call { .. } => None,
        }
    }

    fn into_item(self, status: ItemStatus, has_summary: bool) -> Item {
        let mut item = self.without_content();
        let Text { text, logprobs } = self.text;
        match &mut item {
            Item::Message(message) => {
                message.status = status;
                message.content = vec![Part::output_text(text, logprobs)];
            }
            Item::Reasoning(reasoning) => {
                reasoning.status = status;
                if has_summary {
                    reasoning.summary = vec![SummaryPart::new(text.clone())];
                }
                reasoning.content = vec![Part::ReasoningText { text }];
            }
            Item::FunctionCall(call) => {
                call.status = status;
                call.arguments = text;
            }
            Item::FunctionCallOutput(_) => unreachable!("the model gives no results"),
        }
        item
    }
}
