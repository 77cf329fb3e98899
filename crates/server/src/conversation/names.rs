//! A dialect's names of fields.

use motet::Request;
use motet::chat::{ChatError, ChatField};
use motet::error::SubmitError;

use crate::error::{ApiError, api_name};

/// The names that a dialect has for the fields of a conversation. Errors name fields by them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldNames {
    /// The messages.
    pub(crate) messages: &'static str,
    /// The field by which an answer goes on with the last message.
    pub(crate) continues_last: &'static str,
    /// The tools that the model may call.
    pub(crate) tools: &'static str,
    /// The path from a tool to its schema, such as `function.parameters`.
    pub(crate) tool_schema: &'static str,
    /// The path from a tool to its name, such as `function.name`.
    pub(crate) tool_name: &'static str,
    /// How tools may be called.
    pub(crate) tool_choice: &'static str,
    /// The form that the answer's text must have.
    pub(crate) output_format: &'static str,
    /// Most tokens of the answer.
    pub(crate) output_tokens_max: &'static str,
    /// Strings that end the answer.
    pub(crate) stop_strings: &'static str,
    /// How much the model reasons.
    pub(crate) effort: &'static str,
    /// Whether the model reasons at all.
    pub(crate) reasoning_switch: &'static str,
    /// Most tokens of the reasoning.
    pub(crate) reasoning_tokens_max: &'static str,
    /// Variables of the template that the client sets.
    pub(crate) template_variables: &'static str,
}

impl FieldNames {
    /// The names of `/v1/chat/completions`.
    pub(crate) const CHAT: Self = Self {
        messages: "messages",
        continues_last: "continue_final_message",
        tools: "tools",
        tool_schema: "function.parameters",
        tool_name: "function.name",
        tool_choice: "tool_choice",
        output_format: "response_format",
        output_tokens_max: "max_tokens",
        stop_strings: "stop",
        effort: "reasoning_effort",
        reasoning_switch: "reasoning_effort",
        reasoning_tokens_max: "thinking_token_budget",
        template_variables: "chat_template_kwargs",
    };

    /// The names of `/v1/messages`.
    pub(crate) const MESSAGES: Self = Self {
        messages: "messages",
        continues_last: "messages",
        tools: "tools",
        tool_schema: "input_schema",
        tool_name: "name",
        tool_choice: "tool_choice",
        output_format: "output_config.format",
        output_tokens_max: "max_tokens",
        stop_strings: "stop_sequences",
        effort: "output_config.effort",
        reasoning_switch: "thinking.type",
        reasoning_tokens_max: "thinking.budget_tokens",
        template_variables: "chat_template_kwargs",
    };

    /// The path of the tool with this index.
    pub(crate) fn tool(&self, index: usize) -> String {
        format!("{}[{index}]", self.tools)
    }

    /// The path of a tool's schema.
    pub(crate) fn schema_of_tool(&self, index: usize) -> String {
        format!("{}.{}", self.tool(index), self.tool_schema)
    }

    /// The path of a tool's name.
    pub(crate) fn name_of_tool(&self, index: usize) -> String {
        format!("{}.{}", self.tool(index), self.tool_name)
    }

    /// The dialect's name of a field.
    pub(crate) fn name(&self, field: ChatField) -> String {
        let name = match field {
            ChatField::ResultId(index) => return format!("{}[{index}]", self.messages),
            ChatField::Variable(name) => return format!("{}.{name}", self.template_variables),
            ChatField::ToolName(index) => return self.name_of_tool(index),
            ChatField::ToolParameters(index) => return self.schema_of_tool(index),
            ChatField::ContinuesLast => self.continues_last,
            ChatField::Tools => self.tools,
            ChatField::ToolChoice => self.tool_choice,
            ChatField::ReasoningEffort => self.effort,
            ChatField::ReasoningSwitch => self.reasoning_switch,
            ChatField::ReasoningTokensMax => self.reasoning_tokens_max,
            ChatField::OutputFormat => self.output_format,
            _ => self.messages,
        };
        name.to_owned()
    }

    /// The error of a conversation that is not started.
    pub(crate) fn chat_error(&self, error: ChatError) -> ApiError {
        if let ChatError::Submit { error, grammar } = error {
            return self.submit_error(error, &self.name(grammar));
        }
        let field = self.name(error.field());
        let message = error.message(|field| self.name(field));
        match error {
            ChatError::BudgetWithLogprobs | ChatError::FormatWithTools => {
                ApiError::unprocessable(field, message)
            }
            _ => ApiError::field(field, message),
        }
    }

    /// The error of a request that the engine rejects. `grammar_field` is the field that the
    /// output's grammar comes from.
    pub(crate) fn submit_error(&self, error: SubmitError, grammar_field: &str) -> ApiError {
        if let SubmitError::ToolSchema { why, .. } = &error {
            let message = format!("`{grammar_field}` cannot be a grammar: {}", why.reveal());
            return ApiError::unprocessable(grammar_field, message);
        }
        ApiError::submit(error, |field| self.of_engine(field), grammar_field)
    }

    /// The field that makes an answer long to keep.
    pub(super) fn kept(&self, request: &Request) -> &'static str {
        if request.logprobs.is_some() {
            "top_logprobs"
        } else {
            self.output_tokens_max
        }
    }

    /// The name of a field of the engine's request.
    fn of_engine(&self, field: &'static str) -> &'static str {
        match field {
            "output_tokens_max" => self.output_tokens_max,
            "stop_strings" => self.stop_strings,
            "prompt" | "prompt.chat" => self.messages,
            // The number of alternatives; whether there are any cannot be invalid.
            "logprobs" => "top_logprobs",
            other => api_name(other),
        }
    }
}
