//! An answer as events: its reasoning, its text and its calls, parted as they are generated.

use std::collections::VecDeque;
use std::sync::Arc;

use motet::TokenId;
use motet::request::{FinishReason, Prefill, TokenLogprobs, Usage};
use motet::text::{AnswerParser, AnswerPart};
use rand::distr::{Alphanumeric, SampleString};

use super::FieldNames;
use crate::activity::{Activity, ObservedAnswer};
use crate::error::ApiError;
use crate::generate::{Event, OutputStreams, UntilSent};
use crate::kept::KeptResults;

/// A token and its log probability.
pub(crate) type ScoredToken = (TokenId, TokenLogprobs);

/// An event of one answer. `Ended` or `Failed` is the last.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    /// The prompt's progress, where the request asks for it.
    Prefilled(Prefill),
    /// More of the answer.
    Piece {
        piece: AnswerPiece,
        /// Log probabilities, where the request asks for them: of the tokens whose text has become
        /// certain since the piece before, whatever they belong to. One for each token of the
        /// answer in the end.
        logprobs: Vec<ScoredToken>,
    },
    /// The answer is complete.
    Ended {
        end: AnswerEnd,
        /// The usage of all answers of the request that are complete.
        usage: Usage,
    },
    /// The answer failed before it was complete.
    Failed(ApiError),
}

/// More of an answer. Text may be empty where a piece has log probabilities only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerPiece {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the text.
    Text(String),
    /// A call begins. Calls of an answer are numbered from 0, and one ends before the next begins.
    CallStarted {
        index: usize,
        id: String,
        name: String,
    },
    /// More of a call's arguments, which are JSON once they are complete.
    CallArguments { index: usize, json: String },
    /// A call ends. It is not complete if the answer ended within its arguments, or if these are
    /// no JSON.
    CallEnded { index: usize, is_complete: bool },
}

impl AnswerPiece {
    /// Bytes of its text.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Reasoning(text) | Self::Text(text) => text.len(),
            Self::CallStarted { id, name, .. } => id.len() + name.len(),
            Self::CallArguments { json, .. } => json.len(),
            Self::CallEnded { .. } => 0,
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerEnd {
    /// The model ended it.
    Stop,
    /// One of the request's stop strings or stop tokens ended it.
    StopString,
    /// It has as many tokens as it may have.
    Length,
    /// It has a complete call, whose result is needed.
    Calls,
}

/// The answers to one request, by number. Dropping this cancels them.
#[derive(Debug)]
pub(crate) struct Answers {
    output_streams: OutputStreams,
    readers: Vec<Reader>,
    /// Events that have been parsed and not returned.
    pending: VecDeque<(usize, AnswerEvent)>,
    /// The field that the grammar of the outputs comes from, for errors.
    grammar_field: String,
    /// Tokens whose log probabilities the readers hold back.
    held_rows: usize,
}

/// Parts one output.
#[derive(Debug)]
struct Reader {
    /// `None` if the whole output is text.
    parser: Option<AnswerParser>,
    /// Whether the answer may have more than one call.
    is_parallel: bool,
    /// Whether the answer has a complete call. One that is cut off or malformed asks for nothing.
    has_complete_call: bool,
    /// Whether the answer has the one call that it may have: the rest is left out.
    is_complete: bool,
    /// Log probabilities of tokens whose text the parser holds back.
    logprobs: Vec<ScoredToken>,
    /// Shows the answer's parts to the page while it is written.
    observed: Option<ObservedAnswer>,
}

impl Answers {
    /// Reads these outputs, each with its own parser. Without parsers, outputs are text.
    pub(super) fn new(
        output_streams: OutputStreams,
        mut parser: impl FnMut() -> Option<AnswerParser>,
        is_parallel: bool,
        grammar_field: String,
    ) -> Self {
        let readers = (0..output_streams.count()).map(|_| Reader {
            parser: parser(),
            is_parallel,
            has_complete_call: false,
            is_complete: false,
            logprobs: Vec::new(),
            observed: None,
        });
        Self {
            readers: readers.collect(),
            output_streams,
            pending: VecDeque::new(),
            grammar_field,
            held_rows: 0,
        }
    }

    /// Reads outputs that are text: those of plain prompts.
    pub(crate) fn of_text(output_streams: OutputStreams) -> Self {
        let grammar_field = FieldNames::CHAT.output_format.to_owned();
        Self::new(output_streams, || None, true, grammar_field)
    }

    /// Lets the page show the parts of the answers.
    #[must_use]
    pub(super) fn observed(mut self, activity: &Arc<Activity>) -> Self {
        for (reader, sequence) in self.readers.iter_mut().zip(self.output_streams.sequences()) {
            reader.observed = Some(activity.observe(sequence));
        }
        self
    }

    /// The number of answers.
    pub(crate) fn count(&self) -> usize {
        self.readers.len()
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.output_streams.prompt_tokens()
    }

    /// The usage of the answers that are complete.
    pub(crate) fn usage(&self) -> Usage {
        self.output_streams.usage()
    }

    /// The reservation of the answers.
    pub(crate) fn kept(&mut self) -> &mut KeptResults {
        self.output_streams.kept()
    }

    /// Ends the answers. Their reservation lasts until they are sent.
    pub(crate) fn until_sent(self) -> UntilSent {
        self.output_streams.until_sent()
    }

    /// The next event and its answer's number; `None` when all answers have ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: an event is either returned or stays for the next call.
    pub(crate) async fn next(&mut self) -> Option<(usize, AnswerEvent)> {
        loop {
            if let Some(next) = self.pending.pop_front() {
                return Some(next);
            }
            let (number, event) = self.output_streams.next().await?;
            self.read(number, event);
        }
    }

    /// Parts an event of an output.
    fn read(&mut self, number: usize, event: Event) {
        let reader = &mut self.readers[number];
        let pending = &mut self.pending;
        match event {
            Event::Prefilled(prefill) => {
                pending.push_back((number, AnswerEvent::Prefilled(prefill)));
            }
            Event::Generated { text, logprobs } => {
                let was_complete = reader.is_complete;
                let before = reader.logprobs.len();
                let pieces = reader.push(&text, logprobs);
                let after = reader.logprobs.len();
                pending.extend(pieces.into_iter().map(|event| (number, event)));
                if reader.is_complete && !was_complete {
                    self.output_streams.cancel(number);
                }
                if after != before {
                    self.held_rows = self.held_rows + after - before;
                    if let Err(error) = self.output_streams.kept().set_held(self.held_rows) {
                        self.pending.push_back((number, AnswerEvent::Failed(error)));
                    }
                }
            }
            Event::Ended(reason) => {
                let pieces = reader.finish();
                pending.extend(pieces.into_iter().map(|event| (number, event)));
                reader.observed = None;
                let end = reader.end(reason);
                let usage = self.output_streams.usage();
                pending.push_back((number, AnswerEvent::Ended { end, usage }));
            }
            Event::Failed(error) => {
                let error = ApiError::generate(error, &self.grammar_field);
                pending.push_back((number, AnswerEvent::Failed(error)));
            }
        }
    }
}

impl Reader {
    /// Parts more text.
    fn push(&mut self, text: &str, logprobs: Vec<ScoredToken>) -> Vec<AnswerEvent> {
        if self.is_complete {
            return Vec::new();
        }
        self.logprobs.extend(logprobs);
        let Some(parser) = &mut self.parser else {
            return self.text(text);
        };
        let parts = parser.push(text);
        self.events(parts)
    }

    /// The rest of the answer, which the parser has held back.
    fn finish(&mut self) -> Vec<AnswerEvent> {
        let parts = match &mut self.parser {
            Some(parser) if !self.is_complete => parser.finish(),
            _ => Vec::new(),
        };
        let mut events = self.events(parts);
        events.extend(self.text(""));
        events
    }

    /// Text, unless there is nothing to report of it.
    fn text(&mut self, text: &str) -> Vec<AnswerEvent> {
        if text.is_empty() && self.logprobs.is_empty() {
            return Vec::new();
        }
        vec![self.event(AnswerPiece::Text(text.to_owned()))]
    }

    /// The events of these parts, up to the end of the call that is the only one.
    fn events(&mut self, parts: Vec<AnswerPart>) -> Vec<AnswerEvent> {
        let mut events = Vec::with_capacity(parts.len());
        for part in parts {
            let is_call_end = matches!(
                part,
                AnswerPart::CallEnd {
                    is_complete: true,
                    ..
                }
            );
            let piece = self.piece(part);
            events.push(self.event(piece));
            if is_call_end && !self.is_parallel {
                self.is_complete = true;
                break;
            }
        }
        events
    }

    fn piece(&mut self, part: AnswerPart) -> AnswerPiece {
        match part {
            AnswerPart::Reasoning(text) => AnswerPiece::Reasoning(text),
            AnswerPart::Text(text) => AnswerPiece::Text(text),
            AnswerPart::CallStart { index, name } => AnswerPiece::CallStarted {
                index,
                id: call_id(),
                name,
            },
            AnswerPart::CallArguments { index, json } => AnswerPiece::CallArguments { index, json },
            AnswerPart::CallEnd { index, is_complete } => {
                self.has_complete_call |= is_complete;
                AnswerPiece::CallEnded { index, is_complete }
            }
            // A kind of part that this server does not know yet.
            _ => AnswerPiece::Text(String::new()),
        }
    }

    /// A piece, with the log probabilities that have no piece yet.
    fn event(&mut self, piece: AnswerPiece) -> AnswerEvent {
        if let Some(observed) = &self.observed {
            observe(observed, &piece);
        }
        let logprobs = std::mem::take(&mut self.logprobs);
        AnswerEvent::Piece { piece, logprobs }
    }

    fn end(&self, reason: FinishReason) -> AnswerEnd {
        match reason {
            // The server itself cancels an answer that has its only call.
            _ if self.is_complete => AnswerEnd::Calls,
            FinishReason::Length | FinishReason::Deadline => AnswerEnd::Length,
            _ if self.has_complete_call => AnswerEnd::Calls,
            FinishReason::StopString | FinishReason::StopToken => AnswerEnd::StopString,
            _ => AnswerEnd::Stop,
        }
    }
}

/// Tells the page of a piece.
fn observe(answer: &ObservedAnswer, piece: &AnswerPiece) {
    match piece {
        AnswerPiece::Reasoning(_) => answer.reasoning(),
        AnswerPiece::Text(text) if !text.is_empty() => answer.text(),
        AnswerPiece::CallStarted { .. } => answer.call(),
        _ => {}
    }
}

/// A new id of a call. Mistral's templates accept ids of nine letters and digits only.
fn call_id() -> String {
    const CALL_ID_CHARACTERS: usize = 9;
    Alphanumeric.sample_string(&mut rand::rng(), CALL_ID_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use motet::text::{AnswerFormat, Tools};

    use super::*;
    use crate::conversation::fixtures::{clock, tokenizer};

    const TEXT: &str = "Now.\n{\"name\": \"clock\", \"arguments\": {\"a\": 1}}\n\
        {\"name\": \"clock\", \"arguments\": {}}\n";

    fn reader(is_parallel: bool) -> Reader {
        let tools = Tools::new(vec![clock()]).expect("tools");
        let format = AnswerFormat::new(None, &tokenizer());
        Reader {
            parser: Some(format.parser("", Some(&tools))),
            is_parallel,
            has_complete_call: false,
            is_complete: false,
            logprobs: Vec::new(),
            observed: None,
        }
    }

    fn calls(events: &[AnswerEvent]) -> usize {
        let is_call = |event: &&AnswerEvent| {
            let AnswerEvent::Piece { piece, .. } = event else {
                return false;
            };
            matches!(piece, AnswerPiece::CallStarted { .. })
        };
        events.iter().filter(is_call).count()
    }

    /// The model is free to call, so no grammar keeps it from a second call.
    #[test]
    fn answer_without_parallel_calls_ends_after_its_first() {
        for (is_parallel, expected) in [(true, 2), (false, 1)] {
            let mut reader = reader(is_parallel);
            let mut events = reader.push(TEXT, Vec::new());
            events.extend(reader.finish());
            assert_eq!(calls(&events), expected);
            assert_eq!(reader.is_complete, !is_parallel);
            assert_eq!(reader.end(FinishReason::Cancelled), AnswerEnd::Calls);
        }
    }

    #[test]
    fn only_a_complete_call_is_the_reason_of_an_end() {
        let complete = "{\"name\": \"clock\", \"arguments\": {}}\n";
        let malformed = "{\"name\": \"clock\", \"arguments\": {\"a\": tru}}\n";
        let cut = "{\"name\": \"clock\", \"arguments\": {\"a\": \"x";
        let check = |parts: &[&str], reason, expected| {
            let mut reader = reader(true);
            let mut events = reader.push(&parts.concat(), Vec::new());
            events.extend(reader.finish());
            assert_eq!(calls(&events), parts.len(), "{parts:?}");
            assert_eq!(reader.end(reason), expected, "{parts:?}, {reason:?}");
        };
        for broken in [malformed, cut] {
            check(&[broken], FinishReason::EndToken, AnswerEnd::Stop);
            check(&[broken], FinishReason::StopString, AnswerEnd::StopString);
            check(&[broken], FinishReason::StopToken, AnswerEnd::StopString);
            check(&[broken], FinishReason::Length, AnswerEnd::Length);
            check(
                &[complete, broken],
                FinishReason::EndToken,
                AnswerEnd::Calls,
            );
            check(
                &[complete, broken],
                FinishReason::StopString,
                AnswerEnd::Calls,
            );
            check(&[complete, broken], FinishReason::Length, AnswerEnd::Length);
        }
        check(
            &[malformed, complete],
            FinishReason::EndToken,
            AnswerEnd::Calls,
        );
    }

    #[test]
    fn log_probabilities_of_held_back_text_go_with_the_next_piece() {
        let mut reader = reader(true);
        let scored = |token| {
            let (logprob, top) = (-1.0, Vec::new());
            (token, TokenLogprobs { logprob, top })
        };
        let mut events = Vec::new();
        for (token, letter) in (0..).zip(TEXT.chars()) {
            events.extend(reader.push(&letter.to_string(), vec![scored(token)]));
        }
        events.extend(reader.finish());
        let tokens = events.iter().filter_map(|event| match event {
            AnswerEvent::Piece { logprobs, .. } => Some(logprobs.iter().map(|(token, _)| *token)),
            _ => None,
        });
        let tokens: Vec<TokenId> = tokens.flatten().collect();
        let expected: Vec<TokenId> = (0..TEXT.chars().count() as TokenId).collect();
        assert_eq!(tokens, expected, "each once, in order");
    }
}
