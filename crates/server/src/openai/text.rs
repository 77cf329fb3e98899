//! `POST /v1/completions`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use motet::request::Prompt;
use motet::{Request, TokenId};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};

use super::answer::{self, BestOf, Terms};
use super::parameters::Parameters;
use super::scored_text::{self, PromptScores};
use super::text_shape::{OUTPUT_TOKENS_MAX, TextShape};
use crate::api::{self, Token};
use crate::app::App;
use crate::body::Body;
use crate::body::fields::fields;
use crate::body::lists::too_many;
use crate::conversation::Answers;
use crate::error::ApiError;
use crate::generate::{OutputStreams, UntilSent};
use crate::kept::{Keep, KeptResults};
use crate::keys::Caller;
use crate::log::RequestLog;

/// Most prompts of one request; each takes a place in the queue.
pub(crate) const PROMPTS_MAX: usize = 128;

fields! {
    /// The fields of a completion.
    pub(crate) struct CompletionFields {
        #[schemars(required)]
        prompt: Option<Prompts>,
        #[schemars(range(max = Request::LOGPROBS_MAX))]
        logprobs: Option<usize>,
        /// The prompt before the output; with `logprobs`, also the prompt's log probabilities, and not streamed
        echo: Option<bool>,
        /// The log probabilities of the prompt's tokens, with so many alternatives; not streamed. The name is vLLM's
        #[schemars(range(max = Request::LOGPROBS_MAX))]
        prompt_logprobs: Option<usize>,
        /// The first of the prompt's tokens whose log probability is wanted: those before come from the cache. The name is SGLang's
        logprob_start_len: Option<usize>,
        /// No other is supported
        #[schemars(extend("enum" = ["", null]))]
        suffix: Option<String>,
        /// Generate this many and return the `n` likeliest; at least `n`, and not with `stream`
        #[schemars(range(min = 1, max = Request::N_MAX))]
        best_of: Option<usize>,
    }
}

/// The body of a completion's request.
pub(crate) type TextRequest = (Parameters, CompletionFields);

/// One prompt or several, as texts or as tokens.
#[derive(Debug)]
pub(crate) enum Prompts {
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    ManyTokens(Vec<Vec<TokenId>>),
}

/// Continues one prompt, or several side by side.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body((parameters, fields)): Body<TextRequest>,
) -> Result<Response, ApiError> {
    fields.check(&parameters)?;
    let (logprobs, best_of) = (fields.logprobs, fields.best_of);
    let scores = fields.prompt_scores();
    let prompts = fields.prompt;
    let prompts = prompts.ok_or_else(|| ApiError::field("prompt", "`prompt` is missing"))?;
    let is_streamed = parameters.delivery().is_streamed;
    let keep = Keep {
        outputs: !is_streamed,
        is_streamed,
        other_bytes: match fields.echo {
            Some(true) => prompts.text_bytes(&app),
            _ => 0,
        },
    };
    let user = parameters.user(&caller);
    // The bytes of an echoed prompt are reserved before its tokens are spelled.
    let kept = KeptResults::reserve(&app, user.as_deref(), keep, "echo")?;
    let echoed = match fields.echo {
        Some(true) => prompts.texts(&app, &caller).await?,
        _ => Vec::new(),
    };
    if let Some(scores) = scores {
        scores.check(&parameters)?;
        let prompts = prompts.prompts("prompt")?;
        let until_sent = UntilSent {
            kept: kept.named(scores.field()),
            _caller: caller.clone(),
        };
        let tenant = (caller, log, until_sent);
        return scored_text::complete(app, tenant, &parameters, scores, prompts, echoed).await;
    }
    let requests = prompts.prompts("prompt")?.into_iter().map(|prompt| {
        let mut request = parameters.request(&app, &caller, prompt, OUTPUT_TOKENS_MAX)?;
        request.logprobs = logprobs;
        // If `best_of` equals `n`, there is nothing to choose.
        request.best_of = best_of.filter(|best_of| *best_of != request.n);
        Ok::<_, ApiError>(request)
    });
    let requests: Vec<Request> = requests.collect::<Result<_, _>>()?;
    let shape = TextShape {
        echoed,
        outputs_each: requests[0].n,
    };
    let first = &requests[0];
    let terms = Terms {
        delivery: parameters.delivery(),
        has_logprobs: logprobs.is_some(),
        chosen: first.best_of.map(|candidates_per_prompt| BestOf {
            n: first.n,
            candidates_per_prompt,
        }),
    };
    // The body's memory is freed before the answer is generated.
    drop(parameters);
    let field = if terms.has_logprobs {
        "logprobs"
    } else {
        "max_tokens"
    };
    let until_sent = UntilSent {
        kept: kept.named(field),
        _caller: caller,
    };
    let outputs = OutputStreams::submit(&app.engine, requests, until_sent, log).await;
    let outputs =
        outputs.map_err(|error| KeptResults::submit_error(field, error, ApiError::from))?;
    answer::answer(app, shape, Answers::of_text(outputs), terms).await
}

impl CompletionFields {
    /// The log probabilities that are wanted of the prompts, if any are.
    fn prompt_scores(&self) -> Option<PromptScores> {
        let echo = self.echo == Some(true);
        let is_requested = self.prompt_logprobs.is_some() || echo && self.logprobs.is_some();
        is_requested.then_some(PromptScores {
            echo,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            from: self.logprob_start_len.unwrap_or(0),
            best_of: self.best_of,
        })
    }

    /// Rejects unsupported fields, rather than ignoring them.
    fn check(&self, parameters: &Parameters) -> Result<(), ApiError> {
        let unprocessable = |field: &str, what: &str| {
            let message = format!("`{field}` {what}");
            Err(ApiError::unprocessable(field, message))
        };
        if self.logprob_start_len.is_some() && self.prompt_scores().is_none() {
            let message = "`logprob_start_len` is set; expected it with `prompt_logprobs`, or with \
                           `echo` and `logprobs`";
            return Err(ApiError::field("logprob_start_len", message));
        }
        let suffix = self.suffix.as_ref();
        if suffix.is_some_and(|suffix| !suffix.is_empty()) {
            return unprocessable("suffix", "is not supported");
        }
        if self.best_of.is_some_and(|best_of| best_of > 1) && parameters.delivery().is_streamed {
            return unprocessable(
                "best_of",
                "cannot be streamed: which is the best is known at the end",
            );
        }
        Ok(())
    }
}

impl JsonSchema for Prompts {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Prompts".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let text = json_schema!({"type": "string", "minLength": 1});
        let token = generator.subschema_for::<Token>();
        let tokens = json_schema!({"type": "array", "items": token, "minItems": 1});
        let many = |items: &Schema| json_schema!({"type": "array", "items": items, "minItems": 1, "maxItems": PROMPTS_MAX});
        json_schema!({"anyOf": [text, many(&text), tokens, many(&tokens)]})
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of token ids, or a list of either")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts::Texts(vec![text.to_owned()]))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Prompts, E> {
        Ok(Prompts::Texts(vec![text]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Prompts, A::Error> {
        let mut prompts = match all.next_element()? {
            None => return Ok(Prompts::Texts(Vec::new())),
            Some(PromptItem::Text(text)) => Prompts::Texts(vec![text]),
            Some(PromptItem::Token(token)) => Prompts::Tokens(vec![token]),
            Some(PromptItem::Tokens(tokens)) => Prompts::ManyTokens(vec![tokens]),
        };
        while let Some(one) = all.next_element()? {
            match (&mut prompts, one) {
                (Prompts::Tokens(tokens), PromptItem::Token(token)) => tokens.push(token),
                (Prompts::Texts(texts), PromptItem::Text(_)) if texts.len() == PROMPTS_MAX => {
                    return Err(too_many(PROMPTS_MAX));
                }
                (Prompts::ManyTokens(many), PromptItem::Tokens(_)) if many.len() == PROMPTS_MAX => {
                    return Err(too_many(PROMPTS_MAX));
                }
                (Prompts::Texts(texts), PromptItem::Text(text)) => texts.push(text),
                (Prompts::ManyTokens(many), PromptItem::Tokens(tokens)) => many.push(tokens),
                _ => return Err(Error::custom("its elements are of several kinds")),
            }
        }
        Ok(prompts)
    }
}

/// An element of a list of prompts or of tokens.
enum PromptItem {
    Text(String),
    Token(TokenId),
    Tokens(Vec<TokenId>),
}

impl<'de> Deserialize<'de> for PromptItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptItemVisitor)
    }
}

struct PromptItemVisitor;

impl<'de> Visitor<'de> for PromptItemVisitor {
    type Value = PromptItem;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id, or a list of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text))
    }

    fn visit_u64<E: Error>(self, token: u64) -> Result<PromptItem, E> {
        let known = TokenId::try_from(token);
        let unknown = |_| E::invalid_value(Unexpected::Unsigned(token), &"a token id");
        known.map(PromptItem::Token).map_err(unknown)
    }

    fn visit_i64<E: Error>(self, token: i64) -> Result<PromptItem, E> {
        Err(E::invalid_value(Unexpected::Signed(token), &"a token id"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<PromptItem, A::Error> {
        let mut all = Vec::new();
        while let Some(token) = tokens.next_element()? {
            all.push(token);
        }
        Ok(PromptItem::Tokens(all))
    }
}

impl Prompts {
    /// The bytes of the prompts' texts.
    fn text_bytes(&self, app: &App) -> usize {
        match self {
            Self::Texts(texts) => texts.iter().map(String::len).sum(),
            Self::Tokens(tokens) => api::text_bytes(app, tokens),
            Self::ManyTokens(all) => all.iter().map(|one| api::text_bytes(app, one)).sum(),
        }
    }

    /// The prompts' texts, for `echo`.
    async fn texts(&self, app: &App, caller: &Caller) -> Result<Vec<String>, ApiError> {
        let (one, many);
        let all = match self {
            Self::Texts(texts) => return Ok(texts.clone()),
            Self::Tokens(tokens) => {
                one = [tokens.clone()];
                &one[..]
            }
            Self::ManyTokens(tokens) => {
                many = tokens;
                &many[..]
            }
        };
        if app.engine.text().is_none() {
            let message = "this model has no tokenizer to spell the prompt with";
            return Err(ApiError::unprocessable("echo", message));
        }
        let mut texts = Vec::new();
        for tokens in all {
            texts.push(api::spell(app, caller, tokens.clone(), "prompt").await?);
        }
        Ok(texts)
    }

    /// The prompts, of which there is at least one; errors name this field.
    pub(crate) fn prompts(self, param: &str) -> Result<Vec<Prompt>, ApiError> {
        let prompts: Vec<Prompt> = match self {
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Self::ManyTokens(all) => all.into_iter().map(Prompt::Tokens).collect(),
        };
        match prompts.len() {
            1..=PROMPTS_MAX => Ok(prompts),
            count => {
                let message = format!("`{param}` has {count}; expected 1 to {PROMPTS_MAX}");
                Err(ApiError::field(param, message))
            }
        }
    }
}
