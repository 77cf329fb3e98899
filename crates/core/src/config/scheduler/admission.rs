//! Limits of the queue.

use motet_sync::admission::users::UserLimits;

use crate::config::ConfigError;
use crate::config::bounds::{bytes, positive};

/// Limits of the queue. A request beyond one of them is rejected at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "backpressure")]
pub struct AdmissionConfig {
    /// Upper bound on the requests that wait beyond the running ones. A full queue rejects
    /// further requests at once. Choose the longest acceptable wait, times the rate at which
    /// requests are served.
    pub queue_max: usize,
    /// Upper bound on the prompt tokens of requests that wait beyond the running ones; tokens of
    /// their predictions count as well. A full queue rejects further requests at once; long prompts fill it sooner than short ones. A
    /// prompt longer than this is admitted when no other waits. Choose the longest acceptable
    /// wait, times the rate at which prompt tokens are computed.
    pub queue_tokens_max: usize,
    /// Upper bound on the requests that one user has in the engine, running and waiting.
    /// Requests without a user count as one user's. Further requests are rejected at once, even
    /// if the engine has capacity. `None` sets no bound per user. Fair shares keep a user from
    /// slowing others down, but not from filling the queue. A server with possibly hostile
    /// users sets a part of `scheduler.sequences_max` and `queue_max` together, for example an
    /// eighth.
    pub user_requests_max: Option<usize>,
    /// Upper bound on the prompt tokens of one user's waiting requests. A prompt longer than
    /// this is admitted when no other prompt of the user waits. `None` sets no bound per user.
    /// Choose it like `user_requests_max`, as a part of `queue_tokens_max`.
    pub user_queue_tokens_max: Option<usize>,
    /// Upper bound on the bytes of results that are kept for callers: log probabilities of
    /// prompts, which a request reserves when it is admitted, and what callers reserve for themselves.
    /// A request is admitted if its user then holds as much as it leaves free for others, so at most
    /// half of it. A request that needs more than that is rejected for good, and one that does not fit
    /// now is asked to come again. Choose at least twice the largest result that one request may ask
    /// for: a token's log probability takes 48 bytes, and 8 for each alternative. A caller that reserves
    /// its unread streams needs them for all requests inside as well: 48 kB each, by default.
    pub results_bytes_max: usize,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            queue_max: 256,
            queue_tokens_max: 1 << 20,
            user_requests_max: None,
            user_queue_tokens_max: None,
            results_bytes_max: 64 << 20,
        }
    }
}

impl AdmissionConfig {
    /// Returns the limits of one user; `None` where neither is set.
    #[must_use]
    #[doc(hidden)]
    pub fn user_limits(&self) -> Option<UserLimits> {
        let limits = (self.user_requests_max, self.user_queue_tokens_max);
        (limits != (None, None)).then(|| UserLimits {
            requests_max: limits.0.unwrap_or(usize::MAX),
            tokens_max: limits.1.unwrap_or(usize::MAX),
        })
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        positive(
            "scheduler.admission.user_requests_max",
            self.user_requests_max.unwrap_or(usize::MAX),
        )?;
        bytes(
            "scheduler.admission.results_bytes_max",
            self.results_bytes_max,
        )
    }
}
