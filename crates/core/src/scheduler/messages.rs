//! The scheduler's messages: events that come in, and effects that go out.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::MaskGate;
use crate::cache::{self, CacheError, Miss, PrefixKey};
use motet_protocol::{
    ContextLimit, FinishReason, GenerateError, Outcome, Priority, PromptOutput, ReasoningTracker,
    Sampling, SamplingSpec, TokenLogprobs, Work, only_sequence,
};
use motet_protocol::{SequenceId, TokenId, UserId};

/// Everything that can happen to the scheduler.
#[derive(Debug)]
pub enum Event {
    /// A new sequence.
    Submit(Submission),
    /// A new sequence that continues one that is not finished.
    Fork(Fork),
    /// A cache command of a caller; [`Effect::CommandDone`] brings the result.
    CacheCommand {
        /// The caller's id for it.
        command_id: u64,
        /// The command.
        message: cache::Message,
    },
    /// The sequence must stop: its caller has left, or has all the text that it wants.
    Stop(SequenceId),
    /// The sequence is as far ahead of its caller's reading as it may be.
    Pause(SequenceId),
    /// The sequence's caller has read.
    Resume(SequenceId),
    /// Whether the sequence's masks let it be part of a step.
    Mask(SequenceId, MaskGate),
    /// The cache's answer to the oldest unanswered message.
    Cache(Result<Vec<cache::Effect>, CacheError>),
    /// Effects that the cache sends without a message to answer.
    CacheEffects(Vec<cache::Effect>),
    /// The device's answer to the oldest work in flight.
    Outcome(Outcome),
    /// Time has passed: see [`SchedulerCore::wakes_at`](super::SchedulerCore::wakes_at).
    TimePassed,
    /// The device thread ended or was abandoned, for this reason. The work that was sent to it
    /// gets no outcome.
    DeviceLost(String),
    /// There is another device, which is empty.
    DeviceFound,
    /// The cache has failed, and is empty. If one sequence is known to make it fail each time,
    /// that sequence fails with this error.
    CacheLost(Option<(SequenceId, GenerateError)>),
    /// This scheduler replaces one that has failed. This must be its first event.
    Rebuilt(Predecessor),
    /// A sequence of the failed scheduler continues.
    Restore(History),
    /// All sequences end now.
    Abort,
    /// All sequences end when the steps in flight have finished, and go on elsewhere.
    HandOver,
}

/// A new sequence, as the scheduler sees it.
///
/// The fields are flat: the engine fills them from one request, and the sequence keeps them whole
/// and unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Its id. Ids are given in order of arrival.
    pub sequence: SequenceId,
    /// The prompt; at least one token.
    pub prompt: Arc<[TokenId]>,
    /// Tokens that it may generate. If 0, it ends when its prompt is computed.
    pub output_tokens_max: usize,
    /// Results that its caller wants of its prompt. Its context is then not shifted, and it is no
    /// fork.
    pub prompt_output: Option<PromptOutput>,
    /// How its tokens are sampled.
    pub sampling: Sampling,
    /// Sampling settings beyond these, if any.
    pub sampling_spec: Option<Arc<SamplingSpec>>,
    /// Tokens that end it and are not part of its output: the model's, unless they are ignored,
    /// and its own.
    pub end_tokens: Arc<[TokenId]>,
    /// The user that it belongs to.
    pub user: UserId,
    /// Weight of its user's share beside other users' shares; positive.
    pub weight: f64,
    /// Its priority class.
    pub priority: Priority,
    /// Deadline for its first slot, as the engine's time.
    pub start_by: Option<Duration>,
    /// Deadline for its end, as the engine's time.
    pub finish_by: Option<Duration>,
    /// Behavior when its context is full.
    pub at_context_limit: ContextLimit,
    /// Its key: it shares cached state with sequences of the same key only.
    pub key: PrefixKey,
    /// Offsets in its prompt at which it must be restorable.
    pub restore_points: Vec<usize>,
    /// The end of the conversation so far in its prompt, before the tokens that ask for an
    /// answer; `None` if unknown.
    pub turn_end: Option<usize>,
    /// Priority with which its cached state is kept.
    pub retention: u8,
    /// Follows its reasoning from its first token on, if that is bounded.
    pub reasoning: Option<ReasoningTracker>,
    /// Whether its caller receives [`Effect::Prefilled`].
    pub report_prefill_progress: bool,
    /// Whether its tokens may be drafted.
    pub speculates: bool,
    /// The output that its caller predicts, or an empty one.
    pub prediction: Arc<[TokenId]>,
    /// The beginning of its output, which its caller has already, or an empty one.
    pub output_so_far: Arc<[TokenId]>,
}

impl Submission {
    /// A greedy sequence of normal priority, without a deadline. It ends after
    /// `output_tokens_max` tokens; all other fields have their defaults.
    #[must_use]
    pub fn new(
        sequence: SequenceId,
        prompt: impl Into<Arc<[TokenId]>>,
        output_tokens_max: usize,
    ) -> Self {
        Self {
            sequence,
            prompt: prompt.into(),
            output_tokens_max,
            prompt_output: None,
            sampling: Sampling::GREEDY,
            sampling_spec: None,
            end_tokens: Arc::default(),
            user: UserId::default(),
            weight: 1.0,
            priority: Priority::Normal,
            start_by: None,
            finish_by: None,
            at_context_limit: ContextLimit::Stop,
            key: PrefixKey::default(),
            restore_points: Vec::new(),
            turn_end: None,
            retention: 0,
            reasoning: None,
            report_prefill_progress: false,
            speculates: true,
            prediction: Arc::default(),
            output_so_far: Arc::default(),
        }
    }
}

/// A new sequence that continues one that is not finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Fork {
    /// The sequence to continue.
    pub source: SequenceId,
    /// Number of the source's tokens that it continues, prompt and output; `None` is all.
    pub at: Option<usize>,
    /// Whether the source ends. The new sequence then takes over its slot, if it can continue
    /// there.
    pub replaces: bool,
    /// The new sequence. Its prompt follows the source's tokens, and may be empty. It takes the
    /// source's key and its behavior when the context is full.
    pub submission: Submission,
}

/// An action that an event requires.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// A message to the cache.
    Cache(cache::Message),
    /// Work for the device.
    Work(Work),
    /// The sequence has a new token, with the log probabilities of its candidates if requested.
    Token(SequenceId, TokenId, Option<Arc<TokenLogprobs>>),
    /// The sequence has its first slot.
    Started {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of its prompt; a fork's includes the tokens that it continues.
        prompt_tokens: usize,
        /// Tokens of the prompt whose state was cached.
        cached_tokens: usize,
        /// Why no more tokens were cached, if more might have been.
        miss: Option<Miss>,
    },
    /// Number of the sequence's prompt tokens that are computed. Sent if
    /// [`Submission::report_prefill_progress`] is set.
    Prefilled(SequenceId, usize),
    /// Log probabilities of the sequence's prompt tokens from this offset on. Those of an earlier
    /// offset came before. If this is the first offset that was asked for, they begin again.
    PromptLogprobs(SequenceId, usize, Vec<TokenLogprobs>),
    /// The sum of the hidden states of these tokens of the sequence's prompt. Those of earlier
    /// tokens came before. If these are the first that were asked for, the sum begins again.
    HiddenSum(SequenceId, Range<usize>, Vec<f64>),
    /// Number of the sequence's tokens that were dropped so far because its context was full. A
    /// sequence that is computed again drops the same tokens again, and this effect repeats.
    Shifted(SequenceId, usize),
    /// The sequence continues another.
    Forked {
        /// The new sequence.
        sequence: SequenceId,
        /// The other sequence.
        source: SequenceId,
        /// Number of the other's tokens with which it starts.
        at: usize,
    },
    /// The sequence was preempted, and continues later.
    Preempted(SequenceId),
    /// The sequence has a slot again, and its grammar must catch up with its output.
    /// [`Event::Mask`] opens its gate.
    AwaitMask(SequenceId),
    /// The cache has answered an [`Event::CacheCommand`].
    CommandDone(u64, Result<(), CacheError>),
    /// The sequence's next token came as its caller predicted. Sent before the token: its caller may
    /// end the sequence with any.
    Predicted(SequenceId),
    /// The sequence is finished.
    Finished(SequenceId, FinishReason),
    /// The sequence has failed, and its output is incomplete.
    Failed(SequenceId, GenerateError),
}

/// State that a failed scheduler leaves to its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// Epoch of the last work that was sent.
    pub epoch: u64,
    /// Messages that the cache has not answered yet.
    pub pending_answers: usize,
    /// Work that the device has not answered yet.
    pub in_flight: usize,
    /// Whether there is no device now.
    pub device_away: bool,
}

/// A sequence as its caller knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The submission that created it; for a fork, with all tokens that it continues.
    pub submission: Submission,
    /// Tokens generated so far.
    pub generated: Vec<TokenId>,
    /// Whether it has had a slot.
    pub started: bool,
    /// Whether it waits for its reader.
    pub paused: bool,
}

/// Gauges and counters of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SchedulerStats {
    /// Sequences with a slot.
    pub running: usize,
    /// Sequences without a slot.
    pub waiting: usize,
    /// Waiting sequences for which another sequence computes their common prefix.
    pub awaiting_prefix: usize,
    /// Sequences whose callers do not read.
    pub paused: usize,
    /// Preemptions so far.
    pub preempted: u64,
    /// Time so far in which the device was idle although there was work.
    pub device_idle: Duration,
    /// Drafts so far.
    pub drafts: DraftCounts,
}

/// Drafts that were verified, and their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DraftCounts {
    /// Drafts.
    pub drafts: u64,
    /// Their tokens.
    pub draft_tokens: u64,
    /// Those of the tokens that were right.
    pub accepted_tokens: u64,
}

impl DraftCounts {
    /// Counts a draft of so many tokens.
    pub(super) fn count(&mut self, draft_tokens: usize, accepted: usize) {
        self.drafts += 1;
        self.draft_tokens += draft_tokens as u64;
        self.accepted_tokens += accepted as u64;
    }

    /// Returns the counts since an earlier moment; zeros if they began again meanwhile.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            drafts: self.drafts.saturating_sub(before.drafts),
            draft_tokens: self.draft_tokens.saturating_sub(before.draft_tokens),
            accepted_tokens: self.accepted_tokens.saturating_sub(before.accepted_tokens),
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, more: Self) {
        self.drafts += more.drafts;
        self.draft_tokens += more.draft_tokens;
        self.accepted_tokens += more.accepted_tokens;
    }
}

impl Event {
    /// Returns the sequence that the event concerns, if it concerns exactly one. That sequence
    /// is suspected when the scheduler panics while handling the event.
    #[must_use]
    pub fn concerns(&self) -> Option<SequenceId> {
        match self {
            Self::Submit(submission) => Some(submission.sequence),
            Self::Fork(fork) => Some(fork.submission.sequence),
            Self::Restore(history) => Some(history.submission.sequence),
            Self::Stop(sequence)
            | Self::Pause(sequence)
            | Self::Resume(sequence)
            | Self::Mask(sequence, _) => Some(*sequence),
            Self::Cache(Ok(effects)) | Self::CacheEffects(effects) => {
                only_sequence(effects.iter().map(cache::Effect::concerns))
            }
            Self::Cache(Err(_))
            | Self::CacheCommand { .. }
            | Self::Outcome(_)
            | Self::TimePassed
            | Self::DeviceLost(_)
            | Self::DeviceFound
            | Self::CacheLost(_)
            | Self::Rebuilt(_)
            | Self::Abort
            | Self::HandOver => None,
        }
    }
}
