//! From the engine's pieces to Dynamo's.

use std::collections::VecDeque;

use dynamo_backend_common::{
    CompletionUsage, DynamoError, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails,
    TopLogprob, usage,
};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use motet::error::GenerateError;
use motet::request::{Finish, FinishReason, Piece, TokenLogprobs};
use motet::{TokenId, TokenStream};

use crate::errors;

/// The items of an output, as Dynamo reads them.
pub(crate) type Items = BoxStream<'static, Result<LLMEngineOutput, DynamoError>>;

/// Resolves when the caller wants no more of an output.
pub(crate) type Stopped = BoxFuture<'static, ()>;

/// The output of a request. Dropping it cancels the sequence.
///
/// Tokens go out with their log probabilities. Those that wait when the output is handed over are
/// computed again elsewhere.
pub(crate) struct Answer {
    stream: TokenStream,
    stopped: Stopped,
    has_logprobs: bool,
    waiting: VecDeque<TokenId>,
    logprobs: VecDeque<TokenLogprobs>,
    sent_tokens: usize,
    has_ended: bool,
}

impl Answer {
    pub(crate) fn new(stream: TokenStream, stopped: Stopped, has_logprobs: bool) -> Self {
        Self {
            stream,
            stopped,
            has_logprobs,
            waiting: VecDeque::new(),
            logprobs: VecDeque::new(),
            sent_tokens: 0,
            has_ended: false,
        }
    }

    /// The items, of which the last is the only one with an end.
    pub(crate) fn into_items(self) -> Items {
        let items = stream::unfold(self, |mut answer| async move {
            let item = answer.next().await?;
            Some((item, answer))
        });
        items.boxed()
    }

    async fn next(&mut self) -> Option<Result<LLMEngineOutput, DynamoError>> {
        while !self.has_ended {
            let piece = tokio::select! {
                biased;
                () = &mut self.stopped => None,
                piece = self.stream.next() => Some(piece),
            };
            let item = match piece {
                None => Some(Ok(self.cancelled())),
                Some(Some(Ok(piece))) => self.item(piece).map(Ok),
                // Tokens that wait for their log probabilities were not sent.
                Some(Some(Err(GenerateError::HandedOver { .. }))) => {
                    let output_tokens = self.sent_tokens;
                    Some(Err(errors::generate(GenerateError::HandedOver {
                        output_tokens,
                    })))
                }
                Some(Some(Err(error))) => Some(Err(errors::generate(error))),
                Some(None) => Some(Err(errors::incomplete())),
            };
            if let Some(item) = item {
                self.has_ended = item
                    .as_ref()
                    .map_or(true, |item| item.finish_reason.is_some());
                return Some(item);
            }
        }
        None
    }

    /// The item of a piece; `None` if there is nothing to send.
    fn item(&mut self, piece: Piece) -> Option<LLMEngineOutput> {
        self.waiting.extend(piece.token);
        self.logprobs.extend(piece.logprobs);
        let finish = piece.finish;
        let ready = if self.has_logprobs && finish.is_none() {
            self.waiting.len().min(self.logprobs.len())
        } else {
            self.waiting.len()
        };
        if ready == 0 && finish.is_none() {
            return None;
        }
        self.sent_tokens += ready;
        let item = finish.map_or_else(LLMEngineOutput::default, |finish| self.end(&finish));
        let mut item = item.with_tokens(self.waiting.drain(..ready).collect());
        if self.has_logprobs {
            let ready = ready.min(self.logprobs.len());
            let logprobs = self.logprobs.drain(..ready).map(sent_logprobs);
            let (chosen, likeliest) = logprobs.unzip();
            item.log_probs = Some(chosen);
            item.top_logprobs = Some(likeliest);
        }
        Some(item)
    }

    /// The last item of a whole output, without its tokens.
    fn end(&self, finish: &Finish) -> LLMEngineOutput {
        let item = match finish.reason {
            FinishReason::Length => LLMEngineOutput::length(),
            FinishReason::Cancelled => LLMEngineOutput::cancelled(),
            _ => LLMEngineOutput::stop(),
        };
        item.with_usage(self.usage(Some(finish.usage.cached_tokens)))
    }

    /// The last item of an output that its caller stopped.
    fn cancelled(&self) -> LLMEngineOutput {
        self.stream.handle().cancel();
        LLMEngineOutput::cancelled().with_usage(self.usage(None))
    }

    fn usage(&self, cached_tokens: Option<usize>) -> CompletionUsage {
        let details = cached_tokens.map(|cached| PromptTokensDetails {
            cached_tokens: Some(count(cached)),
            ..PromptTokensDetails::default()
        });
        CompletionUsage {
            prompt_tokens_details: details,
            ..usage(count(self.stream.prompt_tokens()), count(self.sent_tokens))
        }
    }
}

/// The only item of an output that has ended before it began.
pub(crate) fn ended(item: LLMEngineOutput, prompt_tokens: usize) -> Items {
    let item = item.with_usage(usage(count(prompt_tokens), 0));
    stream::iter([Ok(item)]).boxed()
}

fn sent_logprobs(logprobs: TokenLogprobs) -> (f64, Vec<TopLogprob>) {
    let likeliest = (1..)
        .zip(logprobs.top)
        .map(|(rank, (token_id, logprob))| TopLogprob {
            rank,
            token_id,
            token: None,
            logprob: f64::from(logprob),
            bytes: None,
        });
    (f64::from(logprobs.logprob), likeliest.collect())
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
