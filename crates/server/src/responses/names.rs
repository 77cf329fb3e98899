//! The names of fields, for errors.

use crate::conversation::FieldNames;

/// The names of `/v1/responses`.
pub(super) const NAMES: &FieldNames = &FieldNames {
    messages: "input",
    continues_last: "continue_final_message",
    tools: "tools",
    tool_schema: "parameters",
    tool_name: "name",
    tool_choice: "tool_choice",
    output_format: "text.format",
    output_tokens_max: "max_output_tokens",
    stop_strings: "stop",
    effort: "reasoning.effort",
    reasoning_switch: "reasoning.effort",
    reasoning_tokens_max: "thinking_token_budget",
    template_variables: "chat_template_kwargs",
};
