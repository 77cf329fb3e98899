//! From the pieces of an output to the events of an answer.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::mem;

use motet_protocol::{FinishReason, TokenId, TokenLogprobs};
use motet_text::{AnswerParser, AnswerPart, TextCodec, TextOutput, Tools};

use super::{AnswerEnd, ChatError, ChatEvent, ChatField, Delta};
use crate::error::SubmitError;
use crate::request::{Piece, Request};

/// Reads one output of a request as an answer: its reasoning, its text and its calls.
///
/// [`ChatStream`](super::ChatStream) has one. A caller that submits the engine's request of a
/// conversation by itself gets it from [`ChatRequest::prepare`](super::ChatRequest::prepare), and
/// clones it for each further output.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    /// `None` if the whole output is text.
    parser: Option<AnswerParser>,
    /// Whether the answer has one call at most.
    has_one_call: bool,
    /// Whether the answer has a complete call. One that is cut off or malformed asks for nothing.
    has_complete_call: bool,
    /// Whether the answer has the one call that it may have: the rest is left out.
    is_complete: bool,
    /// Whether the output has log probabilities.
    has_logprobs: bool,
    /// Tokens whose log probabilities have not come yet.
    tokens: VecDeque<TokenId>,
    /// Log probabilities of tokens whose text the parser retains.
    logprobs: Vec<(TokenId, TokenLogprobs)>,
    /// The field that the grammar of the output comes from.
    grammar_field: ChatField,
    tools: Option<Tools>,
}

impl AnswerReader {
    /// Creates a reader of an output that is nothing but text, such as that of a plain prompt.
    #[must_use]
    pub fn of_text(has_logprobs: bool) -> Self {
        Self {
            parser: None,
            has_one_call: false,
            has_complete_call: false,
            is_complete: false,
            has_logprobs,
            tokens: VecDeque::new(),
            logprobs: Vec::new(),
            grammar_field: ChatField::OutputFormat,
            tools: None,
        }
    }

    /// Sets how calls and reasoning are read.
    pub(super) fn parser(mut self, parser: AnswerParser) -> Self {
        self.parser = Some(parser);
        self
    }

    /// Sets the tools that may be called.
    pub(super) fn tools(mut self, tools: Tools, has_one_call: bool) -> Self {
        self.tools = Some(tools);
        self.has_one_call = has_one_call;
        self
    }

    /// Sets the field that the grammar of the output comes from.
    pub(super) fn grammar_field(mut self, field: ChatField) -> Self {
        self.grammar_field = field;
        self
    }

    /// Reads the beginning of the output that the caller has, whose events it has too.
    pub(super) fn read_so_far(&mut self, text: &TextCodec, request: &Request) {
        let special = request.special_tokens_in_text;
        // The engine rejects stop strings, and tokens, that do not work.
        let Ok(mut output) = TextOutput::new(text, &request.stop_strings, special) else {
            return;
        };
        for token in &request.output_so_far {
            let Ok(read) = output.push(*token) else {
                return;
            };
            self.push(&read.text, Vec::new());
        }
    }

    /// Returns the events of the output's next piece.
    pub fn read(&mut self, piece: Piece) -> Vec<ChatEvent> {
        if let Some(finish) = piece.finish {
            let mut events = self.finish();
            let (end, usage) = (self.end(finish.reason), finish.usage);
            events.push(ChatEvent::Ended { end, usage });
            return events;
        }
        if let Some(prefill) = piece.prefill {
            return vec![ChatEvent::Prefilled(prefill)];
        }
        if self.has_logprobs {
            self.tokens.extend(piece.token);
        }
        // One for each token, in the order of the tokens.
        let logprobs = piece.logprobs.into_iter();
        let logprobs = logprobs.filter_map(|logprobs| Some((self.tokens.pop_front()?, logprobs)));
        let logprobs = logprobs.collect();
        self.push(&piece.text, logprobs)
    }

    /// Whether the answer has the one call that it may have. The rest of the output is left out, and
    /// its sequence may be cancelled.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the number of tokens whose log probabilities wait for the next event.
    #[must_use]
    pub fn retained_logprobs(&self) -> usize {
        self.logprobs.len()
    }

    /// Returns the error of a request that the engine rejects, as the conversation's.
    #[must_use]
    pub fn submit_error(&self, error: SubmitError) -> ChatError {
        ChatError::submit(error, self.grammar_field, self.tools.as_ref())
    }

    /// Returns the field that the grammar of the output comes from, for
    /// [`GenerateError::Grammar`](crate::error::GenerateError::Grammar).
    #[must_use]
    pub fn field_of_grammar(&self) -> ChatField {
        self.grammar_field
    }

    /// Parts more text.
    fn push(&mut self, text: &str, logprobs: Vec<(TokenId, TokenLogprobs)>) -> Vec<ChatEvent> {
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

    /// The rest of the answer, which the parser has retained.
    fn finish(&mut self) -> Vec<ChatEvent> {
        let parts = match &mut self.parser {
            Some(parser) if !self.is_complete => parser.finish(),
            _ => Vec::new(),
        };
        let mut events = self.events(parts);
        events.extend(self.text(""));
        events
    }

    /// Text, unless there is nothing to report of it.
    fn text(&mut self, text: &str) -> Vec<ChatEvent> {
        if text.is_empty() && self.logprobs.is_empty() {
            return Vec::new();
        }
        vec![self.event(Delta::Text(text.to_owned()))]
    }

    /// The events of these parts, up to the end of the call that is the only one.
    fn events(&mut self, parts: Vec<AnswerPart>) -> Vec<ChatEvent> {
        let mut events = Vec::with_capacity(parts.len());
        for part in parts {
            let is_call_end = matches!(
                part,
                AnswerPart::CallEnd {
                    is_complete: true,
                    ..
                }
            );
            let delta = self.delta(part);
            events.push(self.event(delta));
            if is_call_end && self.has_one_call {
                self.is_complete = true;
                break;
            }
        }
        events
    }

    fn delta(&mut self, part: AnswerPart) -> Delta {
        match part {
            AnswerPart::Reasoning(text) => Delta::Reasoning(text),
            AnswerPart::Text(text) => Delta::Text(text),
            AnswerPart::CallStart { index, name } => Delta::CallStarted {
                index,
                id: call_id(),
                name,
            },
            AnswerPart::CallArguments { index, json } => Delta::CallArguments { index, json },
            AnswerPart::CallEnd { index, is_complete } => {
                self.has_complete_call |= is_complete;
                Delta::CallEnded { index, is_complete }
            }
            // A kind of part that is not known here yet.
            _ => Delta::Text(String::new()),
        }
    }

    /// A delta, with the log probabilities that have no event yet.
    fn event(&mut self, delta: Delta) -> ChatEvent {
        let logprobs = mem::take(&mut self.logprobs);
        ChatEvent::Delta { delta, logprobs }
    }

    fn end(&self, reason: FinishReason) -> AnswerEnd {
        match AnswerEnd::from(reason) {
            // The reader of the events cancels an answer that has its only call.
            _ if self.is_complete => AnswerEnd::Calls,
            AnswerEnd::Length => AnswerEnd::Length,
            _ if self.has_complete_call => AnswerEnd::Calls,
            end => end,
        }
    }
}

/// A new id of a call. Mistral's templates accept ids of nine letters and digits only.
fn call_id() -> String {
    const CHARACTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const CALL_ID_CHARACTERS: usize = 9; // of 6 bits, from 64
    // The standard library's keys of hash maps are random, and no two are alike.
    let mut random = RandomState::new().hash_one(0);
    let characters = (0..CALL_ID_CHARACTERS).map(|_| {
        let index = random % CHARACTERS.len() as u64;
        random /= CHARACTERS.len() as u64;
        char::from(CHARACTERS[index as usize])
    });
    characters.collect()
}

#[cfg(test)]
mod tests {
    use motet_protocol::{Finish, Usage};
    use motet_text::AnswerFormat;

    use super::*;
    use crate::chat::fixtures::{clock, tokenizer};

    const TEXT: &str = "Now.\n{\"name\": \"clock\", \"arguments\": {\"a\": 1}}\n\
        {\"name\": \"clock\", \"arguments\": {}}\n";

    fn reader(has_one_call: bool) -> AnswerReader {
        let tools = Tools::new(vec![clock()]).expect("tools");
        let format = AnswerFormat::new(None, &tokenizer());
        let parser = format.parser("", Some(&tools));
        let reader = AnswerReader::of_text(true).parser(parser);
        reader.tools(tools, has_one_call)
    }

    fn piece(text: &str) -> Piece {
        Piece {
            text: text.into(),
            ..Piece::default()
        }
    }

    fn finish(reason: FinishReason) -> Piece {
        Piece {
            finish: Some(Finish::new(reason, Usage::default())),
            ..Piece::default()
        }
    }

    fn calls(events: &[ChatEvent]) -> usize {
        let is_call = |event: &&ChatEvent| {
            let ChatEvent::Delta { delta, .. } = event else {
                return false;
            };
            matches!(delta, Delta::CallStarted { .. })
        };
        events.iter().filter(is_call).count()
    }

    fn end(events: &[ChatEvent]) -> AnswerEnd {
        match events.last() {
            Some(ChatEvent::Ended { end, .. }) => *end,
            other => panic!("{other:?}"),
        }
    }

    /// The model is free to call, so no grammar keeps it from a second call.
    #[test]
    fn answer_without_parallel_calls_ends_after_its_first() {
        for (has_one_call, expected) in [(false, 2), (true, 1)] {
            let mut reader = reader(has_one_call);
            let mut events = reader.read(piece(TEXT));
            assert_eq!(reader.is_complete(), has_one_call);
            events.extend(reader.read(finish(FinishReason::Cancelled)));
            assert_eq!(calls(&events), expected);
            assert_eq!(end(&events), AnswerEnd::Calls);
        }
    }

    #[test]
    fn only_a_complete_call_is_the_reason_of_an_end() {
        let complete = "{\"name\": \"clock\", \"arguments\": {}}\n";
        let malformed = "{\"name\": \"clock\", \"arguments\": {\"a\": tru}}\n";
        let cut = "{\"name\": \"clock\", \"arguments\": {\"a\": \"x";
        let check = |parts: &[&str], reason, expected| {
            let mut reader = reader(false);
            let mut events = reader.read(piece(&parts.concat()));
            events.extend(reader.read(finish(reason)));
            assert_eq!(calls(&events), parts.len(), "{parts:?}");
            assert_eq!(end(&events), expected, "{parts:?}, {reason:?}");
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
    fn log_probabilities_of_retained_text_go_with_the_next_event() {
        let mut reader = reader(false);
        let mut events = Vec::new();
        for (token, letter) in (0..).zip(TEXT.chars()) {
            let (logprob, top) = (-1.0, Vec::new());
            events.extend(reader.read(Piece {
                token: Some(token),
                logprobs: vec![TokenLogprobs { logprob, top }],
                ..piece(&letter.to_string())
            }));
        }
        assert!(reader.retained_logprobs() > 0);
        events.extend(reader.read(finish(FinishReason::EndToken)));
        assert_eq!(reader.retained_logprobs(), 0);
        let tokens = events.iter().filter_map(|event| match event {
            ChatEvent::Delta { logprobs, .. } => Some(logprobs.iter().map(|(token, _)| *token)),
            _ => None,
        });
        let tokens: Vec<TokenId> = tokens.flatten().collect();
        let expected: Vec<TokenId> = (0..TEXT.chars().count() as TokenId).collect();
        assert_eq!(tokens, expected, "each once, in order");
    }
}
