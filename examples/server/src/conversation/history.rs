//! Calls and results in the messages of a conversation.

use std::collections::HashMap;

use crate::error::ApiError;

/// The calls that the messages so far have made. Results belong to one of them each.
///
/// A call is not compared with the tools that the request offers: agents hand a conversation to
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
                let message = format!(
                    "`{field}` is {id:?}; expected the id of a call in an earlier message"
                );
                Err(ApiError::field(field, message))
            }
        }
    }
}
