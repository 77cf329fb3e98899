//! What a caller asks for, and what it gets.
//!
//! | file | what is there |
//! |---|---|
//! | `build.rs` | a request is put together |
//! | `debug.rs` | what it shows of itself where it is printed |
//! | `validate.rs` | what can be judged of it without a model |
//! | `output.rs` | pieces, ends and whole outputs |

mod build;
mod debug;
mod output;
mod validate;

use std::collections::BTreeMap;

use tokio::time::Instant;

use motet_core::TokenId;
use motet_core::protocol::Sampling;
use motet_text::Chat;
use motet_text::grammar::GrammarSource;

pub use motet_core::cache::{Miss, MissReason};
pub use motet_core::protocol::TokenLogprobs;
pub use motet_core::protocol::{
    ContextLimit, Finish, FinishReason, Priority, QueuePosition, Usage,
};
pub use output::{Completion, Piece, Prefill};
pub(crate) use validate::field_error;

/// One request: a prompt, and how to continue it.
///
/// ```
/// use motet::Request;
///
/// let request = Request::text("The capital of France is")
///     .output_tokens_max(16)
///     .temperature(0.7)
///     .top_p(0.9)
///     .seed(1)
///     .stop(".");
/// ```
#[derive(Clone, PartialEq)]
pub struct Request {
    /// What to continue.
    pub prompt: Prompt,
    /// Most tokens to generate; at least 1. Clipped to what the context leaves.
    pub output_tokens_max: usize,
    /// Tokens before which no end token and no stop token is drawn; at most
    /// `output_tokens_max`. Stop strings end the output all the same.
    pub output_tokens_min: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Added to the logits of these tokens before all else; finite, or negative
    /// infinity, which rules the token out.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// Whether to tell the log probability of each token, and of so many of the
    /// likeliest beside it; at most [`LOGPROBS_MAX`](Request::LOGPROBS_MAX).
    pub logprobs: Option<usize>,
    /// The output ends before the first of these that appears in its text.
    pub stop_strings: Vec<String>,
    /// The output ends before the first of these tokens.
    pub stop_tokens: Vec<TokenId>,
    /// Whether to go on past the model's own end tokens, for measurements.
    pub ignore_end_tokens: bool,
    /// What the output is to follow, to its end. Needs an engine with a tokenizer, and
    /// end tokens that are not ignored.
    pub grammar: Option<GrammarSource>,
    /// Outputs wanted, of [`Engine::submit_many`](crate::Engine::submit_many) and
    /// [`Engine::best_of`](crate::Engine::best_of); at least 1, at most
    /// [`N_MAX`](Request::N_MAX). They differ by their seeds: the request's, and those
    /// that follow it.
    pub n: usize,
    /// Outputs to choose the `n` from; at least `n`, and `n` if none.
    pub best_of: Option<usize>,
    /// Whose it is. Users of a class are served fairly, and each may be limited
    /// ([`user_requests_max`](motet_core::config::SchedulerConfig::user_requests_max)); requests
    /// without a user are one user's.
    pub user: Option<String>,
    /// What its user's share is worth beside that of others; from 0.001 to 1000.
    pub weight: f64,
    /// Its class. As salt and user, it is for a server to set: a client that may choose it
    /// freely takes the slots of all who ask for less.
    pub priority: Priority,
    /// When it must have started; else it fails. Time is tokio's, as everywhere in the
    /// engine: the system's, unless a test pauses it.
    pub start_by: Option<Instant>,
    /// When it must be over; else it ends with what there is. Fails before it has cost
    /// anything if that cannot be done.
    pub finish_by: Option<Instant>,
    /// What happens when the model's context is full.
    pub at_context_limit: ContextLimit,
    /// Whether the request uses what is cached, and what it computes is cached for others.
    pub cache: CacheUse,
    /// With whom the request shares cached state: only with requests of the same
    /// salt, and those without one with each other. A server gives each tenant a
    /// salt of its own.
    pub cache_salt: Option<String>,
    /// How dearly its cached state is kept, beside that of others: state of a higher
    /// number is evicted only when none of a lower number is left.
    pub retention: u8,
    /// Offsets in the prompt's tokens where a later prompt is likely to branch off, so
    /// that it can be resumed there. Of use for models that cannot resume after any
    /// token (sliding windows, recurrent layers); chats have theirs by themselves.
    pub restore_points: Vec<usize>,
    /// Whether the stream tells how far the prompt is computed, in pieces without a token:
    /// at most eighteen, see [`Piece::prefill`].
    pub report_prefill_progress: bool,
}

/// Whether a request uses the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheUse {
    /// It begins with what is cached of its prompt, and what it computes may serve others.
    #[default]
    Shared,
    /// It begins with nothing, and what it computes is gone with it: for measurements, and for
    /// what must leave no trace. Its forks, and the outputs of one request, share among
    /// themselves while they live. A sequence that gives way computes everything again.
    Off,
}

/// What to continue.
#[derive(Clone, PartialEq)]
pub enum Prompt {
    /// Tokens as they are.
    Tokens(Vec<TokenId>),
    /// Text, tokenised as the model's tokenizer does by default.
    Text(String),
    /// A conversation, put into the model's chat template, up to where the
    /// assistant is to speak.
    Chat(Chat),
}
