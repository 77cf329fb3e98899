//! The fields of a conversation, as an internal request.

use std::collections::BTreeMap;

use motet::Request;
use motet::text::Chat;

use super::message::ChatMessage;
use super::tools::{ChatTool, ChatToolChoice};
use crate::app::App;
use crate::body::fields::fields;
use crate::body::json::Json;
use crate::conversation::{
    CallableTools, ConversationRequest, Effort, FieldNames, History, Reasoning, chat_of,
    continue_last,
};
use crate::error::ApiError;

fields! {
    /// The fields of a conversation: messages, and further inputs of the chat template.
    pub(crate) struct Conversation {
        #[schemars(required, length(min = 1))]
        messages: Option<Vec<ChatMessage>>,
        /// Functions that the model may call; they reach it through its chat template
        tools: Option<Vec<ChatTool>>,
        /// Whether and what the model must call: `auto` by default, a call of any tool if `required`
        tool_choice: Option<ChatToolChoice>,
        /// How much the model reasons, as far as its chat template can say so. `none` turns the reasoning off where the template can
        reasoning_effort: Option<Effort>,
        /// Go on with the text of the last message, the assistant's. The name is vLLM's
        continue_final_message: Option<bool>,
        /// Variables of the chat template, such as `enable_thinking`
        chat_template_kwargs: Option<BTreeMap<String, Json>>,
    }
}

const NAMES: &FieldNames = &FieldNames::CHAT;
/// The field that lets an answer go on with the last message.
const CONTINUE: &str = "continue_final_message";

impl Conversation {
    /// Checks a client's wish for or against the beginning of an assistant's turn. A prompt that
    /// goes on with the last message has none, and every other prompt of an answer has one.
    pub(super) fn check_generation_prompt(&self, is_added: Option<bool>) -> Result<(), ApiError> {
        let field = "add_generation_prompt";
        match (is_added, self.continue_final_message == Some(true)) {
            (Some(true), true) => {
                let message = format!("`{field}` is true; expected false beside `{CONTINUE}`");
                Err(ApiError::field(field, message))
            }
            (Some(false), false) => {
                let message = format!("`{field}` is false; expected it beside `{CONTINUE}` only");
                Err(ApiError::unprocessable(field, message))
            }
            _ => Ok(()),
        }
    }

    /// The conversation in the template's form.
    pub(crate) fn chat(self, app: &App) -> Result<Chat, ApiError> {
        self.request(app, Request::default(), true)?.into_chat(app)
    }

    /// The conversation as an internal request with these settings.
    pub(super) fn request(
        self,
        app: &App,
        mut request: Request,
        is_parallel: bool,
    ) -> Result<ConversationRequest, ApiError> {
        let messages = self.messages.unwrap_or_default();
        if messages.is_empty() {
            let message = "`messages` is empty or missing; expected at least one";
            return Err(ApiError::field("messages", message));
        }
        let mut history = History::default();
        let messages = (0..).zip(messages);
        let messages =
            messages.map(|(number, chat_message)| chat_message.message(number, &mut history));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let mut chat = chat_of(app, messages, self.chat_template_kwargs);
        if self.continue_final_message == Some(true) {
            continue_last(&mut chat, CONTINUE)?;
        }
        let tools = (0..).zip(self.tools.into_iter().flatten());
        let tools = tools.map(|(index, tool)| tool.callable(index));
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        let choice = self.tool_choice.unwrap_or_default().choice()?;
        Ok(ConversationRequest {
            chat,
            tools: CallableTools::new(tools, choice, is_parallel, NAMES)?,
            reasoning: Reasoning {
                effort: self.reasoning_effort,
                ..Reasoning::default()
            },
            output_format: request.grammar.take(),
            request,
            names: NAMES,
        })
    }
}
