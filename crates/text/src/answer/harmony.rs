//! Messages on channels, as gpt-oss writes them.
//!
//! ```text
//! <|channel|>analysis<|message|>thoughts<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>
//! <|start|>assistant<|channel|>final<|message|>text<|return|>
//! ```
//!
//! The prompt ends with `<|start|>assistant`. The recipient may stand before the channel, too.

use super::calls::{ArgumentsReader, Calls, Progress};
use super::marks::{Found, find};
use super::parts::Parts;
use super::tools::Tools;

const CHANNEL: usize = 1;
const MESSAGE: usize = 2;
const CONSTRAIN: usize = 3;
/// The others end a message.
const MARKS: [&str; 7] = [
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];
/// Where a prompt ends and an answer begins.
const ANSWER: &str = "<|start|>assistant";
/// Longest header, in bytes. A longer one is text of a model that does not write the format.
const HEADER_BYTES_MAX: usize = 1024;

/// The parser of such answers.
#[derive(Clone, Debug)]
pub(super) struct HarmonyParser {
    tools: Option<Tools>,
    phase: Phase,
    /// Text that may be the beginning of a mark.
    candidate: String,
    /// Whether a message with reasoning, and one with text, came before: a blank line parts two.
    had_reasoning: bool,
    had_text: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Before a message: its role, channel and recipient so far.
    Header(String),
    Reasoning,
    Text,
    /// A call, before its arguments.
    Name(String),
    Call(ArgumentsReader),
    /// After the arguments of a call.
    AfterCall,
}

impl HarmonyParser {
    /// A parser of an answer to a prompt that ends so. A prompt may have begun a message.
    pub(super) fn after_prompt(prompt_end: &str, tools: Option<Tools>, parts: &mut Parts) -> Self {
        let mut parser = Self {
            tools,
            phase: Phase::Header(String::new()),
            candidate: String::new(),
            had_reasoning: false,
            had_text: false,
        };
        if let Some((_, begun)) = prompt_end.rsplit_once(ANSWER) {
            parser.push(begun, parts);
            // The prompt's own words are no part of the answer.
            parts.take();
            (parser.had_reasoning, parser.had_text) = (false, false);
        }
        parser
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Parts) {
        for character in text.chars() {
            self.candidate.push(character);
            loop {
                match find(MARKS.into_iter().enumerate(), &self.candidate) {
                    Found::Beginning => break,
                    Found::Mark(number) => {
                        self.candidate.clear();
                        self.read_mark(number, parts);
                    }
                    Found::Nothing => {
                        let first = self.candidate.remove(0);
                        self.release(first, parts);
                    }
                }
                if self.candidate.is_empty() {
                    break;
                }
            }
        }
    }

    fn read_mark(&mut self, number: usize, parts: &mut Parts) {
        match (&mut self.phase, number) {
            (Phase::Header(header), MESSAGE) => {
                let header = std::mem::take(header);
                self.begin_message(&header, parts);
            }
            (Phase::Header(header), CHANNEL | CONSTRAIN) => header.push_str(MARKS[number]),
            // A channel without an end before it is a new message.
            (_, CHANNEL) => {
                self.end_message(parts);
                self.phase = Phase::Header(MARKS[CHANNEL].to_owned());
            }
            (_, MESSAGE | CONSTRAIN) => {
                for character in MARKS[number].chars() {
                    self.release(character, parts);
                }
            }
            _ => {
                self.end_message(parts);
                self.phase = Phase::Header(String::new());
            }
        }
    }

    fn begin_message(&mut self, header: &str, parts: &mut Parts) {
        let channel = header.split(MARKS[CHANNEL]).nth(1).unwrap_or("");
        let recipient = header.split("to=").nth(1).map(|rest| {
            let end = rest.find(|c: char| c.is_whitespace() || c == '<');
            &rest[..end.unwrap_or(rest.len())]
        });
        let tool = recipient.and_then(|name| {
            let name = name.strip_prefix("functions.").unwrap_or(name);
            self.tools.as_ref()?.get(name)
        });
        self.phase = match tool {
            Some(tool) => Phase::Name(tool.name.clone()),
            None if recipient.is_none() && channel.trim_start().starts_with("analysis") => {
                if std::mem::replace(&mut self.had_reasoning, true) {
                    parts.reasoning("\n\n");
                }
                Phase::Reasoning
            }
            None => {
                if std::mem::replace(&mut self.had_text, true) {
                    parts.text("\n\n");
                }
                Phase::Text
            }
        };
    }

    fn release(&mut self, c: char, parts: &mut Parts) {
        let mut utf8 = [0; 4];
        let text = c.encode_utf8(&mut utf8);
        match &mut self.phase {
            Phase::Header(header) => {
                header.push(c);
                if header.len() > HEADER_BYTES_MAX {
                    parts.text(header);
                    self.phase = Phase::Text;
                }
            }
            Phase::Reasoning => parts.reasoning(text),
            Phase::Text => parts.text(text),
            Phase::Name(_) | Phase::AfterCall if c.is_whitespace() => {}
            Phase::AfterCall => {
                parts.text(text);
                self.phase = Phase::Text;
            }
            Phase::Name(name) => {
                let Some(tools) = &self.tools else { return };
                let started = ArgumentsReader::start(name, c, &mut Calls { tools, parts });
                self.phase = match started {
                    Some(reader) => Phase::Call(reader),
                    None => {
                        parts.text(text);
                        Phase::Text
                    }
                };
            }
            Phase::Call(reader) => {
                let Some(tools) = &self.tools else { return };
                let held = reader.held().to_owned();
                match reader.read(c, &mut Calls { tools, parts }) {
                    Progress::More => {}
                    Progress::Done => self.phase = Phase::AfterCall,
                    Progress::Failed => {
                        parts.end_call(false);
                        parts.text(&held);
                        parts.text(text);
                        self.phase = Phase::Text;
                    }
                }
            }
        }
    }

    fn end_message(&mut self, parts: &mut Parts) {
        if let (Phase::Name(name), Some(tools)) = (&self.phase, &self.tools) {
            // A message without a body is a call without arguments.
            let mut calls = Calls { tools, parts };
            if let Some(mut reader) = ArgumentsReader::start(name, '{', &mut calls) {
                reader.read('}', &mut calls);
            }
        }
        parts.end_call(false);
    }

    pub(super) fn finish(&mut self, parts: &mut Parts) {
        for character in std::mem::take(&mut self.candidate).chars() {
            self.release(character, parts);
        }
        // A header is structure; text without any mark is the text of a model that does not write
        // the format.
        if let Phase::Header(header) = &self.phase
            && !header.contains(MARKS[CHANNEL])
            && header.trim() != "assistant"
        {
            parts.text(header);
        }
    }
}
