//! Streams several outputs side by side.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::StatusCode;
use futures_util::Stream;
use futures_util::stream::{SelectAll, StreamExt};
use motet::error::{GenerateError, SubmitError};
use motet::request::{Piece, Usage};
use motet::text::Tokenizer;
use motet::{Engine, Request, SequenceHandle, SequenceId, TokenId, TokenStream};

use crate::kept::KeptResults;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::trace::SequenceSpan;

/// The outputs of one request, by number. Dropping this cancels them.
#[derive(Debug)]
pub(crate) struct OutputStreams {
    output_streams: SelectAll<OutputStream>,
    /// The outputs' sequences, by number.
    handles: Vec<SequenceHandle>,
    /// Tokens of all prompts, each counted once.
    prompt_tokens: usize,
    has_logprobs: bool,
    usage: Usage,
    log: RequestLog,
    until_sent: UntilSent,
}

/// The bytes of a request's results, and its place in its key's limit: held until its answer is sent,
/// or dropped.
#[derive(Debug)]
pub(crate) struct UntilSent {
    pub(crate) kept: KeptResults,
    pub(crate) _caller: Caller,
}

#[derive(Debug)]
struct OutputStream {
    number: usize,
    stream: TokenStream,
    log: RequestLog,
    span: SequenceSpan,
    /// Whether this output is charged for the prompt; one of those that share it is.
    is_charged_for_prompt: bool,
    is_finished: bool,
}

impl OutputStreams {
    /// Submits all requests, or none. Each may ask for several outputs.
    pub(crate) async fn submit(
        engine: &Engine,
        mut requests: Vec<Request>,
        mut until_sent: UntilSent,
        log: RequestLog,
    ) -> Result<Self, SubmitError> {
        let kept = until_sent.kept.of_outputs(engine, &requests);
        for request in &mut requests {
            if request.best_of.is_some() {
                // The best output is chosen by log probabilities.
                request.logprobs.get_or_insert(0);
            }
        }
        let has_logprobs = requests.iter().any(|request| request.logprobs.is_some());
        let generations: Vec<_> = requests.iter().map(|one| log.generation(one)).collect();
        let submitted = until_sent.kept.submit(engine, requests, kept).await?;
        let mut all = Self {
            output_streams: SelectAll::new(),
            handles: Vec::new(),
            prompt_tokens: 0,
            has_logprobs,
            usage: Usage::default(),
            log,
            until_sent,
        };
        for (generation, streams) in generations.iter().zip(submitted) {
            for (index, stream) in streams.into_iter().enumerate() {
                if index == 0 {
                    all.log.prompt(stream.prompt_tokens());
                    all.prompt_tokens += stream.prompt_tokens();
                }
                all.handles.push(stream.handle());
                all.output_streams.push(OutputStream {
                    number: all.output_streams.len(),
                    span: generation.sequence(stream.handle()),
                    stream,
                    log: all.log.clone(),
                    is_charged_for_prompt: index == 0,
                    is_finished: false,
                });
            }
        }
        all.log.opened();
        Ok(all)
    }

    /// The reservation of the outputs.
    pub(crate) fn kept(&mut self) -> &mut KeptResults {
        &mut self.until_sent.kept
    }

    /// Ends the outputs. Their reservation lasts until they are sent.
    pub(crate) fn until_sent(self) -> UntilSent {
        self.until_sent
    }

    /// The number of unfinished outputs.
    pub(crate) fn count(&self) -> usize {
        self.output_streams.len()
    }

    /// The next piece and its output's number; `None` when all have finished. An error is the last
    /// of its output.
    pub(crate) async fn next(&mut self) -> Option<(usize, Result<Piece, GenerateError>)> {
        let Some((number, piece)) = self.output_streams.next().await else {
            self.log.closed();
            return None;
        };
        if let Ok(Piece {
            finish: Some(finish),
            ..
        }) = &piece
        {
            let usage = finish.usage;
            self.usage.prompt_tokens += usage.prompt_tokens;
            self.usage.cached_tokens += usage.cached_tokens;
            self.usage.output_tokens += usage.output_tokens;
            self.usage.reasoning_tokens += usage.reasoning_tokens;
            self.usage.prediction_tokens += usage.prediction_tokens;
            self.usage.accepted_prediction_tokens += usage.accepted_prediction_tokens;
        }
        Some((number, piece))
    }

    /// Ends an output early. Its last event has its usage.
    pub(crate) fn cancel(&self, number: usize) {
        // An output that has ended by itself needs no cancelling.
        self.handles[number].cancel();
    }

    /// Notes for the log that the answer ends with an error of this status.
    pub(crate) fn failed(&self, status: StatusCode) {
        self.log.failed(status);
    }

    /// The handles of the outputs' sequences, by number.
    pub(crate) fn handles(&self) -> &[SequenceHandle] {
        &self.handles
    }

    /// The outputs' sequences, by number.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.handles.iter().map(SequenceHandle::sequence)
    }

    /// Whether the outputs have log probabilities.
    pub(crate) fn has_logprobs(&self) -> bool {
        self.has_logprobs
    }

    /// Tokens of all prompts, each counted once.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The usage of the finished outputs.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }
}

impl Stream for OutputStream {
    type Item = (usize, Result<Piece, GenerateError>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_finished {
            return Poll::Ready(None);
        }
        let next = std::task::ready!(self.stream.poll_next_unpin(cx));
        let mut piece = next.unwrap_or(Err(GenerateError::Lost));
        match &mut piece {
            Ok(Piece {
                finish: Some(finish),
                ..
            }) => {
                self.span.finished(finish);
                if !self.is_charged_for_prompt {
                    (finish.usage.prompt_tokens, finish.usage.cached_tokens) = (0, 0);
                }
                self.is_finished = true;
            }
            Ok(piece) => {
                if piece.token.is_some() {
                    self.log.output(1);
                    self.span.token();
                }
            }
            Err(error) => {
                self.span.failed(error);
                self.is_finished = true;
            }
        }
        Poll::Ready(Some((self.number, piece)))
    }
}

/// A token as text. Incomplete characters are replaced.
pub(crate) fn spelled(tokenizer: &Tokenizer, token: TokenId) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
}
