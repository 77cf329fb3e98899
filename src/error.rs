//! The errors that a caller of the engine meets. None of them shows what a request says,
//! printed in whatever way: what may quote it is [`Withheld`], and is asked for.

use std::time::Duration;

use crate::request::Request;
use crate::storage::tiers::TierError;
use motet_core::cache::CacheError;
use motet_core::config::{ConfigError, WorstCase};
pub use motet_core::protocol::{Deadline, GenerateError, Withheld};
use motet_core::protocol::{GrammarBound, ModelError};
use motet_text::TextError;

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
        /// What was there.
        found: &'static str,
    },
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model could not be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device has not the memory that the worst case needs, whatever the budget says.
    #[error(
        "the device has {available_bytes} bytes left and {needed_bytes} are needed: {worst}; \
         lower `cache.full_sequences_min`, `context_tokens_max` or `scheduler.step_tokens_max`, \
         or give the device more memory (the device: {why})"
    )]
    DeviceMemory {
        /// Bytes that the worst case needs.
        needed_bytes: usize,
        /// Bytes that there were; 0 where the device failed and did not tell.
        available_bytes: usize,
        /// What they are needed for.
        worst: WorstCase,
        /// How it is known.
        why: String,
    },
    /// The pager's folder cannot be used.
    #[error("the pager cannot use its folder: {0}")]
    Disk(#[from] TierError),
    /// There are no threads for the pager.
    #[error("no thread for the pager: {0}")]
    Pager(std::io::Error),
    /// The tokenizer or chat template could not be loaded.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Why a request was not taken in. Nothing was spent on it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// A field of the request makes no sense.
    #[error("request field `{field}` is {found}; expected {expected}")]
    Field {
        /// The field, as [`Request`] spells it.
        field: &'static str,
        /// What was found there.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// The text could not be turned into tokens.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The request's grammar does not compile within its bounds.
    #[error(
        "request field `grammar` is one that fails: {why}; expected a grammar that compiles within its bounds"
    )]
    Grammar {
        /// What is wrong with it, which quotes it.
        why: Withheld,
    },
    /// The request's grammar passes a bound on what compiling it may cost. It was not
    /// compiled.
    #[error("request field `grammar` passes a bound: {bound}")]
    GrammarTooDear {
        /// Which, its limit and what was found.
        bound: GrammarBound,
    },
    /// The request's grammar took too long to compile.
    #[error(
        "request field `grammar` took longer than {limit:?} to compile, which is `grammar.compile_time_max`; expected a smaller one"
    )]
    GrammarTooSlow {
        /// How long it may take.
        limit: Duration,
    },
    /// The request needs text, and the engine was built without a tokenizer.
    #[error("request field `{field}` needs a tokenizer; expected an engine built with one")]
    NoTokenizer {
        /// The field that needs it.
        field: &'static str,
    },
    /// The request's cached state could never fit on the device.
    #[error(
        "the request may need {needed_bytes} bytes of cached state; `cache.device_bytes_max` is {budget_bytes}"
    )]
    TooLarge {
        /// Bytes for prompt and longest output.
        needed_bytes: usize,
        /// Bytes that there are in all.
        budget_bytes: usize,
    },
    /// As many requests are inside as there may be, or as many prompt tokens wait; of all
    /// users, or of this one.
    #[error("the queue is full: {what}; try again in {retry_after:?}")]
    QueueFull {
        /// What there are too many of.
        what: QueueLimit,
        /// When a place is likely to be free.
        retry_after: Duration,
        /// The request, given back.
        request: Box<Request>,
    },
    /// The engine takes no new requests: it is draining or has stopped.
    #[error("the engine is draining or has stopped, and takes no new requests")]
    Draining,
    /// The engine has failed too often, and was given up: start another.
    #[error("the engine is broken: {reason}")]
    Broken {
        /// What failed last.
        reason: String,
    },
}

/// What a queue is full of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueLimit {
    /// Requests: `scheduler.sequences_max` and `scheduler.queue_max`.
    Requests,
    /// Tokens of prompts that wait: `scheduler.queue_tokens_max`.
    Tokens,
    /// Requests of this user: `scheduler.user_requests_max`.
    UserRequests,
    /// Tokens of prompts of this user's that wait: `scheduler.user_queue_tokens_max`.
    UserTokens,
    /// Texts that wait to be tokenised, of all users or of this one: `text.queue_max` and
    /// `text.queue_bytes_max`. One user may have as many waiting as there is room for more.
    Text,
    /// Grammars that wait to be compiled: `grammar.compilations_waiting_max`, of which one
    /// user has no more than half.
    Grammars,
}

/// Why something could not be kept in the cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// The prompt was not taken in.
    #[error(transparent)]
    Submit(Box<SubmitError>),
    /// The prompt could not be computed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The engine has stopped, or is broken.
    #[error("the engine has stopped")]
    Stopped,
}

/// Why not all that is cached was written to the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// It was not written in time; what was is there.
    #[error("not everything was written within {flush_time:?}, which is `pager.flush_time`")]
    Late {
        /// How long it may take.
        flush_time: Duration,
    },
    /// The engine or its pager has stopped, or is broken.
    #[error("the engine or its pager has stopped")]
    Stopped,
}

/// Why nobody could follow what is cached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// As many follow it as may.
    #[error("{followers_max} follow the cache already; drop one of them first")]
    TooMany {
        /// How many may.
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

impl SubmitError {
    /// Its name in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::QueueFull { what, .. } => what.label(),
            Self::TooLarge { .. } => "too_large",
            Self::Draining => "draining",
            Self::Broken { .. } => "broken",
            Self::Field { .. }
            | Self::Text(_)
            | Self::Grammar { .. }
            | Self::GrammarTooDear { .. }
            | Self::GrammarTooSlow { .. }
            | Self::NoTokenizer { .. } => "invalid",
        }
    }

    /// All names of refusals in metrics.
    pub(crate) const LABELS: [&str; 10] = [
        "queue_requests",
        "queue_tokens",
        "user_requests",
        "user_tokens",
        "queue_text",
        "queue_grammars",
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
        }
    }
}

impl std::fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Requests => "as many requests are inside as there may be",
            Self::Tokens => "as many prompt tokens wait as there may be",
            Self::UserRequests => "as many of this user's requests are inside as may be",
            Self::UserTokens => "as many prompt tokens of this user's wait as may",
            Self::Text => "as many texts wait to be tokenised as may",
            Self::Grammars => "as many grammars wait to be compiled as may",
        })
    }
}
