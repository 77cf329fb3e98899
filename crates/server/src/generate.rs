//! Streams several outputs side by side.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::{SelectAll, StreamExt};
use motet::error::{GenerateError, SubmitError};
use motet::request::{FinishReason, Piece, Prefill, TokenLogprobs, Usage};
use motet::text::Tokenizer;
use motet::{Engine, Request, SequenceHandle, SequenceId, TokenId, TokenStream};

use crate::kept::KeptResults;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::trace::SequenceSpan;

/// An event of one output.
#[derive(Debug)]
pub(crate) enum Event {
    /// The output has a new piece.
    Generated {
        text: String,
        logprobs: Vec<(TokenId, TokenLogprobs)>,
    },
    /// The prompt's progress.
    Prefilled(Prefill),
    /// The output has finished.
    Ended(FinishReason),
    /// The output failed before it was complete.
    Failed(GenerateError),
}

/// The outputs of one request, by number. Dropping this cancels them.
#[derive(Debug)]
pub(crate) struct OutputStreams {
    output_streams: SelectAll<OutputStream>,
    /// The outputs' sequences, by number.
    handles: Vec<SequenceHandle>,
    /// Tokens of all prompts, each counted once.
    prompt_tokens: usize,
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
    /// Tokens whose log probabilities have not come yet.
    pending_tokens: VecDeque<TokenId>,
    has_logprobs: bool,
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
                    pending_tokens: VecDeque::new(),
                    has_logprobs,
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

    /// The next event and its output's number; `None` when all have finished.
    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        let Some((number, event, usage)) = self.output_streams.next().await else {
            self.log.closed();
            return None;
        };
        if let Some(usage) = usage {
            self.usage.prompt_tokens += usage.prompt_tokens;
            self.usage.cached_tokens += usage.cached_tokens;
            self.usage.output_tokens += usage.output_tokens;
            self.usage.reasoning_tokens += usage.reasoning_tokens;
        }
        Some((number, event))
    }

    /// Ends an output early. Its last event has its usage.
    pub(crate) fn cancel(&self, number: usize) {
        // An output that has ended by itself needs no cancelling.
        self.handles[number].cancel();
    }

    /// The outputs' sequences, by number.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.handles.iter().map(SequenceHandle::sequence)
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

impl OutputStream {
    fn event_of(&mut self, piece: Piece) -> Event {
        if let Some(prefill) = piece.prefill {
            return Event::Prefilled(prefill);
        }
        if piece.token.is_some() {
            self.log.output(1);
            self.span.token();
        }
        if self.has_logprobs {
            self.pending_tokens.extend(piece.token);
        }
        // One entry per token, in the order of the tokens.
        let piece_logprobs = piece.logprobs.into_iter();
        let logprobs = piece_logprobs
            .filter_map(|logprobs| Some((self.pending_tokens.pop_front()?, logprobs)));
        Event::Generated {
            logprobs: logprobs.collect(),
            text: piece.text,
        }
    }

    /// The usage of this output; one of the outputs that share a prompt is charged for it.
    fn charged(&self, mut usage: Usage) -> Usage {
        if !self.is_charged_for_prompt {
            (usage.prompt_tokens, usage.cached_tokens) = (0, 0);
        }
        usage
    }
}

impl Stream for OutputStream {
    type Item = (usize, Event, Option<Usage>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_finished {
            return Poll::Ready(None);
        }
        let next = std::task::ready!(self.stream.poll_next_unpin(cx));
        let (event, usage) = match next {
            Some(Ok(piece)) => match piece.finish {
                Some(finish) => {
                    self.span.finished(&finish);
                    let usage = self.charged(finish.usage);
                    (Event::Ended(finish.reason), Some(usage))
                }
                None => (self.event_of(piece), None),
            },
            Some(Err(error)) => {
                self.span.failed(&error);
                (Event::Failed(error), None)
            }
            None => (Event::Failed(GenerateError::Lost), None),
        };
        self.is_finished = !matches!(event, Event::Generated { .. } | Event::Prefilled(_));
        Poll::Ready(Some((self.number, event, usage)))
    }
}

/// A token as text. Incomplete characters are replaced.
pub(crate) fn spelled(tokenizer: &Tokenizer, token: TokenId) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
}
