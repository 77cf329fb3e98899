//! A conversation that asks for an answer.

use motet_text::{Chat, Tool, ToolChoice};

use super::Reasoning;
use crate::optional::GrammarSource;
use crate::request::Request;

/// A conversation that asks for an answer, or for several.
///
/// ```
/// use motet::Request;
/// use motet::chat::{ChatRequest, Reasoning};
/// use motet::text::{Message, ToolChoice};
///
/// let request = ChatRequest::new([Message::user("Is it raining in Graz?")])
///     .tool_choice(ToolChoice::Auto)
///     .reasoning(Reasoning::off())
///     .settings(Request::default().output_tokens_max(512).temperature(0.7));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatRequest {
    /// The messages, oldest first, and variables of the chat template. The conversation adds the
    /// variables for tools and reasoning. A variable `tools` of the caller's is the tools as the
    /// template reads them, in place of their usual shape.
    pub chat: Chat,
    /// The tools that the model may call, at most
    /// [`Tools::COUNT_MAX`](motet_text::Tools::COUNT_MAX).
    pub tools: Vec<Tool>,
    /// How the tools may be called. With [`ToolChoice::None`] the model knows of no tool.
    pub tool_choice: ToolChoice,
    /// Whether an answer has one call at most. Otherwise it may have several.
    #[doc(alias = "parallel_tool_calls")]
    pub has_one_call: bool,
    /// How the model reasons.
    pub reasoning: Reasoning,
    /// The form that the text of the answer follows from its first token on. Reasoning is then off
    /// by default. Beside tools, the tool choice must require a call, whose form then counts, or
    /// forbid it.
    #[doc(alias = "response_format")]
    pub output_format: Option<GrammarSource>,
    /// Sampling, lengths, stop strings, log probabilities, user, class and deadlines. Its prompt,
    /// its reasoning budget and `special_tokens_in_text` are set by the conversation, and its
    /// grammar as well if there is an `output_format`, or if calls follow schemas.
    pub settings: Request,
}

impl ChatRequest {
    /// Creates a request that answers a conversation, with the default settings of a
    /// [`Request`]: greedy, 256 tokens.
    #[must_use]
    pub fn new(chat: impl Into<Chat>) -> Self {
        Self {
            chat: chat.into(),
            ..Self::default()
        }
    }

    /// Sets the tools that the model may call.
    #[must_use]
    pub fn tools(mut self, tools: impl Into<Vec<Tool>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// Sets how the tools may be called.
    #[must_use]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Lets an answer have one call at most.
    #[must_use]
    pub fn one_call(mut self) -> Self {
        self.has_one_call = true;
        self
    }

    /// Sets how the model reasons.
    #[must_use]
    pub fn reasoning(mut self, reasoning: Reasoning) -> Self {
        self.reasoning = reasoning;
        self
    }

    /// Sets the form that the text of the answer follows.
    #[cfg(feature = "grammar")]
    #[must_use]
    pub fn output_format(mut self, format: GrammarSource) -> Self {
        self.output_format = Some(format);
        self
    }

    /// Sets sampling, lengths and everything else that a [`Request`] has beside its prompt.
    #[must_use]
    pub fn settings(mut self, settings: Request) -> Self {
        self.settings = settings;
        self
    }
}
