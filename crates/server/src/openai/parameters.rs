//! The common fields of both endpoints.

use std::borrow::Cow;
use std::collections::BTreeMap;

use motet::grammar::GrammarSource;
use motet::request::{ContextLimit, Prompt, Sampling};
use motet::{Request, TokenId};
use motet_text::StopStrings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::api::{NAME_BYTES_MAX, StopList, Token, stop_string};
use crate::app::App;
use crate::body::fields::fields;
use crate::body::json::Json;
use crate::body::lists::{List, OneOrMany, Table};
use crate::class::Class;
use crate::conversation::{Tenancy, check_schema_bytes};
use crate::error::ApiError;
use crate::keys::Caller;

fields! {
    /// Settings for the continuation of a prompt. Fields that OpenAI's API lacks have vLLM's names.
    pub(crate) struct Parameters {
        /// Another is answered with 404
        model: Option<String>,
        /// Reduced to the rest of the context; the default is 16 for completions, and all of it for chats
        #[schemars(range(min = 1))]
        max_tokens: Option<usize>,
        /// The newer name of `max_tokens`; it takes precedence
        #[schemars(range(min = 1))]
        max_completion_tokens: Option<usize>,
        /// Fewest tokens before an end token; at most `max_tokens`
        min_tokens: Option<usize>,
        /// 0 is greedy; the default is 1
        #[schemars(range(min = 0))]
        temperature: Option<f32>,
        #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
        top_p: Option<f32>,
        /// -1 and 0 mean all tokens
        #[schemars(range(min = -1, max = u32::MAX))]
        top_k: Option<i64>,
        #[schemars(range(min = 0, max = 1))]
        min_p: Option<f32>,
        seed: Option<i64>,
        presence_penalty: Option<f32>,
        frequency_penalty: Option<f32>,
        /// All penalties then count the prompt, too
        #[schemars(extend("exclusiveMinimum" = 0))]
        repetition_penalty: Option<f32>,
        /// By token id
        #[schemars(extend("propertyNames" = {"pattern": "^[0-9]+$"}))]
        logit_bias: Option<Table<f32, { Request::LOGIT_BIAS_MAX }>>,
        #[schemars(with = "Option<Stop>")]
        stop: Option<OneOrMany<{ StopStrings::COUNT_MAX }>>,
        #[schemars(with = "Option<List<Token, { Request::STOP_TOKENS_MAX }>>")]
        stop_token_ids: Option<List<TokenId, { Request::STOP_TOKENS_MAX }>>,
        /// Continue past the model's end tokens; not with a `response_format`
        ignore_eos: Option<bool>,
        /// At most the requests that this server can hold
        #[schemars(range(min = 1, max = Request::N_MAX))]
        n: Option<usize>,
        stream: Option<bool>,
        stream_options: Option<StreamOptions>,
        /// A format that llguidance compiles and the output can follow; else 422
        response_format: Option<ResponseFormat>,
        /// Users share the model fairly; with API keys, the key is the user
        #[schemars(length(max = NAME_BYTES_MAX))]
        user: Option<String>,
        /// Cached state is shared with requests of the same salt only
        #[schemars(length(max = NAME_BYTES_MAX))]
        cache_salt: Option<String>,
        /// If false, neither read nor write the cache; not with `cache_salt`. The name is llama.cpp's
        cache_prompt: Option<bool>,
        /// If false, no token is drafted: for measurements. Not in OpenAI's API
        speculation: Option<bool>,
        /// Report the progress of each prompt in a stream: parts with `prompt_progress`
        return_progress: Option<bool>,
        /// A priority class: a higher one starts first. One above that of the key is answered with 403
        priority: Option<Class>,
        /// Continue when the context is full, and drop its oldest part
        context_shift: Option<bool>,
        /// Tokens at the beginning that are never dropped; implies `context_shift`
        num_keep: Option<usize>,
    }
}

/// The schema of `stop`. The lengths are checked with those of other fields, after parsing.
struct Stop;

impl JsonSchema for Stop {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Stop".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let many = StopList::json_schema(generator);
        json_schema!({"anyOf": [stop_string(), many]})
    }
}

/// The form of delivery of the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    /// Whether the answer is streamed.
    pub(crate) is_streamed: bool,
    /// Whether the last event of a stream has the usage.
    pub(crate) include_usage: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "Format")]
#[schemars(inline, !try_from, tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema {
        /// The schema as text.
        #[schemars(with = "NamedSchema")]
        json_schema: String,
    },
}

/// A response format as in the body.
#[derive(Debug, Deserialize)]
struct Format {
    #[serde(rename = "type")]
    kind: FormatKind,
    json_schema: Option<NamedSchema>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct NamedSchema {
    schema: Json,
}

/// The fields of a request without an output: its model, and for whom it runs.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    pub(crate) model: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) class: Option<Class>,
}

impl Parameters {
    /// Parameters with these fields, and no other.
    pub(crate) fn of_tenant(tenant: Tenant) -> Self {
        Self {
            model: tenant.model,
            user: tenant.user,
            cache_salt: tenant.cache_salt,
            priority: tenant.class,
            ..Self::default()
        }
    }

    /// The form of delivery of the answer.
    pub(crate) fn delivery(&self) -> Delivery {
        let options = self.stream_options.as_ref();
        Delivery {
            is_streamed: self.stream == Some(true),
            include_usage: options.and_then(|options| options.include_usage) == Some(true),
        }
    }

    /// The user that the request runs for.
    pub(crate) fn user(&self, caller: &Caller) -> Option<String> {
        let user = caller.name.as_deref().or(self.user.as_deref());
        user.map(str::to_owned)
    }

    /// The engine's request for a prompt, with a default for the most output tokens.
    pub(crate) fn request(
        &self,
        app: &App,
        caller: &Caller,
        prompt: Prompt,
        output_tokens_max: usize,
    ) -> Result<Request, ApiError> {
        // Each prompt of the request has a copy of these fields.
        self.check_lengths()?;
        app.model_names.check(self.model.as_deref())?;
        let requested = self.max_completion_tokens.or(self.max_tokens);
        let mut request =
            Request::new(prompt).output_tokens_max(requested.unwrap_or(output_tokens_max));
        request.output_tokens_min = self.min_tokens.unwrap_or(0);
        request.sampling = self.sampling()?;
        request.logit_bias = self.logit_bias()?;
        request.stop_strings = self.stop.clone().unwrap_or_default().0;
        request.stop_tokens = self.stop_token_ids.clone().unwrap_or_default().0;
        request.ignore_end_tokens = self.ignore_eos.unwrap_or(false);
        request.n = self.n.unwrap_or(1);
        request.grammar = self
            .response_format
            .as_ref()
            .and_then(ResponseFormat::grammar);
        let tenancy = Tenancy {
            user: self.user.as_deref(),
            cache_salt: self.cache_salt.as_deref(),
            uses_cache: self.cache_prompt,
            class: self.priority,
        };
        tenancy.apply(app, caller, &mut request)?;
        request.speculation = self.speculation.unwrap_or(true);
        request.report_prefill_progress =
            self.return_progress == Some(true) && self.stream == Some(true);
        request.at_context_limit = self.at_context_limit();
        Ok(request)
    }

    fn check_lengths(&self) -> Result<(), ApiError> {
        for (field, text) in [("user", &self.user), ("cache_salt", &self.cache_salt)] {
            let bytes = text.as_ref().map_or(0, String::len);
            if bytes > NAME_BYTES_MAX {
                let message =
                    format!("`{field}` has {bytes} bytes; expected at most {NAME_BYTES_MAX}");
                return Err(ApiError::field(field, message));
            }
        }
        let stops = self.stop.iter().flat_map(|stops| &stops.0);
        if let Some(bytes) = stops.map(String::len).max()
            && bytes > StopStrings::BYTES_MAX
        {
            let message = format!(
                "`stop` is a string of {bytes} bytes; expected strings of 1 to {} bytes",
                StopStrings::BYTES_MAX
            );
            return Err(ApiError::field("stop", message));
        }
        if let Some(ResponseFormat::JsonSchema {
            json_schema: schema,
        }) = &self.response_format
        {
            check_schema_bytes(schema, "response_format")?;
        }
        Ok(())
    }

    fn sampling(&self) -> Result<Sampling, ApiError> {
        let top_k = match self.top_k {
            None | Some(-1) => 0,
            Some(top_k) => u32::try_from(top_k).map_err(|_| {
                ApiError::field("top_k", format!("`top_k` is {top_k}; expected -1 or more"))
            })?,
        };
        // The API's penalties count the whole output. The repetition penalty also counts the prompt.
        let looks_back = self.repetition_penalty.is_some();
        Ok(Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k,
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            seed: self.seed.map_or_else(rand::random, i64::cast_unsigned),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            penalty_window: u32::MAX,
            penalize_prompt: looks_back,
        })
    }

    /// -100 and 100 are as good as never and always, as in the API.
    fn logit_bias(&self) -> Result<BTreeMap<TokenId, f32>, ApiError> {
        let all = self.logit_bias.iter().flat_map(|bias| &bias.0);
        let parsed = all.map(|(token, bias)| match token.parse() {
            Ok(token) => Ok((token, *bias)),
            Err(_) => {
                let message = format!("`logit_bias` names {token:?}; expected token ids");
                Err(ApiError::field("logit_bias", message))
            }
        });
        parsed.collect()
    }

    fn at_context_limit(&self) -> ContextLimit {
        if self.context_shift.unwrap_or(self.num_keep.is_some()) {
            ContextLimit::Shift {
                keep: self.num_keep.unwrap_or(0),
            }
        } else {
            ContextLimit::Stop
        }
    }
}

impl ResponseFormat {
    fn grammar(&self) -> Option<GrammarSource> {
        match self {
            Self::Text => None,
            Self::JsonObject => Some(GrammarSource::Json),
            Self::JsonSchema { json_schema } => {
                Some(GrammarSource::JsonSchema(json_schema.clone()))
            }
        }
    }
}

impl TryFrom<Format> for ResponseFormat {
    type Error = &'static str;

    fn try_from(format: Format) -> Result<Self, Self::Error> {
        match (format.kind, format.json_schema) {
            (FormatKind::Text, _) => Ok(Self::Text),
            (FormatKind::JsonObject, _) => Ok(Self::JsonObject),
            (FormatKind::JsonSchema, Some(named)) => Ok(Self::JsonSchema {
                json_schema: named.schema.0.to_string(),
            }),
            (FormatKind::JsonSchema, None) => Err("missing field `json_schema`"),
        }
    }
}
