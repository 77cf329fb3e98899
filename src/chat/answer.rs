//! An answer's events, collected.

use motet_protocol::{TokenId, TokenLogprobs, Usage};
use motet_text::Message;
use serde_json::Value;

use super::{AnswerEnd, ChatEvent, Delta};

/// An answer, complete or so far.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// Its parts in the order in which they were generated. Two parts of the same kind of text
    /// never follow each other.
    pub items: Vec<AnswerItem>,
    /// Log probabilities, where the settings ask for them: one for each token.
    pub logprobs: Vec<(TokenId, TokenLogprobs)>,
    /// Why it ended; `None` before its end.
    pub end: Option<AnswerEnd>,
    /// The tokens that its sequence used; 0 before its end.
    pub usage: Usage,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerItem {
    /// Thoughts, which are not for the reader.
    Reasoning(String),
    /// Text for the reader.
    Text(String),
    /// A call of a tool.
    Call(Call),
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// An id that ties the result to the call.
    pub id: String,
    /// The name of the tool, which is one of the request's.
    pub name: String,
    /// The arguments: a JSON object if the call is complete, and its beginning otherwise.
    pub arguments: String,
    /// Whether the arguments are whole. If not, the answer ended within them, or they are not JSON.
    pub is_complete: bool,
}

impl Answer {
    /// Adds the next event of the answer.
    pub fn add(&mut self, event: ChatEvent) {
        match event {
            ChatEvent::Prefilled(_) => {}
            ChatEvent::Delta { delta, logprobs } => {
                self.logprobs.extend(logprobs);
                self.add_delta(delta);
            }
            ChatEvent::Ended { end, usage } => (self.end, self.usage) = (Some(end), usage),
        }
    }

    fn add_delta(&mut self, delta: Delta) {
        match (delta, self.items.last_mut()) {
            (Delta::Reasoning(more), Some(AnswerItem::Reasoning(text)))
            | (Delta::Text(more), Some(AnswerItem::Text(text)))
            | (
                Delta::CallArguments { json: more, .. },
                Some(AnswerItem::Call(Call {
                    arguments: text, ..
                })),
            ) => text.push_str(&more),
            (Delta::Reasoning(text), _) => self.items.push(AnswerItem::Reasoning(text)),
            (Delta::Text(text), _) => {
                if !text.is_empty() {
                    self.items.push(AnswerItem::Text(text));
                }
            }
            (Delta::CallStarted { id, name, .. }, _) => self.items.push(AnswerItem::Call(Call {
                id,
                name,
                arguments: String::new(),
                is_complete: false,
            })),
            (Delta::CallEnded { is_complete, .. }, Some(AnswerItem::Call(call))) => {
                call.is_complete = is_complete;
            }
            (Delta::CallArguments { .. } | Delta::CallEnded { .. }, _) => {}
        }
    }

    /// Returns all of its text.
    #[must_use]
    pub fn text(&self) -> String {
        let texts = self.items.iter().filter_map(|item| match item {
            AnswerItem::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Returns all of its reasoning.
    #[must_use]
    pub fn reasoning(&self) -> String {
        let texts = self.items.iter().filter_map(|item| match item {
            AnswerItem::Reasoning(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Returns its calls, oldest first.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.items.iter().filter_map(|item| match item {
            AnswerItem::Call(call) => Some(call),
            _ => None,
        })
    }

    /// Returns the answer as a message of the next request, with its reasoning and its calls. The
    /// prompt of the next turn then begins with the tokens of this one, which are cached.
    #[must_use]
    pub fn message(&self) -> Message {
        let mut message = Message::assistant(self.text());
        let reasoning = self.reasoning();
        if !reasoning.is_empty() {
            message.set_reasoning(reasoning);
        }
        for call in self.calls() {
            let arguments = serde_json::from_str(&call.arguments);
            let arguments = arguments.unwrap_or_else(|_| Value::String(call.arguments.clone()));
            message.add_call(&call.id, &call.name, arguments);
        }
        message
    }
}

impl Call {
    /// Returns the message of the next request that has the call's result. It follows the
    /// [message](Answer::message) with the call.
    #[must_use]
    pub fn result(&self, text: impl Into<String>) -> Message {
        Message::result(&self.id, &self.name, text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_are_joined_and_become_messages() {
        let mut answer = Answer::default();
        let deltas = [
            Delta::Reasoning("A ".into()),
            Delta::Reasoning("clock.".into()),
            Delta::Text(String::new()),
            Delta::Text("Let me ".into()),
            Delta::Text("look.".into()),
            Delta::CallStarted {
                index: 0,
                id: "c1".into(),
                name: "clock".into(),
            },
            Delta::CallArguments {
                index: 0,
                json: "{\"zone\"".into(),
            },
            Delta::CallArguments {
                index: 0,
                json: ": 2}".into(),
            },
            Delta::CallEnded {
                index: 0,
                is_complete: true,
            },
        ];
        for delta in deltas {
            let logprobs = Vec::new();
            answer.add(ChatEvent::Delta { delta, logprobs });
        }
        assert_eq!(answer.items.len(), 3);
        let message = answer.message();
        assert_eq!(message.content, "Let me look.");
        assert_eq!(message.more["reasoning_content"], "A clock.");
        let function = json!({"name": "clock", "arguments": {"zone": 2}});
        let call = json!({"id": "c1", "type": "function", "function": function});
        assert_eq!(message.more["tool_calls"], json!([call]));
        let call = answer.calls().next().expect("a call");
        assert!(call.is_complete);
        let result = call.result("noon");
        assert_eq!((&*result.role, &*result.content), ("tool", "noon"));
        assert_eq!(result.more["tool_call_id"], "c1");
        assert_eq!(result.more["name"], "clock");
    }
}
