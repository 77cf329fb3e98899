//! Completions as texts: whole, in parts, and with log probabilities.

use std::sync::Arc;

use motet::chat::Delta;
use motet::text::TextCodec;
use schemars::JsonSchema;
use serde::Serialize;

use super::answer::Shape;
use super::offsets::TextOffsets;
use super::text_logprobs::{PromptLogprobs, TextLogprobs};
use crate::conversation::{ScoredToken, WholeAnswer};
use crate::pieces::{self, Deferred};

/// The API's default of `max_tokens`.
pub(crate) const OUTPUT_TOKENS_MAX: usize = 16;
/// Texts of a completion.
pub(crate) struct TextShape {
    /// The text before the outputs of each prompt; empty without `echo`.
    pub(super) echoed: Vec<String>,
    /// Number of outputs of each prompt.
    pub(super) outputs_each: usize,
}

impl TextShape {
    fn echo(&self, number: usize) -> Option<&str> {
        let echoed = self.echoed.get(number / self.outputs_each)?;
        Some(echoed)
    }
}

/// An output's text, or the next part of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Text {
    pub(crate) text: pieces::Text,
    pub(crate) logprobs: Option<TextLogprobs>,
    /// One element for each token of the prompt; null for the first, which has none
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Option<PromptLogprobs>>")]
    pub(crate) prompt_logprobs: Option<Deferred<Vec<Option<PromptLogprobs>>>>,
}

impl Text {
    /// Text without log probabilities of a prompt.
    fn new(text: String, logprobs: Option<TextLogprobs>) -> Self {
        Self {
            text: text.into(),
            logprobs,
            prompt_logprobs: None,
        }
    }
}

impl Shape for TextShape {
    const PREFIX: &'static str = "cmpl";
    const WHOLE: &'static str = "text_completion";
    const PART: &'static str = "text_completion";

    type Whole = Text;
    type Part = Text;
    type Logprobs = TextLogprobs;

    fn first(&self, number: usize) -> Option<Text> {
        let text = self.echo(number)?.to_owned();
        Some(Text::new(text, None))
    }

    fn part(&self, delta: Delta, logprobs: Option<TextLogprobs>) -> Text {
        let text = match delta {
            Delta::Text(text) => text,
            // Outputs without a parser are text.
            _ => String::new(),
        };
        Text::new(text, logprobs)
    }

    fn last(&self) -> Text {
        Text::new(String::new(), None)
    }

    fn whole(&self, number: usize, answer: &WholeAnswer, logprobs: Option<TextLogprobs>) -> Text {
        let echo = self.echo(number).unwrap_or_default();
        let text = format!("{echo}{}", answer.answer.text());
        Text::new(text, logprobs)
    }

    fn logprobs(
        &self,
        text: &TextCodec,
        sent: &Arc<Vec<ScoredToken>>,
        offsets: &mut TextOffsets,
    ) -> TextLogprobs {
        let offsets = sent.iter().map(|(token, _)| offsets.next(*token));
        TextLogprobs::new(text, sent, offsets.collect(), usize::MAX)
    }
}
