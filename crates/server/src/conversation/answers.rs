//! The events of a request's answers, side by side and within the budget for results.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use axum::http::StatusCode;
use motet::chat::{AnswerReader, ChatEvent, Delta};
use motet::error::GenerateError;
use motet::request::{Piece, TokenLogprobs, Usage};
use motet::{SequenceHandle, TokenId};

use super::FieldNames;
use crate::activity::{Activity, ObservedAnswer};
use crate::error::ApiError;
use crate::generate::{OutputStreams, UntilSent};
use crate::kept::KeptResults;

/// A token and its log probability.
pub(crate) type ScoredToken = (TokenId, TokenLogprobs);

/// An event of one answer. The usage at its end is that of all answers of the request that are
/// complete. An error is the last event.
pub(crate) type AnswerEvent = Result<ChatEvent, ApiError>;

/// The answers to one request, by number. Dropping this cancels them.
#[derive(Debug)]
pub(crate) struct Answers {
    output_streams: OutputStreams,
    readers: Vec<Reader>,
    /// Events that have been read and not returned.
    pending: VecDeque<(usize, AnswerEvent)>,
    /// The field that the grammar of the outputs comes from, for errors.
    grammar_field: String,
    /// Tokens whose log probabilities the readers retain.
    retained_rows: usize,
    /// Tokens with events that were not [taken](Self::take_tokens); `None` if no caller takes tokens.
    tokens: Option<Vec<TokenId>>,
    /// Whether text of the tokens so far is held back.
    has_held_text: bool,
}

/// Reads one output.
#[derive(Debug)]
struct Reader {
    reader: AnswerReader,
    /// Shows the answer's parts to the page while it is written.
    observed: Option<ObservedAnswer>,
}

impl Answers {
    /// Reads each of these outputs with a clone of the reader.
    pub(super) fn new(
        output_streams: OutputStreams,
        reader: &AnswerReader,
        grammar_field: String,
    ) -> Self {
        let readers = (0..output_streams.count()).map(|_| Reader {
            reader: reader.clone(),
            observed: None,
        });
        let answers = Self {
            readers: readers.collect(),
            output_streams,
            pending: VecDeque::new(),
            grammar_field,
            retained_rows: 0,
            tokens: None,
            has_held_text: false,
        };
        if reader.is_complete() {
            // Its only call is in the beginning that the caller has.
            (0..answers.count()).for_each(|number| answers.output_streams.cancel(number));
        }
        answers
    }

    /// Reads outputs that are text: those of plain prompts.
    pub(crate) fn of_text(output_streams: OutputStreams) -> Self {
        let reader = AnswerReader::of_text(output_streams.has_logprobs());
        let grammar_field = FieldNames::CHAT.output_format.to_owned();
        Self::new(output_streams, &reader, grammar_field)
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

    /// The handles of the answers' sequences.
    pub(crate) fn sequences(&self) -> Vec<SequenceHandle> {
        self.output_streams.handles().to_vec()
    }

    /// Notes for the log that the answers end with an error of this status.
    pub(crate) fn failed(&self, status: StatusCode) {
        self.output_streams.failed(status);
    }

    /// The reservation of the answers.
    pub(crate) fn kept(&mut self) -> &mut KeptResults {
        self.output_streams.kept()
    }

    /// Ends the answers. Their reservation lasts until they are sent.
    pub(crate) fn until_sent(self) -> UntilSent {
        self.output_streams.until_sent()
    }

    /// Collects the tokens of an answer for [`take_tokens`](Self::take_tokens).
    pub(crate) fn collect_tokens(&mut self) {
        self.tokens = Some(Vec::new());
    }

    /// Takes the tokens since those that were taken last, if all their events have been returned, with all
    /// their log probabilities: another answer can go on after them.
    pub(crate) fn take_tokens(&mut self) -> Option<Vec<TokenId>> {
        let retains_rows =
            self.output_streams.has_logprobs() && (self.has_held_text || self.retained_rows > 0);
        if retains_rows || !self.pending.is_empty() {
            return None;
        }
        self.tokens.as_mut().map(mem::take)
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
            let (number, piece) = self.output_streams.next().await?;
            if let Err(error) = self.read(number, piece) {
                self.pending.push_back((number, Err(error)));
            }
        }
    }

    /// Reads a piece of an output.
    fn read(&mut self, number: usize, piece: Result<Piece, GenerateError>) -> Result<(), ApiError> {
        let piece = piece.map_err(|error| ApiError::generate(error, &self.grammar_field))?;
        let is_last = piece.finish.is_some();
        self.has_held_text = piece.has_held_text;
        if let Some(tokens) = &mut self.tokens {
            tokens.extend(piece.token);
        }
        let Reader { reader, observed } = &mut self.readers[number];
        let was_complete = reader.is_complete();
        let retained_before = reader.retained_logprobs();
        for mut event in reader.read(piece) {
            match &mut event {
                ChatEvent::Prefilled(_) => {}
                ChatEvent::Delta { delta, .. } => {
                    if let Some(observed) = observed {
                        observe(observed, delta);
                    }
                }
                ChatEvent::Ended { usage, .. } => {
                    *observed = None;
                    *usage = self.output_streams.usage();
                }
            }
            self.pending.push_back((number, Ok(event)));
        }
        if reader.is_complete() && !was_complete {
            self.output_streams.cancel(number);
        }
        let retained = reader.retained_logprobs();
        if is_last || retained == retained_before {
            return Ok(());
        }
        self.retained_rows = self.retained_rows + retained - retained_before;
        let rows = self.retained_rows;
        self.kept().set_held(rows)
    }
}

/// Tells the page of a part.
fn observe(answer: &ObservedAnswer, delta: &Delta) {
    match delta {
        Delta::Reasoning(_) => answer.reasoning(),
        Delta::Text(text) if !text.is_empty() => answer.text(),
        Delta::CallStarted { .. } => answer.call(),
        _ => {}
    }
}
