//! A model's tokenizer and chat template together.

use std::path::Path;
use std::sync::Arc;

use super::answer::AnswerFormat;
use super::detokenizer::{Detokenizer, SpecialTokens};
use super::error::TextError;
use super::gguf::GgufVocabulary;
use super::template::{Chat, ChatTemplate, Written};
use super::tokenizer::Tokenizer;
use super::turn_end;
use motet_protocol::{TokenId, TokenSpelling};

/// Limits of one rendered prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptLimits {
    /// Bytes of its text.
    pub bytes_max: usize,
    /// Its tokens.
    pub tokens_max: usize,
}

impl PromptLimits {
    const UNBOUNDED: Self = Self {
        bytes_max: usize::MAX,
        tokens_max: usize::MAX,
    };
}

/// Everything between a model's text and its tokens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TextCodec {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    answer_format: AnswerFormat,
    end_tokens: Arc<[TokenId]>,
}

impl TextCodec {
    /// Combines a tokenizer with a chat template. Renders a short conversation to find the token
    /// that ends a turn.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        let mut end_tokens = tokenizer.end_tokens().to_vec();
        let of_template = template.as_ref();
        let of_template = of_template.and_then(|one| turn_end::of_template(&tokenizer, one));
        end_tokens.extend(of_template.filter(|end| !end_tokens.contains(end)));
        Self {
            answer_format: AnswerFormat::new(template.as_ref(), &tokenizer),
            tokenizer,
            template,
            end_tokens: end_tokens.into(),
        }
    }

    /// Reads a model folder: see [`Tokenizer::from_folder`] and
    /// [`ChatTemplate::from_folder`].
    ///
    /// # Errors
    ///
    /// [`TextError`] naming the file, and the field where there is one.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let template = ChatTemplate::from_folder(folder)?;
        Ok(Self::new(Tokenizer::from_folder(folder)?, template))
    }

    /// Reads a GGUF file's metadata: see [`Tokenizer::from_gguf`] and
    /// [`ChatTemplate::from_gguf`].
    ///
    /// # Errors
    ///
    /// [`TextError`] naming the metadata key.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self, TextError> {
        let template = ChatTemplate::from_gguf(vocabulary)?;
        Ok(Self::new(Tokenizer::from_gguf(vocabulary)?, template))
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens that end an answer, the usual one first: the tokenizer's, and the control token
    /// that the template writes behind an assistant's message. An engine adds those that its model
    /// names.
    #[must_use]
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.end_tokens
    }

    /// The bytes of the tokenizer's tokens, for parts of an engine that know no tokenizer.
    #[must_use]
    pub fn token_spelling(&self) -> Arc<dyn TokenSpelling> {
        Arc::new(self.tokenizer.clone())
    }

    /// The chat template, if the model has one.
    #[must_use]
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// How the model writes calls and reasoning, by its template and its vocabulary.
    #[must_use]
    pub fn answer_format(&self) -> &AnswerFormat {
        &self.answer_format
    }

    /// The tokens of a plain prompt, with the begin and end tokens that the model expects.
    /// Special tokens that it spells count as such: the author of a plain prompt writes the
    /// template too.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        self.tokenizer.encode(text, true)
    }

    /// The tokens of text that follows other tokens: no begin and end tokens.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`].
    pub fn encode_continuation(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        self.tokenizer.encode(text, false)
    }

    /// The tokens of text that a model may write: no begin and end tokens, and special tokens that
    /// it spells are text.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`].
    pub fn encode_output(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        let all = 0..text.len();
        self.tokenizer
            .encode_written(text, std::slice::from_ref(&all))
    }

    /// The tokens of a conversation up to the assistant's turn. As in `transformers`, the
    /// template alone decides on begin and end tokens: none are added to its output.
    ///
    /// Special tokens that a message or a variable spells are text, unless
    /// [`Chat::with_special_tokens`] says otherwise.
    ///
    /// # Errors
    ///
    /// [`TextError::NoTemplate`], [`TextError::Template`], [`TextError::TooLong`],
    /// [`TextError::Encode`].
    pub fn encode_chat(&self, chat: &Chat) -> Result<Vec<TokenId>, TextError> {
        self.encode_rendered(chat, true, PromptLimits::UNBOUNDED)
    }

    /// The tokens of a conversation so far, without the start of an assistant's turn.
    ///
    /// # Errors
    ///
    /// As [`encode_chat`](Self::encode_chat).
    pub fn encode_conversation(&self, chat: &Chat) -> Result<Vec<TokenId>, TextError> {
        self.encode_rendered(chat, false, PromptLimits::UNBOUNDED)
    }

    /// The tokens of a conversation within the limits.
    ///
    /// # Errors
    ///
    /// As [`encode_chat`](Self::encode_chat), and [`TextError::TooManyTokens`].
    pub fn encode_rendered(
        &self,
        chat: &Chat,
        add_generation_prompt: bool,
        limits: PromptLimits,
    ) -> Result<Vec<TokenId>, TextError> {
        let rendered = self.render(chat, add_generation_prompt, limits)?;
        self.encode_text(chat, &rendered)
    }

    /// The text of a conversation within the limits.
    pub(super) fn render(
        &self,
        chat: &Chat,
        add_generation_prompt: bool,
        limits: PromptLimits,
    ) -> Result<Written, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        let written = template.render_within(chat, add_generation_prompt, limits.bytes_max)?;
        self.tokenizer
            .check_count(&written.text, limits.tokens_max)?;
        Ok(written)
    }

    /// The tokens of a rendered conversation.
    pub(super) fn encode_text(
        &self,
        chat: &Chat,
        written: &Written,
    ) -> Result<Vec<TokenId>, TextError> {
        if chat.with_special_tokens {
            self.tokenizer.encode(&written.text, false)
        } else {
            self.tokenizer
                .encode_written(&written.text, &written.callers)
        }
    }

    /// A detokenizer for one sequence's output, without special tokens.
    #[must_use]
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(&self.tokenizer, SpecialTokens::Skip)
    }
}
