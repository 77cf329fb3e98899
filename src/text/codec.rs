//! A model's tokenizer and chat template together.

use std::path::Path;

use super::{Chat, ChatTemplate, Detokenizer, GgufVocabulary, SpecialTokens, TextError, Tokenizer};
use crate::TokenId;

/// Everything between a model's text and its tokens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TextCodec {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl TextCodec {
    /// Puts the parts together.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        Self {
            tokenizer,
            template,
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

    /// The chat template, if the model has one.
    #[must_use]
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The tokens of a plain prompt, begun and ended as the model wants it.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        self.tokenizer.encode(text, true)
    }

    /// The tokens of text that goes on after other tokens: no begin and end tokens.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`].
    pub fn encode_continuation(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        self.tokenizer.encode(text, false)
    }

    /// The tokens of a conversation up to where the assistant is to speak. As in
    /// `transformers` the template alone decides on begin and end tokens: none
    /// are added to what it spells.
    ///
    /// Special tokens spelled out in a message are recognised too. Take them out
    /// of untrusted text first, where that matters.
    ///
    /// # Errors
    ///
    /// [`TextError::NoTemplate`], [`TextError::Template`], [`TextError::Encode`].
    pub fn encode_chat(&self, chat: &Chat) -> Result<Vec<TokenId>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        self.tokenizer.encode(&template.render(chat, true)?, false)
    }

    /// The tokens of a conversation so far, without asking the assistant to speak.
    ///
    /// # Errors
    ///
    /// As [`encode_chat`](Self::encode_chat).
    pub fn encode_conversation(&self, chat: &Chat) -> Result<Vec<TokenId>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        self.tokenizer.encode(&template.render(chat, false)?, false)
    }

    /// A detokenizer for one sequence's output, without special tokens.
    #[must_use]
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(&self.tokenizer, SpecialTokens::Skip)
    }
}
