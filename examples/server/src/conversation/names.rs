//! A face's names of fields.

use motet::error::{GenerateError, SubmitError};
use motet::text::ToolError;

use crate::error::ApiError;

/// The names that a face has for the fields of a conversation. Errors name fields by them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldNames {
    /// The messages.
    pub(crate) messages: &'static str,
    /// The offered tools.
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

    /// The error of a request that the engine rejects. `grammar_field` is the field that the
    /// output's grammar comes from.
    pub(crate) fn submit_error(&self, grammar_field: &str, error: SubmitError) -> ApiError {
        ApiError::submit(error, |field| self.of_engine(field), grammar_field)
    }

    /// The error of tools that cannot be offered or held.
    pub(crate) fn tool_error(&self, error: &ToolError) -> ApiError {
        // The seam to the errors of crate text.
        ApiError::field(self.tools, format!("`{}`: {error}", self.tools))
    }

    /// The error of an output that the engine does not complete.
    pub(crate) fn generate_error(grammar_field: &str, error: GenerateError) -> ApiError {
        ApiError::generate(error, grammar_field)
    }

    /// The name of a field of the engine's request.
    fn of_engine(&self, field: &'static str) -> &'static str {
        match field {
            "output_tokens_max" => self.output_tokens_max,
            "stop_strings" => self.stop_strings,
            "prompt.chat" => self.messages,
            other => crate::error::api_name(other),
        }
    }
}
