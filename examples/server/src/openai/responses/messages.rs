//! From the items of a conversation to the messages that chat templates read.
//!
//! An answer goes back in the form in which the model wrote it: its reasoning, its text and its
//! calls are one message of the assistant. The prompt of the next turn then begins with the tokens
//! of this one, which are cached.

use std::mem;

use motet::text::Message;
use serde_json::{Value, json};

use super::items::{Call, Item, Role};
use crate::body::json::VALUES_MAX;
use crate::conversation::{CALLS, History, REASONING};
use crate::error::ApiError;

/// Between instructions and the system's messages that follow them.
const BETWEEN_INSTRUCTIONS: &str = "\n\n";

/// Collects messages.
#[derive(Debug, Default)]
struct Messages {
    messages: Vec<Message>,
    turn: Option<AssistantTurn>,
    history: History,
    /// Values in the arguments of calls so far, at most.
    values: usize,
}

/// The message of the assistant that is being collected.
#[derive(Debug, Default)]
struct AssistantTurn {
    reasoning: String,
    text: Option<String>,
    calls: Vec<Value>,
}

/// The messages of a conversation: instructions, the turns so far, and the request's own items.
/// Templates read one message of the system, at the beginning: the instructions and the system's
/// messages that follow them.
///
/// # Errors
///
/// The result of a call that no item before it made is an error, which names the field of the
/// request's item.
pub(super) fn messages(
    instructions: Option<&str>,
    history: &[&Item],
    input: &[Item],
) -> Result<Vec<Message>, ApiError> {
    let mut messages = Messages::default();
    if let Some(instructions) = instructions {
        messages.text(Role::System, instructions.to_owned());
    }
    for item in history {
        messages.push(item, "previous_response_id")?;
    }
    for (index, item) in input.iter().enumerate() {
        messages.push(item, &format!("input[{index}]"))?;
    }
    messages.end_turn();
    Ok(messages.messages)
}

impl Messages {
    fn push(&mut self, item: &Item, path: &str) -> Result<(), ApiError> {
        match item {
            Item::Message(message) => self.text(message.role, item.text()),
            Item::Reasoning(reasoning) => {
                let text = reasoning.text();
                self.turn_before(|turn| turn.text.is_none() && turn.calls.is_empty())
                    .reasoning
                    .push_str(&text);
            }
            Item::FunctionCall(call) => {
                let call = self.call(call, path)?;
                self.turn_before(|_| true).calls.push(call);
            }
            Item::FunctionCallOutput(output) => {
                self.end_turn();
                let tool = self.history.tool_of(&output.call_id, &format!("{path}.call_id"))?;
                let mut message = Message::new("tool", output.output.clone());
                message.more.insert("name".to_owned(), json!(tool));
                let id = json!(output.call_id);
                message.more.insert("tool_call_id".to_owned(), id);
                self.messages.push(message);
            }
        }
        Ok(())
    }

    fn text(&mut self, role: Role, text: String) {
        match role {
            Role::Assistant => {
                let turn = self.turn_before(|turn| turn.text.is_none() && turn.calls.is_empty());
                turn.text = Some(text);
            }
            Role::User => {
                self.end_turn();
                self.messages.push(Message::user(text));
            }
            Role::System | Role::Developer => {
                self.end_turn();
                self.system(&text);
            }
        }
    }

    fn system(&mut self, text: &str) {
        match &mut *self.messages {
            [first] if first.role == "system" => {
                first.content.push_str(BETWEEN_INSTRUCTIONS);
                first.content.push_str(text);
            }
            _ => self.messages.push(Message::system(text)),
        }
    }

    /// The call in the form of templates, with its arguments as JSON where they are JSON.
    fn call(&mut self, call: &Call, path: &str) -> Result<Value, ApiError> {
        // Each value ends before one of these, or is the whole text.
        let separators = call.arguments.bytes().filter(|byte| b",:[{".contains(byte));
        self.values += 1 + separators.count();
        if self.values > VALUES_MAX {
            let field = format!("{path}.arguments");
            let message = format!(
                "`{field}`: the conversation has more than {VALUES_MAX} values in arguments of \
                 calls; expected at most as many"
            );
            return Err(ApiError::field(field, message));
        }
        self.history.call(&*call.call_id, &*call.name);
        let arguments = serde_json::from_str::<Value>(&call.arguments);
        let arguments = arguments.unwrap_or_else(|_| json!(call.arguments));
        Ok(json!({
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }))
    }

    /// The assistant's message that is being collected, if it can take more, or a new one.
    fn turn_before(&mut self, can_take: impl FnOnce(&AssistantTurn) -> bool) -> &mut AssistantTurn {
        if !self.turn.as_ref().is_some_and(can_take) {
            self.end_turn();
        }
        self.turn.get_or_insert_default()
    }

    fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let mut message = Message::new("assistant", turn.text.unwrap_or_default());
        if !turn.reasoning.is_empty() {
            message.more.insert(REASONING.to_owned(), json!(turn.reasoning));
        }
        if !turn.calls.is_empty() {
            message.more.insert(CALLS.to_owned(), Value::Array(turn.calls));
        }
        self.messages.push(message);
    }
}
