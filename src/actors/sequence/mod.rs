//! One request's actor: turns tokens into text and sends both to the caller.
//!
//! Only events from the scheduler, in batches, can wake it. It never waits for its caller. The
//! output channel holds the tokens that a sequence may be ahead of its reader, the tokens in
//! flight when it paused, and the end.

mod held;
mod prompt_results;

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kameo::Actor;
use kameo::actor::{ActorRef, Recipient};
use kameo::message::{Context, Message};
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use crate::optional::{ReleasedText, TextOutput};
use crate::request::{Milestones, Piece, Prefill, TokenLogprobs};
use crate::results::ResultsReservation;
use crate::telemetry::Telemetry;
use held::HeldLogprobs;
use motet_core::cache::{Miss, MissReason};
use motet_protocol::{Finish, FinishReason, GenerateError, ReasoningTracker, TokenMask, Usage};
use motet_protocol::{SequenceId, TokenId, UserId};
use motet_sync::admission::{self, AdmissionError};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;
pub(crate) use prompt_results::PromptResults;

type Permit = admission::Permit<UserId>;

/// Most pieces that report how far a prompt is computed: at its start, at its end, and in
/// between.
pub(crate) const PREFILL_PIECES_MAX: usize = 18;

/// Events in order; nearly always one.
pub(crate) type Batch = SmallVec<[SequenceEvent; 1]>;

/// An event from the scheduler to a sequence.
#[derive(Debug)]
pub(crate) enum SequenceEvent {
    /// The sequence has its first slot; `cached_tokens` of its `prompt_tokens` were in the
    /// cache.
    Started {
        prompt_tokens: usize,
        cached_tokens: usize,
        miss: Option<Miss>,
    },
    /// This many tokens of the prompt are computed.
    Prefilled(usize),
    /// Log probabilities of the prompt's tokens from this offset on.
    PromptLogprobs(usize, Vec<TokenLogprobs>),
    /// The sum of the hidden states of these tokens of the prompt.
    HiddenSum(Range<usize>, Vec<f64>),
    /// This many tokens of the sequence have been dropped by context shifts so far.
    Shifted(usize),
    /// A new token, with its log probabilities if the request asks for them.
    Token(TokenId, Option<Arc<TokenLogprobs>>),
    /// The next token came as the request predicted.
    Predicted,
    /// The sequence has finished; no more tokens follow.
    Finished(FinishReason),
    /// The sequence has failed; no more tokens follow.
    Failed(GenerateError),
}

/// Asks the scheduler to stop a sequence.
pub(crate) struct Stop(pub(crate) SequenceId);

/// An item for the caller's stream. Many tokens may wait to be read: only their own fields take
/// memory.
#[derive(Debug)]
pub(crate) enum Output {
    Token {
        token: TokenId,
        text: String,
        has_held_text: bool,
        logprobs: Vec<TokenLogprobs>,
    },
    /// Anything else, of which there is little.
    Piece(Box<Piece>),
    Ended(Box<Result<Finish, GenerateError>>),
}

/// The end of a sequence, once it has ended.
pub(crate) type Ended = Option<Result<Finish, GenerateError>>;

/// The actor. It owns the text side of one request.
pub(crate) struct SequenceActor {
    args: SequenceArgs,
    usage: Usage,
    held: HeldLogprobs,
    /// Computed prompt tokens from which the caller gets the next progress report.
    next_progress_at: usize,
    last_token_at: Option<Instant>,
    /// A reserved place in the channel for the last item. `None` once that is sent, and if the
    /// caller had gone before the actor started.
    end: Option<mpsc::OwnedPermit<Output>>,
    done: bool,
}

/// Arguments of a sequence's start.
pub(crate) struct SequenceArgs {
    pub(crate) id: SequenceId,
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prediction.
    pub(crate) prediction_tokens: usize,
    /// Tokens that were cut from a prompt that was too long.
    pub(crate) truncated_tokens: usize,
    /// Whether the caller asked for progress reports of the prompt.
    pub(crate) report_prefill_progress: bool,
    /// The results that the caller asks for of its prompt.
    pub(crate) prompt_results: PromptResults,
    /// Counts the reasoning of the output, if the request bounds it.
    pub(crate) reasoning: Option<ReasoningTracker>,
    /// The beginning of the output, which the caller has already.
    pub(crate) so_far: SoFar,
    /// `None` on an engine without a tokenizer. It has read that beginning.
    pub(crate) text: Option<TextOutput>,
    pub(crate) output: mpsc::Sender<Output>,
    /// Tells the handles, also after the stream has been dropped.
    pub(crate) ended: watch::Sender<Ended>,
    pub(crate) scheduler: Recipient<Stop>,
    pub(crate) cancel: CancelFlag,
    pub(crate) credits: Credits,
    pub(crate) telemetry: Arc<Telemetry>,
    /// The only tokens that lists of the likeliest may name, if the model has others.
    pub(crate) known_tokens: Option<Arc<TokenMask>>,
    /// When it reached its stages, shared with the handles.
    pub(crate) milestones: Arc<Milestones>,
    /// Its permit to be inside the engine; released with the actor.
    pub(crate) admission_guard: AdmissionGuard,
    /// The bytes of the results that it keeps, shared with the stream.
    pub(crate) _results: Arc<ResultsReservation>,
}

/// The beginning of an output, which its caller has already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SoFar {
    pub(crate) tokens: usize,
    /// Bytes of its text that are held back, and come with the next.
    pub(crate) held_bytes: usize,
}

/// A request's permit to be inside the engine; a drain may wait for its drop.
#[derive(Debug)]
pub(crate) struct AdmissionGuard {
    permit: Option<Permit>,
    guard_released: Arc<Notify>,
    /// When the request was submitted; its deadlines count from here.
    pub(crate) entered_at: Instant,
}

impl AdmissionGuard {
    /// Wraps a permit; the drop notifies `guard_released`.
    pub(crate) fn new(permit: Permit, guard_released: Arc<Notify>) -> Self {
        Self {
            permit: Some(permit),
            guard_released,
            entered_at: Instant::now(),
        }
    }

    /// Reserves the tokens of the prompt, which now wait.
    pub(crate) fn claim(&mut self, tokens: usize) -> Result<(), AdmissionError> {
        self.permit().claim(tokens)
    }

    /// The prompt's tokens no longer count as waiting.
    fn started(&mut self) {
        self.permit().started();
    }

    fn permit(&mut self) -> &mut Permit {
        let permit = self.permit.as_mut();
        permit.expect("a guard holds its permit until it is dropped")
    }
}

impl Drop for AdmissionGuard {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.guard_released.notify_waiters();
    }
}

impl Actor for SequenceActor {
    type Args = SequenceArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        let mut usage = Usage::default();
        usage.prompt_tokens = args.prompt_tokens;
        usage.truncated_tokens = args.truncated_tokens;
        usage.prediction_tokens = args.prediction_tokens;
        usage.output_tokens = args.so_far.tokens;
        usage.reasoning_tokens = args.reasoning.as_ref().map_or(0, ReasoningTracker::tokens);
        let end = args.output.clone().try_reserve_owned().ok();
        let held_bytes = args.so_far.held_bytes;
        Ok(Self {
            args,
            usage,
            held: HeldLogprobs::after(held_bytes),
            next_progress_at: 0,
            last_token_at: None,
            end,
            done: false,
        })
    }
}

impl Message<Batch> for SequenceActor {
    type Reply = ();

    async fn handle(&mut self, batch: Batch, _ctx: &mut Context<Self, Self::Reply>) {
        for event in batch {
            match event {
                // The caller has its whole output; this is a late token or the end.
                _ if self.done => {}
                SequenceEvent::Started {
                    prompt_tokens,
                    cached_tokens,
                    miss,
                } => {
                    self.started(prompt_tokens, cached_tokens, miss);
                    self.prefilled(cached_tokens);
                }
                SequenceEvent::Prefilled(tokens) => self.prefilled(tokens),
                SequenceEvent::PromptLogprobs(first, mut logprobs) => {
                    if let Some(known) = &self.args.known_tokens {
                        let lists = logprobs.iter_mut().map(|one| &mut one.top);
                        lists.for_each(|top| top.retain(|(token, _)| known.allows(*token)));
                    }
                    let results = &mut self.args.prompt_results;
                    let piece = results.push_logprobs(first, logprobs);
                    self.send_prompt_results(piece);
                }
                SequenceEvent::HiddenSum(rows, sum) => {
                    let results = &mut self.args.prompt_results;
                    let piece = results.push_hidden_sum(&rows, &sum);
                    self.send_prompt_results(piece);
                }
                SequenceEvent::Shifted(tokens) => self.shifted(tokens),
                SequenceEvent::Predicted => self.usage.accepted_prediction_tokens += 1,
                SequenceEvent::Token(token, logprobs) => self.token(token, logprobs).await,
                SequenceEvent::Finished(reason) => self.finish(reason),
                SequenceEvent::Failed(error) => self.fail(error),
            }
        }
    }
}

impl SequenceActor {
    fn started(&mut self, prompt_tokens: usize, cached_tokens: usize, miss: Option<Miss>) {
        self.args.admission_guard.started();
        let unevaluated_tokens = self.args.prompt_results.unevaluated_tokens();
        // The beginning of the output that the caller has is computed with the prompt.
        let prompt_tokens = prompt_tokens.saturating_sub(self.args.so_far.tokens);
        self.usage.prompt_tokens = prompt_tokens + unevaluated_tokens;
        self.usage.cached_tokens = cached_tokens.min(prompt_tokens);
        // A caller must not learn that another salt's sequences computed the same prefix.
        self.usage.miss = miss.filter(|miss| miss.reason != MissReason::OtherSalt);
        let now = Instant::now();
        self.args.milestones.start(now);
        let waited = now.saturating_duration_since(self.args.milestones.submitted_at());
        let telemetry = &self.args.telemetry;
        telemetry.started(self.args.id, &self.usage, miss, waited);
    }

    /// Reports to the caller how far its prompt is computed, if requested, in at most
    /// [`PREFILL_PIECES_MAX`] pieces.
    fn prefilled(&mut self, computed_tokens: usize) {
        let all = self.usage.prompt_tokens;
        let computed_tokens = computed_tokens.min(all);
        if !self.args.report_prefill_progress || computed_tokens < self.next_progress_at {
            return;
        }
        let steps = PREFILL_PIECES_MAX - 2;
        self.next_progress_at = if computed_tokens < all {
            (computed_tokens + all.div_ceil(steps)).min(all)
        } else {
            usize::MAX
        };
        let prefill = Prefill {
            computed_tokens,
            cached_tokens: self.usage.cached_tokens,
            prompt_tokens: all,
        };
        let sent = self.send(Piece {
            prefill: Some(prefill),
            ..Piece::default()
        });
        assert!(sent, "the channel holds the progress of a prompt");
    }

    /// Sends the results of the prompt, if they are complete.
    fn send_prompt_results(&self, piece: Option<Piece>) {
        if let Some(piece) = piece {
            let sent = self.send(piece);
            assert!(sent, "the channel holds the results of a prompt");
        }
    }

    fn shifted(&mut self, discarded_tokens: usize) {
        // Recomputed tokens are shifted again; they count once.
        let newly_shifted = discarded_tokens.saturating_sub(self.usage.shifted_tokens);
        if newly_shifted > 0 {
            self.usage.shifted_tokens = discarded_tokens;
            self.args.telemetry.shifted(self.args.id, newly_shifted);
        }
    }

    async fn token(&mut self, token: TokenId, logprobs: Option<Arc<TokenLogprobs>>) {
        self.usage.output_tokens += 1;
        if let Some(reasoning) = &mut self.args.reasoning {
            reasoning.push(token);
            self.usage.reasoning_tokens = reasoning.tokens();
        }
        self.measure_token();
        let (visible, logprobs) = match &mut self.args.text {
            Some(text) => match text.push(token) {
                Ok(visible) => {
                    self.held.push(logprobs, visible.completed_bytes);
                    let logprobs = self.held.show(visible.text.len());
                    (visible, logprobs)
                }
                Err(error) => {
                    self.fail(GenerateError::Text(error.to_string()));
                    return self.stop().await;
                }
            },
            None => {
                let visible = logprobs.map(Arc::unwrap_or_clone);
                (ReleasedText::default(), visible.into_iter().collect())
            }
        };
        let sent = self.send_output(Output::Token {
            token,
            text: visible.text,
            has_held_text: visible.has_held_text,
            logprobs,
        });
        if !sent {
            let unread = self.args.credits.unread();
            let waited = Duration::ZERO;
            self.fail(GenerateError::SlowReader { unread, waited });
        } else if visible.stopped {
            self.end(FinishReason::StopString);
        }
        if self.done {
            self.stop().await;
        }
    }

    /// Sends the text that was held back, then the end.
    fn finish(&mut self, reason: FinishReason) {
        let rest = self.args.text.as_mut().map(TextOutput::finish);
        let text = rest.unwrap_or_default();
        let logprobs = self.held.show_all();
        if !text.is_empty() || !logprobs.is_empty() {
            let sent = self.send(Piece {
                text,
                logprobs,
                ..Piece::default()
            });
            assert!(sent, "the channel holds the text that was held back");
        }
        self.end(reason);
    }

    fn end(&mut self, reason: FinishReason) {
        let usage = self.usage;
        let milestones = &self.args.milestones;
        let decoded = milestones.first_token_at().zip(self.last_token_at);
        self.args.telemetry.finished(
            self.args.id,
            reason,
            usage.output_tokens - self.args.so_far.tokens,
            milestones.submitted_at().elapsed(),
            decoded.map(|(first, last)| last.saturating_duration_since(first)),
        );
        self.send_last(Ok(Finish::new(reason, usage)));
    }

    fn fail(&mut self, error: GenerateError) {
        self.args.telemetry.failed(self.args.id, &error);
        self.send_last(Err(error));
    }

    fn send_last(&mut self, ended: Result<Finish, GenerateError>) {
        // The scheduler may not know of this end yet: a cancel by a handle must not seem to win.
        self.args.cancel.finish();
        self.args.milestones.end(Instant::now());
        if let Some(end) = self.end.take() {
            end.send(Output::Ended(Box::new(ended.clone())));
        }
        self.args.ended.send_replace(Some(ended));
        self.done = true;
    }

    /// Tells the scheduler to stop the sequence.
    async fn stop(&self) {
        // A scheduler that is gone has stopped all sequences.
        self.args
            .scheduler
            .tell(Stop(self.args.id))
            .send()
            .await
            .ok();
    }

    /// As [`send_output`](Self::send_output).
    #[must_use]
    fn send(&self, piece: Piece) -> bool {
        self.send_output(Output::Piece(Box::new(piece)))
    }

    /// Returns false when the channel is full: the scheduler continued though the reader did
    /// not read.
    #[must_use]
    fn send_output(&self, output: Output) -> bool {
        match self.args.output.try_send(output) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => {
                // The caller has gone; the scheduler reads the cancel flag at its next step.
                self.args.cancel.cancel();
                true
            }
            Err(mpsc::error::TrySendError::Full(_)) => false,
        }
    }

    fn measure_token(&mut self) {
        let now = Instant::now();
        let telemetry = &self.args.telemetry;
        match self.last_token_at.replace(now) {
            None => {
                let milestones = &self.args.milestones;
                milestones.token(now);
                let computed = milestones.started_at();
                let computed = computed.map(|started| now.saturating_duration_since(started));
                let since_submit = now.saturating_duration_since(milestones.submitted_at());
                telemetry.first_token(self.args.id, since_submit, computed);
            }
            Some(before) => telemetry.next_token(now.saturating_duration_since(before)),
        }
    }
}
