//! The protocol of Motet: messages between the scheduler, the cache, the pager, the device thread and the model.
//!
//! | file | contents |
//! |---|---|
//! | `work.rs`, `edit.rs` | messages to the device thread, and its answers |
//! | `draft_model.rs` | orders to a draft model, and its replies |
//! | [`cache`], [`pager`] | messages to the cache and the pager, and their effects |
//! | `salt.rs`, `label.rs`, `prefix.rs` | names of cached state: salts, labels and token prefixes |
//! | `span.rs` | output kinds of spans, and their outputs |
//! | `prompt_output.rs` | log probabilities and hidden states that a request wants of its prompt |
//! | `spec.rs` | the numbers that describe a model |
//! | `sampling.rs` | sampling parameters |
//! | `constraint.rs`, `token_mask.rs` | constraints on an output, such as a grammar |
//! | `grammar_limits.rs`, `grammar_error.rs` | bounds on the cost of a grammar, and its errors |
//! | `miss.rs`, `suspicion.rs` | reasons for cache misses; the sequence that a failed message concerns |
//! | `request.rs` | parameters of a request for the scheduler, and its finish |
//! | `reasoning.rs`, `spelling.rs` | the reasoning in an output, and its budget; the bytes that tokens stand for |
//! | `ids.rs`, [`lease`] | identifiers, and leases of segments |
//! | [`time`] | arithmetic on times that cannot overflow |
//! | `error.rs`, `model_error.rs`, `withheld.rs` | errors of sequences and models |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))] // see `time`

pub mod cache;
mod constraint;
mod draft_model;
mod edit;
mod error;
mod grammar_error;
mod grammar_limits;
mod hash_step;
mod ids;
mod label;
pub mod lease;
mod miss;
mod model_error;
pub mod pager;
mod prefix;
mod prefix_key;
mod prompt_output;
#[cfg(test)]
mod random_cases;
mod reasoning;
pub mod remote;
mod request;
mod salt;
mod sampling;
mod span;
mod spec;
mod spelling;
mod suspicion;
pub mod time;
mod token_mask;
mod withheld;
mod work;

pub use constraint::{
    Attached, ConstraintWalk, FORCED_TOKENS_MAX, ForcedTokens, Next, TokenConstraint, WalkState,
};
pub use draft_model::{DraftForget, DraftModelSpec, DraftOrder, DraftReply};
pub use edit::Edit;
pub use error::{Deadline, GenerateError};
pub use grammar_error::GrammarError;
pub use grammar_limits::{GrammarBound, GrammarLimits};
#[doc(hidden)]
pub use hash_step::hash_step;
pub use ids::{CopyId, PinId, SegmentId, SequenceId, SlotId, TokenId, UserId};
pub use label::{Label, Precision, PrefixDigest, PrefixHasher};
pub use miss::{Miss, MissReason};
pub use model_error::ModelError;
pub use prefix::common_prefix;
pub use prefix_key::{ActiveAdapter, AdapterKey, KeyDigest, PrefixKey};
pub use prompt_output::{DeclaredPooling, Pooling, PromptOutput};
pub use reasoning::{ReasoningBudget, ReasoningTracker};
pub use request::{ContextLimit, Finish, FinishReason, Priority, QueuePosition, Usage};
pub use salt::{Salt, SaltDigest};
pub use sampling::{Sampling, SamplingError, SamplingSpec, TokenLogprobs, TokenSampling};
pub use span::{LogprobRows, OutputKind, SampledToken, SpanOutput};
pub use spec::{DeviceMemory, LayerGroup, LayerKind, ModelSpec, SegmentSize, tail_capacity};
pub use spelling::TokenSpelling;
pub use suspicion::only_sequence;
pub use token_mask::TokenMask;
pub use withheld::Withheld;
pub use work::{
    Failure, Lost, Outcome, PlannedSpan, PlannedTokens, SamplerStart, WORK_IN_FLIGHT_MAX, Work,
};
