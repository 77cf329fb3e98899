//! Errors that callers of the engine receive. No error prints a request's content, in `Display`
//! or in `Debug`: text that may quote the request is [`Withheld`], and must be asked for.

use std::time::Duration;

use crate::optional::TextError;
use crate::request::Request;
use motet_core::cache::CacheError;
use motet_core::config::{ConfigError, WorstCase};
pub use motet_protocol::{Deadline, GenerateError, Withheld};
use motet_protocol::{GrammarBound, ModelError};
pub use motet_storage::tiers::TierError;

/// Shortest time after which a rejected caller is asked to retry when the queue is full.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(10);
/// Longest such time.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Such a time while the duration of sequences is unknown.
const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(1);

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The engine was started where its actors cannot run.
    #[error(
        "the engine needs a tokio runtime with time around it, and found {found}; start it \
         within `#[tokio::main]`, or on a runtime that was built with `enable_time()`"
    )]
    Runtime {
        /// The runtime that was found.
        found: &'static str,
    },
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model could not be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device has less memory than the worst case needs, whatever the budget says.
    #[error(
        "the device has {available_bytes} bytes left and {needed_bytes} are needed: {worst}; \
         lower `cache.full_sequences_min`, `context_tokens_max` or \
         `scheduler.chunking.step_tokens_max`, or give the device more memory (the device: {why})"
    )]
    DeviceMemory {
        /// Bytes that the worst case needs.
        needed_bytes: usize,
        /// Bytes available; 0 where the device failed without saying.
        available_bytes: usize,
        /// The purpose of the bytes.
        worst: WorstCase,
        /// Where the numbers come from.
        why: String,
    },
    /// The pager's folder is unusable.
    #[error("the pager cannot use its folder: {0}")]
    Disk(#[from] TierError),
    /// The pager's threads could not be started.
    #[error("no thread for the pager: {0}")]
    Pager(std::io::Error),
    /// The tokenizer or chat template could not be loaded.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Why a request was not accepted. It has cost nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// A field of the request is invalid.
    #[error("request field `{field}` is {found}; expected {expected}")]
    Field {
        /// The field, as [`Request`] spells it.
        field: &'static str,
        /// The value that was found.
        found: String,
        /// The accepted values.
        expected: String,
    },
    /// The prompt is longer than the context of the model, or than the contexts of text that a
    /// shifting request may have. A shorter one may fit.
    #[error("request field `{field}` is {found}; expected {expected}")]
    PromptTooLong {
        /// The field, as [`Request`] spells it.
        field: &'static str,
        /// The length that was found, in tokens, bytes or messages.
        found: String,
        /// The accepted lengths.
        expected: String,
        /// Tokens that the prompt has at least: a text is rejected by its bytes before its tokens
        /// are counted.
        tokens_min: usize,
        /// Most tokens that a prompt may have.
        tokens_max: usize,
    },
    /// The text could not be turned into tokens.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The request's grammar does not compile within its limits.
    #[error(
        "request field `grammar` is invalid: {why}; expected a grammar that compiles within its bounds"
    )]
    Grammar {
        /// The compiler's message, with quotes from the grammar.
        why: Withheld,
    },
    /// The parameters of one of the tools in the request's grammar cannot be a grammar.
    #[error(
        "request field `grammar` is invalid: the parameters of a tool cannot be a grammar: {why}; expected a JSON schema that compiles within its bounds"
    )]
    ToolSchema {
        /// Name of the tool.
        name: Withheld,
        /// The compiler's message, with quotes from the schema.
        why: Withheld,
    },
    /// The request's grammar exceeds a bound on the cost of compiling it. It was not compiled.
    #[error("request field `grammar` passes a bound: {bound}")]
    GrammarTooExpensive {
        /// The bound, its limit and what was found.
        bound: GrammarBound,
    },
    /// The request's grammar took too long to compile.
    #[error(
        "request field `grammar` took longer than {limit:?} to compile, which is `grammar.compile_time_max`; expected a smaller one"
    )]
    GrammarTooSlow {
        /// How long compiling may take.
        limit: Duration,
    },
    /// The request needs text, and the engine was built without a tokenizer.
    #[error("request field `{field}` needs a tokenizer; expected an engine built with one")]
    NoTokenizer {
        /// The field that needs it.
        field: &'static str,
    },
    /// The request's cached state can never fit on the device.
    #[error(
        "the request may need {needed_bytes} bytes of cached state; `cache.device_bytes_max` is {budget_bytes}"
    )]
    TooLarge {
        /// Bytes for prompt and longest output.
        needed_bytes: usize,
        /// The device's whole budget in bytes.
        budget_bytes: usize,
    },
    /// The results that must be kept for the caller can never fit.
    #[error(
        "the request's results may take {needed_bytes} bytes; at most {most_bytes} are kept for one \
         user, half of `scheduler.admission.results_bytes_max`: ask for fewer log probabilities"
    )]
    ResultsTooLarge {
        /// Bytes of the results.
        needed_bytes: usize,
        /// Most bytes that one user may hold.
        most_bytes: usize,
    },
    /// A limit on admitted requests or on waiting prompt tokens is reached, for all users or
    /// for this one.
    #[error("the queue is full: {what}; try again in {retry_after:?}")]
    QueueFull {
        /// The limit that is reached.
        what: QueueLimit,
        /// When capacity is likely to be free.
        retry_after: Duration,
        /// The request, given back.
        request: Box<Request>,
    },
    /// The engine takes no new requests: it is draining or has stopped.
    #[error("the engine is draining or has stopped, and takes no new requests")]
    Draining,
    /// The engine has failed too often and has given up, or a mapped file of the model has changed:
    /// start another.
    #[error("the engine is broken: {reason}")]
    Broken {
        /// The last failure, or the change.
        reason: String,
    },
}

/// The limit that a full queue has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueLimit {
    /// Requests: `scheduler.sequences_max` and `scheduler.admission.queue_max`.
    Requests,
    /// Tokens of prompts that wait: `scheduler.admission.queue_tokens_max`.
    Tokens,
    /// Requests of this user: `scheduler.admission.user_requests_max`.
    UserRequests,
    /// Tokens of prompts of this user's that wait: `scheduler.admission.user_queue_tokens_max`.
    UserTokens,
    /// Texts that wait to be tokenised, of all users or of this one: `text.queue_max` and
    /// `text.queue_bytes_max`. One user may occupy at most half of what the others leave free.
    Text,
    /// Grammars that wait to be compiled: `grammar.compilations_waiting_max`. One user may
    /// occupy at most half of it.
    Grammars,
    /// Bytes of results that are kept, of all users or of this one:
    /// `scheduler.admission.results_bytes_max`. One user may occupy at most as much as it leaves
    /// free.
    Results,
}

/// Why no bytes were reserved for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// One user may never hold so many.
    #[error(
        "the results take {needed_bytes} bytes; at most {most_bytes} are kept for one user, half of \
         `scheduler.admission.results_bytes_max`"
    )]
    TooLarge {
        /// Bytes of the results.
        needed_bytes: usize,
        /// Most bytes that one user may hold.
        most_bytes: usize,
    },
    /// Other results take the bytes at the moment.
    #[error("{}; try again in {retry_after:?}", QueueLimit::Results)]
    Full {
        /// When they are likely to be free.
        retry_after: Duration,
    },
}

/// Why a cache command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheCommandError {
    /// The prompt was not accepted.
    #[error(transparent)]
    Submit(Box<SubmitError>),
    /// The prompt could not be computed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The cache rejected the command.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The engine has stopped, or is broken.
    #[error("the engine has stopped")]
    Stopped,
}

/// Why a flush did not write everything that is cached to the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// The flush did not finish in time; the part that was written stays.
    #[error("not everything was written within {flush_time:?}, which is `pager.flush_time`")]
    Late {
        /// How long a flush may take.
        flush_time: Duration,
    },
    /// The engine or its pager has stopped, or is broken.
    #[error("the engine or its pager has stopped")]
    Stopped,
}

/// Why a subscription to the cache's block events was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The cache has as many subscribers as it may have.
    #[error(
        "the cache has {followers_max} subscribers to block events already; drop one of them first"
    )]
    TooMany {
        /// The limit on subscribers.
        followers_max: usize,
    },
    /// The engine has stopped, or is broken.
    #[error("the engine has stopped")]
    Stopped,
}

/// Why the best of several outputs could not be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BestOfError {
    /// The request was not taken in.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// One of its sequences ended without its output.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

/// Why a prompt was not scored or embedded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// The request was not taken in.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// Its sequence ended without its result.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

/// Returns when a rejected caller is to come again, if capacity is free after this time.
pub(crate) fn retry_after(estimate: Option<Duration>) -> Duration {
    let estimate = estimate.unwrap_or(RETRY_AFTER_UNKNOWN);
    estimate.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
}

/// An error about a field of a request.
pub(crate) fn field_error(
    field: &'static str,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> SubmitError {
    SubmitError::Field {
        field,
        found: found.into(),
        expected: expected.into(),
    }
}

impl SubmitError {
    /// Returns the error's label in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::QueueFull { what, .. } => what.label(),
            Self::TooLarge { .. } | Self::ResultsTooLarge { .. } => "too_large",
            Self::Draining => "draining",
            Self::Broken { .. } => "broken",
            Self::Field { .. }
            | Self::PromptTooLong { .. }
            | Self::Text(_)
            | Self::Grammar { .. }
            | Self::ToolSchema { .. }
            | Self::GrammarTooExpensive { .. }
            | Self::GrammarTooSlow { .. }
            | Self::NoTokenizer { .. } => "invalid",
        }
    }

    /// All labels of rejections in metrics.
    pub(crate) const LABELS: [&str; 11] = [
        "queue_requests",
        "queue_tokens",
        "user_requests",
        "user_tokens",
        "queue_text",
        "queue_grammars",
        "results",
        "too_large",
        "draining",
        "broken",
        "invalid",
    ];
}

impl QueueLimit {
    fn label(self) -> &'static str {
        match self {
            Self::Requests => "queue_requests",
            Self::Tokens => "queue_tokens",
            Self::UserRequests => "user_requests",
            Self::UserTokens => "user_tokens",
            Self::Text => "queue_text",
            Self::Grammars => "queue_grammars",
            Self::Results => "results",
        }
    }
}

impl std::fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Requests => "the engine holds as many requests as it may",
            Self::Tokens => "as many prompt tokens are waiting as allowed",
            Self::UserRequests => "the engine holds as many requests of this user as it may",
            Self::UserTokens => "as many prompt tokens of this user are waiting as allowed",
            Self::Text => "as many texts are waiting to be tokenised as allowed",
            Self::Grammars => "as many grammars are waiting to be compiled as allowed",
            Self::Results => {
                "as many bytes of results are kept as allowed, for all users or for this one"
            }
        })
    }
}
