//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use motet::request::{Prompt, TokenLogprobs};
use motet::text::TextCodec;
use motet::{Request, TokenId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, Shape};
use super::parameters::Parameters;
use crate::app::{App, Body};
use crate::error::ApiError;
use crate::generate::spelled;
use crate::keys::Caller;
use crate::log::RequestLog;

/// What the API takes where `max_tokens` is not said.
const OUTPUT_TOKENS_MAX: usize = 16;
/// Prompts of one request: each takes a place in the queue.
pub(crate) const PROMPTS_MAX: usize = 128;

#[derive(Debug, Deserialize)]
pub(crate) struct Wanted {
    prompt: Prompts,
    logprobs: Option<usize>,
    echo: Option<bool>,
    suffix: Option<String>,
    best_of: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    ManyTokens(Vec<Vec<TokenId>>),
}

/// Continues one prompt, or several side by side.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response, ApiError> {
    let parameters: Parameters = body.read()?;
    let wanted: Wanted = body.read()?;
    wanted.check(&parameters)?;
    let echoed = match wanted.echo {
        Some(true) => wanted.prompt.texts(&app)?,
        _ => Vec::new(),
    };
    let prompts = wanted.prompt.prompts()?;
    let requests = prompts.into_iter().map(|prompt| {
        let mut request = parameters.request(&app, &caller, prompt, OUTPUT_TOKENS_MAX)?;
        request.logprobs = wanted.logprobs;
        // As many as are wanted leave no choice.
        request.best_of = wanted.best_of.filter(|best_of| *best_of != request.n);
        Ok::<_, ApiError>(request)
    });
    let requests: Vec<Request> = requests.collect::<Result<_, _>>()?;
    let shape = TextShape {
        echoed,
        outputs_each: requests[0].n,
    };
    answer::answer(app, shape, requests, &parameters, caller, log).await
}

impl Wanted {
    /// What this server does not do is refused, rather than left out.
    fn check(&self, parameters: &Parameters) -> Result<(), ApiError> {
        let cannot = |field: &str, what: &str| {
            let message = format!("`{field}` {what}");
            Err(ApiError::cannot(field, message))
        };
        if self.echo == Some(true) && self.logprobs.is_some() {
            return cannot(
                "echo",
                "is not supported with `logprobs`: the prompt's are not computed",
            );
        }
        let suffix = self.suffix.as_ref();
        if suffix.is_some_and(|suffix| !suffix.is_empty()) {
            return cannot("suffix", "is not supported");
        }
        if self.best_of.is_some_and(|best_of| best_of > 1) && parameters.wants_stream() {
            return cannot(
                "best_of",
                "cannot be streamed: which is the best is known at the end",
            );
        }
        Ok(())
    }
}

impl Prompts {
    /// What the prompts say, to be told again.
    fn texts(&self, app: &App) -> Result<Vec<String>, ApiError> {
        let decode = |tokens: &Vec<TokenId>| {
            let text = app.engine.text().ok_or_else(|| {
                ApiError::cannot(
                    "echo",
                    "this model has no tokenizer to spell the prompt with",
                )
            })?;
            let decoded = text.tokenizer().decode(tokens);
            decoded.map_err(|error| ApiError::field("prompt", error.to_string()))
        };
        match self {
            Self::Text(text) => Ok(vec![text.clone()]),
            Self::Texts(texts) => Ok(texts.clone()),
            Self::Tokens(tokens) => Ok(vec![decode(tokens)?]),
            Self::ManyTokens(all) => all.iter().map(decode).collect(),
        }
    }

    fn prompts(self) -> Result<Vec<Prompt>, ApiError> {
        let prompts: Vec<Prompt> = match self {
            Self::Text(text) => vec![Prompt::Text(text)],
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Self::ManyTokens(all) => all.into_iter().map(Prompt::Tokens).collect(),
        };
        match prompts.len() {
            1..=PROMPTS_MAX => Ok(prompts),
            count => {
                let message = format!("`prompt` has {count}; expected 1 to {PROMPTS_MAX}");
                Err(ApiError::field("prompt", message))
            }
        }
    }
}

struct TextShape {
    /// What comes before the outputs of each prompt; empty where nothing does.
    echoed: Vec<String>,
    /// Outputs of each prompt.
    outputs_each: usize,
}

impl TextShape {
    fn echo(&self, number: usize) -> Option<&str> {
        let echoed = self.echoed.get(number / self.outputs_each)?;
        Some(echoed)
    }
}

impl Shape for TextShape {
    const PREFIX: &'static str = "cmpl";
    const WHOLE: &'static str = "text_completion";
    const PART: &'static str = "text_completion";

    fn first(&self, number: usize) -> Option<Map<String, Value>> {
        Some(self.part(self.echo(number)?, None))
    }

    fn part(&self, text: &str, logprobs: Option<Value>) -> Map<String, Value> {
        Map::from_iter([
            ("text".to_owned(), json!(text)),
            ("logprobs".to_owned(), logprobs.into()),
        ])
    }

    fn last(&self) -> Map<String, Value> {
        self.part("", None)
    }

    fn whole(&self, number: usize, text: &str, logprobs: Option<Value>) -> Map<String, Value> {
        let echo = self.echo(number).unwrap_or_default();
        self.part(&format!("{echo}{text}"), logprobs)
    }

    fn logprobs(&self, text: &TextCodec, told: &[(TokenId, TokenLogprobs)], after: usize) -> Value {
        let spell = |token| spelled(text.tokenizer(), token).0;
        let tokens: Vec<String> = told.iter().map(|(token, _)| spell(*token)).collect();
        let offsets = tokens.iter().scan(after, |at, token| {
            let begins = *at;
            *at += token.chars().count();
            Some(begins)
        });
        let top = told.iter().map(|(_, logprobs)| {
            let top = logprobs.top.iter();
            let top = top.map(|(token, logprob)| (spell(*token), json!(logprob)));
            Value::from(top.collect::<Map<_, _>>())
        });
        json!({
            "text_offset": offsets.collect::<Vec<_>>(),
            "token_logprobs": told.iter().map(|(_, logprobs)| logprobs.logprob).collect::<Vec<_>>(),
            "top_logprobs": top.collect::<Vec<_>>(),
            "tokens": tokens,
        })
    }
}
