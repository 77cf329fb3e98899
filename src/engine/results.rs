//! Reservations of results: of requests, and of callers.

use super::Engine;
use super::admitted::Admitted;
use super::sequence_setup::user_id;
use crate::actors::sequence::Output;
use crate::error::{QueueLimit, ReserveError, SubmitError};
use crate::request::{Request, TokenLogprobs};
use crate::results::ResultsReservation;

/// Bytes of the text of a token that waits to be read, with what an allocator takes for itself.
const TOKEN_TEXT_BYTES: usize = 32;

/// The parts of its requests' outputs that a caller keeps, beside the engine. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptOutputs {
    /// Tokens of each output, at most, for whose log probabilities bytes are reserved at admission.
    /// `usize::MAX` is the longest output that the request may have; 0 is for callers that keep none.
    /// A caller that reserves fewer than an output may have [resizes](ResultsReservation::resize) its
    /// reservation as they come.
    pub logprobs_tokens_max: usize,
    /// Whether the caller may stop reading its streams: their [bytes](Engine::unread_bytes) are
    /// reserved then.
    pub is_unread: bool,
}

impl Engine {
    /// Reserves bytes for results that the caller keeps until its own client has read them, such as an
    /// answer that is written whole. [`submit_all_keeping`](Engine::submit_all_keeping) adds those of a
    /// request, and [`resize`](ResultsReservation::resize) changes them while it runs.
    ///
    /// # Errors
    ///
    /// [`ReserveError`] where one user may never hold so many bytes, or where they are not free now.
    pub fn reserve_results(
        &self,
        user: Option<&str>,
        bytes: usize,
    ) -> Result<ResultsReservation, ReserveError> {
        self.inner.results.reserve(user_id(user), bytes)
    }

    /// Returns a reservation without bytes, for a user's request.
    pub(super) fn no_results(&self, user: Option<&str>) -> ResultsReservation {
        self.inner.results.nothing(user_id(user))
    }

    /// Adds bytes to the reservation of a request that is being admitted.
    pub(super) fn admit_results(
        &self,
        results: &mut ResultsReservation,
        more: usize,
        request: &Request,
    ) -> Result<(), SubmitError> {
        let admitted = results.admit(results.bytes().saturating_add(more));
        admitted.map_err(|error| match error {
            ReserveError::TooLarge {
                needed_bytes,
                most_bytes,
            } => SubmitError::ResultsTooLarge {
                needed_bytes,
                most_bytes,
            },
            ReserveError::Full { retry_after } => SubmitError::QueueFull {
                what: QueueLimit::Results,
                retry_after,
                request: Box::new(request.clone()),
            },
        })
    }

    /// Returns the bytes that a caller keeps of the outputs of a request, whose fields are valid.
    pub(super) fn kept_bytes(
        &self,
        request: &Request,
        admitted: &Admitted,
        kept: KeptOutputs,
    ) -> usize {
        let row = request.logprobs.map_or(0, TokenLogprobs::listed_bytes);
        let tokens = kept.logprobs_tokens_max.min(admitted.output_tokens_max);
        let rows = request.outputs().saturating_mul(tokens);
        let unread = if kept.is_unread {
            self.unread_bytes(request)
        } else {
            0
        };
        rows.saturating_mul(row).saturating_add(unread)
    }

    /// Returns the most bytes that the streams of a request hold while they are not read, also after
    /// their sequences have ended. They count as their caller's: a server whose clients may stop
    /// reading reserves them, by [`KeptOutputs::is_unread`].
    #[must_use]
    pub fn unread_bytes(&self, request: &Request) -> usize {
        let piece = size_of::<Output>() + TOKEN_TEXT_BYTES;
        let logprobs = request.logprobs.map_or(0, TokenLogprobs::bytes);
        let pieces = self.pieces_max(request.output_tokens_max);
        let outputs = request.outputs();
        outputs
            .saturating_mul(pieces)
            .saturating_mul(piece.saturating_add(logprobs))
    }
}
