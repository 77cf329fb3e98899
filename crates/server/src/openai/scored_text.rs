//! Completions that return the log probabilities of their prompts: `echo` with `logprobs`, and
//! vLLM's `prompt_logprobs`.
//!
//! They are returned complete: a stream would have to hold the output back until the whole prompt
//! is computed.

use std::sync::Arc;

use axum::response::Response;
use futures_util::future::try_join_all;
use motet::chat::AnswerEnd;
use motet::error::SubmitError;
use motet::request::{Completion, Prompt, Sampling, TokenLogprobs, Usage};
use motet::text::TextCodec;
use motet::{Request, TokenId};

use super::answer::{self, Choice};
use super::offsets::{self, TextOffsets};
use super::parameters::Parameters;
use super::text_logprobs::{PromptLogprob, PromptLogprobs, ScoredTokens, TextLogprobs};
use super::text_shape::{OUTPUT_TOKENS_MAX, Text, TextShape};
use crate::app::App;
use crate::conversation::ScoredToken;
use crate::error::ApiError;
use crate::generate::{UntilSent, spelled};
use crate::kept::KeptResults;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::pieces::Deferred;

/// The log probabilities that a completion wants of its prompts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptScores {
    /// Whether each output begins with its prompt.
    pub(crate) echo: bool,
    /// As in the body, for output and, with `echo`, prompt.
    pub(crate) logprobs: Option<usize>,
    /// As in the body.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Offset of the first token whose log probability is wanted.
    pub(crate) from: usize,
    /// As in the body. The engine rejects more than one, since a prompt has one result.
    pub(crate) best_of: Option<usize>,
}

impl PromptScores {
    /// Rejects settings that contradict them.
    pub(crate) fn check(&self, parameters: &Parameters) -> Result<(), ApiError> {
        if parameters.delivery().is_streamed {
            let message = "`stream` is not supported with log probabilities of the prompt";
            return Err(ApiError::unprocessable("stream", message));
        }
        Ok(())
    }

    /// The field that asks for the most.
    pub(crate) fn field(&self) -> &'static str {
        if self.prompt_logprobs.is_some() {
            "prompt_logprobs"
        } else {
            "logprobs"
        }
    }

    fn has_echoed_logprobs(&self) -> bool {
        self.echo && self.logprobs.is_some()
    }

    /// Turns a request for generated tokens into one that also scores its prompt.
    fn apply(&self, request: &mut Request) {
        let echoed = self.logprobs.filter(|_| self.echo);
        request.prompt_logprobs = echoed.max(self.prompt_logprobs);
        request.prompt_logprobs_from = self.from;
        request.logprobs = self.logprobs;
        request.best_of = self.best_of;
        if request.output_tokens_max == 0 {
            // Clients send these defaults with every request. Without an output they say nothing;
            // what would change the distribution is rejected by the engine.
            request.logprobs = None;
            request.stop_strings.clear();
            request.stop_tokens.clear();
            request.sampling = Sampling {
                repetition_penalty: request.sampling.repetition_penalty,
                presence_penalty: request.sampling.presence_penalty,
                frequency_penalty: request.sampling.frequency_penalty,
                ..Sampling::GREEDY
            };
        }
    }

    /// Whether the one token after an echoed prompt is listed also if it ends the output, as
    /// evaluators expect: they read the log probabilities up to the last but one.
    fn lists_end(&self, request: &Request) -> bool {
        self.has_echoed_logprobs()
            && request.output_tokens_max == 1
            && request.output_tokens_min == 0
            && request.grammar.is_none()
            && !request.ignore_end_tokens
    }
}

/// Scores prompts, and continues them unless `max_tokens` is 0.
pub(crate) async fn complete(
    app: Arc<App>,
    (caller, log, mut until_sent): (Caller, RequestLog, UntilSent),
    parameters: &Parameters,
    scores: PromptScores,
    prompts: Vec<Prompt>,
    echoed: Vec<String>,
) -> Result<Response, ApiError> {
    let mut all = Vec::with_capacity(prompts.len());
    let mut requests = Vec::with_capacity(prompts.len());
    let mut echoed = echoed.into_iter();
    for prompt in prompts {
        let tokens = tokenized(&app, &caller, prompt).await?;
        let prompt = Prompt::Tokens(tokens.clone());
        let mut request = parameters.request(&app, &caller, prompt, OUTPUT_TOKENS_MAX)?;
        scores.apply(&mut request);
        let lists_end = scores.lists_end(&request);
        request.ignore_end_tokens |= lists_end;
        all.push(Scored {
            tokens,
            from: request.prompt_logprobs_from.max(1),
            lists_end,
            echo: echoed.next().unwrap_or_default(),
            ..Scored::default()
        });
        requests.push(request);
    }
    let kept = &mut until_sent.kept;
    let of_outputs = kept.of_outputs(&app.engine, &requests);
    let submitted = kept.submit(&app.engine, requests, of_outputs).await;
    let submitted = submitted
        .map_err(|error| KeptResults::submit_error(scores.field(), error, ApiError::from))?;
    let streams = submitted.into_iter().flatten().map(|stream| {
        log.prompt(stream.prompt_tokens());
        // The rows are kept until they are sent.
        kept.add_sequence(stream.results());
        stream.collect()
    });
    let completions = try_join_all(streams).await?;
    let mut usage = Usage::default();
    let end_tokens = &app.engine.model().end_tokens;
    for (scored, completion) in all.iter_mut().zip(completions) {
        log.output(completion.tokens.len());
        usage.prompt_tokens += completion.finish.usage.prompt_tokens;
        usage.cached_tokens += completion.finish.usage.cached_tokens;
        usage.output_tokens += completion.finish.usage.output_tokens;
        kept.add(completion.text.len(), completion.logprobs.len())?;
        scored.add(completion, end_tokens);
    }
    kept.complete();
    let outputs = all.len();
    let all: Arc<[Arc<Scored>]> = all.into_iter().map(Arc::new).collect();
    let text = app.engine.text().cloned();
    let choice = move |number: usize| {
        let scored = &all[number];
        let output = scored.output(text.as_ref(), &scores);
        Choice::new(number, output, scored.end)
    };
    // The request keeps its place in its key's limit until its answer is sent.
    Ok(answer::written::<TextShape>(
        app, outputs, choice, usage, until_sent,
    ))
}

async fn tokenized(app: &App, caller: &Caller, prompt: Prompt) -> Result<Vec<TokenId>, ApiError> {
    if let Prompt::Tokens(tokens) = prompt {
        return Ok(tokens);
    }
    let tokens = app.engine.tokenize(prompt, true, caller.name.as_deref());
    tokens.await.map_err(|error| match error {
        SubmitError::Text(error) => ApiError::text("prompt", &error),
        error => error.into(),
    })
}

/// A prompt with its output, and with the log probabilities of both.
#[derive(Debug, Default)]
struct Scored {
    tokens: Vec<TokenId>,
    /// Offset of the first token with a log probability.
    from: usize,
    logprobs: Vec<TokenLogprobs>,
    generated: Vec<ScoredToken>,
    echo: String,
    text: String,
    /// Whether a token that ends the output is listed.
    lists_end: bool,
    end: Option<AnswerEnd>,
}

/// A prompt, and the tokens after it.
#[derive(Debug)]
struct Echoed(Arc<Scored>);

/// The tokens after a prompt.
#[derive(Debug)]
struct Generated(Arc<Scored>);

impl ScoredTokens for Echoed {
    fn count(&self) -> usize {
        self.0.tokens.len() + self.0.generated.len()
    }

    fn at(&self, index: usize) -> (TokenId, Option<&TokenLogprobs>) {
        match self.0.tokens.get(index) {
            Some(token) => (*token, self.0.logprobs_at(index)),
            None => self.0.generated.at(index - self.0.tokens.len()),
        }
    }
}

impl ScoredTokens for Generated {
    fn count(&self) -> usize {
        self.0.generated.len()
    }

    fn at(&self, index: usize) -> (TokenId, Option<&TokenLogprobs>) {
        self.0.generated.at(index)
    }
}

impl Scored {
    /// Adds what the prompt's sequence returned.
    fn add(&mut self, completion: Completion, end_tokens: &[TokenId]) {
        let last = completion.tokens.last();
        let is_ended = self.lists_end && last.is_some_and(|last| end_tokens.contains(last));
        let end = completion.finish.reason.into();
        self.end = Some(if is_ended { AnswerEnd::Stop } else { end });
        if !is_ended {
            // A token that ends the output has no text.
            self.text = completion.text;
        }
        let generated = completion.tokens.into_iter().zip(completion.logprobs);
        self.generated = generated.collect();
        self.logprobs = completion.prompt_logprobs;
    }

    /// The log probabilities of the prompt's token with this offset, if they were asked for.
    fn logprobs_at(&self, offset: usize) -> Option<&TokenLogprobs> {
        self.logprobs.get(offset.checked_sub(self.from)?)
    }

    fn output(self: &Arc<Self>, text: Option<&TextCodec>, scores: &PromptScores) -> Text {
        let top = scores.logprobs.unwrap_or(0);
        let text_codec = text.filter(|_| scores.logprobs.is_some());
        let logprobs = text_codec.map(|text| {
            let mut offsets = TextOffsets::of_output(text, self.echo.chars().count());
            let generated = self.generated.iter();
            let generated = generated.map(|(token, _)| offsets.next(*token));
            if scores.has_echoed_logprobs() {
                let mut all = offsets::of_prompt(text, &self.tokens, &self.echo);
                all.extend(generated);
                TextLogprobs::new(text, &Arc::new(Echoed(Arc::clone(self))), all, top)
            } else {
                let all = generated.collect();
                TextLogprobs::new(text, &Arc::new(Generated(Arc::clone(self))), all, top)
            }
        });
        Text {
            text: format!("{}{}", self.echo, self.text).into(),
            logprobs,
            prompt_logprobs: scores.prompt_logprobs.map(|top| self.entries(text, top)),
        }
    }

    /// vLLM's form: null for tokens without a log probability.
    fn entries(
        self: &Arc<Self>,
        text: Option<&TextCodec>,
        top: usize,
    ) -> Deferred<Vec<Option<PromptLogprobs>>> {
        let (scored, text) = (Arc::clone(self), text.cloned());
        Deferred::indexed(self.tokens.len(), move |at| {
            let logprobs = scored.logprobs_at(at)?;
            Some(entry(text.as_ref(), scored.tokens[at], logprobs, top))
        })
    }
}

/// A token of a prompt and at most `top` of the likeliest, in vLLM's form.
fn entry(
    text: Option<&TextCodec>,
    token: TokenId,
    logprobs: &TokenLogprobs,
    top: usize,
) -> PromptLogprobs {
    let spell = |token| text.map(|text| spelled(text.tokenizer(), token).0);
    let ranks = (1..).zip(&logprobs.top);
    let ranked = ranks.map(|(rank, (token, logprob))| (*token, *logprob, Some(rank)));
    // The prompt's own token comes first, and its rank is known if it is among the others.
    let rank = ranked.clone().find(|(other, ..)| *other == token);
    let own = (token, logprobs.logprob, rank.and_then(|(.., rank)| rank));
    let entries = ranked.take(top).chain([own]);
    let entries = entries.map(|(token, logprob, rank)| {
        let entry = PromptLogprob {
            logprob: logprob.into(),
            rank,
            decoded_token: spell(token),
        };
        (token.to_string(), entry)
    });
    entries.collect()
}
