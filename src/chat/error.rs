//! Errors of conversations, and the fields that they name.

use std::fmt;

use motet_text::{ToolError, ToolPart, Tools};

use crate::error::SubmitError;

/// Why a conversation was not started. It has cost nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChatError {
    /// The tools or the choice among them are invalid.
    Tools(ToolError),
    /// A message is the result of a call that no earlier message has.
    UnknownCall {
        /// The index of the message.
        message: usize,
    },
    /// The answer is to go on with a last message that is not the model's, or that has calls.
    NotContinued {
        /// The last message: its role, or what else it is.
        found: String,
    },
    /// A setting contradicts others.
    Contradiction {
        /// The field.
        field: ChatField,
        /// Its value.
        found: String,
        /// The other field and its value. `None` stands for those that turn reasoning on or off.
        other: Option<(ChatField, String)>,
    },
    /// A budget of reasoning beside log probabilities: tokens that end the reasoning are not sampled
    /// and have none, and those of later tokens could not be told apart.
    BudgetWithLogprobs,
    /// A form of the text beside tools that the model may call or not.
    FormatWithTools,
    /// A required call, a call by name or a strict tool, without feature `grammar`.
    NoGrammars,
    /// The engine rejects the request.
    Submit {
        /// The engine's error.
        error: SubmitError,
        /// The field that the grammar of the output comes from.
        grammar: ChatField,
    },
}

/// A field of a [`ChatRequest`](super::ChatRequest). Its text is the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChatField {
    /// The messages.
    Messages,
    /// The id of the call that the message with this index is the result of.
    ResultId(usize),
    /// Whether the answer goes on with the last message.
    ContinuesLast,
    /// A variable of the template.
    Variable(&'static str),
    /// The tools.
    Tools,
    /// The name of the tool with this index.
    ToolName(usize),
    /// The parameters of the tool with this index.
    ToolParameters(usize),
    /// How tools may be called.
    ToolChoice,
    /// How much the model reasons.
    ReasoningEffort,
    /// Whether the model reasons.
    ReasoningSwitch,
    /// Most tokens of the reasoning.
    ReasoningTokensMax,
    /// The form of the text.
    OutputFormat,
    /// Everything else.
    Settings,
}

impl ChatError {
    /// The error of a request that the engine rejects. `grammar` is the field that the grammar of
    /// its output comes from.
    pub(super) fn submit(error: SubmitError, grammar: ChatField, tools: Option<&Tools>) -> Self {
        let field = match &error {
            SubmitError::ToolSchema { name, .. } => {
                let mut tools = tools.into_iter().flatten();
                let index = tools.position(|tool| tool.name == name.reveal());
                index.map(ChatField::ToolParameters)
            }
            _ => None,
        };
        let grammar = field.unwrap_or(grammar);
        Self::Submit { error, grammar }
    }

    /// Returns the field that is invalid.
    #[must_use]
    pub fn field(&self) -> ChatField {
        match self {
            Self::Tools(error) => match error.part() {
                ToolPart::Tools => ChatField::Tools,
                ToolPart::Name(index) => ChatField::ToolName(index),
                ToolPart::Parameters(index) => ChatField::ToolParameters(index),
                ToolPart::Choice => ChatField::ToolChoice,
            },
            Self::UnknownCall { message } => ChatField::ResultId(*message),
            Self::NotContinued { .. } => ChatField::ContinuesLast,
            Self::Contradiction { field, .. } => *field,
            Self::BudgetWithLogprobs => ChatField::ReasoningTokensMax,
            Self::FormatWithTools => ChatField::OutputFormat,
            Self::NoGrammars => ChatField::Tools,
            Self::Submit { error, grammar } => match error {
                SubmitError::Grammar { .. }
                | SubmitError::ToolSchema { .. }
                | SubmitError::GrammarTooExpensive { .. }
                | SubmitError::GrammarTooSlow { .. } => *grammar,
                SubmitError::PromptTooLong { .. } | SubmitError::Text(_) => ChatField::Messages,
                _ => ChatField::Settings,
            },
        }
    }

    /// Returns the message with a caller's own names of the fields: a server's clients know its API
    /// and not this struct.
    #[must_use]
    pub fn message(&self, name: impl Fn(ChatField) -> String) -> String {
        let field = name(self.field());
        let (tools, choice) = (ChatField::Tools, ChatField::ToolChoice);
        match self {
            Self::Tools(ToolError::NoTools) => {
                format!(
                    "`{field}` requires a call, and `{}` has no tool",
                    name(tools)
                )
            }
            Self::Tools(ToolError::UnknownTool { name: tool }) => format!(
                "`{field}` names the tool {tool:?}, which is not in `{}`",
                name(tools)
            ),
            Self::Tools(error) => format!("`{field}`: {error}"),
            Self::UnknownCall { .. } => {
                format!("`{field}` is not the id of a call in an earlier message")
            }
            Self::NotContinued { found } => format!(
                "`{field}`: the message that the answer goes on with is {found}; expected one of \
                 the assistant without calls"
            ),
            Self::Contradiction { found, other, .. } => {
                let other = match other {
                    Some((other, set)) => format!("`{}`, which is {set}", name(*other)),
                    None if self.field() == ChatField::ReasoningTokensMax => {
                        "reasoning that is turned off".to_owned()
                    }
                    None => "the setting that turns reasoning on or off".to_owned(),
                };
                format!("`{field}` is {found}, which contradicts {other}")
            }
            Self::BudgetWithLogprobs => {
                format!("`{field}` is not supported with log probabilities")
            }
            Self::FormatWithTools => format!(
                "`{field}` cannot be held together with `{}` that the model may call or not; \
                 expected one of them, or a `{}` that requires a call or forbids it",
                name(tools),
                name(choice)
            ),
            Self::NoGrammars => {
                format!("`{field}`: calls that follow a schema need feature `grammar` of motet")
            }
            Self::Submit { error, .. } => error.to_string(),
        }
    }
}

impl fmt::Display for ChatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(|field| field.to_string()))
    }
}

impl std::error::Error for ChatError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The message is the error's own, so that its source follows.
            Self::Submit { error, .. } => std::error::Error::source(error),
            _ => None,
        }
    }
}

impl From<ToolError> for ChatError {
    fn from(error: ToolError) -> Self {
        Self::Tools(error)
    }
}

impl fmt::Display for ChatField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages => f.write_str("chat.messages"),
            Self::ResultId(index) => write!(f, "chat.messages[{index}].tool_call_id"),
            Self::ContinuesLast => f.write_str("chat.continues_last"),
            Self::Variable(name) => write!(f, "chat.variables.{name}"),
            Self::Tools => f.write_str("tools"),
            Self::ToolName(index) => write!(f, "tools[{index}].name"),
            Self::ToolParameters(index) => write!(f, "tools[{index}].parameters"),
            Self::ToolChoice => f.write_str("tool_choice"),
            Self::ReasoningEffort => f.write_str("reasoning.effort"),
            Self::ReasoningSwitch => f.write_str("reasoning.is_enabled"),
            Self::ReasoningTokensMax => f.write_str("reasoning.tokens_max"),
            Self::OutputFormat => f.write_str("output_format"),
            Self::Settings => f.write_str("settings"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_the_callers_names() {
        let unknown = ToolError::UnknownTool { name: "a".into() };
        let error = ChatError::from(unknown);
        assert_eq!(error.field(), ChatField::ToolChoice);
        let named = "`tool_choice` names the tool \"a\", which is not in `tools`";
        assert_eq!(error.to_string(), named);
        let shouted = error.message(|field| field.to_string().to_uppercase());
        let expected = "`TOOL_CHOICE` names the tool \"a\", which is not in `TOOLS`";
        assert_eq!(shouted, expected);
        let last = ChatError::UnknownCall { message: 3 };
        let expected = "`chat.messages[3].tool_call_id` is not the id of a call in an earlier \
                        message";
        assert_eq!(last.to_string(), expected);
    }
}
