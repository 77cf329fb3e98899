//! Grammars, on an engine that was compiled without feature `grammar`.

/// The grammar of a request: none exists without feature `grammar`.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {}

/// The grammar of an answer with calls: none exists without feature `grammar`.
#[cfg(feature = "text")]
pub(crate) fn answer_grammar(
    _format: &motet_text::AnswerFormat,
    _tools: &motet_text::Tools,
    _choice: &motet_text::ToolChoice,
    _is_parallel: bool,
    _reasoning: motet_text::ReasoningStart,
) -> Option<GrammarSource> {
    None
}
