//! A request of any dialect, and its way to the engine.

use std::collections::BTreeMap;

use motet::chat::ChatRequest;
use motet::grammar::GrammarSource;
use motet::text::{Chat, Message};

use super::{Answers, FieldNames};
use crate::app::App;
use crate::body::json::Json;
use crate::error::ApiError;
use crate::generate::{OutputStreams, UntilSent};
use crate::kept::{Keep, KeptResults};
use crate::keys::Caller;
use crate::log::RequestLog;

/// A request of a dialect to the model.
#[derive(Debug)]
pub(crate) struct ConversationRequest {
    /// Messages, tools, reasoning and format, and the settings with the request's tenancy.
    pub(crate) chat: ChatRequest,
    /// The dialect's names of fields.
    pub(crate) names: &'static FieldNames,
}

/// Puts messages, and variables that the client sets, in the form of templates.
pub(crate) fn chat_of(
    app: &App,
    messages: Vec<Message>,
    variables: Option<BTreeMap<String, Json>>,
) -> Chat {
    let mut chat = Chat::from(messages);
    chat.with_special_tokens = app.access.special_tokens_in_messages;
    let variables = variables.into_iter().flatten();
    chat.variables = variables.map(|(name, Json(value))| (name, value)).collect();
    chat
}

/// Checks the length of a schema that an answer's text must follow.
///
/// # Errors
///
/// The error names the dialect's `field`.
pub(crate) fn check_schema_bytes(schema: &str, field: &'static str) -> Result<(), ApiError> {
    let (bytes, most) = (schema.len(), GrammarSource::SCHEMA_BYTES_MAX);
    if bytes <= most {
        return Ok(());
    }
    let message = format!("`{field}` has a schema of {bytes} bytes; expected at most {most}");
    Err(ApiError::unprocessable(field, message))
}

impl ConversationRequest {
    /// Returns the conversation as the template gets it, to count its tokens.
    ///
    /// # Errors
    ///
    /// The error names the dialect's field.
    pub(crate) fn into_chat(self, app: &App) -> Result<Chat, ApiError> {
        let chat = self.chat.into_chat(&app.engine);
        chat.map_err(|error| self.names.chat_error(error))
    }

    /// Submits the request.
    ///
    /// # Errors
    ///
    /// The error names the dialect's field.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the request.
    pub(crate) async fn submit(
        self,
        app: &App,
        caller: Caller,
        log: RequestLog,
        keep: Keep,
    ) -> Result<Answers, ApiError> {
        let names = self.names;
        let settings = &self.chat.settings;
        let field = names.kept(settings);
        let kept = KeptResults::reserve(app, settings.user.as_deref(), keep, field)?;
        let prepared = self.chat.prepare(&app.engine).await;
        let (request, reader) = prepared.map_err(|error| names.chat_error(error))?;
        let until_sent = UntilSent {
            kept,
            _caller: caller,
        };
        let streams = OutputStreams::submit(&app.engine, vec![request], until_sent, log).await;
        let streams = streams.map_err(|error| {
            let other = |error| names.chat_error(reader.submit_error(error));
            KeptResults::submit_error(field, error, other)
        })?;
        let grammar_field = names.name(reader.field_of_grammar());
        let answers = Answers::new(streams, &reader, grammar_field);
        Ok(answers.observed(&app.activity))
    }
}
