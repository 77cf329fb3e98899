//! Results that the server keeps until they are sent: within the engine's budget for results.
//!
//! | kept | counted |
//! |---|---|
//! | texts that the answer repeats | before the request is prepared |
//! | text of outputs that are answered whole, or repeated at the end | the first step before the request is prepared, more as it is generated |
//! | log probabilities of such outputs | at admission, for the longest outputs where the request bounds them; otherwise the first ones at admission, and more as they are generated |
//! | pieces that a stream may be ahead of its client | at admission |
//! | log probabilities of prompts | by the engine, at admission |
//!
//! All of them are one sum of one request. When its outputs are complete, the sum is reduced to what is
//! kept of them.

use std::sync::Arc;

use motet::error::{ReserveError, SubmitError};
use motet::request::TokenLogprobs;
use motet::{Engine, KeptOutputs, Request, ResultsReservation, TokenStream};

use crate::app::App;
use crate::error::ApiError;

/// Bytes of outputs are reserved in steps of this many.
const STEP_BYTES: usize = 16 << 10;
/// A text is kept, and copied where it is written.
const TEXT_COPIES: usize = 2;
/// Tokens of an output whose log probabilities are reserved at first, where its request does not bound
/// its length: most answers are shorter.
const FIRST_TOKENS: usize = 256;

/// The parts of an answer that are kept until it is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keep {
    /// Whether it keeps its outputs with their log probabilities: it is written whole, or its end
    /// repeats them.
    pub(crate) outputs: bool,
    /// Whether it is a stream, which its client may not read.
    pub(crate) is_streamed: bool,
    /// Bytes of texts that it repeats.
    pub(crate) other_bytes: usize,
}

/// The bytes of the results that an answer keeps. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct KeptResults {
    reservation: ResultsReservation,
    keep: Keep,
    /// The field that errors name.
    field: &'static str,
    /// Bytes that do not depend on the lengths of the outputs.
    fixed_bytes: usize,
    /// Bytes that were reserved at admission for outputs.
    admitted_bytes: usize,
    /// Bytes of a token with its log probabilities.
    row_bytes: usize,
    text_bytes: usize,
    rows: usize,
    /// Log probabilities that are held back until they can be sent.
    held_rows: usize,
    /// Bytes of what is recorded of the answer beside its text.
    recorded_bytes: usize,
    /// The engine's reservations of sequences whose results are kept.
    of_sequences: Vec<Arc<ResultsReservation>>,
}

impl KeptResults {
    /// Reserves what is known of an answer before its request is prepared. Errors name this field.
    pub(crate) fn reserve(
        app: &App,
        user: Option<&str>,
        keep: Keep,
        field: &'static str,
    ) -> Result<Self, ApiError> {
        let admitted_bytes = if keep.outputs { STEP_BYTES } else { 0 };
        let bytes = keep.other_bytes.saturating_add(admitted_bytes);
        let reservation = app.engine.reserve_results(user, bytes);
        Ok(Self {
            reservation: reservation.map_err(|error| error_of(error, field))?,
            keep,
            field,
            fixed_bytes: keep.other_bytes,
            admitted_bytes,
            row_bytes: 0,
            text_bytes: 0,
            rows: 0,
            held_rows: 0,
            recorded_bytes: 0,
            of_sequences: Vec::new(),
        })
    }

    /// Reserves so many bytes for a user. Errors name this field.
    pub(crate) fn of_bytes(
        app: &App,
        user: Option<&str>,
        bytes: usize,
        field: &'static str,
    ) -> Result<Self, ApiError> {
        let keep = Keep {
            other_bytes: bytes,
            ..Keep::default()
        };
        Self::reserve(app, user, keep, field)
    }

    /// Lets later errors name another field.
    #[must_use]
    pub(crate) fn named(self, field: &'static str) -> Self {
        Self { field, ..self }
    }

    /// The parts that are kept of the outputs of these requests, which have the same settings.
    pub(crate) fn of_outputs(&mut self, engine: &Engine, requests: &[Request]) -> KeptOutputs {
        let logprobs = requests.iter().filter_map(|request| request.logprobs).max();
        self.row_bytes = logprobs.map_or(0, row_bytes);
        let context = engine.model().context_tokens_max;
        let is_bounded = |request: &Request| request.output_tokens_max < context;
        let logprobs_tokens_max = match logprobs.filter(|_| self.keep.outputs) {
            None => 0,
            Some(_) if requests.iter().all(is_bounded) => usize::MAX,
            Some(_) => FIRST_TOKENS,
        };
        KeptOutputs {
            logprobs_tokens_max,
            is_unread: self.keep.is_streamed,
        }
    }

    /// Submits requests: all or none. Their results are reserved with those of the answer.
    pub(crate) async fn submit(
        &mut self,
        engine: &Engine,
        requests: Vec<Request>,
        kept: KeptOutputs,
    ) -> Result<Vec<Vec<TokenStream>>, SubmitError> {
        if kept.is_unread {
            let unread = requests.iter().map(|request| engine.unread_bytes(request));
            self.fixed_bytes = unread.fold(self.fixed_bytes, usize::saturating_add);
        }
        let reservation = &mut self.reservation;
        let streams = engine.submit_all_keeping(requests, kept, reservation);
        let streams = streams.await?;
        self.admitted_bytes = self.reservation.bytes() - self.fixed_bytes;
        Ok(streams)
    }

    /// The error of a submission. Where its results are too long to keep, it names the field of the
    /// reservation; `other` makes the other errors.
    pub(crate) fn submit_error(
        field: &str,
        error: SubmitError,
        other: impl FnOnce(SubmitError) -> ApiError,
    ) -> ApiError {
        match error {
            SubmitError::ResultsTooLarge { .. } => too_large(field, &error.to_string()),
            error => other(error),
        }
    }

    /// Counts more of an output: bytes of its text, and tokens with log probabilities.
    pub(crate) fn add(&mut self, text_bytes: usize, rows: usize) -> Result<(), ApiError> {
        self.text_bytes += TEXT_COPIES * text_bytes;
        self.rows += rows;
        self.resize()
    }

    /// Changes the number of tokens whose log probabilities are held back until they can be sent.
    pub(crate) fn set_held(&mut self, rows: usize) -> Result<(), ApiError> {
        self.held_rows = rows;
        self.resize()
    }

    /// Counts an event that is recorded, with so many log probabilities: these are then kept twice.
    /// Returns the bytes that it counts.
    pub(crate) fn add_recorded(
        &mut self,
        event_bytes: usize,
        rows: usize,
    ) -> Result<usize, ApiError> {
        let bytes = event_bytes + rows * self.row_bytes;
        self.recorded_bytes += bytes;
        self.resize().map(|()| bytes)
    }

    /// Frees what is not kept beside the recording and the response: the items of the request.
    pub(crate) fn only_recorded(&mut self, other_bytes: usize) {
        self.keep.other_bytes = other_bytes;
        self.fixed_bytes = other_bytes;
        self.admitted_bytes = 0;
        // An answer that was refused more bytes ends with those that it has.
        let bytes = self.needed_bytes().min(self.reservation.bytes());
        self.reservation
            .resize(bytes)
            .expect("fewer bytes always fit");
    }

    /// Frees the outputs, and keeps so many other bytes.
    pub(crate) fn without_outputs(&mut self, other_bytes: usize) {
        (
            self.text_bytes,
            self.rows,
            self.held_rows,
            self.recorded_bytes,
        ) = (0, 0, 0, 0);
        self.of_sequences.clear();
        self.only_recorded(other_bytes);
    }

    /// The bytes that are reserved.
    pub(crate) fn bytes(&self) -> usize {
        self.reservation.bytes()
    }

    /// Keeps what the engine reserved for a sequence as well.
    pub(crate) fn add_sequence(&mut self, results: Arc<ResultsReservation>) {
        self.of_sequences.push(results);
    }

    /// Frees what was reserved for longer outputs: these are complete, and have been read.
    pub(crate) fn complete(&mut self) {
        self.fixed_bytes = self.keep.other_bytes;
        self.admitted_bytes = 0;
        self.resize().expect("fewer bytes always fit");
    }

    fn needed_bytes(&self) -> usize {
        let rows = (self.rows + self.held_rows) * self.row_bytes;
        let outputs = self.text_bytes + rows + self.recorded_bytes;
        let outputs = outputs.next_multiple_of(STEP_BYTES);
        self.fixed_bytes + outputs.max(self.admitted_bytes)
    }

    fn resize(&mut self) -> Result<(), ApiError> {
        let bytes = self.needed_bytes();
        if bytes == self.reservation.bytes() {
            return Ok(());
        }
        let resized = self.reservation.resize(bytes);
        resized.map_err(|error| error_of(error, self.field))
    }
}

/// Bytes of a token with so many alternatives in a list that grows.
pub(crate) fn row_bytes(alternatives: usize) -> usize {
    TokenLogprobs::listed_bytes(alternatives)
}

fn error_of(error: ReserveError, field: &str) -> ApiError {
    match error {
        ReserveError::Full { retry_after } => ApiError::busy(error.to_string(), retry_after),
        _ => too_large(field, &error.to_string()),
    }
}

fn too_large(field: &str, what: &str) -> ApiError {
    let message = format!(
        "`{field}`: {what}; ask for fewer or shorter outputs or prompts, for fewer log probabilities, or \
         for a stream (the server's setting is --results-mib)"
    );
    ApiError::field(field, message)
}
