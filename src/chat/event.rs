//! The events of an answer.

use motet_protocol::{FinishReason, TokenId, TokenLogprobs, Usage};

use crate::request::Prefill;

/// An event of an answer. [`Ended`](ChatEvent::Ended) is the last of a whole one.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatEvent {
    /// How far the prompt is computed, where the settings ask for
    /// [it](crate::Request::report_prefill_progress).
    Prefilled(Prefill),
    /// More of the answer.
    Delta {
        /// The part.
        delta: Delta,
        /// Log probabilities, where the settings ask for them: of the tokens whose text has become
        /// certain since the event before, whatever they belong to. In the end there is one for
        /// each token of the answer.
        logprobs: Vec<(TokenId, TokenLogprobs)>,
    },
    /// The answer is complete.
    Ended {
        /// Why it ended.
        end: AnswerEnd,
        /// The tokens that its sequence used.
        usage: Usage,
    },
}

/// More of an answer. Text may be empty where an event has log probabilities only.
// Exhaustive: a caller that passes over a part would lose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the text.
    Text(String),
    /// A call begins. Calls of an answer are numbered from 0, and one ends before the next begins.
    CallStarted {
        /// The number of the call.
        index: usize,
        /// A new id, of nine letters and digits, for the call's [result](super::Call::result).
        id: String,
        /// The name of the tool, which is one of the request's.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// The number of the call.
        index: usize,
        /// The next bytes of the arguments. All of a complete call's, joined, are a JSON object.
        json: String,
    },
    /// A call ends.
    CallEnded {
        /// The number of the call.
        index: usize,
        /// Whether its arguments are whole. If not, the answer ended within them, or they are not
        /// JSON.
        is_complete: bool,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerEnd {
    /// The model ended it.
    Stop,
    /// One of the request's stop strings or stop tokens ended it.
    StopString,
    /// It has as many tokens as it may have, or its deadline has passed.
    Length,
    /// It has a complete call, whose result is needed.
    Calls,
}

impl Delta {
    /// Returns the bytes of its texts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Reasoning(text) | Self::Text(text) => text.len(),
            Self::CallStarted { id, name, .. } => id.len().saturating_add(name.len()),
            Self::CallArguments { json, .. } => json.len(),
            Self::CallEnded { .. } => 0,
        }
    }
}

impl From<FinishReason> for AnswerEnd {
    /// The end of an answer without calls.
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length | FinishReason::Deadline => Self::Length,
            FinishReason::StopString | FinishReason::StopToken => Self::StopString,
            _ => Self::Stop,
        }
    }
}
