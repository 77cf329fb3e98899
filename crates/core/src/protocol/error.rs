//! Why a sequence ended without its output.

use std::time::Duration;

use super::Withheld;
use crate::SequenceId;

/// Why a sequence that was taken in ended without its output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The device failed on this sequence each time it was tried.
    #[error("the device failed on this sequence {attempts} times: {reason}")]
    Device {
        /// How often it was tried.
        attempts: u32,
        /// What the device said last.
        reason: String,
    },
    /// A part of the engine panicked each time it was at this sequence, and at no other. All
    /// others go on.
    #[error("the {part} panicked at this sequence {attempts} times")]
    Panicked {
        /// What panicked.
        part: &'static str,
        /// How often it was tried.
        attempts: u32,
    },
    /// The cached state does not fit on the device, even alone beside what is pinned.
    #[error("the sequence's cached state does not fit on the device beside what is pinned")]
    OutOfMemory,
    /// The sequence to fork is not inside: it has ended, or never was.
    #[error("cannot fork {0}: it has ended, or never was")]
    ForkSource(SequenceId),
    /// The fork was to begin beyond what its source has.
    #[error("cannot fork {source_sequence} after {at} tokens: it has {tokens}")]
    ForkPastEnd {
        /// The source.
        source_sequence: SequenceId,
        /// Where the fork was to begin.
        at: usize,
        /// Tokens of the source, prompt and output.
        tokens: usize,
    },
    /// What the fork would continue leaves no room in the model's context, or is empty.
    #[error("cannot continue {tokens} tokens: they are none, or fill the model's context")]
    ForkFull {
        /// Tokens that it would continue.
        tokens: usize,
    },
    /// A deadline of the request passed, or cannot be met. Nothing was spent on it if it
    /// had not started.
    #[error("`{deadline}` cannot be met: {needed:?} are needed, and {left:?} are left")]
    DeadlineMissed {
        /// Which one.
        deadline: Deadline,
        /// How long it would have taken from then on, as far as could be told.
        needed: Duration,
        /// How long there was; zero once it passed.
        left: Duration,
    },
    /// Its caller did not read for too long: `scheduler.unread_timeout`.
    #[error("nobody read for {waited:?} while {unread} tokens were to be read")]
    SlowReader {
        /// Tokens that were sent and not read.
        unread: usize,
        /// How long the sequence had paused for it.
        waited: Duration,
    },
    /// The request's grammar could not go on.
    #[error("the grammar failed: {0}")]
    Grammar(Withheld),
    /// A token could not be turned into text.
    #[error("a token could not be turned into text: {0}")]
    Text(String),
    /// The engine was shut down before the sequence was done.
    #[error("the engine was shut down")]
    Shutdown,
    /// The engine has failed too often, and was given up: start another.
    #[error("the engine is broken: {reason}")]
    Broken {
        /// What failed last.
        reason: String,
    },
    /// The sequence's actor is gone.
    #[error("the sequence was lost inside the engine")]
    Lost,
}

/// A deadline of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Deadline {
    /// `Request::start_by`.
    Start,
    /// `Request::finish_by`.
    Finish,
}

impl GenerateError {
    /// Its name in metrics.
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
            Self::Broken { .. } => "broken",
            Self::Lost => "lost",
        }
    }

    /// All names of failures in metrics.
    pub const LABELS: [&str; 11] = [
        "device",
        "panic",
        "memory",
        "fork",
        "deadline",
        "slow_reader",
        "grammar",
        "text",
        "shutdown",
        "broken",
        "lost",
    ];
}

impl std::fmt::Display for Deadline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Start => "start_by",
            Self::Finish => "finish_by",
        })
    }
}
