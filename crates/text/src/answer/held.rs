//! The grammar of an answer.

use super::format::{AnswerFormat, ReasoningStart};
use super::tools::{ToolChoice, ToolError, Tools};
use crate::grammar::GrammarSource;

impl AnswerFormat {
    /// The grammar that holds an answer to calls of `tools`; `None` if the answer is free.
    ///
    /// | choice | the answer |
    /// |---|---|
    /// | `Required`, `Named` | reasoning, if it may reason; then calls, each by its tool's schema |
    /// | `Auto`, a tool is strict | free; but a call that begins is of an offered tool, and follows its schema if the tool is strict |
    /// | `Auto`, `None` | free |
    ///
    /// With `parallel`, an answer has up to 16 calls; without, one.
    ///
    /// A schema that cannot be a grammar is an error when the grammar is compiled,
    /// [`GrammarError::Tool`](crate::grammar::GrammarError::Tool), with the tool's name.
    ///
    /// # Errors
    ///
    /// [`ToolError::NothingOffered`], [`ToolError::NotOffered`].
    pub fn grammar(
        &self,
        _tools: &Tools,
        _choice: &ToolChoice,
        _parallel: bool,
        _reasoning: ReasoningStart,
    ) -> Result<Option<GrammarSource>, ToolError> {
        todo!("the API is committed before its body")
    }
}
