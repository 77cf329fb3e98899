//! The parser of an answer: text, reasoning, beginnings of calls.

use super::format::AnswerFormat;
use super::parts::AnswerPart;
use super::tools::Tools;

/// Parses one answer while it is written.
#[derive(Debug)]
pub struct AnswerParser {
    _not_written_yet: (),
}

impl AnswerParser {
    pub(super) fn new(_format: &AnswerFormat, _prompt_end: &str, _tools: Option<&Tools>) -> Self {
        todo!("the API is committed before its body")
    }

    /// Takes more of the answer's text; returns the parts that it completes, or continues.
    pub fn push(&mut self, _text: &str) -> Vec<AnswerPart> {
        todo!("the API is committed before its body")
    }

    /// Returns the rest, since no more text comes.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        todo!("the API is committed before its body")
    }
}
