//! From the items of a conversation to the messages that chat templates read.
//!
//! An answer goes back in the form in which the model wrote it: its reasoning, its text and its
//! calls are one message of the assistant. The prompt of the next turn then begins with the tokens
//! of this one, which are cached.

use std::sync::Arc;

use motet::chat::History;
use motet::text::Message;
use serde_json::{Value, json};

use super::items::{Call, Item, Role};
use crate::body::json::VALUES_MAX;
use crate::conversation::add_result;
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
    /// Calls by their ids and tools.
    calls: Vec<(String, String, Value)>,
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
    history: &[Arc<Item>],
    input: &[Arc<Item>],
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
                let arguments = self.arguments(call, path)?;
                let call = (call.call_id.clone(), call.name.clone(), arguments);
                self.turn_before(|_| true).calls.push(call);
            }
            Item::FunctionCallOutput(output) => {
                self.end_turn();
                let mut message = Message::new("tool", &*output.output);
                let (id, field) = (Some(&*output.call_id), format!("{path}.call_id"));
                add_result(&self.history, &mut message, id, &field)?;
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

    /// Adds the call to the history, and returns its arguments as JSON where they are JSON.
    fn arguments(&mut self, call: &Call, path: &str) -> Result<Value, ApiError> {
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
        self.history.add_call(&*call.call_id, &*call.name);
        let arguments = serde_json::from_str::<Value>(&call.arguments);
        Ok(arguments.unwrap_or_else(|_| json!(&*call.arguments)))
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
            message.set_reasoning(turn.reasoning);
        }
        for (id, tool, arguments) in turn.calls {
            message.add_call(&id, &tool, arguments);
        }
        self.messages.push(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responses::items::{CallOutput, ItemStatus, Part, ReasoningItem};

    fn message(role: Role, text: &str) -> Arc<Item> {
        Arc::new(Item::message("msg".into(), role, text.into()))
    }

    fn reasoning(text: &str) -> Arc<Item> {
        Arc::new(Item::Reasoning(ReasoningItem {
            id: "rs".into(),
            status: ItemStatus::Completed,
            summary: Vec::new(),
            content: vec![Part::ReasoningText { text: text.into() }],
            encrypted_content: (),
        }))
    }

    fn call(call_id: &str, arguments: &str) -> Arc<Item> {
        Arc::new(Item::FunctionCall(Call {
            id: "fc".into(),
            call_id: call_id.into(),
            name: "clock".into(),
            arguments: arguments.into(),
            status: ItemStatus::Completed,
        }))
    }

    fn output(call_id: &str, output: &str) -> Arc<Item> {
        Arc::new(Item::FunctionCallOutput(CallOutput {
            id: "fco".into(),
            call_id: call_id.into(),
            output: output.into(),
            status: ItemStatus::Completed,
        }))
    }

    fn written(messages: &[Message]) -> Value {
        serde_json::to_value(messages).expect("JSON")
    }

    #[test]
    fn answer_is_one_message_with_its_reasoning_and_calls() {
        let history = [
            message(Role::User, "When?"),
            reasoning("Hm."),
            message(Role::Assistant, "Let me look."),
            call("1", "{\"zone\": \"x\"}"),
            call("2", "no JSON"),
        ];
        let input = [
            output("1", "noon"),
            output("2", "one"),
            message(Role::User, "And?"),
        ];
        let found = messages(Some("Be short."), &history, &input).expect("messages");
        let function = |id: &str, arguments: Value| {
            let function = json!({"name": "clock", "arguments": arguments});
            json!({"id": id, "type": "function", "function": function})
        };
        let calls = [
            function("1", json!({"zone": "x"})),
            function("2", json!("no JSON")),
        ];
        let expected = json!([
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "When?"},
            {"role": "assistant", "content": "Let me look.", "reasoning_content": "Hm.",
             "tool_calls": calls},
            {"role": "tool", "content": "noon", "name": "clock", "tool_call_id": "1"},
            {"role": "tool", "content": "one", "name": "clock", "tool_call_id": "2"},
            {"role": "user", "content": "And?"},
        ]);
        assert_eq!(written(&found), expected);
    }

    #[test]
    fn new_turn_of_the_assistant_begins_with_reasoning_or_text() {
        let input = [
            reasoning("a"),
            message(Role::Assistant, "b"),
            message(Role::Assistant, "c"),
            call("1", "{}"),
            reasoning("d"),
            call("2", "{}"),
        ];
        let found = written(&messages(None, &[], &input).expect("messages"));
        let texts = found.as_array().expect("a list").iter();
        let texts: Vec<_> = texts
            .map(|message| (&message["reasoning_content"], &message["content"]))
            .collect();
        let expected = [
            (&json!("a"), &json!("b")),
            (&Value::Null, &json!("c")),
            (&json!("d"), &json!("")),
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn first_messages_of_the_system_are_one() {
        let input = [
            message(Role::Developer, "b"),
            message(Role::System, "c"),
            message(Role::User, "d"),
            message(Role::Developer, "e"),
        ];
        let found = messages(Some("a"), &[], &input).expect("messages");
        let found: Vec<_> = found
            .iter()
            .map(|found| (&*found.role, &*found.content))
            .collect();
        assert_eq!(
            found,
            [("system", "a\n\nb\n\nc"), ("user", "d"), ("system", "e")]
        );
    }

    #[test]
    fn results_without_calls_and_too_many_values_are_rejected() {
        let check = |input: &[Arc<Item>], field: &str| {
            let error = messages(None, &[], input).expect_err(field);
            let body = serde_json::to_value(error.body()).expect("JSON");
            assert_eq!(body["error"]["param"], field);
            assert_eq!(error.status, 400);
        };
        check(&[call("1", "{}"), output("2", "x")], "input[1].call_id");
        check(&[output("1", "x"), call("1", "{}")], "input[0].call_id");
        let many = format!("[{}1]", "1,".repeat(VALUES_MAX));
        check(&[call("1", "{}"), call("2", &many)], "input[1].arguments");
        // Earlier turns count as well.
        let half = format!("[{}1]", "1,".repeat(VALUES_MAX / 2));
        let first = call("1", &half);
        assert!(messages(None, &[Arc::clone(&first)], &[]).is_ok());
        assert!(messages(None, &[first], &[call("2", &half)]).is_err());
    }
}
