//! The parser of an answer: text, reasoning, beginnings of calls.

use std::sync::Arc;

use super::calls::{Calls, MarkedReader, Progress};
use super::format::{AnswerFormat, Format, Marked, ReasoningStart, Syntax};
use super::harmony::HarmonyParser;
use super::marks::{Found, find};
use super::parts::{AnswerPart, Parts};
use super::tools::Tools;

/// Most bytes that are held back before it is certain that they are a call.
const HELD_BYTES_MAX: usize = 128 << 10;
/// Most bytes of an open call that are held back: a parameter in XML is at most a MiB, and the
/// rest is its tags.
const OPEN_BYTES_MAX: usize = (1 << 20) + (4 << 10);
/// Most bytes of white space that are held back: it is dropped between calls.
const SPACES_BYTES_MAX: usize = 256;

/// Parses one answer while it is written.
///
/// ```
/// # use motet_text::{AnswerFormat, AnswerPart, ChatTemplate, Tool, Tools};
/// # fn parse(format: &AnswerFormat) -> Result<(), Box<dyn std::error::Error>> {
/// let parameters = serde_json::json!({"type": "object", "properties": {}});
/// let now = Tool { name: "now".into(), description: None, parameters, is_strict: false };
/// let tools = Tools::new(vec![now])?;
/// let mut parser = format.parser("", Some(&tools));
/// let mut parts = parser.push("Let me look.\n<tool_call>\n{\"name\": \"now\", \"argu");
/// parts.extend(parser.push("ments\": {}}\n</tool_call>"));
/// parts.extend(parser.finish());
/// assert_eq!(parts[0], AnswerPart::Text("Let me look.\n".into()));
/// assert_eq!(parts[1], AnswerPart::CallStart { index: 0, name: "now".into() });
/// # Ok(())
/// # }
/// ```
///
/// The parts do not depend on how the text is cut into pieces. White space is dropped around
/// reasoning, between calls, and before and after them where there is no other text; other text is
/// returned as the model wrote it. Memory is bounded, however long the answer is.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    parts: Parts,
    syntax: Parser,
}

#[derive(Clone, Debug)]
enum Parser {
    Marked(Box<MarkedParser>),
    Harmony(HarmonyParser),
}

impl AnswerFormat {
    /// A parser of one answer.
    ///
    /// `prompt_end` is the end of the prompt's text, a few dozen characters of it: a template may
    /// open the reasoning itself. Calls are found if there are `tools`; without them, they are
    /// text.
    #[must_use]
    pub fn parser(&self, prompt_end: &str, tools: Option<&Tools>) -> AnswerParser {
        AnswerParser::new(self, prompt_end, tools)
    }
}

impl AnswerParser {
    fn new(format: &AnswerFormat, prompt_end: &str, tools: Option<&Tools>) -> Self {
        let mut parts = Parts::default();
        let tools = tools.cloned();
        let syntax = match format.format().syntax {
            Syntax::Marked(_) => {
                let start = format.reasoning_start(prompt_end);
                Parser::Marked(Box::new(MarkedParser::new(format.shared(), start, tools)))
            }
            Syntax::Harmony(_) => {
                let parser = HarmonyParser::after_prompt(prompt_end, tools, &mut parts);
                Parser::Harmony(parser)
            }
        };
        Self { parts, syntax }
    }

    /// Takes more of the answer's text; returns the parts that it completes, or continues.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        match &mut self.syntax {
            Parser::Marked(parser) => parser.push(text, &mut self.parts),
            Parser::Harmony(parser) => parser.push(text, &mut self.parts),
        }
        self.parts.take()
    }

    /// Returns the rest, since no more text comes. A call that has not ended is ended as not
    /// complete; text that only might have become a call is text.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        match &mut self.syntax {
            Parser::Marked(parser) => parser.finish(&mut self.parts),
            Parser::Harmony(parser) => parser.finish(&mut self.parts),
        }
        self.parts.end_call(false);
        self.parts.take()
    }
}

/// The parser of answers with calls within marks.
#[derive(Clone, Debug)]
struct MarkedParser {
    format: Arc<Format>,
    /// Without tools, calls are text.
    tools: Option<Tools>,
    phase: Phase,
    /// Text that may be the beginning of a mark.
    candidate: String,
    /// White space of which it is not known yet what follows.
    spaces: String,
    /// Whether white space is dropped before text, too: after reasoning.
    skips_spaces: bool,
    /// Whether only white space stands between this place and a call before it.
    is_after_call: bool,
    /// Whether text stands before, after the last call or reasoning.
    has_text: bool,
    /// Whether only white space stands before on this line.
    is_line_start: bool,
    /// Whether only white space stands before in this answer, and the model may reason.
    may_reason: bool,
    /// Whether the last thing was a call without marks: more may follow after `;`.
    is_after_bare: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    Reasoning,
    Text,
    Call(Box<OpenCall>),
}

/// A call, or several within one pair of marks.
#[derive(Clone, Debug)]
struct OpenCall {
    reader: MarkedReader,
    is_bare: bool,
    /// Text that is in no part yet: it is returned if this is no call, or not any more.
    held: String,
    /// Number of calls of the answer before this one.
    calls_before: usize,
}

impl MarkedParser {
    fn new(format: Arc<Format>, start: ReasoningStart, tools: Option<Tools>) -> Self {
        let is_open = start == ReasoningStart::Open;
        Self {
            format,
            tools,
            phase: if is_open {
                Phase::Reasoning
            } else {
                Phase::Text
            },
            candidate: String::new(),
            spaces: String::new(),
            skips_spaces: is_open,
            is_after_call: false,
            has_text: false,
            is_line_start: true,
            may_reason: start == ReasoningStart::Possible,
            is_after_bare: false,
        }
    }

    fn push(&mut self, text: &str, parts: &mut Parts) {
        for character in text.chars() {
            self.read(character, parts);
        }
    }

    fn read(&mut self, c: char, parts: &mut Parts) {
        match &self.phase {
            Phase::Call(_) => self.read_call(c, parts),
            Phase::Reasoning | Phase::Text => {
                self.candidate.push(c);
                match self.find_mark() {
                    Found::Beginning => {}
                    Found::Mark(number) => {
                        let mark = std::mem::take(&mut self.candidate);
                        self.begin_marked(number, mark, parts);
                    }
                    Found::Nothing => self.release_candidate(parts),
                }
            }
        }
    }

    fn marked(&self) -> &Marked {
        match &self.format.syntax {
            Syntax::Marked(marked) => marked,
            Syntax::Harmony(_) => unreachable!("it has a parser of its own"),
        }
    }

    /// Compares the candidate with the marks that may come here: number 0 is that of reasoning,
    /// and those of calls follow.
    fn find_mark(&self) -> Found {
        let reasoning = self.format.reasoning.as_ref().and_then(|marks| {
            if matches!(self.phase, Phase::Reasoning) {
                Some(&marks.close)
            } else {
                self.may_reason.then_some(&marks.open)
            }
        });
        let reads_calls = matches!(self.phase, Phase::Text) && self.reads_marks();
        // If a tool is strict, only the form that the grammar writes is read.
        let is_strict = self.tools.as_ref().is_some_and(Tools::has_strict);
        let most = if is_strict { 1 } else { usize::MAX };
        let calls = self.marked().pairs.iter().filter(|_| reads_calls);
        let calls = calls
            .take(most)
            .enumerate()
            .map(|(at, pair)| (at + 1, &pair.open));
        let marks = reasoning.into_iter().map(|mark| (0, mark)).chain(calls);
        let marks = marks.map(|(number, mark)| (number, mark.text.as_str()));
        find(marks, &self.candidate)
    }

    fn begin_marked(&mut self, number: usize, mark: String, parts: &mut Parts) {
        if number > 0 {
            let pair = &self.marked().pairs[number - 1];
            let close = pair.close.as_ref().map(|mark| mark.text.clone());
            self.phase = Phase::Text;
            self.open_call(close, false, mark, parts);
            return;
        }
        self.phase = if matches!(self.phase, Phase::Reasoning) {
            Phase::Text
        } else {
            Phase::Reasoning
        };
        self.may_reason = false;
        self.spaces.clear();
        self.skips_spaces = true;
        self.is_after_call = false;
        self.has_text = false;
        self.is_line_start = true;
    }

    /// `calls_before` is set with the first character, where the parts are at hand.
    fn open_call(&mut self, close: Option<String>, is_bare: bool, held: String, parts: &mut Parts) {
        if self.has_text {
            parts.keep_before_call(std::mem::take(&mut self.spaces));
        }
        self.phase = Phase::Call(Box::new(OpenCall {
            reader: MarkedReader::new(close.as_deref()),
            is_bare,
            held,
            calls_before: usize::MAX,
        }));
    }

    /// The candidate is no mark: its first character is text, and the rest is read again.
    fn release_candidate(&mut self, parts: &mut Parts) {
        let candidate = std::mem::take(&mut self.candidate);
        let mut characters = candidate.chars();
        if let Some(first) = characters.next() {
            self.release(first, parts);
        }
        for character in characters {
            self.read(character, parts);
        }
    }

    fn release(&mut self, c: char, parts: &mut Parts) {
        let is_text = matches!(self.phase, Phase::Text);
        if c.is_whitespace() || c == ';' && self.is_after_bare {
            // Other white space would begin no line of a grammar's.
            self.is_line_start = c == '\n' || self.is_line_start && matches!(c, ' ' | '\t' | ';');
            self.spaces.push(c);
            if self.spaces.len() > SPACES_BYTES_MAX {
                self.release_spaces(parts);
            }
            return;
        }
        if is_text && self.is_line_start && self.reads_bare(c) {
            self.open_call(None, true, String::new(), parts);
            self.read(c, parts);
            return;
        }
        self.release_spaces(parts);
        self.is_line_start = false;
        self.may_reason = false;
        self.is_after_bare = false;
        self.is_after_call = false;
        self.has_text = is_text;
        let mut utf8 = [0; 4];
        let text = c.encode_utf8(&mut utf8);
        if is_text {
            parts.text(text);
        } else {
            parts.reasoning(text);
        }
    }

    /// Whether a line that begins with this character may be a call. If a tool is strict, only
    /// the form that the grammar writes is read.
    fn reads_bare(&self, c: char) -> bool {
        let marked = self.marked();
        match &self.tools {
            Some(tools) if tools.has_strict() => marked.is_bare_written && c == '{',
            Some(_) => marked.is_bare_read && matches!(c, '{' | '['),
            None => false,
        }
    }

    /// Whether marks begin calls, as [`reads_bare`](Self::reads_bare).
    fn reads_marks(&self) -> bool {
        let is_constrained = |tools: &Tools| tools.has_strict() && self.marked().is_bare_written;
        self.tools
            .as_ref()
            .is_some_and(|tools| !is_constrained(tools))
    }

    fn release_spaces(&mut self, parts: &mut Parts) {
        if std::mem::take(&mut self.skips_spaces) {
            self.spaces.clear();
        }
        if matches!(self.phase, Phase::Reasoning) {
            parts.reasoning(&self.spaces);
        } else {
            parts.text(&self.spaces);
        }
        self.spaces.clear();
    }

    fn read_call(&mut self, c: char, parts: &mut Parts) {
        let (Phase::Call(call), Some(tools)) = (&mut self.phase, &self.tools) else {
            return;
        };
        if call.calls_before == usize::MAX {
            call.calls_before = parts.calls();
        }
        let (calls, changes) = (parts.calls(), parts.changes());
        call.held.push(c);
        let progress = call.reader.read(c, &mut Calls { tools, parts });
        if parts.changes() > changes {
            // The text that was held is part of the call now.
            call.held.clear();
        }
        if parts.calls() > calls {
            self.spaces.clear();
        }
        let held_max = if parts.is_call_open() {
            OPEN_BYTES_MAX
        } else {
            HELD_BYTES_MAX
        };
        match progress {
            Progress::More if call.held.len() <= held_max => {}
            Progress::Done if parts.calls() > call.calls_before => {
                self.is_after_bare = call.is_bare;
                self.end_region();
            }
            Progress::More | Progress::Done | Progress::Failed => {
                if call.held.is_empty() {
                    // The text before this character belongs to the call, but it does not.
                    call.held.push(c);
                }
                self.fail_call(parts);
            }
        }
    }

    /// After a call, another may follow at once.
    fn end_region(&mut self) {
        self.phase = Phase::Text;
        self.spaces.clear();
        self.skips_spaces = false;
        self.is_after_call = true;
        self.has_text = false;
        self.is_line_start = true;
        self.may_reason = false;
    }

    /// This is no call, or not any more: what was held is text.
    fn fail_call(&mut self, parts: &mut Parts) {
        let Phase::Call(call) = std::mem::replace(&mut self.phase, Phase::Text) else {
            return;
        };
        parts.end_call(false);
        let before = parts.take_before_call();
        if !before.is_empty() {
            self.spaces = before;
        }
        self.release_spaces(parts);
        self.is_line_start = call.held.ends_with('\n');
        self.may_reason = false;
        self.is_after_bare = false;
        self.is_after_call = false;
        self.has_text = true;
        parts.text(&call.held);
    }

    fn finish(&mut self, parts: &mut Parts) {
        // The beginning of a mark is text after all.
        for character in std::mem::take(&mut self.candidate).chars() {
            if matches!(self.phase, Phase::Call(_)) {
                self.read_call(character, parts);
            } else {
                self.release(character, parts);
            }
        }
        if let (Phase::Call(call), Some(tools)) = (&mut self.phase, &self.tools) {
            let is_open = parts.is_call_open();
            if is_open {
                call.reader.finish(&mut Calls { tools, parts });
            }
            if parts.is_call_open() {
                parts.end_call(false);
                // A value that is not whole has not been passed on.
                if call.reader.keeps_value() {
                    parts.text(&call.held);
                }
            } else if is_open {
                // The end of the answer was that of the call.
            } else if !(call.reader.is_whole() && parts.calls() > call.calls_before) {
                self.fail_call(parts);
            }
            self.phase = Phase::Text;
            return;
        }
        let is_dropped = self.is_after_call && !self.spaces.contains(';');
        if !self.spaces.is_empty() && !is_dropped {
            self.release_spaces(parts);
        }
    }
}
