//! One request's actor: turns tokens into text and brings both to its caller.
//!
//! What can wake it: news from the scheduler, in batches. Its output channel holds
//! all that the request may produce, so it never waits for its caller; how much
//! that is was bounded at submit.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use kameo::Actor;
use kameo::actor::ActorRef;
use kameo::message::{Context, Message};
use tokio::sync::{Notify, mpsc};

use super::scheduler::{Scheduler, Stop};
use crate::error::GenerateError;
use crate::request::{Finish, FinishReason, Piece, Usage};
use crate::shared::admission::Permit;
use crate::shared::cancel::CancelWord;
use crate::telemetry::Telemetry;
use crate::text::{Certain, TextOutput};
use crate::{SequenceId, TokenId};

/// What the scheduler tells a sequence.
#[derive(Debug)]
pub(crate) enum News {
    /// It has a slot; of so many prompt tokens, so many were in the cache.
    Started {
        prompt_tokens: usize,
        cached_tokens: usize,
    },
    /// A new token.
    Token(TokenId),
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
    last_token_at: Option<Instant>,
    done: bool,
}

/// What a sequence starts with.
pub(crate) struct SequenceArgs {
    pub(crate) id: SequenceId,
    pub(crate) prompt_tokens: usize,
    /// None on an engine without a tokenizer.
    pub(crate) text: Option<TextOutput>,
    pub(crate) output: mpsc::Sender<Output>,
    pub(crate) scheduler: ActorRef<Scheduler>,
    pub(crate) cancel: CancelWord,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) submitted_at: Instant,
    /// Its place in the house; given back when the actor is gone.
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) guest: Guest,
}

/// A request's place in the house; its drop may be what a drain waits for.
#[derive(Debug)]
pub(crate) struct Guest {
    permit: Option<Permit>,
    left: Arc<Notify>,
}

impl Guest {
    /// The holder of a permit, who says so on `left` when it goes.
    pub(crate) fn new(permit: Permit, left: Arc<Notify>) -> Self {
        Self {
            permit: Some(permit),
            left,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.left.notify_waiters();
    }
}

impl Actor for Sequence {
    type Args = SequenceArgs;
    type Error = Infallible;

    async fn on_start(args: Self::Args, _actor_ref: ActorRef<Self>) -> Result<Self, Self::Error> {
        let usage = Usage {
            prompt_tokens: args.prompt_tokens,
            ..Usage::default()
        };
        Ok(Self {
            args,
            usage,
            last_token_at: None,
            done: false,
        })
    }
}

impl Message<Vec<News>> for Sequence {
    type Reply = ();

    async fn handle(&mut self, batch: Vec<News>, _ctx: &mut Context<Self, Self::Reply>) {
        for news in batch {
            match news {
                // Its caller has what it wanted; this is a late token or the end.
                _ if self.done => {}
                News::Started {
                    prompt_tokens,
                    cached_tokens,
                } => self.started(prompt_tokens, cached_tokens),
                News::Token(token) => self.token(token).await,
                News::Finished(reason) => self.finish(reason),
                News::Failed(error) => self.fail(error),
            }
        }
    }
}

impl Sequence {
    fn started(&mut self, prompt_tokens: usize, cached_tokens: usize) {
        self.usage.prompt_tokens = prompt_tokens;
        self.usage.cached_tokens = cached_tokens;
        self.args
            .telemetry
            .started(&self.usage, self.args.submitted_at);
    }

    async fn token(&mut self, token: TokenId) {
        self.usage.output_tokens += 1;
        self.measure_token();
        let certain = match &mut self.args.text {
            Some(text) => text.push(token),
            None => Ok(Certain::default()),
        };
        match certain {
            Ok(certain) => {
                let token = Some(token);
                self.send(Output::Piece(Piece {
                    token,
                    text: certain.text,
                }));
                if certain.stopped {
                    self.end(FinishReason::StopString);
                    self.stop().await;
                }
            }
            Err(error) => {
                self.fail(GenerateError::Text(error.to_string()));
                self.stop().await;
            }
        }
    }

    /// The last word: what was held back, then the end.
    fn finish(&mut self, reason: FinishReason) {
        let rest = self.args.text.as_mut().map(TextOutput::finish);
        if let Some(text) = rest.filter(|rest| !rest.is_empty()) {
            self.send(Output::Piece(Piece { token: None, text }));
        }
        self.end(reason);
    }

    fn end(&mut self, reason: FinishReason) {
        let usage = self.usage;
        self.args.telemetry.finished(reason);
        self.send(Output::Finish(Finish { reason, usage }));
        self.done = true;
    }

    fn fail(&mut self, error: GenerateError) {
        self.args.telemetry.failed();
        self.send(Output::Failed(error));
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

    fn send(&self, output: Output) {
        match self.args.output.try_send(output) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => {
                // The caller has left; the scheduler sees the word at its next step.
                self.args.cancel.cancel();
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                unreachable!("the channel holds all that a request may produce")
            }
        }
    }

    fn measure_token(&mut self) {
        let now = Instant::now();
        match self.last_token_at.replace(now) {
            None => self
                .args
                .telemetry
                .first_token(now - self.args.submitted_at),
            Some(before) => self.args.telemetry.next_token(now - before),
        }
    }
}
