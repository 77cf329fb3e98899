//! Messages to the device thread, and their outcomes.

use std::sync::Arc;
use std::time::Duration;

use crate::{DeviceMemory, Edit, ModelError, OutputKind, Sampling, SamplingSpec, SpanOutput};
use crate::{DraftForget, DraftOrder, DraftReply, SegmentId, SlotId, TokenId};

/// Upper bound on the work in flight: one step that the device runs, and one that is queued on
/// the device behind it. The scheduler observes it.
pub const WORK_IN_FLIGHT_MAX: usize = 2;

/// One message to the device.
///
/// Edits that name a slot, other than to close it, are sent only while the slot is in no step
/// in flight; all others may be sent at any time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// The epoch of the sender. It is increased for each [`Failure::Reset`] that the sender
    /// receives, and when the sender has lost track of the device's state. Work of an older
    /// epoch than the device's is not carried out, since it names state that no longer exists.
    /// Before work of a newer epoch the device drops every slot and every segment.
    pub epoch: u64,
    /// Edits to carry out first.
    pub edits: Vec<Edit>,
    /// Samplers to start: these slots need more for sampling than their
    /// [`TokenSampling`](crate::TokenSampling)s hold, from this work on.
    pub sampler_starts: Vec<SamplerStart>,
    /// The spans of the step; without spans there is no step. Each slot is in at most one span.
    pub spans: Vec<PlannedSpan>,
    /// Texts that the draft model forgets first.
    pub draft_forgets: Vec<DraftForget>,
    /// Orders to the draft model; only in work without spans that is sent while no other is in
    /// flight.
    pub draft_orders: Vec<DraftOrder>,
}

/// The inputs of a slot's sampler on the device thread. The sampler lives as long as the slot.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerStart {
    /// The slot.
    pub slot: SlotId,
    /// The request's settings beyond `sampling`.
    pub spec: Arc<SamplingSpec>,
    /// The numeric sampling parameters.
    pub sampling: Sampling,
    /// Prompt of the sequence.
    pub prompt: Arc<[TokenId]>,
    /// Tokens sampled before this work.
    pub output: Vec<TokenId>,
}

/// One sequence's part of a planned step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSpan {
    /// The slot that holds the sequence's state.
    pub slot: SlotId,
    /// The tokens to evaluate.
    pub token_source: PlannedTokens,
    /// The output to produce.
    pub output_kind: OutputKind,
}

/// The token source of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedTokens {
    /// Tokens that the scheduler knows; at least one.
    Known(Vec<TokenId>),
    /// The token sampled by the slot's last span, and the draft tokens that are to be verified
    /// after it. The step of that span may be in flight still.
    Sampled(Vec<TokenId>),
}

impl Lost {
    /// Whether nothing was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.segments.is_empty()
    }
}

impl PlannedSpan {
    /// Returns the draft tokens that it verifies.
    #[must_use]
    pub fn draft(&self) -> &[TokenId] {
        match (&self.output_kind, &self.token_source) {
            (OutputKind::Verify(_), PlannedTokens::Known(tokens)) => &tokens[1..],
            (OutputKind::Verify(_), PlannedTokens::Sampled(draft)) => draft,
            _ => &[],
        }
    }
}

impl PlannedTokens {
    /// Appends draft tokens.
    pub fn append(&mut self, draft: &[TokenId]) {
        match self {
            PlannedTokens::Known(tokens) | PlannedTokens::Sampled(tokens) => {
                tokens.extend_from_slice(draft);
            }
        }
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        match self {
            PlannedTokens::Known(tokens) => tokens.len(),
            PlannedTokens::Sampled(draft) => 1 + draft.len(),
        }
    }
}

/// The outcome of one [`Work`]; outcomes come in the order of the work.
#[derive(Debug)]
pub struct Outcome {
    /// One output per span, or the reason why there is none.
    pub result: Result<Vec<SpanOutput>, Failure>,
    /// One reply per draft order. An error if the draft model has failed: this device has no other
    /// one, and nothing else is lost.
    pub drafts: Result<Vec<DraftReply>, Box<ModelError>>,
    /// Time that the device worked: from the submission, or the finish of the previous step if
    /// that was later, to the finish of this step.
    pub busy: Duration,
    /// Time that the device was idle before: from the finish of the previous step to the
    /// submission. Zero if the step was submitted while another was in flight. The scheduler
    /// decides whether there was work meanwhile.
    pub gap: Duration,
    /// Bytes in use, as the device counts them.
    pub memory: DeviceMemory,
    /// State lost by edits that failed; all other state is unchanged.
    pub lost: Lost,
}

/// State lost by edits that failed, on a device that can still be trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Slots that are lost, with their tails. They must be closed like others. Until then a
    /// step skips them and returns [`SpanOutput::Nothing`] for them.
    pub slots: Vec<SlotId>,
    /// Segments that are lost. They must be dropped like others. Until then segments derived
    /// from them are lost as well.
    pub segments: Vec<SegmentId>,
    /// Message of the first failure.
    pub reason: String,
}

/// The failure of a [`Work`], by its consequences.
#[derive(Debug)]
pub enum Failure {
    /// The step failed. The tails of its slots are lost; all other state is unchanged.
    Step(ModelError),
    /// The previous step failed, and this one was submitted on top of it or needs a slot that
    /// was lost with it. No sequence of this step caused the failure; the tails of its slots
    /// are lost. Its edits were carried out, unless it is of an old [epoch](Work::epoch).
    Dropped,
    /// An edit was invalid, edits failed repeatedly, or the model panicked: the device cannot
    /// be trusted. It has dropped every slot and every segment and continues empty. Work
    /// submitted on top of it, and all work until the sender increases [its
    /// epoch](Work::epoch), is [`Failure::Dropped`].
    Reset(String),
}
