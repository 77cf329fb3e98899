//! What goes to the device thread and what comes back.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::{
    DeviceMemory, Edit, ModelError, OutputKind, Sampling, SamplingSpec, SpanOutput,
};
use crate::{SegmentId, SlotId, TokenId};

/// Work that may be under way at once: one step that the device runs, and one that
/// waits on the device for it. The scheduler keeps to it.
pub const WORK_IN_FLIGHT_MAX: usize = 2;

/// One message to the device.
///
/// Edits that name a slot, other than to close it, come only while the slot is in no
/// step under way; all others may come at any time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// How often the sender has begun anew: for each [`Failure::Reset`] that it heard of,
    /// and when it has lost track of what the device holds. Work of an older epoch than
    /// the device's is not carried out, since it names what is gone. Before work of a newer
    /// one the device drops every slot and every segment.
    pub epoch: u64,
    /// Changes to carry out first.
    pub edits: Vec<Edit>,
    /// Slots that from this work's draws on are drawn for as more than their
    /// [`TokenSampling`](crate::protocol::TokenSampling)s say.
    pub sampler_starts: Vec<SamplerStart>,
    /// The spans of the step; none is no step. A slot is in it once at most.
    pub spans: Vec<PlannedSpan>,
}

/// What a slot's drawer is made of, on the device thread. It lives as long as the slot.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerStart {
    /// The slot.
    pub slot: SlotId,
    /// What its request wants beyond `sampling`.
    pub spec: Arc<SamplingSpec>,
    /// How its tokens are drawn.
    pub sampling: Sampling,
    /// Its prompt.
    pub prompt: Arc<[TokenId]>,
    /// All that it has drawn before this work.
    pub output: Vec<TokenId>,
}

/// One sequence's part of a planned step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSpan {
    /// Where the sequence's state is.
    pub slot: SlotId,
    /// What to evaluate.
    pub token_source: PlannedTokens,
    /// What is wanted of it.
    pub output_kind: OutputKind,
}

/// What a span evaluates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedTokens {
    /// Tokens that the scheduler knows; at least one.
    Known(Vec<TokenId>),
    /// The token that the slot's last span draws, or drew. The step of that span may be
    /// under way still.
    Sampled,
}

impl Lost {
    /// Whether nothing was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.segments.is_empty()
    }
}

impl PlannedTokens {
    /// How many tokens these are.
    #[must_use]
    pub fn tokens(&self) -> usize {
        match self {
            PlannedTokens::Known(tokens) => tokens.len(),
            PlannedTokens::Sampled => 1,
        }
    }
}

/// The device's answer to one [`Work`]; answers come in the order of the work.
#[derive(Debug)]
pub struct Outcome {
    /// One readout per span, or why there is none.
    pub result: Result<Vec<SpanOutput>, Failure>,
    /// How long the device worked: from the launch, or the landing before it if that
    /// came later, to the landing.
    pub busy: Duration,
    /// How long the device had nothing to do before: from the landing before it to the
    /// launch. Zero if it was launched while a step was under way. Whether there was work
    /// meanwhile is for the scheduler to say.
    pub gap: Duration,
    /// The device's own count of bytes.
    pub memory: DeviceMemory,
    /// What its edits have cost that failed: all else is as it was.
    pub lost: Lost,
}

/// What edits have cost that failed on a device that can be trusted still.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Slots that are gone, and their tails. They are closed as others are; until then they
    /// have no part in a step, which answers [`SpanOutput::Nothing`] for them.
    pub slots: Vec<SlotId>,
    /// Segments that are not there. They are dropped as others are; until then what is to be
    /// made of them is not there either.
    pub segments: Vec<SegmentId>,
    /// What the device said of the first.
    pub reason: String,
}

/// What a failed [`Work`] has cost.
#[derive(Debug)]
pub enum Failure {
    /// The step failed. The tails of its slots are lost, all else is as it was.
    Step(ModelError),
    /// The step before it failed, and this was launched on top of it or needs a slot
    /// that was lost with it. Nobody of this step is to blame, and the tails of its
    /// slots are lost. Its edits were carried out, unless it is of an old
    /// [epoch](Work::epoch).
    Dropped,
    /// An edit made no sense, edits failed again and again, or the model panicked: the device
    /// cannot be trusted. It has dropped every slot and
    /// every segment and goes on empty: what was launched on top of it, and what comes
    /// until the sender counts up [its epoch](Work::epoch), is [`Failure::Dropped`].
    Reset(String),
}
