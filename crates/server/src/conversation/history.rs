//! Calls, results and reasoning in the messages of a conversation.

use std::collections::HashMap;

use motet::text::Message;
use serde_json::{Value, json};

use crate::error::ApiError;

/// The calls that the messages so far have made. Each result belongs to one of them.
///
/// A call is not compared with the tools that the request defined: agents pass a conversation on to
/// other agents, and the tools of one turn need not be those of the next.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The tools' names by the calls' ids.
    calls: HashMap<String, String>,
}

impl History {
    /// Adds a call of an assistant's message.
    pub(crate) fn call(&mut self, id: impl Into<String>, tool: impl Into<String>) {
        self.calls.insert(id.into(), tool.into());
    }

    /// Returns the name of the tool that a result comes from.
    ///
    /// # Errors
    ///
    /// The result of a call that no earlier message made is an error, which names `field`.
    pub(crate) fn tool_of(&self, id: &str, field: &str) -> Result<&str, ApiError> {
        match self.calls.get(id) {
            Some(tool) => Ok(tool),
            None => {
                let message =
                    format!("`{field}` is {id:?}; expected the id of a call in an earlier message");
                Err(ApiError::field(field, message))
            }
        }
    }

    /// Makes a message the result of the call with this id, as templates read it.
    ///
    /// # Errors
    ///
    /// An id that is missing, or that no earlier call has, is an error, which names `field`.
    pub(crate) fn add_result(
        &self,
        message: &mut Message,
        id: Option<&str>,
        field: &str,
    ) -> Result<(), ApiError> {
        let Some(id) = id else {
            let expected = "expected the id of a call in an earlier message";
            let message = format!("`{field}` is missing; {expected}");
            return Err(ApiError::field(field, message));
        };
        let tool = self.tool_of(id, field)?;
        message.more.insert("tool_call_id".to_owned(), json!(id));
        let name = message.more.entry("name".to_owned());
        name.or_insert_with(|| json!(tool));
        Ok(())
    }
}

/// Gives an assistant's message its reasoning, as templates read it.
pub(crate) fn set_reasoning(message: &mut Message, reasoning: &str) {
    message
        .more
        .insert("reasoning_content".to_owned(), json!(reasoning));
}

/// A call of an assistant's message, as templates read it. Arguments are JSON where they parse.
pub(crate) fn call_for_template(id: &str, name: &str, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}
