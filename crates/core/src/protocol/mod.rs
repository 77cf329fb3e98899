//! What the scheduler, the cache, the pager, the device thread and the model say to each other.
//!
//! | file | what is there |
//! |---|---|
//! | `work.rs`, `edit.rs` | messages to the device thread, and its answers |
//! | `span.rs` | what a step is asked for a span, and what it gives back |
//! | `spec.rs` | what a model is, in numbers |
//! | `sampling.rs` | how tokens are drawn |
//! | `constraint.rs`, `token_mask.rs` | what an output must follow |
//! | `grammar_limits.rs`, `grammar_error.rs` | what a grammar may cost, and why one fails |
//! | `request.rs` | what the scheduler must know of a request, and how it ends |
//! | `error.rs`, `model_error.rs`, `withheld.rs` | why a sequence or a model fails |

mod constraint;
mod edit;
mod error;
mod grammar_error;
mod grammar_limits;
mod model_error;
mod request;
mod sampling;
mod span;
mod spec;
mod token_mask;
mod withheld;
mod work;

pub use constraint::{Attached, ConstraintWalk, Next, TokenConstraint, WalkState};
pub use edit::Edit;
pub use error::{Deadline, GenerateError};
pub use grammar_error::GrammarError;
pub use grammar_limits::{GrammarBound, GrammarLimits};
pub use model_error::ModelError;
pub use request::{ContextLimit, Finish, FinishReason, Priority, QueuePosition, Usage};
pub use sampling::{Sampling, SamplingError, SamplingSpec, TokenLogprobs, TokenSampling};
pub use span::{OutputKind, SpanOutput};
pub use spec::{DeviceMemory, LayerGroup, LayerKind, ModelSpec, SegmentSize, tail_capacity};
pub use token_mask::TokenMask;
pub use withheld::Withheld;
pub use work::{
    Failure, Lost, Outcome, PlannedSpan, PlannedTokens, SamplerStart, WORK_IN_FLIGHT_MAX, Work,
};
