//! The language model interface of Motet, and its deterministic test model.
//!
//! The [`Model`] trait rests on three terms. A *step* runs a ragged batch of *spans*. The state
//! that it leaves behind is cut into immutable *segments* that many sequences may share.
//!
//! ```text
//!            path (sealed, shared)            tail (private, grows)
//!   slot =  [ segment ][ segment ] ... + [ tail ........ | span of this step ]
//! ```
//!
//! A step is *in flight* from `submit` to `finish`: it is submitted, tokens are sampled for its
//! spans, then it finishes. The next step may be submitted before that. It then reads tokens that
//! are still on the device, so that the device never waits for the host:
//!
//! ```text
//!   host    submit 1  sample 1  submit 2 | finish 1  sample 2  submit 3 | finish 2  sample 3 ...
//!   device  [ pass 1 ........ sample 1 ][ pass 2 ........... sample 2 ][ pass 3 ......
//! ```
//!
//! Only one thread uses a model; it also owns every segment and tail. The control plane knows
//! segments and slots by their ids. Implementations therefore need neither `Send` nor locks, and
//! keep no table of segment users: the device thread does that once for all models. Only
//! *detached state* crosses threads: handles of a segment's state, whose bytes a [`Packer`]
//! copies out or in beside the device.
//!
//! Two implementations exist: [`oracle`], pure Rust and deterministic, and (feature `mlx`) models
//! of many families on MLX.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))] // see `motet_protocol::time`

mod cache_kind;
pub mod conformance;
mod model;
pub mod oracle;
mod packer;
pub mod preconditions;
pub mod sampling;

pub use cache_kind::{CacheKind, INT8_GROUP};
pub use model::{DetachedState, MemoryLeft, Model, Segment, Span, Tail, TokenSource};
pub use motet_protocol::{
    DeviceMemory, LayerGroup, LayerKind, LogprobRows, ModelError, ModelSpec, OutputKind, Pooling,
    SegmentSize, SpanOutput, tail_capacity,
};
pub use packer::{FloatKind, Floats, NoPacker, Packer};
