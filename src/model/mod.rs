//! What Motet asks of a language model, and the models it brings.
//!
//! The [`Model`] trait speaks in the three words that everything else is built
//! on: a *step* runs a ragged batch of *spans*, and the state that it leaves
//! behind is cut into immutable *segments* that many sequences may share.
//!
//! ```text
//!            path (sealed, shared)            tail (private, grows)
//!   slot =  [ segment ][ segment ] ... + [ tail ........ | span of this step ]
//! ```
//!
//! A model is used by one thread only, which also owns every array that the
//! model ever hands out; the control plane knows segments and slots by their
//! ids. Implementations therefore need neither `Send` nor locks, and they keep
//! no table of who uses what: the device thread does that once for all models.
//!
//! Two implementations always exist: [`oracle`], pure Rust and deterministic,
//! and (feature `mlx`) the Llama family on MLX.

pub mod conformance;
mod error;
#[cfg(feature = "mlx")]
pub mod mlx;
pub mod oracle;
pub mod sampling;
mod spec;
pub mod weights;

use std::rc::Rc;

pub use error::ModelError;
pub use spec::{Extent, LayerGroup, LayerKind, ModelSpec, tail_capacity};

use crate::TokenId;
use sampling::Draw;

/// A language model on one device.
///
/// # Contract
///
/// * A span's result depends on that span's own path, tail and tokens only,
///   never on the other spans of the step (rule 1 of the design).
/// * When [`step`](Model::step) fails, the tails it was given are unusable and
///   will be dropped; sealed segments are untouched.
/// * Every other method leaves its inputs as they were when it fails.
pub trait Model: 'static {
    /// Cached state of one contiguous token range, all layers. Immutable.
    type Segment: Segment;
    /// The growing, unshared end of a slot.
    type Tail: Tail;

    /// What the model is: vocabulary, context, layer kinds and their bytes.
    fn spec(&self) -> &ModelSpec;

    /// An empty tail that continues `path`. Recurrent layers start from the
    /// state at the path's end.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device refuses the memory.
    fn tail(&mut self, path: &[Rc<Self::Segment>]) -> Result<Self::Tail, ModelError>;

    /// Runs one forward pass over all spans and appends each span's state to its
    /// tail. Returns one [`Readout`] per span, in the order of the spans.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; see the contract above.
    fn step(&mut self, spans: &mut [Span<'_, Self>]) -> Result<Vec<Readout>, ModelError>
    where
        Self: Sized;

    /// Moves the first `tokens` tokens of `tail` into a segment of their own: a
    /// compact copy, never a view that pins the tail's buffer. The tail keeps
    /// the rest and continues the new segment.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] where a layer kind has no state at that offset: window
    /// and recurrent layers can be sealed at the tail's end only.
    fn seal(&mut self, tail: &mut Self::Tail, tokens: usize) -> Result<Self::Segment, ModelError>;

    /// Two segments that together hold what `segment` holds, cut after `at`
    /// tokens.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] unless `0 < at < segment.tokens()` and every layer is
    /// of a kind that can be cut anywhere ([`ModelSpec::resumes_anywhere`]).
    fn split(
        &mut self,
        segment: &Self::Segment,
        at: usize,
    ) -> Result<(Self::Segment, Self::Segment), ModelError>;

    /// A copy of the first `tokens` tokens of `tail`, for a slot that forks
    /// within it.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] as for [`seal`](Model::seal).
    fn fork(&mut self, tail: &Self::Tail, tokens: usize) -> Result<Self::Tail, ModelError>;

    /// The segment as plain bytes, layer after layer, in a layout that only
    /// [`import`](Model::import) of the same model and version reads.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the state cannot be read back.
    fn export(&mut self, segment: &Self::Segment) -> Result<Vec<u8>, ModelError>;

    /// The inverse of [`export`](Model::export).
    ///
    /// # Errors
    ///
    /// [`ModelError::Import`] when the bytes are not such an export: truncated,
    /// damaged, or of a model of another shape.
    fn import(&mut self, bytes: &[u8]) -> Result<Self::Segment, ModelError>;

    /// Device bytes in use now and at most so far, as the device itself counts.
    fn memory(&self) -> DeviceMemory;
}

/// What the device thread wants to know of a segment.
pub trait Segment: 'static {
    /// Tokens in the range that this segment caches.
    fn tokens(&self) -> usize;
    /// Device bytes it holds.
    fn bytes(&self) -> usize;
}

/// What the device thread wants to know of a tail.
pub trait Tail: 'static {
    /// Tokens it holds.
    fn tokens(&self) -> usize;
    /// Device bytes it holds, room to grow included.
    fn bytes(&self) -> usize;
}

/// The tokens of one sequence in one step: one for decode, many for a prefill
/// chunk.
///
/// The position of `tokens[0]` is the number of tokens that the path and the
/// tail hold.
#[derive(Debug)]
pub struct Span<'a, M: Model> {
    /// Tokens to evaluate; at least one.
    pub tokens: &'a [TokenId],
    /// Sealed segments before the tail, oldest first. Two spans that share a
    /// segment hold the same `Rc`.
    pub path: &'a [Rc<M::Segment>],
    /// The slot's tail; the span's state is appended to it.
    pub tail: &'a mut M::Tail,
    /// What the caller wants back.
    pub want: Want,
}

/// What a span wants of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
    /// Nothing: a prefill chunk before the prompt's last.
    Nothing,
    /// One token drawn from the logits of the last row.
    Token(Draw),
    /// The logits of every row, on the host. For evaluation and tests; costs
    /// `rows * vocabulary * 4` bytes.
    Logits,
}

/// What a step gives back for one span.
#[derive(Clone, Debug, PartialEq)]
pub enum Readout {
    /// Nothing was wanted.
    Nothing,
    /// The drawn token.
    Token(TokenId),
    /// Logits, row-major `[span tokens, vocabulary]`.
    Logits(Vec<f32>),
}

/// Device bytes, as the device counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// In use now.
    pub active_bytes: usize,
    /// Most in use at any time so far.
    pub peak_bytes: usize,
}
