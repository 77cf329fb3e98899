//! Reservations of results: of requests, and of callers.

use super::Engine;
use super::sequence_setup::user_id;
use crate::actors::sequence::Output;
use crate::error::{QueueLimit, ReserveError, SubmitError};
use crate::request::{Request, TokenLogprobs};
use crate::results::ResultsReservation;

/// Bytes of the text of a token that waits to be read, with what an allocator takes for itself.
const TOKEN_TEXT_BYTES: usize = 32;

impl Engine {
    /// Reserves bytes for results that the caller keeps until its own client has read them, such as an
    /// answer that is written whole. The reservation may be [resized](ResultsReservation::resize).
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

    /// Reserves the bytes that the engine keeps for a request.
    pub(super) fn reserve_for(
        &self,
        request: &Request,
        bytes: usize,
    ) -> Result<ResultsReservation, SubmitError> {
        let reserved = self.reserve_results(request.user.as_deref(), bytes);
        reserved.map_err(|error| match error {
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

    /// Returns the most bytes that the streams of a request hold while they are not read, also after
    /// their sequences have ended. They count as their caller's: a server whose clients may stop
    /// reading reserves them.
    #[must_use]
    pub fn unread_bytes(&self, request: &Request) -> usize {
        let piece = size_of::<Output>() + TOKEN_TEXT_BYTES;
        let piece = piece + request.logprobs.map_or(0, TokenLogprobs::bytes);
        let pieces = self.pieces_max(request.output_tokens_max);
        let outputs = request.outputs();
        outputs.saturating_mul(pieces).saturating_mul(piece)
    }
}
