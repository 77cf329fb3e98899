//! Results that the server keeps until they are sent: within the engine's budget for results.
//!
//! | kept | counted |
//! |---|---|
//! | pieces that a stream may be ahead of its client | before the request is submitted |
//! | log probabilities of outputs that are answered whole, or repeated at the end | before the request is submitted, for its longest outputs |
//! | text of such outputs | as it is generated |
//! | texts that the answer repeats | before the request is submitted |
//! | log probabilities of prompts | by the engine, at admission |

use std::sync::Arc;

use motet::error::ReserveError;
use motet::request::TokenLogprobs;
use motet::{Request, ResultsReservation};

use crate::app::App;
use crate::conversation::ScoredToken;
use crate::error::ApiError;

/// Text is reserved in steps of this many bytes.
const TEXT_STEP_BYTES: usize = 16 << 10;
/// A text is kept, and copied where it is written.
const TEXT_COPIES: usize = 2;

/// The parts of an answer that are kept beside the text of its outputs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keep {
    /// Whether it keeps the log probabilities of its outputs.
    pub(crate) logprobs: bool,
    /// Whether it is a stream, which its client may not read.
    pub(crate) is_streamed: bool,
    /// Bytes of texts that it repeats.
    pub(crate) other_bytes: usize,
}

/// The bytes of the results that an answer keeps. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct KeptResults {
    reservation: ResultsReservation,
    /// Bytes that were reserved at the start.
    first_bytes: usize,
    text_bytes: usize,
    held_bytes: usize,
    /// The engine's reservations of sequences whose results are kept.
    of_sequences: Vec<Arc<ResultsReservation>>,
}

impl KeptResults {
    /// Reserves what the answer to a request keeps. Errors name this field.
    pub(crate) fn reserve(
        app: &App,
        request: &Request,
        keep: Keep,
        field: &str,
    ) -> Result<Self, ApiError> {
        let bytes = keep.other_bytes.saturating_add(keep.bytes(app, request));
        Self::of_bytes(app, request.user.as_deref(), bytes, field)
    }

    /// Reserves so many bytes for a user. Errors name this field.
    pub(crate) fn of_bytes(
        app: &App,
        user: Option<&str>,
        bytes: usize,
        field: &str,
    ) -> Result<Self, ApiError> {
        let reservation = app.engine.reserve_results(user, bytes);
        Ok(Self {
            reservation: reservation.map_err(|error| error_of(error, field))?,
            first_bytes: bytes,
            text_bytes: 0,
            held_bytes: 0,
            of_sequences: Vec::new(),
        })
    }

    /// Reserves what the answer to several requests keeps in addition. Errors name this field.
    pub(crate) fn add(
        &mut self,
        app: &App,
        requests: &[Request],
        keep: Keep,
        field: &str,
    ) -> Result<(), ApiError> {
        let more = requests.iter().map(|request| keep.bytes(app, request));
        let more = more.fold(keep.other_bytes, usize::saturating_add);
        self.first_bytes = self.first_bytes.saturating_add(more);
        let resized = self.reservation.resize(self.first_bytes);
        resized.map_err(|error| error_of(error, field))
    }

    /// Counts more text of an output.
    pub(crate) fn add_text(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.text_bytes += TEXT_COPIES * bytes;
        self.resize()
    }

    /// Changes the bytes that are held back until they can be sent.
    pub(crate) fn set_held(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.held_bytes = bytes;
        self.resize()
    }

    /// Keeps what the engine reserved for a sequence as well.
    pub(crate) fn add_sequence(&mut self, results: Arc<ResultsReservation>) {
        self.of_sequences.push(results);
    }

    fn resize(&mut self) -> Result<(), ApiError> {
        let more = (self.text_bytes + self.held_bytes).next_multiple_of(TEXT_STEP_BYTES);
        let bytes = self.first_bytes + more;
        if bytes == self.reservation.bytes() {
            return Ok(());
        }
        let resized = self.reservation.resize(bytes);
        resized.map_err(|error| error_of(error, "max_tokens"))
    }
}

/// Bytes of a token with so many alternatives in a list that grows.
pub(crate) fn row_bytes(alternatives: usize) -> usize {
    let entry = size_of::<ScoredToken>();
    let more = TokenLogprobs::bytes(alternatives) - size_of::<TokenLogprobs>();
    2 * entry + more
}

impl Keep {
    /// Bytes that it keeps of a request's outputs, at their longest.
    fn bytes(self, app: &App, request: &Request) -> usize {
        let unread = if self.is_streamed {
            app.engine.unread_bytes(request)
        } else {
            0
        };
        let row = request.logprobs.filter(|_| self.logprobs);
        let row = row.map_or(0, row_bytes);
        let most = app.engine.model().context_tokens_max;
        let tokens = request.output_tokens_max.min(most);
        let outputs = request.best_of.unwrap_or(request.n);
        let rows = outputs.saturating_mul(tokens).saturating_mul(row);
        rows.saturating_add(unread)
    }
}

fn error_of(error: ReserveError, field: &str) -> ApiError {
    match error {
        ReserveError::Full { retry_after } => ApiError::busy(error.to_string(), retry_after),
        _ => {
            let message = format!(
                "`{field}`: {error}; ask for fewer or shorter outputs, for fewer log probabilities, or \
                 for a stream (the server's setting is --results-mib)"
            );
            ApiError::field(field, message)
        }
    }
}
