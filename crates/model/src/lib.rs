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
//! A step is a *flight* while it is under way: it is launched, then what its spans
//! want is drawn, then it lands. The next one may be launched before it lands, fed by
//! tokens that are still on the device, so that the device never waits for the host:
//!
//! ```text
//!   host    submit 1  sample 1  submit 2 | finish 1  sample 2  submit 3 | finish 2  sample 3 ...
//!   device  [ pass 1 ........ sample 1 ][ pass 2 ........... sample 2 ][ pass 3 ......
//! ```
//!
//! A model is used by one thread only, which also owns every segment and tail; the
//! control plane knows segments and slots by their ids. Implementations therefore need
//! neither `Send` nor locks, and they keep no table of who uses what: the device
//! thread does that once for all models. Only *parcels* cross threads: the handles of a
//! segment's state, whose bytes a [`Packer`] copies out or in beside the device.
//!
//! Two implementations always exist: [`oracle`], pure Rust and deterministic,
//! and (feature `mlx`) the Llama family on MLX.

#![forbid(unsafe_code)]

pub mod conformance;
pub mod oracle;
mod packer;
pub mod preconditions;
pub mod sampling;
mod span;

use std::ops::Range;
use std::rc::Rc;

pub use motet_core::protocol::{
    DeviceMemory, LayerGroup, LayerKind, ModelError, ModelSpec, OutputKind, SegmentSize,
    SpanOutput, tail_capacity,
};
pub use packer::{DetachedState, FloatKind, Floats, Packer};
pub use span::{Span, TokenSource};

use sampling::SampleInputs;

/// A language model on one device.
///
/// # Contract
///
/// * A span's result depends on that span's own path, tail and tokens only,
///   never on the other spans of the step (rule 1 of the design).
/// * When [`submit`](Model::submit), [`sample`](Model::sample) or [`finish`](Model::finish)
///   fails, the tails of that flight are unusable and will be dropped; sealed segments
///   are untouched. So are flights that were launched before it; one that was launched
///   after it will be dropped, its tails too. The same holds of
///   [`seal`](Model::seal) and [`remove`](Model::remove) when the device fails.
/// * Up to two flights are under way at once. They land in the order in which they
///   were launched, or are dropped without. Until a flight has landed, its tails only
///   go into the next flight, or are dropped; segments may be cut, merged and dropped
///   at any time.
/// * Every other method leaves what it borrows as it was when it fails.
/// * Cached state of every layer kind can be cut at any offset and put together
///   again, but not every part can be gone on from: a path is *resumable* when
///   [`ModelSpec::can_resume`] says so of its segments' extents. To begin a tail
///   on another is the caller's mistake, which a model need not notice: what
///   comes of it is undefined, and on the [`oracle`] it is wrong tokens.
pub trait Model: 'static {
    /// Cached state of one contiguous token range, all layers. Immutable.
    type Segment: Segment;
    /// The growing, unshared end of a slot.
    type Tail: Tail;
    /// A step under way.
    type InFlightStep: std::fmt::Debug + 'static;
    /// Packs what is handed over, and unpacks what is taken in.
    type Packer: Packer;

    /// What the model is: vocabulary, context, layer kinds and their bytes.
    fn spec(&self) -> &ModelSpec;

    /// An empty tail that continues `path`, which must be resumable (see above).
    /// Recurrent layers start from the state at the path's end.
    ///
    /// It is expected to grow to `expected_tokens` tokens, and may be given the memory for them at
    /// once, so that it need not be moved on its way. It may grow beyond.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device refuses the memory.
    fn tail(
        &mut self,
        path: &[Rc<Self::Segment>],
        expected_tokens: usize,
    ) -> Result<Self::Tail, ModelError>;

    /// Sends one forward pass over all spans to the device, and returns without
    /// waiting for it where the device can work on its own. From now on the tails
    /// count the spans' tokens.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; see the contract above.
    fn submit(&mut self, spans: &mut [Span<'_, Self>]) -> Result<Self::InFlightStep, ModelError>
    where
        Self: Sized;

    /// Has a token drawn for each span that wants one: `inputs` are theirs, in the
    /// order of the spans. Once for each flight, before it lands and before a span is
    /// fed by it; after the flight before it has landed, so that drawings may build on
    /// what came of that. Returns without waiting, as above.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; see the contract above.
    ///
    /// # Panics
    ///
    /// When there are more or fewer drawings than spans that want a token.
    fn sample(
        &mut self,
        in_flight: &mut Self::InFlightStep,
        inputs: Vec<SampleInputs>,
    ) -> Result<(), ModelError>;

    /// Whether [`finish`](Model::finish) would return at once.
    fn is_ready(&self, in_flight: &Self::InFlightStep) -> bool;

    /// Waits for the flight and returns one [`SpanOutput`] per span, in the order of the
    /// spans.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; see the contract above.
    fn finish(&mut self, in_flight: Self::InFlightStep) -> Result<Vec<SpanOutput>, ModelError>;

    /// Launches, draws plainly and lands: a step with nothing else under way.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Model::submit).
    fn step(&mut self, spans: &mut [Span<'_, Self>]) -> Result<Vec<SpanOutput>, ModelError>
    where
        Self: Sized,
    {
        let inputs = spans.iter().filter_map(|span| match &span.output_kind {
            OutputKind::Token(token_sampling) => Some(SampleInputs::plain(*token_sampling)),
            OutputKind::Nothing | OutputKind::Logits => None,
        });
        let inputs = inputs.collect();
        let mut in_flight = self.submit(spans)?;
        self.sample(&mut in_flight, inputs)?;
        self.finish(in_flight)
    }

    /// Moves the first `tokens` tokens of `tail` into a segment of their own: a
    /// compact copy, never a view that pins the tail's buffer. The tail keeps
    /// the rest and continues the new segment.
    ///
    /// Before the tail's end the segment holds what the upper part of a cut does
    /// ([`SegmentSize::cut`]): the tail keeps the state of its recurrent layers, and of
    /// its windows what lies in its own range.
    ///
    /// Where these are all that the tail holds, there is never more than one layer's
    /// state beside its memory.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] unless `0 < tokens <= tail.tokens()`.
    ///
    /// [`ModelError::Device`] when the device fails, after which the tail is unusable.
    fn seal(&mut self, tail: &mut Self::Tail, tokens: usize) -> Result<Self::Segment, ModelError>;

    /// Makes a segment of some of a tail's `tokens`, as offsets in it, and gives up the
    /// others: the last segment of a slot that ends.
    ///
    /// It holds what [`seal`](Model::seal) would have put into it. There is never more
    /// than one layer's state beside the tail's memory, so that a slot can end where
    /// there is no room.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] unless `tokens` is a range within the tail's and not empty.
    ///
    /// [`ModelError::Device`] when the device fails.
    fn seal_in_place(
        &mut self,
        tail: Self::Tail,
        tokens: Range<usize>,
    ) -> Result<Self::Segment, ModelError>;

    /// Two segments that together hold what `segment` holds, cut after `at`
    /// tokens as [`SegmentSize::cut`] says.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] unless `0 < at < segment.tokens()`.
    fn split(
        &mut self,
        segment: &Self::Segment,
        at: usize,
    ) -> Result<(Self::Segment, Self::Segment), ModelError>;

    /// One segment in the place of `upper` and of `lower`, which follows it, as
    /// [`SegmentSize::merged`] says: a compact copy.
    ///
    /// # Errors
    ///
    /// [`ModelError::Merge`] where they hold too little of a window
    /// ([`ModelSpec::can_merge`]).
    fn merge(
        &mut self,
        upper: &Self::Segment,
        lower: &Self::Segment,
    ) -> Result<Self::Segment, ModelError>;

    /// Takes the tokens at offsets `removed` out of the slot of `path` and `tail`.
    ///
    /// Afterwards `tail` continues `path[..retained]` and holds what `path[retained..]` and
    /// it held, but for those. What follows them moves to its new positions: cached
    /// keys are turned back by as many tokens. It stays what it was computed as
    /// after a longer past, so that what comes of a slot from which more than its
    /// end was removed is an approximation (StreamingLLM, Xiao et al. 2024, rests
    /// on it). Where `removed` is empty, state only becomes private.
    ///
    /// Segments are not changed. State is moved layer by layer, so that at most one
    /// layer's old and new buffers exist at once.
    ///
    /// # Errors
    ///
    /// [`ModelError::Remove`], and nothing has changed, where `path[..retained]` is not
    /// a part of the path or reaches into `removed`, where `removed` is not a range
    /// of the slot, where a layer is not of full attention, or where tokens follow
    /// and the model cannot shift ([`ModelSpec::can_shift`]).
    ///
    /// [`ModelError::Device`] when the device fails, after which the tail is
    /// unusable, as after a failed step.
    fn remove(
        &mut self,
        path: &[Rc<Self::Segment>],
        retained: usize,
        tail: &mut Self::Tail,
        removed: Range<usize>,
    ) -> Result<(), ModelError>;

    /// Packs this model's parcels beside it, on any thread.
    fn packer(&self) -> Self::Packer;

    /// Hands over what `segment` holds: handles, no bytes. Waits for nothing, neither
    /// for steps under way nor for the segment's own state to be computed.
    ///
    /// The parcel holds the state's device memory for as long as it lives, also when
    /// the segment is dropped.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails.
    fn export(&mut self, segment: &Self::Segment) -> Result<DetachedState<Self>, ModelError>
    where
        Self: Sized;

    /// A copy of what `tail` holds of `tokens`, as offsets in it, which were computed by steps
    /// that have landed. The tail stays as it is, and steps may go on with it: what they append
    /// later is not in the copy. Waits for nothing, as above.
    ///
    /// With it live sequences are copied to host memory, so that a lost device costs little.
    /// None where the model cannot make such a copy, as it is unless implemented: then what
    /// lives is computed again. It is asked for only where all layers keep everything.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] unless `tokens` is a range within the tail's and not empty.
    ///
    /// [`ModelError::Device`] when the device fails. The tail is as it was.
    fn copy_out(
        &mut self,
        tail: &mut Self::Tail,
        tokens: Range<usize>,
    ) -> Result<Option<DetachedState<Self>>, ModelError>
    where
        Self: Sized,
    {
        let _ = (tail, tokens);
        Ok(None)
    }

    /// The segment in a parcel that a packer of this model has unpacked: handles, no
    /// bytes, as above.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails.
    fn import(&mut self, detached_state: DetachedState<Self>) -> Result<Self::Segment, ModelError>
    where
        Self: Sized;

    /// Device bytes in use now and at most so far, as the device itself counts.
    fn memory(&self) -> DeviceMemory;

    /// Bytes that are left for cached state and a step's scratch, now that the model is loaded:
    /// a budget that is not set is chosen from them. `None`, as it is unless overridden,
    /// where the device cannot tell.
    fn memory_left(&self) -> Option<MemoryLeft> {
        None
    }

    /// Takes so many bytes of the memory that cached state and scratch lie in, writes to all
    /// of it, since a system may promise memory that it does not have, and gives it back.
    /// Returns how many bytes there were. An engine asks once, when it starts, for what the
    /// worst case needs. Without an override all is taken to be there.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails in another way than by having less.
    fn try_memory(&mut self, bytes: usize) -> Result<usize, ModelError> {
        Ok(bytes)
    }
}

/// What the device thread wants to know of a segment.
pub trait Segment: 'static {
    /// The range that it caches, and how much of the past it holds.
    fn segment_size(&self) -> SegmentSize;
    /// Device bytes it holds: [`ModelSpec::segment_bytes`] of its extent.
    fn bytes(&self) -> usize;

    /// Tokens in the range that it caches.
    fn tokens(&self) -> usize {
        self.segment_size().tokens
    }
}

/// What the device thread wants to know of a tail.
pub trait Tail: 'static {
    /// Tokens it holds.
    fn tokens(&self) -> usize;
    /// Device bytes it holds, room to grow included.
    fn bytes(&self) -> usize;
}

/// Bytes that a device has left, by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLeft {
    /// Bytes that nothing uses.
    pub bytes: usize,
    /// Whether this is the host's own memory, which other programs and the pager's copies
    /// live in too.
    pub is_host: bool,
}
