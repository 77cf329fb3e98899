//! What happens in an engine, as it happens.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use motet_core::SequenceId;
use motet_core::cache::Miss;
use motet_core::protocol::FinishReason;

/// Events that may wait for one watcher; beyond, it misses the oldest. At a thousand steps a
/// second that is most of a second.
pub const EVENTS_MAX: usize = 1024;
/// Spans of a step that an event tells; of the others, how many there are.
pub const SPANS_MAX: usize = 64;

/// Something that has happened in an engine. Cheap to clone.
///
/// A step tells what the device has done, all else what a sequence's caller is told: so the
/// step that has brought a sequence's first token may be told before or after that.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EngineEvent {
    /// A step has landed.
    Step(Arc<StepView>),
    /// A sequence has its first slot.
    #[non_exhaustive]
    Started {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of its prompt.
        prompt_tokens: usize,
        /// Of these, tokens whose state was in the cache.
        cached_tokens: usize,
        /// Why no more of them were, where more had been computed, or was being computed.
        miss: Option<Miss>,
        /// Time since its submit.
        waited: Duration,
    },
    /// A sequence has its first token.
    #[non_exhaustive]
    FirstToken {
        /// The sequence.
        sequence: SequenceId,
        /// Time since its submit.
        since_submit: Duration,
    },
    /// A sequence has lost its slot for want of memory, and goes on later.
    #[non_exhaustive]
    Preempted {
        /// The sequence.
        sequence: SequenceId,
    },
    /// A sequence continues another.
    #[non_exhaustive]
    Forked {
        /// The new sequence.
        sequence: SequenceId,
        /// The other.
        source: SequenceId,
        /// How many of the other's tokens it begins with.
        at: usize,
    },
    /// A sequence's context was full, and it has forgotten some of its oldest tokens.
    #[non_exhaustive]
    Shifted {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens that it has forgotten now.
        tokens: usize,
    },
    /// What was cached was evicted from the device, or cleared.
    #[non_exhaustive]
    Evicted {
        /// Segments.
        segments: u64,
        /// Their tokens.
        tokens: u64,
    },
    /// A sequence is over.
    #[non_exhaustive]
    Finished {
        /// The sequence.
        sequence: SequenceId,
        /// Why it ended.
        reason: FinishReason,
        /// Tokens that it generated.
        output_tokens: usize,
        /// Time since its submit.
        since_submit: Duration,
        /// Time from its first token to its last, if it has two.
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
    /// Steps since the engine's start, this one counted.
    pub number: u64,
    /// When it landed, since the engine's start.
    pub finished_at: Duration,
    /// How long the device worked on it.
    pub busy: Duration,
    /// What each sequence had in it, [`SPANS_MAX`] at most.
    pub spans: Vec<SpanView>,
    /// Spans beyond these.
    pub spans_left_out: usize,
    /// Sequences that had one token in it: they decoded, or came to the end of a prompt.
    pub decode_tokens: usize,
    /// Tokens of all longer spans.
    pub prefill_tokens: usize,
    /// Whether it failed.
    pub failed: bool,
}

/// One sequence's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanView {
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens that were evaluated: one to decode, more of a prompt.
    pub tokens: usize,
}

impl SpanView {
    pub(crate) fn new(sequence: SequenceId, tokens: usize) -> Self {
        Self { sequence, tokens }
    }
}

/// A subscription to what happens in an engine, from [`Engine::events`](crate::Engine::events)
/// on. Whoever is slow misses the oldest events, and holds nobody up.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<EngineEvent>,
    missed: u64,
}

impl Events {
    pub(crate) fn new(receiver: broadcast::Receiver<EngineEvent>) -> Self {
        Self {
            receiver,
            missed: 0,
        }
    }

    /// What happens next; none once the engine is gone.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no event is lost by it.
    pub async fn next(&mut self) -> Option<EngineEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(missed)) => self.missed += missed,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// What has happened and was not taken yet, oldest first; none where nothing has. To
    /// look now and then costs the engine less than to wait: nobody is woken.
    pub fn try_next(&mut self) -> Option<EngineEvent> {
        loop {
            match self.receiver.try_recv() {
                Ok(event) => return Some(event),
                Err(TryRecvError::Lagged(missed)) => self.missed += missed,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }

    /// Events that this subscription has missed so far, for being slow.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }
}
