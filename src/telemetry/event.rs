//! Events of an engine, as they happen.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use motet_core::cache::Miss;
use motet_protocol::{FinishReason, SequenceId};

/// An event of an engine. Cheap to clone.
///
/// A step reports what the device did; every other event reports what a sequence's caller
/// receives. The two are not ordered: the step with a sequence's first token may be reported
/// before or after [`FirstToken`](Self::FirstToken).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EngineEvent {
    /// A step has finished.
    Step(Arc<StepView>),
    /// A sequence has its first slot.
    #[non_exhaustive]
    Started {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of its prompt.
        prompt_tokens: usize,
        /// Prompt tokens whose state was in the cache.
        cached_tokens: usize,
        /// Why the cache served no more of the prompt, where more had been computed or was
        /// being computed.
        miss: Option<Miss>,
        /// Time since its submission.
        waited: Duration,
    },
    /// A sequence has its first token.
    #[non_exhaustive]
    FirstToken {
        /// The sequence.
        sequence: SequenceId,
        /// Time since its submission.
        since_submit: Duration,
    },
    /// A sequence was preempted: it lost its slot and continues later.
    #[non_exhaustive]
    Preempted {
        /// The sequence.
        sequence: SequenceId,
    },
    /// A sequence was forked from another.
    #[non_exhaustive]
    Forked {
        /// The new sequence.
        sequence: SequenceId,
        /// The sequence that it continues.
        source: SequenceId,
        /// Tokens that it takes over from the source.
        at: usize,
    },
    /// A sequence's full context was shifted: some of its oldest tokens were dropped.
    #[non_exhaustive]
    Shifted {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that were dropped.
        tokens: usize,
    },
    /// Segments were evicted from the device, or cleared.
    #[non_exhaustive]
    Evicted {
        /// Number of segments.
        segments: u64,
        /// Number of their tokens.
        tokens: u64,
    },
    /// A sequence has finished.
    #[non_exhaustive]
    Finished {
        /// The sequence.
        sequence: SequenceId,
        /// Why it ended.
        reason: FinishReason,
        /// Tokens generated.
        output_tokens: usize,
        /// Time since its submission.
        since_submit: Duration,
        /// Time from its first token to its last, if it has two or more.
        decoded: Option<Duration>,
    },
    /// A sequence has ended in an error.
    #[non_exhaustive]
    Failed {
        /// The sequence.
        sequence: SequenceId,
    },
}

/// One forward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepView {
    /// Steps since the engine's start, including this one.
    pub number: u64,
    /// When the step finished, since the engine's start.
    pub finished_at: Duration,
    /// How long the device worked on it.
    pub busy: Duration,
    /// The part of each sequence in the step, at most [`SPANS_MAX`](Self::SPANS_MAX).
    pub spans: Vec<SpanView>,
    /// Number of spans beyond those listed.
    pub spans_left_out: usize,
    /// Sequences with one token in the step, drafts aside: a decode, or the last token of a prompt.
    pub decode_tokens: usize,
    /// Tokens of all longer spans, drafts aside.
    pub prefill_tokens: usize,
    /// Draft tokens that it verified.
    pub draft_tokens: usize,
    /// The part of them that was right.
    pub accepted_tokens: usize,
    /// Whether the step failed.
    pub failed: bool,
}

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanView {
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens evaluated: one for a decode and each token of its draft, more for a prompt.
    pub tokens: usize,
    /// The part of them that is a draft.
    pub draft_tokens: usize,
}

impl StepView {
    /// Most spans that a step's event lists; the others are only counted.
    pub const SPANS_MAX: usize = 64;
}

impl SpanView {
    pub(crate) fn new(sequence: SequenceId, tokens: usize, draft_tokens: usize) -> Self {
        Self {
            sequence,
            tokens,
            draft_tokens,
        }
    }
}

/// A subscription to the events of an engine, from [`Engine::events`](crate::Engine::events). A
/// slow subscriber misses the oldest events and delays nothing.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<EngineEvent>,
    missed: u64,
}

impl Events {
    /// Events that may wait for one subscriber; beyond that it misses the oldest. At a thousand
    /// steps a second the bound covers most of a second.
    pub const WAITING_MAX: usize = 1024;

    pub(crate) fn new(receiver: broadcast::Receiver<EngineEvent>) -> Self {
        Self {
            receiver,
            missed: 0,
        }
    }

    /// Returns the next event; `None` once the engine has stopped.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no event is lost.
    pub async fn next(&mut self) -> Option<EngineEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(missed)) => self.missed += missed,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Returns the oldest event that was not received yet; `None` where there is none. Polling
    /// from time to time costs the engine less than waiting: no task is woken.
    pub fn try_next(&mut self) -> Option<EngineEvent> {
        loop {
            match self.receiver.try_recv() {
                Ok(event) => return Some(event),
                Err(TryRecvError::Lagged(missed)) => self.missed += missed,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }

    /// Returns the number of events that this subscription was too slow for, so far.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }
}
