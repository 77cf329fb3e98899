//! A caller's request and its output.
//!
//! | file | content |
//! |---|---|
//! | `build.rs` | constructors and setters of a request |
//! | `debug.rs` | `Debug` output without a request's content |
//! | `output.rs` | pieces and whole outputs |
//! | `times.rs` | when a sequence reached its stages |

mod build;
mod debug;
mod output;
mod times;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::optional::{Chat, GrammarSource};
use motet_protocol::TokenId;

pub use motet_core::cache::{Miss, MissReason};
pub use motet_protocol::{
    ContextLimit, DeclaredPooling, Finish, FinishReason, Pooling, Priority, QueuePosition,
    ReasoningBudget, Sampling, SamplingError, TokenLogprobs, Usage,
};
pub use output::{Completion, EmbeddingVector, MeanLogprob, Piece, Prefill, Score};
pub(crate) use times::Milestones;
pub use times::SequenceTimes;

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
///
/// A literal ends with `..Request::default()`, or with the rest of another request: minor versions
/// add fields.
///
/// ```
/// use motet::Request;
/// use motet::request::{Priority, Prompt};
///
/// let request = Request {
///     prompt: Prompt::Tokens(vec![1, 2, 3]),
///     priority: Priority::Background,
///     ..Request::default()
/// };
/// ```
// Flat, though it has more than 15 fields: callers write it as a literal or by setters, and look
// for the names that the field's other APIs have, which are flat as well.
#[derive(Clone, PartialEq)]
pub struct Request {
    /// The prompt to continue.
    pub prompt: Prompt,
    /// Most tokens to generate; at least 1, or 0 with `prompt_logprobs` or `embedding`. Clipped
    /// to the space left in the context.
    pub output_tokens_max: usize,
    /// Number of tokens before which no end token and no stop token is sampled; at most
    /// `output_tokens_max`. Stop strings still end the output earlier.
    pub output_tokens_min: usize,
    /// How tokens are sampled.
    pub sampling: Sampling,
    /// Added to the logits of these tokens before any other change; finite, or negative
    /// infinity, which excludes the token.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// Whether to return the log probability of each token, and of this many of the likeliest
    /// alternatives; at most [`LOGPROBS_MAX`](Request::LOGPROBS_MAX).
    pub logprobs: Option<usize>,
    /// The output ends before the first of these that appears in its text.
    pub stop_strings: Vec<String>,
    /// The output ends before the first of these tokens.
    pub stop_tokens: Vec<TokenId>,
    /// Whether to continue past the model's own end tokens, for measurements.
    pub ignore_end_tokens: bool,
    /// Whether the text of the output contains special tokens: `<|channel|>`, `[TOOL_CALLS]`. By
    /// default they leave no trace in it. The tokens that end the output are no part of it and are
    /// left out in any case. Models whose `AnswerFormat` has special tokens need it for their
    /// answers to be parsed. It changes no token. Needs an engine with a tokenizer.
    #[doc(alias = "skip_special_tokens")]
    pub special_tokens_in_text: bool,
    /// The grammar that the whole output follows. Needs an engine with a tokenizer, and end
    /// tokens that are not ignored.
    #[doc(alias = "structured output")]
    #[doc(alias = "response_format")]
    pub grammar: Option<GrammarSource>,
    /// The marks of the model's reasoning, and the most tokens that it may take; `None` neither
    /// bounds nor counts it. A grammar must accept the closing mark where the budget may end.
    #[doc(alias = "thinking")]
    pub reasoning: Option<ReasoningBudget>,
    /// Whether its tokens may be drafted, where that pays: by default they may. A draft changes no
    /// token. `false` is for measurements.
    /// [`SpeculationConfig`](motet_core::config::SpeculationConfig) switches it for all requests.
    #[doc(alias = "speculative decoding")]
    pub speculation: bool,
    /// The output that the caller predicts, such as the text that an edit is made to. Tokens that
    /// come as predicted come faster, and the output is the same with any prediction. At most
    /// [`prediction_tokens_max`](motet_core::config::SpeculationConfig::prediction_tokens_max)
    /// tokens; they count like a prompt's in
    /// [`queue_tokens_max`](motet_core::config::AdmissionConfig::queue_tokens_max).
    #[doc(alias = "predicted outputs")]
    #[doc(alias = "speculative decoding")]
    pub prediction: Option<Prediction>,
    /// The beginning of the output, which the caller has already: that of a sequence which has ended
    /// elsewhere, as with [`HandedOver`](motet_protocol::GenerateError::HandedOver). The stream goes on
    /// after it. Limits, penalties, grammar, stop strings, reasoning, random tokens and usage are those
    /// of the whole output, and text that is held back at its end comes with the next. It costs a
    /// prefill as far as its state is not cached. Fewer tokens than `output_tokens_max`; for one output
    /// only.
    #[doc(alias = "continue_final_message")]
    pub output_so_far: Vec<TokenId>,
    /// Number of outputs of [`Engine::submit_many`](crate::Engine::submit_many) and
    /// [`Engine::best_of`](crate::Engine::best_of); at least 1, at most
    /// [`N_MAX`](Request::N_MAX). They differ by their seeds: the request's seed, and the seeds
    /// that follow it.
    pub n: usize,
    /// Number of outputs to choose the `n` from; at least `n`. `None` means `n`.
    pub best_of: Option<usize>,
    /// The user that the request belongs to. Users of one priority class are served fairly, and
    /// each may be limited
    /// ([`user_requests_max`](motet_core::config::AdmissionConfig::user_requests_max)).
    /// Requests without a user belong to one common user.
    pub user: Option<String>,
    /// The weight of its user's share, relative to other users; from 0.001 to 1000.
    pub weight: f64,
    /// The priority class. Like salt and user, it is for a server to set: a client that may
    /// choose it freely takes the slots of all lower classes.
    pub priority: Priority,
    /// Longest time from its submission to its start; a request that has not started by then
    /// fails. Time is tokio's, as everywhere in the engine: the system's, unless a test pauses it.
    pub start_within: Option<Duration>,
    /// Longest time from its submission to its end; the output ends then with the tokens generated
    /// so far. A request that cannot meet the deadline fails before it has cost anything.
    pub finish_within: Option<Duration>,
    /// Behaviour when the model's context is full.
    pub at_context_limit: ContextLimit,
    /// Whether the request uses cached state, and whether the state that it computes is cached
    /// for others.
    pub cache: CacheUse,
    /// Separates caches: the request shares cached state only with requests of the same salt.
    /// Requests without a salt share with each other. A server gives each tenant a salt of its
    /// own.
    pub cache_salt: Option<String>,
    /// How strongly its cached state is protected from eviction: state with a higher number is
    /// evicted only when no state with a lower number is left.
    #[doc(alias = "eviction_priority")]
    pub retention: u8,
    /// Offsets in the prompt's tokens where other prompts are likely to diverge, such as the end
    /// of a common document; sequences can be resumed there. Useful for models that cannot
    /// resume after any token (sliding windows, recurrent layers).
    pub restore_points: Vec<usize>,
    /// Where the conversation so far ends in the prompt's tokens; the tokens after it ask for an
    /// answer. The next turn can be resumed there, and gives the state up once it has passed it.
    /// A [`Chat`](Prompt::Chat) sets it by itself.
    pub turn_end: Option<usize>,
    /// Whether to return the log probabilities of the prompt's tokens, and of this many of the
    /// likeliest alternatives; at most [`LOGPROBS_MAX`](Request::LOGPROBS_MAX). The first token
    /// has none, because no token comes before it. They come in one piece, before the first
    /// generated token: [`Piece::prompt_logprobs`]. With `output_tokens_max` = 0 nothing is
    /// generated.
    ///
    /// Each needs a row of the forward pass, which cached state does not give. All tokens from the
    /// one before [`prompt_logprobs_from`](Request::prompt_logprobs_from) on are therefore
    /// computed, and only those before come from the cache.
    #[doc(alias = "echo")]
    #[doc(alias = "loglikelihood")]
    pub prompt_logprobs: Option<usize>,
    /// Offset in the prompt of the first token whose log probability is returned. 0 and 1 are all
    /// tokens that have one.
    pub prompt_logprobs_from: usize,
    /// The prompt's embedding instead of generated tokens: its hidden states after the model's
    /// last norm, as one vector. `output_tokens_max` is then 0. See
    /// [`Engine::embed`](crate::Engine::embed).
    pub embedding: Option<Embedding>,
    /// Whether the stream reports how far the prompt is computed, in pieces without a token: at
    /// most eighteen, see [`Piece::prefill`].
    pub report_prefill_progress: bool,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

/// A field that makes the `..` of a literal necessary, so that a new field breaks no literal.
/// `#[non_exhaustive]` would forbid the literals of other crates altogether.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonExhaustive(());

/// How a prompt's hidden states become one vector. The default is as the model's files say, with
/// all dimensions, of length 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    /// The pooling; `None` is the one that the model's files declare, or else
    /// [`Pooling::Last`].
    ///
    /// A mean needs the hidden states of all tokens, which are not cached: the whole prompt is
    /// computed. The last token's state needs only that token, and the cached state of the others.
    pub pooling: Option<Pooling>,
    /// Number of leading dimensions to return (Matryoshka embeddings, Kusupati et al. 2022);
    /// `None` is all, [`ModelSpec::hidden_size`](motet_protocol::ModelSpec::hidden_size).
    pub dimensions: Option<usize>,
    /// Whether the vector, after it is cut to `dimensions`, is scaled to length 1.
    pub is_normalized: bool,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl Default for Embedding {
    fn default() -> Self {
        Self {
            pooling: None,
            dimensions: None,
            is_normalized: true,
            _non_exhaustive: NonExhaustive::default(),
        }
    }
}

/// Whether a request uses the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheUse {
    /// The sequence starts from the cached prefix of its prompt, and its state may serve
    /// others.
    #[default]
    Shared,
    /// The sequence starts without cached state, and its own state is dropped when it ends: for
    /// measurements, and for requests that must leave no trace. Its forks, and the outputs of
    /// one request, share state among themselves while they live. A preempted sequence computes
    /// everything again.
    Off,
}

/// An output that a caller predicts.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
#[doc(alias = "predicted outputs")]
pub enum Prediction {
    /// Token ids.
    Tokens(Vec<TokenId>),
    /// Text, tokenised as the model would write it: without begin and end tokens, and special tokens
    /// that it spells are text. Needs an engine with a tokenizer.
    Text(String),
}

/// The prompt to continue.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// Token ids.
    Tokens(Vec<TokenId>),
    /// Text, tokenised with the defaults of the model's tokenizer.
    Text(String),
    /// A conversation, rendered with the model's chat template up to the start of the
    /// assistant's turn.
    Chat(Chat),
}
