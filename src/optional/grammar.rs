//! Grammars of answers.

use motet_text::grammar::GrammarSource;
use motet_text::{AnswerFormat, ReasoningStart, ToolChoice, Tools};

/// The grammar of an answer with calls that follow schemas. The choice is among the tools, and
/// requires a call unless a tool is strict.
pub(crate) fn answer_grammar(
    format: &AnswerFormat,
    tools: &Tools,
    choice: &ToolChoice,
    is_parallel: bool,
    reasoning: ReasoningStart,
) -> Option<GrammarSource> {
    let grammar = format.grammar(tools, choice, is_parallel, reasoning);
    grammar.expect("the choice is among the tools")
}
