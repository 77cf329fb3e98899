//! One request's actor: turns tokens into text and brings both to its caller.
//!
//! What can wake it: news from the scheduler, in batches. It never waits for its caller:
//! its output channel holds as much as the scheduler lets a sequence be ahead of its
//! reader, what was under way when it paused, and the end.

mod held;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kameo::Actor;
use kameo::actor::ActorRef;
use kameo::message::{Context, Message};
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::scheduler::{Scheduler, Stop};
use crate::request::{Piece, Prefill, TokenLogprobs};
use crate::telemetry::Telemetry;
use held::HeldLogprobs;
use motet_core::cache::{Miss, MissReason};
use motet_core::protocol::{Finish, FinishReason, GenerateError, Usage};
use motet_core::{SequenceId, TokenId, UserId};
use motet_sync::admission::{self, AdmissionError};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;
use motet_text::{ReleasedText, TextOutput};

type Permit = admission::Permit<UserId>;

/// Pieces that tell how far a prompt is computed: at its start, at its end, and in between.
pub(crate) const PREFILL_PIECES_MAX: usize = 18;

/// News in order; nearly always one.
pub(crate) type Batch = SmallVec<[SequenceEvent; 1]>;

/// What the scheduler tells a sequence.
#[derive(Debug)]
pub(crate) enum SequenceEvent {
    /// It has a slot; of so many prompt tokens, so many were in the cache.
    Started {
        prompt_tokens: usize,
        cached_tokens: usize,
        miss: Option<Miss>,
    },
    /// So many tokens of its prompt are computed.
    Prefilled(usize),
    /// So many of its tokens are forgotten by now.
    Shifted(usize),
    /// A new token, and how likely it was if the request wants to know.
    Token(TokenId, Option<Arc<TokenLogprobs>>),
    /// There will be no more.
    Finished(FinishReason),
    /// There will be no more, and not by anyone's wish.
    Failed(GenerateError),
}

/// What a sequence sends to its caller.
#[derive(Debug)]
pub(crate) enum Output {
    Piece(Piece),
    Finish(Finish),
    Failed(GenerateError),
}

/// The actor. Owns the text side of one request.
pub(crate) struct Sequence {
    args: SequenceArgs,
    usage: Usage,
    held: HeldLogprobs,
    started_at: Option<Instant>,
    /// From how many computed tokens of its prompt on its caller is told again.
    next_progress_at: usize,
    first_token_at: Option<Instant>,
    last_token_at: Option<Instant>,
    /// Room in the channel for the last word; none once that is said, or if the caller
    /// had left before it began.
    end: Option<mpsc::OwnedPermit<Output>>,
    done: bool,
}

/// What a sequence starts with.
pub(crate) struct SequenceArgs {
    pub(crate) id: SequenceId,
    pub(crate) prompt_tokens: usize,
    /// Tokens that were taken out of the prompt, which was too long.
    pub(crate) truncated_tokens: usize,
    /// Whether its caller wants to know how far its prompt is computed.
    pub(crate) report_prefill_progress: bool,
    /// None on an engine without a tokenizer.
    pub(crate) text: Option<TextOutput>,
    pub(crate) output: mpsc::Sender<Output>,
    pub(crate) scheduler: ActorRef<Scheduler>,
    pub(crate) cancel: CancelFlag,
    pub(crate) credits: Credits,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) submitted_at: Instant,
    /// Its place in the house; given back when the actor is gone.
    pub(crate) admission_guard: AdmissionGuard,
}

/// A request's place in the house; its drop may be what a drain waits for.
#[derive(Debug)]
pub(crate) struct AdmissionGuard {
    permit: Option<Permit>,
    guard_released: Arc<Notify>,
}

impl AdmissionGuard {
    /// The holder of a permit, who says so on `guard_released` when it goes.
    pub(crate) fn new(permit: Permit, guard_released: Arc<Notify>) -> Self {
        Self {
            permit: Some(permit),
            guard_released,
        }
    }

    /// Claims the tokens of its prompt, which now wait.
    pub(crate) fn claim(&mut self, tokens: usize) -> Result<(), AdmissionError> {
        self.permit().claim(tokens)
    }

    /// Its prompt waits no more.
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

impl Actor for Sequence {
    type Args = SequenceArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        let mut usage = Usage::default();
        usage.prompt_tokens = args.prompt_tokens;
        usage.truncated_tokens = args.truncated_tokens;
        let end = args.output.clone().try_reserve_owned().ok();
        Ok(Self {
            args,
            usage,
            held: HeldLogprobs::default(),
            started_at: None,
            next_progress_at: 0,
            first_token_at: None,
            last_token_at: None,
            end,
            done: false,
        })
    }
}

impl Message<Batch> for Sequence {
    type Reply = ();

    async fn handle(&mut self, batch: Batch, _ctx: &mut Context<Self, Self::Reply>) {
        for event in batch {
            match event {
                // Its caller has what it wanted; this is a late token or the end.
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
                SequenceEvent::Shifted(tokens) => self.shifted(tokens),
                SequenceEvent::Token(token, logprobs) => self.token(token, logprobs).await,
                SequenceEvent::Finished(reason) => self.finish(reason),
                SequenceEvent::Failed(error) => self.fail(error),
            }
        }
    }
}

impl Sequence {
    fn started(&mut self, prompt_tokens: usize, cached_tokens: usize, miss: Option<Miss>) {
        self.args.admission_guard.started();
        self.usage.prompt_tokens = prompt_tokens;
        self.usage.cached_tokens = cached_tokens;
        // What others have said is not for its caller to know.
        self.usage.miss = miss.filter(|miss| miss.reason != MissReason::OtherSalt);
        let now = Instant::now();
        self.started_at = Some(now);
        let waited = now - self.args.submitted_at;
        let telemetry = &self.args.telemetry;
        telemetry.started(self.args.id, &self.usage, miss, waited);
    }

    /// Tells its caller how far its prompt is computed, in [`PREFILL_PIECES_MAX`] pieces at
    /// most, if it wants to know.
    fn prefilled(&mut self, computed_tokens: usize) {
        let all = self.usage.prompt_tokens;
        if !self.args.report_prefill_progress || computed_tokens < self.next_progress_at {
            return;
        }
        let steps = PREFILL_PIECES_MAX - 2;
        self.next_progress_at = match computed_tokens < all {
            true => (computed_tokens + all.div_ceil(steps)).min(all),
            false => usize::MAX,
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
        assert!(sent, "the channel has room for the progress of a prompt");
    }

    fn shifted(&mut self, discarded_tokens: usize) {
        // What is computed anew is shifted again.
        let newly_shifted = discarded_tokens.saturating_sub(self.usage.shifted_tokens);
        if newly_shifted > 0 {
            self.usage.shifted_tokens = discarded_tokens;
            self.args.telemetry.shifted(self.args.id, newly_shifted);
        }
    }

    async fn token(&mut self, token: TokenId, logprobs: Option<Arc<TokenLogprobs>>) {
        self.usage.output_tokens += 1;
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
        let sent = self.send(Piece {
            token: Some(token),
            text: visible.text,
            logprobs,
            prefill: None,
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

    /// The last word: what was held back, then the end.
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
            assert!(sent, "the channel has room for what is held back");
        }
        self.end(reason);
    }

    fn end(&mut self, reason: FinishReason) {
        let usage = self.usage;
        let decoded = self.first_token_at.zip(self.last_token_at);
        self.args.telemetry.finished(
            self.args.id,
            reason,
            usage.output_tokens,
            self.args.submitted_at.elapsed(),
            decoded.map(|(first, last)| last - first),
        );
        self.send_last(Output::Finish(Finish::new(reason, usage)));
    }

    fn fail(&mut self, error: GenerateError) {
        self.args.telemetry.failed(self.args.id, &error);
        self.send_last(Output::Failed(error));
    }

    fn send_last(&mut self, output: Output) {
        if let Some(end) = self.end.take() {
            end.send(output);
        }
        self.done = true;
    }

    /// Tells the scheduler that no more tokens are wanted.
    async fn stop(&self) {
        // A scheduler that is gone has stopped everything.
        self.args
            .scheduler
            .tell(Stop(self.args.id))
            .send()
            .await
            .ok();
    }

    /// False when there is no room: the scheduler went on though the reader did not.
    #[must_use]
    fn send(&self, piece: Piece) -> bool {
        match self.args.output.try_send(Output::Piece(piece)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => {
                // The caller has left; the scheduler sees the word at its next step.
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
                self.first_token_at = Some(now);
                let computed = self.started_at.map(|started| now - started);
                let since_submit = now - self.args.submitted_at;
                telemetry.first_token(self.args.id, since_submit, computed);
            }
            Some(before) => telemetry.next_token(now - before),
        }
    }
}
