//! The fields of a conversation, as an internal request.

use std::collections::BTreeMap;

use motet::Request;
use motet::chat::{ChatRequest, History, Reasoning};
use motet::text::{Chat, ToolChoice};
use serde_json::Value;

use super::message::ChatMessage;
use super::tools::{ChatTool, ChatToolChoice};
use crate::app::App;
use crate::body::fields::fields;
use crate::body::json::Json;
use crate::conversation::{ConversationRequest, Effort, FieldNames, chat_of};
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

impl Conversation {
    /// Checks a client's wish for or against the beginning of an assistant's turn. A prompt that
    /// goes on with the last message has none, and every other prompt of an answer has one.
    pub(super) fn check_generation_prompt(&self, is_added: Option<bool>) -> Result<(), ApiError> {
        let (field, continues) = ("add_generation_prompt", NAMES.continues_last);
        match (is_added, self.continue_final_message == Some(true)) {
            (Some(true), true) => {
                let message = format!("`{field}` is true; expected false beside `{continues}`");
                Err(ApiError::field(field, message))
            }
            (Some(false), false) => {
                let message = format!("`{field}` is false; expected it beside `{continues}` only");
                Err(ApiError::unprocessable(field, message))
            }
            _ => Ok(()),
        }
    }

    /// The conversation in the template's form.
    pub(crate) fn chat(self, app: &App) -> Result<Chat, ApiError> {
        let request = self.request(app, Request::default(), true)?;
        request.into_chat(app)
    }

    /// The conversation as an internal request with these settings.
    pub(super) fn request(
        self,
        app: &App,
        settings: Request,
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
        chat.continues_last = self.continue_final_message == Some(true);
        let bodies = self.tools.unwrap_or_default();
        let tools = (0..).zip(&bodies);
        let tools = tools.map(|(index, tool)| tool.tool(index));
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        let tool_choice = self.tool_choice.unwrap_or_default().choice()?;
        if !tools.is_empty() && tool_choice != ToolChoice::None {
            // Templates read further fields of the body's tools.
            let bodies: Value = bodies.into_iter().map(Value::from).collect();
            chat.variables.insert("tools".to_owned(), bodies);
        }
        let chat = ChatRequest {
            chat,
            tools,
            tool_choice,
            has_one_call: !is_parallel,
            reasoning: Reasoning {
                effort: self.reasoning_effort.map(String::from),
                ..Reasoning::default()
            },
            output_format: None,
            settings,
        };
        Ok(ConversationRequest { chat, names: NAMES })
    }
}
