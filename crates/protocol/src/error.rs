//! Errors that end a sequence without its output.

use std::time::Duration;

use super::Withheld;
use crate::SequenceId;

/// The error of an admitted sequence that ended without its output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The device failed at each attempt to run this sequence.
    #[error("the device failed on this sequence {attempts} times: {reason}")]
    Device {
        /// Number of attempts.
        attempts: u32,
        /// Message of the last failure.
        reason: String,
    },
    /// A part of the engine panicked at each attempt to handle this sequence, and for no other
    /// sequence. All other sequences continue.
    #[error("the {part} panicked on this sequence {attempts} times")]
    Panicked {
        /// The part that panicked.
        part: &'static str,
        /// Number of attempts.
        attempts: u32,
    },
    /// The cached state does not fit on the device beside the pinned segments, even if no other
    /// sequence runs.
    #[error("the sequence's cached state does not fit on the device beside the pinned segments")]
    OutOfMemory,
    /// The engine has no such sequence to fork: it has ended, or never existed.
    #[error("cannot fork {0}: it has ended or never existed")]
    ForkSource(SequenceId),
    /// The fork point is past the last token of the source.
    #[error("cannot fork {source_sequence} after {at} tokens: it has {tokens}")]
    ForkPastEnd {
        /// The source.
        source_sequence: SequenceId,
        /// The requested fork point, in tokens.
        at: usize,
        /// Tokens of the source, prompt and output together.
        tokens: usize,
    },
    /// The prefix that the fork would continue is empty or fills the model's context.
    #[error("cannot fork after {tokens} tokens: the prefix is empty or fills the model's context")]
    ForkFull {
        /// Tokens of the prefix.
        tokens: usize,
    },
    /// A deadline of the request passed or cannot be met. A sequence that had not started cost
    /// nothing.
    #[error("`{deadline}` cannot be met: {needed:?} are needed, and {left:?} are left")]
    DeadlineMissed {
        /// The deadline.
        deadline: Deadline,
        /// Estimated time that the sequence would still have needed.
        needed: Duration,
        /// Time that was left; zero once the deadline has passed.
        left: Duration,
    },
    /// The caller did not read for longer than `scheduler.unread_timeout`.
    #[error("the caller did not read for {waited:?} while {unread} tokens were unread")]
    SlowReader {
        /// Number of tokens sent and not read.
        unread: usize,
        /// Time that the sequence had been paused for.
        waited: Duration,
    },
    /// The output could not continue by the request's grammar.
    #[error("the grammar failed: {0}")]
    Grammar(Withheld),
    /// A token could not be turned into text.
    #[error("a token could not be turned into text: {0}")]
    Text(String),
    /// The engine was shut down before the sequence finished.
    #[error("the engine was shut down")]
    Shutdown,
    /// The engine ends and hands the sequence over. Another engine continues it from its prompt and
    /// the tokens of its output, all of which its caller has: they were delivered before this error,
    /// or came with the request.
    #[error("the engine ends: continue elsewhere after {output_tokens} tokens of the output")]
    HandedOver {
        /// Tokens of its output.
        output_tokens: usize,
    },
    /// The engine has failed too often and has stopped: start another.
    #[error("the engine is broken: {reason}")]
    Broken {
        /// Description of the last failure.
        reason: String,
    },
    /// The sequence's actor has ended.
    #[error("the sequence was lost inside the engine")]
    Lost,
}

/// A deadline of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Deadline {
    /// `Request::start_within`.
    Start,
    /// `Request::finish_within`.
    Finish,
}

impl GenerateError {
    /// Value of the metric label of this error.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Device { .. } => "device",
            Self::Panicked { .. } => "panic",
            Self::OutOfMemory => "memory",
            Self::ForkSource(_) | Self::ForkPastEnd { .. } | Self::ForkFull { .. } => "fork",
            Self::DeadlineMissed { .. } => "deadline",
            Self::SlowReader { .. } => "slow_reader",
            Self::Grammar(_) => "grammar",
            Self::Text(_) => "text",
            Self::Shutdown => "shutdown",
            Self::HandedOver { .. } => "handed_over",
            Self::Broken { .. } => "broken",
            Self::Lost => "lost",
        }
    }

    /// All values of the metric label.
    pub const LABELS: [&str; 12] = [
        "device",
        "panic",
        "memory",
        "fork",
        "deadline",
        "slow_reader",
        "grammar",
        "text",
        "shutdown",
        "handed_over",
        "broken",
        "lost",
    ];
}

impl std::fmt::Display for Deadline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Start => "start_within",
            Self::Finish => "finish_within",
        })
    }
}
