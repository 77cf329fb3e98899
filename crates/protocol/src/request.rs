//! Parameters of a request for the scheduler, and its finish.

use std::time::Duration;

use super::Miss;

/// The priority class of a request. A higher class starts before a lower one and may preempt
/// it. A class in which a request waits long gets turns
/// (`FairnessConfig::ageing`) and keeps its slot during them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Work that no person waits for: batch jobs.
    Background,
    /// Most requests.
    #[default]
    Normal,
    /// Interactive requests: a person waits for the output.
    Urgent,
}

/// Behaviour when prompt and output fill the model's context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContextLimit {
    /// The output ends, with [`FinishReason::Length`].
    #[default]
    Stop,
    /// The oldest tokens after the first `keep` are removed, half of the others at once, and
    /// the output continues. The tokens after the gap were computed with the removed tokens:
    /// their state is an approximation, and it is not shared with other requests. A prompt that
    /// is too long for the context loses its middle in the same way.
    Shift {
        /// Number of first tokens that stay, such as a system prompt; less than the model's
        /// context.
        keep: usize,
    },
}

/// The reason why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model sampled one of its end tokens (which is not part of the output), or the output
    /// is complete by its grammar.
    EndToken,
    /// The output has reached its maximum length.
    Length,
    /// A stop string appeared.
    StopString,
    /// The model sampled a stop token of the request, which is not part of the output.
    StopToken,
    /// The request's `finish_within` has passed; the output is valid as far as it goes.
    Deadline,
    /// The caller cancelled.
    Cancelled,
}

/// The finish of a sequence: reason and usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finish {
    /// Reason of the end.
    pub reason: FinishReason,
    /// Tokens that it used.
    pub usage: Usage,
}

/// Tokens that a sequence used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt whose state was in the cache.
    #[doc(alias = "prefix cache")]
    pub cached_tokens: usize,
    /// Reason why no more tokens were cached, if more had been computed or were being computed.
    pub miss: Option<Miss>,
    /// Tokens removed from a prompt that was too long for the context; `prompt_tokens` does not
    /// count them.
    pub truncated_tokens: usize,
    /// Tokens of prompt and output that were removed when the context was full.
    pub shifted_tokens: usize,
    /// Generated tokens.
    pub output_tokens: usize,
    /// Generated tokens inside the reasoning, without its marks, and part of `output_tokens`; 0
    /// for a request without a [`ReasoningBudget`](super::ReasoningBudget).
    pub reasoning_tokens: usize,
    /// Tokens of the request's prediction.
    pub prediction_tokens: usize,
    /// Generated tokens that came as predicted, a part of `output_tokens`. A part of the prediction
    /// that comes twice counts twice. 0 where nothing is drafted.
    #[doc(alias = "predicted outputs")]
    pub accepted_prediction_tokens: usize,
}

/// The position of a sequence in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePosition {
    /// Number of sequences that would start before it, as of now; 0 is next.
    pub position: usize,
    /// Estimated time until it starts, as of now; `None` until the durations of sequences are
    /// known.
    pub estimated_start: Option<Duration>,
}

impl Priority {
    /// Number of classes.
    pub const COUNT: usize = Self::Urgent as usize + 1;
}

impl QueuePosition {
    /// A position with the estimate of its start.
    #[must_use]
    pub fn new(position: usize, estimated_start: Option<Duration>) -> Self {
        Self {
            position,
            estimated_start,
        }
    }
}

impl Finish {
    /// Creates the finish of a sequence.
    #[must_use]
    pub fn new(reason: FinishReason, usage: Usage) -> Self {
        Self { reason, usage }
    }
}

impl FinishReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::EndToken,
        Self::Length,
        Self::StopString,
        Self::StopToken,
        Self::Deadline,
        Self::Cancelled,
    ];

    /// Value of the metric label of this reason.
    pub fn label(self) -> &'static str {
        match self {
            Self::EndToken => "end_token",
            Self::Length => "length",
            Self::StopString => "stop_string",
            Self::StopToken => "stop_token",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
        }
    }
}
