//! The calls of earlier messages, and their results.

use std::collections::HashMap;

use motet_text::Message;
use serde_json::{Value, json};

use super::ChatError;

/// The calls that the messages so far have made. Each result belongs to one of them.
///
/// [`Engine::chat`](crate::Engine::chat) checks the messages of a request by itself. A history is for
/// callers that read messages of another form, and name their own fields in errors.
///
/// A call is not compared with the tools of the request: agents pass a conversation on to other
/// agents, and the tools of one turn need not be those of the next.
#[derive(Debug, Default)]
pub struct History {
    /// The tools' names by the calls' ids.
    calls: HashMap<String, String>,
}

impl History {
    /// Adds a call of a message of the model.
    pub fn add_call(&mut self, id: impl Into<String>, tool: impl Into<String>) {
        self.calls.insert(id.into(), tool.into());
    }

    /// Makes a message the result of the call with this id, as templates read it: with the id, and
    /// with the name of the tool unless it has a name. Returns whether an earlier message has such a
    /// call; the message is unchanged otherwise.
    #[must_use]
    pub fn add_result(&self, message: &mut Message, id: &str) -> bool {
        let Some(tool) = self.calls.get(id) else {
            return false;
        };
        message.more.insert("tool_call_id".to_owned(), json!(id));
        let name = message.more.entry("name".to_owned());
        name.or_insert_with(|| json!(tool));
        true
    }

    /// Checks and completes the results in the messages of a conversation.
    pub(super) fn complete(messages: &mut [Message]) -> Result<(), ChatError> {
        let mut history = Self::default();
        for (index, message) in messages.iter_mut().enumerate() {
            let calls = message.more.get("tool_calls").and_then(Value::as_array);
            for call in calls.into_iter().flatten() {
                // A call without an id has no result.
                if let (Some(id), Some(tool)) =
                    (call["id"].as_str(), call["function"]["name"].as_str())
                {
                    history.add_call(id, tool);
                }
            }
            if message.role != "tool" {
                continue;
            }
            let id = message.more.get("tool_call_id").and_then(Value::as_str);
            let id = id.unwrap_or_default().to_owned();
            if !history.add_result(message, &id) {
                return Err(ChatError::UnknownCall { message: index });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_belong_to_earlier_calls() {
        let mut called = Message::assistant("");
        called.add_call("1", "clock", json!({}));
        let mut nameless = Message::new("tool", "noon");
        nameless.more.insert("tool_call_id".into(), json!("1"));
        let mut messages = [Message::user("When?"), called.clone(), nameless];
        History::complete(&mut messages).expect("a call of that id");
        assert_eq!(messages[2].more["name"], "clock");
        let unknown = Message::result("2", "clock", "noon");
        for (messages, at) in [
            (vec![called.clone(), unknown.clone()], 1),
            (vec![Message::result("1", "clock", "noon"), called], 0),
            (vec![Message::new("tool", "noon")], 0),
        ] {
            let mut messages = messages;
            match History::complete(&mut messages) {
                Err(ChatError::UnknownCall { message }) => assert_eq!(message, at),
                other => panic!("{other:?}"),
            }
        }
    }
}
