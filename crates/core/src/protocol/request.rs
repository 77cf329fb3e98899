//! What the scheduler must know of a request, and how it ends.

use std::time::Duration;

use crate::cache::Miss;

/// The class of a request. A higher class starts before a lower one and may take its
/// place; a class in which a request waits long has turns
/// ([`ageing`](crate::config::SchedulerConfig::ageing)), and keeps its place in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Work that nobody waits for: batch jobs.
    Background,
    /// Most requests.
    #[default]
    Normal,
    /// Somebody waits at the screen.
    Urgent,
}

/// What happens when prompt and output fill the model's context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContextLimit {
    /// The output ends, with [`FinishReason::Length`].
    #[default]
    Stop,
    /// The oldest tokens after the first `keep` are forgotten, half of what is not
    /// kept at once, and the output goes on. What follows the gap was computed when
    /// the gap was not there: an approximation, which no other request is given.
    /// A prompt that is too long for the context loses its middle in the same way.
    Shift {
        /// Tokens at the beginning that stay, such as a system prompt; less than the
        /// model's context.
        keep: usize,
    },
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model drew one of its end tokens (which is not part of the output), or the
    /// output is all that its grammar allows.
    EndToken,
    /// The output is as long as it may be.
    Length,
    /// A stop string appeared.
    StopString,
    /// The model drew a stop token of the request, which is not part of the output.
    StopToken,
    /// The request's `finish_by` passed; what there is of the output is whole so far.
    Deadline,
    /// The caller left.
    Cancelled,
}

/// How a sequence ended, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
}

/// Tokens that a sequence used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose state was in the cache.
    pub cached_tokens: usize,
    /// Why no more of them were, where more had been computed, or was being computed.
    pub miss: Option<Miss>,
    /// Tokens that were taken out of the prompt, which was too long for the context, before
    /// `prompt_tokens` were counted.
    pub truncated_tokens: usize,
    /// Tokens, of the prompt or generated, that were forgotten when the context was full.
    pub shifted_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
}

/// Where a sequence stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePosition {
    /// Sequences that would start before it, as things stand; 0 is next.
    pub position: usize,
    /// How long until it starts, as things stand; none while nothing is known of how
    /// long sequences take.
    pub estimated_start: Option<Duration>,
}

impl Priority {
    /// Classes.
    pub const COUNT: usize = Self::Urgent as usize + 1;
}

impl Finish {
    /// The end of a sequence.
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

    /// Its name in metrics.
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
