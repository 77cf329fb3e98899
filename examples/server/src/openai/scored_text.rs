//! Completions that return the log probabilities of their prompts: `echo` with `logprobs`, and
//! vLLM's `prompt_logprobs`.
//!
//! They are returned complete: a stream would have to hold the output back until the whole prompt
//! is computed.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::Response;
use futures_util::future::try_join_all;
use motet::error::SubmitError;
use motet::model::sampling::Sampling;
use motet::request::{Completion, FinishReason, Prompt, TokenLogprobs, Usage};
use motet::text::TextCodec;
use motet::{Request, TokenId};
use schemars::JsonSchema;
use serde::Serialize;

use super::answer;
use super::offsets::{self, TextOffsets};
use super::parameters::Parameters;
use super::text::{OUTPUT_TOKENS_MAX, ScoredAt, Text, TextShape, text_logprobs};
use crate::app::App;
use crate::conversation::AnswerEnd;
use crate::error::ApiError;
use crate::generate::spelled;
use crate::keys::Caller;
use crate::log::RequestLog;

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

/// A prompt's token with vLLM's fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct PromptLogprob {
    logprob: f64,
    /// 1 is the likeliest; null below the requested ones
    rank: Option<usize>,
    decoded_token: Option<String>,
}

/// Vocabulary ids with log probabilities: the prompt's own token and the likeliest.
pub(crate) type PromptLogprobs = BTreeMap<String, PromptLogprob>;

impl PromptScores {
    /// Rejects settings that contradict them.
    pub(crate) fn check(&self, parameters: &Parameters) -> Result<(), ApiError> {
        if parameters.delivery().is_streamed {
            let message = "`stream` is not supported with log probabilities of the prompt";
            return Err(ApiError::unprocessable("stream", message));
        }
        Ok(())
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
    (caller, log): (Caller, RequestLog),
    parameters: &Parameters,
    scores: PromptScores,
    prompts: Vec<Prompt>,
    echoed: &[String],
) -> Result<Response, ApiError> {
    let mut scored = Vec::new();
    let mut streams = Vec::new();
    for prompt in prompts {
        let tokens = tokenized(&app, &caller, prompt).await?;
        let prompt = Prompt::Tokens(tokens.clone());
        let mut request = parameters.request(&app, &caller, prompt, OUTPUT_TOKENS_MAX)?;
        scores.apply(&mut request);
        let lists_end = scores.lists_end(&request);
        request.ignore_end_tokens |= lists_end;
        let from = request.prompt_logprobs_from.max(1);
        let stream = app.engine.submit(request).await?;
        log.prompt(stream.prompt_tokens());
        streams.push(stream.collect());
        scored.push((tokens, from, lists_end));
    }
    let completions = try_join_all(streams).await?;
    let mut usage = Usage::default();
    let mut outputs: Vec<(Text, AnswerEnd)> = Vec::new();
    for (number, (prompt, mut completion)) in scored.iter().zip(completions).enumerate() {
        let (tokens, from, lists_end) = prompt;
        log.output(completion.tokens.len());
        usage.prompt_tokens += completion.finish.usage.prompt_tokens;
        usage.cached_tokens += completion.finish.usage.cached_tokens;
        usage.output_tokens += completion.finish.usage.output_tokens;
        let echo = echoed.get(number).map_or("", String::as_str);
        let end_tokens = &app.engine.model().end_tokens;
        let last = completion.tokens.last();
        let is_ended = *lists_end && last.is_some_and(|last| end_tokens.contains(last));
        if is_ended {
            // A token that ends the output has no text.
            completion.text.clear();
        }
        let end = match completion.finish.reason {
            _ if is_ended => AnswerEnd::Stop,
            FinishReason::Length | FinishReason::Deadline => AnswerEnd::Length,
            _ => AnswerEnd::Stop,
        };
        let prompt = ScoredPrompt {
            tokens,
            from: *from,
            logprobs: &completion.prompt_logprobs,
        };
        let text = app.engine.text();
        outputs.push((prompt.output(text, &scores, echo, &completion), end));
    }
    // The request keeps its place in its key's limit until here.
    drop(caller);
    Ok(answer::whole_of::<TextShape>(app, outputs, usage))
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

/// A prompt with the log probabilities of its tokens.
struct ScoredPrompt<'a> {
    tokens: &'a [TokenId],
    /// Offset of the first token with a log probability.
    from: usize,
    logprobs: &'a [TokenLogprobs],
}

impl ScoredPrompt<'_> {
    /// Each token, and its log probability from the first offset on that was asked for.
    fn tokens(&self) -> impl Iterator<Item = (TokenId, Option<&TokenLogprobs>)> {
        let unscored = self.tokens.iter().take(self.from).map(|_| None);
        let logprobs = unscored.chain(self.logprobs.iter().map(Some));
        self.tokens.iter().copied().zip(logprobs)
    }

    fn output(
        &self,
        text: Option<&TextCodec>,
        scores: &PromptScores,
        echo: &str,
        completion: &Completion,
    ) -> Text {
        let top = scores.logprobs.unwrap_or(0);
        let is_echoed = scores.has_echoed_logprobs();
        let logprobs = text.filter(|_| scores.logprobs.is_some()).map(|text| {
            let mut offsets = TextOffsets::of_output(text, echo.chars().count());
            let generated = completion.tokens.iter().zip(&completion.logprobs);
            let generated = generated.map(|(token, logprobs)| ScoredAt {
                token: *token,
                offset: offsets.next(*token),
                logprobs: Some(logprobs),
            });
            let echoed = self
                .tokens()
                .zip(offsets::of_prompt(text, self.tokens, echo));
            let echoed = echoed.map(|((token, logprobs), offset)| ScoredAt {
                token,
                offset,
                logprobs,
            });
            text_logprobs(text, echoed.filter(|_| is_echoed).chain(generated), top)
        });
        Text {
            text: format!("{echo}{}", completion.text),
            logprobs,
            prompt_logprobs: scores.prompt_logprobs.map(|top| self.entries(text, top)),
        }
    }

    /// vLLM's form: null for tokens without a log probability.
    fn entries(&self, text: Option<&TextCodec>, top: usize) -> Vec<Option<PromptLogprobs>> {
        let spell = |token| text.map(|text| spelled(text.tokenizer(), token).0);
        let entry = |(token, logprobs): (TokenId, &TokenLogprobs)| {
            let ranks = (1..).zip(&logprobs.top);
            let ranked = ranks.map(|(rank, (token, logprob))| (*token, *logprob, Some(rank)));
            // The prompt's own token comes first, and its rank is known if it is among the others.
            let rank = ranked.clone().find(|(other, ..)| *other == token);
            let own = (token, logprobs.logprob, rank.and_then(|(.., rank)| rank));
            let entries = ranked.take(top).chain([own]);
            entries
                .map(|(token, logprob, rank)| {
                    let entry = PromptLogprob {
                        logprob: logprob.into(),
                        rank,
                        decoded_token: spell(token),
                    };
                    (token.to_string(), entry)
                })
                .collect()
        };
        let tokens = self.tokens();
        tokens
            .map(|(token, logprobs)| Some(entry((token, logprobs?))))
            .collect()
    }
}
