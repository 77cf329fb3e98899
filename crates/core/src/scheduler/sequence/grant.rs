//! The tokens that a slot may hold.

use crate::scheduler::policy::turns::TURN_TOKENS;

/// Tokens by which a grant is extended.
pub(in crate::scheduler) const GRANT_TOKENS: usize = 64;
/// Tokens left in a grant at which the slot asks for more, so that the answer comes in time.
pub(in crate::scheduler) const GRANT_AHEAD_TOKENS: usize = 16;
// A sequence in its turn never waits for memory.
const _: () = assert!(TURN_TOKENS <= GRANT_AHEAD_TOKENS);

/// The tokens that the cache has granted to a slot, and the request for more.
#[derive(Debug)]
pub(in crate::scheduler) struct Grant {
    tokens: usize,
    request: GrantRequest,
}

/// State of a request for a larger grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantRequest {
    /// No request.
    None,
    /// The cache has not answered yet.
    Pending,
    /// The cache had no memory.
    Denied,
}

impl Grant {
    pub(super) fn new(tokens: usize) -> Self {
        Self {
            tokens,
            request: GrantRequest::None,
        }
    }

    pub(in crate::scheduler) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of tokens that fit beside this many.
    pub(super) fn left(&self, evaluated: usize) -> usize {
        self.tokens.saturating_sub(evaluated)
    }

    /// Whether the cache had no memory for more.
    pub(in crate::scheduler) fn is_denied(&self) -> bool {
        self.request == GrantRequest::Denied
    }

    /// Whether a request was made that is not granted.
    pub(super) fn has_request(&self) -> bool {
        self.request != GrantRequest::None
    }

    /// Returns the tokens to ask for if it is almost used up, and records the request. A denied
    /// request is repeated only after [`retry`](Self::retry).
    pub(super) fn request_more(&mut self, evaluated: usize, most: usize) -> Option<usize> {
        let near = self.left(evaluated) < GRANT_AHEAD_TOKENS && self.tokens < most;
        if !near || self.request != GrantRequest::None {
            return None;
        }
        self.request = GrantRequest::Pending;
        Some(self.tokens.saturating_add(GRANT_TOKENS).min(most))
    }

    /// Records an extension. A grant is never shortened.
    pub(super) fn extend(&mut self, tokens: usize) {
        self.tokens = self.tokens.max(tokens);
        self.request = GrantRequest::None;
    }

    /// Records that the cache had no memory.
    pub(super) fn deny(&mut self) {
        self.request = GrantRequest::Denied;
    }

    /// Forgets a denied request, since memory may have been freed.
    pub(super) fn retry(&mut self) {
        self.request = GrantRequest::None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_made_once_and_ahead_of_need() {
        let mut grant = Grant::new(100);
        assert_eq!(grant.request_more(100 - GRANT_AHEAD_TOKENS, 1_000), None);
        let near = 101 - GRANT_AHEAD_TOKENS;
        assert_eq!(grant.request_more(near, 1_000), Some(100 + GRANT_TOKENS));
        assert_eq!(grant.request_more(near, 1_000), None, "it is pending");
        grant.deny();
        assert_eq!(grant.request_more(near, 1_000), None, "it was denied");
        grant.retry();
        assert_eq!(grant.request_more(near, 110), Some(110));
        grant.extend(110);
        assert_eq!(grant.request_more(110, 110), None, "it has all that it may");
    }
}
