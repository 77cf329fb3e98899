//! The traits of a model and of its cached state, and the spans of a step.

use std::ops::Range;
use std::rc::Rc;

use super::packer::{NoPacker, Packer};
use super::sampling::SampleInputs;
use motet_protocol::TokenId;
use motet_protocol::{
    DeviceMemory, ModelError, ModelSpec, OutputKind, SegmentSize, SpanOutput, TokenSampling,
};

/// A language model on one device.
///
/// # Contract
///
/// * A span's result depends on that span's own path, tail and tokens only,
///   never on the other spans of the step (rule 1 of the design).
/// * When [`submit`](Model::submit), [`sample`](Model::sample) or [`finish`](Model::finish)
///   fails, the tails of that step are unusable and will be dropped; sealed segments are
///   untouched. Steps that were submitted before it are untouched too. A step that was submitted
///   after it will be dropped, with its tails. The same holds when the device fails in
///   [`seal`](Model::seal) or [`remove`](Model::remove).
/// * Up to two steps are in flight at once. They finish in the order in which they were
///   submitted, or are dropped unfinished. Until a step has finished, its tails only go into the
///   next step, or are dropped. Segments may be cut, merged and dropped at any time.
/// * Every other method leaves its arguments unchanged when it fails.
/// * Cached state of every layer kind can be cut at any offset and put together again, but not
///   every part can be continued from. A path is *resumable* when [`ModelSpec::can_resume`] says
///   so of its segment sizes. Opening a tail on any other path is the caller's mistake, which a
///   model need not notice. The result is undefined; on the [`oracle`](super::oracle) it is wrong tokens.
pub trait Model: 'static {
    /// Cached state of one contiguous token range, all layers. Immutable.
    type Segment: Segment;
    /// The growing, unshared end of a slot.
    type Tail: Tail;
    /// A step in flight.
    type InFlightStep: std::fmt::Debug + 'static;
    /// Packs exported state, and unpacks state for import: [`NoPacker`] for a model that leaves
    /// [`export`](Model::export) and [`import`](Model::import) to their defaults.
    type Packer: Packer;

    /// The model's description: vocabulary, context, layer kinds and their bytes.
    fn spec(&self) -> &ModelSpec;

    /// Returns an empty tail that continues `path`, which must be resumable (see above).
    /// Recurrent layers start from the state at the path's end.
    ///
    /// The tail is expected to grow to `expected_tokens` tokens. The model may allocate the
    /// memory for them at once, so that the tail need not be moved as it grows. It may grow
    /// beyond.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device refuses the memory.
    fn tail(
        &mut self,
        path: &[Rc<Self::Segment>],
        expected_tokens: usize,
    ) -> Result<Self::Tail, ModelError>;

    /// Sends one forward pass over all spans to the device. Returns without waiting for it, if
    /// the device can work on its own. From now on the tails count the spans' tokens.
    ///
    /// A span may ask for the log probabilities of many rows
    /// ([`OutputKind::PromptLogprobs`]). The logits of a row are then needed for its log
    /// probabilities only, and need not exist all at once. A model without hidden states
    /// ([`ModelSpec::hidden_size`] is 0) is not asked for [`OutputKind::HiddenSum`].
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; see the contract above.
    fn submit(&mut self, spans: &mut [Span<'_, Self>]) -> Result<Self::InFlightStep, ModelError>
    where
        Self: Sized;

    /// Samples a token for each span whose output kind asks for one, and one for each row of a
    /// span that verifies a draft ([`Span::samples`]); `inputs` are theirs, in the order of the
    /// spans and rows.
    ///
    /// Call it once for each step, before the step finishes and before another span reads its
    /// tokens. Call it after the previous step has finished, so that `inputs` may depend on its
    /// tokens. Returns without waiting, as above.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; see the contract above.
    ///
    /// # Panics
    ///
    /// When there are more or fewer `inputs` than tokens to sample.
    fn sample(
        &mut self,
        in_flight: &mut Self::InFlightStep,
        inputs: Vec<SampleInputs>,
    ) -> Result<(), ModelError>;

    /// Whether [`finish`](Model::finish) would return at once.
    fn is_ready(&self, in_flight: &Self::InFlightStep) -> bool;

    /// Waits for the step and returns one [`SpanOutput`] per span, in the order of the spans.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; see the contract above.
    fn finish(&mut self, in_flight: Self::InFlightStep) -> Result<Vec<SpanOutput>, ModelError>;

    /// Submits a step, samples with plain settings and finishes it, with nothing else in flight.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Model::submit).
    fn step(&mut self, spans: &mut [Span<'_, Self>]) -> Result<Vec<SpanOutput>, ModelError>
    where
        Self: Sized,
    {
        let samples = spans.iter().flat_map(Span::samples);
        let inputs = samples.map(SampleInputs::plain).collect();
        let mut in_flight = self.submit(spans)?;
        self.sample(&mut in_flight, inputs)?;
        self.finish(in_flight)
    }

    /// Drops the draft tokens after the tail's first `tokens` tokens. Afterwards the tail is as if
    /// they had never been evaluated.
    ///
    /// It is called once after each step in which the tail's span [verified](OutputKind::Verify) a
    /// draft, when the step has finished and before anything else happens to the tail. It is called
    /// also if no token is dropped: a model may keep what the draft tokens change apart until then.
    /// The dropped tokens are among the draft tokens of that step. A model may return without
    /// waiting for the device. The default panics: a model that verifies no drafts
    /// ([`ModelSpec::draft_tokens_max`] is 0) is not asked.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails, after which the tail is unusable.
    fn truncate(&mut self, tail: &mut Self::Tail, tokens: usize) -> Result<(), ModelError> {
        let _ = (tail, tokens);
        panic!("a model that verifies no drafts has none to drop")
    }

    /// Moves the first `tokens` tokens of `tail` into a segment of their own: a compact copy,
    /// never a view that pins the tail's buffer. The tail keeps the rest and continues the new
    /// segment.
    ///
    /// If the segment ends before the tail does, it holds what the upper part of a cut holds
    /// ([`SegmentSize::cut`]). The tail keeps the state of its recurrent layers, and the entries
    /// of its windows in its own range.
    ///
    /// If these are all the tokens of the tail, at most one layer's state exists beside its
    /// memory at any time.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] unless `0 < tokens <= tail.tokens()`.
    ///
    /// [`ModelError::Device`] when the device fails, after which the tail is unusable.
    fn seal(&mut self, tail: &mut Self::Tail, tokens: usize) -> Result<Self::Segment, ModelError>;

    /// Makes a segment of the range `tokens` of a tail, as offsets in it, and drops the rest: the
    /// last segment of a slot that ends.
    ///
    /// The segment holds what [`seal`](Model::seal) would have put into it. At most one layer's
    /// state exists beside the tail's memory at any time, so that a slot can end when no memory
    /// is left.
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

    /// Returns two segments that together hold the state of `segment`, cut after `at` tokens as
    /// [`SegmentSize::cut`] says.
    ///
    /// # Errors
    ///
    /// [`ModelError::Cut`] unless `0 < at < segment.tokens()`.
    fn split(
        &mut self,
        segment: &Self::Segment,
        at: usize,
    ) -> Result<(Self::Segment, Self::Segment), ModelError>;

    /// Returns one segment that replaces `upper` and `lower`, which follows it, as
    /// [`SegmentSize::merged`] says: a compact copy.
    ///
    /// # Errors
    ///
    /// [`ModelError::Merge`] when they hold too little of a window ([`ModelSpec::can_merge`]).
    fn merge(
        &mut self,
        upper: &Self::Segment,
        lower: &Self::Segment,
    ) -> Result<Self::Segment, ModelError>;

    /// Returns `segment` without the state that only a resume at its end needs
    /// ([`SegmentSize::stripped`]): the entries of full attention, those entries of windows that
    /// `below` needs, and no recurrent state. `below` follows it on a path, and is not changed.
    ///
    /// The default merges and splits, so that both exist a second time for a moment. A model
    /// whose segments share arrays returns handles of those that stay.
    ///
    /// # Errors
    ///
    /// [`ModelError::Merge`] when the two hold too little of a window.
    fn strip(
        &mut self,
        segment: &Self::Segment,
        below: &Self::Segment,
    ) -> Result<Self::Segment, ModelError> {
        let whole = self.merge(segment, below)?;
        Ok(self.split(&whole, segment.tokens())?.0)
    }

    /// Removes the tokens at offsets `removed` from the slot of `path` and `tail`.
    ///
    /// Afterwards `tail` continues `path[..retained]`. It holds the state of `path[retained..]`
    /// and its own, without the removed tokens. Tokens after the removed ones move to new
    /// positions: their cached keys are turned back by as many tokens.
    ///
    /// The moved state remains as computed after the longer past. The output of a slot from which
    /// more than its end was removed is therefore an approximation (StreamingLLM, Xiao et al.
    /// 2024, rests on it). If `removed` is empty, state only becomes private.
    ///
    /// Segments are not changed. State is moved layer by layer, so that at most one
    /// layer's old and new buffers exist at once.
    ///
    /// # Errors
    ///
    /// [`ModelError::Remove`], and nothing has changed, when `path[..retained]` is not a part of
    /// the path or reaches into `removed`, when `removed` is not a range of the slot, when a
    /// layer is not of full attention, or when tokens follow and the model cannot shift
    /// ([`ModelSpec::can_shift`]).
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

    /// Returns the packer, which packs this model's detached state beside it, on any thread.
    fn packer(&self) -> Self::Packer;

    /// Exports the state of `segment`: handles, no bytes. Waits for nothing, neither for steps in
    /// flight nor for the segment's own state to be computed.
    ///
    /// The detached state holds its device memory for as long as it lives, also after the segment
    /// is dropped.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; [`ModelError::NotSupported`] always, which is
    /// the default.
    fn export(&mut self, segment: &Self::Segment) -> Result<DetachedState<Self>, ModelError>
    where
        Self: Sized,
    {
        let _ = segment;
        Err(NoPacker::ERROR)
    }

    /// Returns a copy of the tail's state of `tokens`, as offsets in it, which finished steps
    /// have computed. The tail stays as it is, and steps may go on with it: tokens that they
    /// append later are not in the copy. Waits for nothing, as above.
    ///
    /// The engine copies live sequences to host memory with it, so that a lost device costs
    /// little. `None` if the model cannot make such a copy, which is the default: then live state
    /// is computed again. It is called only if all layers keep all entries.
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

    /// Imports detached state that a packer of this model has unpacked, as a segment: handles, no
    /// bytes, as above.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails; [`ModelError::NotSupported`] always, which is
    /// the default.
    fn import(&mut self, detached_state: DetachedState<Self>) -> Result<Self::Segment, ModelError>
    where
        Self: Sized,
    {
        let _ = detached_state;
        Err(NoPacker::ERROR)
    }

    /// Device bytes in use now, and their peak so far, as the device itself counts.
    fn memory(&self) -> DeviceMemory;

    /// Bytes that are left for cached state and a step's scratch, now that the model is loaded. A
    /// budget that is not set is chosen from them. `None`, which is the default, if the device
    /// cannot tell.
    fn memory_left(&self) -> Option<MemoryLeft> {
        None
    }

    /// Allocates `bytes` of the memory that cached state and scratch lie in, and frees them again.
    /// Returns how many bytes there were.
    ///
    /// A system may promise memory that it does not have: a device that cannot tell how much is
    /// free writes to all of it. An engine calls this once, when it starts, with the bytes that the
    /// worst case needs. The default takes all of them to be there.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails for another reason than too little memory.
    fn try_memory(&mut self, bytes: usize) -> Result<usize, ModelError> {
        Ok(bytes)
    }

    /// Returns memory to the system that neither cached state nor a step in flight uses, such as
    /// buffers that are kept for the next step. The device thread calls it once in each pause of a
    /// second or longer. The default does nothing.
    fn trim(&mut self) {}
}

/// The tokens of one sequence in one step: one for decode, many for a prefill chunk.
///
/// The position of the first token is the number of tokens that the path and the
/// tail hold.
#[derive(Debug)]
pub struct Span<'a, M: Model> {
    /// Tokens to evaluate; at least one.
    pub tokens: TokenSource<'a, M>,
    /// Sealed segments before the tail, oldest first. Two spans that share a segment hold the
    /// same `Rc`.
    pub path: &'a [Rc<M::Segment>],
    /// The slot's tail; the span's state is appended to it.
    pub tail: &'a mut M::Tail,
    /// The output that the caller asks for.
    pub output_kind: OutputKind,
}

/// Source of the tokens of a span.
#[derive(Debug)]
pub enum TokenSource<'a, M: Model> {
    /// Tokens that the host knows.
    Known(&'a [TokenId]),
    /// The one token that is sampled for span number `.1` of the in-flight step, and the draft
    /// tokens `.2` after it. That step has been sampled and need not have finished: the token may
    /// still be on the device only. The span of that step verifies no draft.
    Sampled(&'a M::InFlightStep, usize, &'a [TokenId]),
}

impl<M: Model> Span<'_, M> {
    /// Returns how its tokens are sampled, in the order of their rows.
    pub fn samples(&self) -> impl Iterator<Item = TokenSampling> + use<M> {
        let rows = match &self.output_kind {
            OutputKind::Verify(_) => self.tokens.count(),
            _ => 1,
        };
        let first = self.output_kind.token_sampling();
        first
            .into_iter()
            .flat_map(move |first| (0..rows).map(move |row| first.later(row)))
    }
}

impl<'a, M: Model> TokenSource<'a, M> {
    /// Number of tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            TokenSource::Known(tokens) => tokens.len(),
            TokenSource::Sampled(_, _, draft) => 1 + draft.len(),
        }
    }

    /// The tokens that the host knows: all of them, or all but the first.
    #[must_use]
    pub fn known(&self) -> &'a [TokenId] {
        match *self {
            TokenSource::Known(tokens) | TokenSource::Sampled(_, _, tokens) => tokens,
        }
    }
}

impl<'a, M: Model, T: AsRef<[TokenId]> + ?Sized> From<&'a T> for TokenSource<'a, M> {
    fn from(tokens: &'a T) -> Self {
        TokenSource::Known(tokens.as_ref())
    }
}

impl<M: Model> Clone for TokenSource<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Model> Copy for TokenSource<'_, M> {}

/// Detached state that `M` exports and imports.
pub type DetachedState<M> = <<M as Model>::Packer as Packer>::DetachedState;

/// The properties of a segment that the device thread reads.
pub trait Segment: 'static {
    /// The segment size: the tokens of the range, and the state lag.
    fn segment_size(&self) -> SegmentSize;
    /// Device bytes of the segment: [`ModelSpec::segment_bytes`] of its size.
    fn bytes(&self) -> usize;

    /// Tokens in the range that it caches.
    fn tokens(&self) -> usize {
        self.segment_size().tokens
    }
}

/// The properties of a tail that the device thread reads.
pub trait Tail: 'static {
    /// Tokens in the tail.
    fn tokens(&self) -> usize;
    /// Device bytes of the tail, including capacity to grow.
    fn bytes(&self) -> usize;
}

/// Bytes that a device has left, by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLeft {
    /// Unused bytes.
    pub bytes: usize,
    /// Whether this is the host's own memory, which other programs and the pager's copies share.
    pub is_host: bool,
    /// Bytes of the model's weights that the system counts as free, since it could read them again
    /// from their file. `bytes` does not contain them.
    pub mapped_bytes: usize,
}
