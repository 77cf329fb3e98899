//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use motet::error::{EvaluateError, SubmitError};
use motet::request::{Embedding, EmbeddingVector, Prompt, Sampling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parameters::{Parameters, Tenant};
use super::text::Prompts;
use crate::api::NAME_BYTES_MAX;
use crate::app::App;
use crate::body::Body;
use crate::body::fields::fields;
use crate::class::Class;
use crate::error::{ApiError, PromptExcess};
use crate::kept::KeptResults;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::pieces::{self, Deferred};

/// Inputs of one request that are in the engine at once; each takes a place in the queue.
const INPUTS_AT_ONCE: usize = 16;

fields! {
    /// The input of `/v1/embeddings`.
    pub(crate) struct EmbeddingRequest {
        /// Another is answered with 404
        model: Option<String>,
        /// An empty text is answered with 400
        #[schemars(required)]
        input: Option<Prompts>,
        encoding_format: Option<EncodingFormat>,
        /// The leading dimensions, scaled to length 1 again; at most those of the model
        #[schemars(range(min = 1))]
        dimensions: Option<usize>,
        /// Users share the model fairly; with API keys, the key is the user
        #[schemars(length(max = NAME_BYTES_MAX))]
        user: Option<String>,
        /// Cached state is shared with requests of the same salt only
        #[schemars(length(max = NAME_BYTES_MAX))]
        cache_salt: Option<String>,
        /// A priority class: a higher one starts first. One above that of the key is answered with 403
        priority: Option<Class>,
    }
}

/// The form of the numbers.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum EncodingFormat {
    #[default]
    Float,
    /// Little-endian numbers of 32 bits
    Base64,
}

/// The answer of `/v1/embeddings`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Embeddings {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Deferred<Vec<EmbeddingEntry>>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct EmbeddingEntry {
    #[schemars(extend("const" = "embedding"))]
    object: &'static str,
    index: usize,
    embedding: EncodedVector,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum EncodedVector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Embeds one text, or several.
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body(body): Body<EmbeddingRequest>,
) -> Result<Response, ApiError> {
    let input = body.input;
    let input = input.ok_or_else(|| ApiError::field("input", "`input` is missing"))?;
    let encoding = body.encoding_format.unwrap_or_default();
    let parameters = Parameters::of_tenant(Tenant {
        model: body.model,
        user: body.user,
        cache_salt: body.cache_salt,
        class: body.priority,
    });
    let embedding = Embedding {
        dimensions: body.dimensions,
        ..Embedding::default()
    };
    let prompts = input.prompts("input")?;
    let dimensions = app.engine.model().hidden_size;
    let dimensions = body
        .dimensions
        .map_or(dimensions, |most| dimensions.min(most));
    let bytes = prompts.len() * dimensions * size_of::<f32>();
    let user = parameters.user(&caller);
    let kept = KeptResults::of_bytes(&app, user.as_deref(), bytes, "input")?;
    let embedded = prompts.into_iter().map(|prompt| {
        let (app, caller, parameters) = (&app, &caller, &parameters);
        async move {
            check_not_empty(&prompt)?;
            let mut request = parameters
                .request(app, caller, prompt, 0)?
                .embedding(embedding);
            request.sampling = Sampling::GREEDY;
            app.engine.embed(request).await.map_err(api_error)
        }
    });
    let vectors = stream::iter(embedded.collect::<Vec<_>>()).buffered(INPUTS_AT_ONCE);
    let vectors: Vec<EmbeddingVector> = vectors.try_collect().await?;
    let prompt_tokens = vectors.iter().map(|one| one.usage.prompt_tokens).sum();
    log.prompt(prompt_tokens);
    let entries = Deferred::indexed(vectors.len(), move |index| EmbeddingEntry {
        object: "embedding",
        index,
        embedding: encoding.encode(&vectors[index].numbers),
    });
    let answer = Embeddings {
        object: "list",
        data: entries,
        model: app.model.clone(),
        usage: EmbeddingUsage {
            prompt_tokens,
            total_tokens: prompt_tokens,
        },
    };
    Ok(pieces::json_response(
        pieces::pieces(&answer),
        (kept, caller),
    ))
}

/// An empty text may have tokens: a tokenizer adds those that every prompt begins or ends with.
fn check_not_empty(prompt: &Prompt) -> Result<(), ApiError> {
    let is_empty = match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Tokens(tokens) => tokens.is_empty(),
        _ => false,
    };
    if is_empty {
        let message = "`input` has an empty text; expected at least one token";
        return Err(ApiError::field("input", message));
    }
    Ok(())
}

impl EncodingFormat {
    fn encode(self, numbers: &[f32]) -> EncodedVector {
        match self {
            Self::Float => EncodedVector::Numbers(numbers.to_vec()),
            Self::Base64 => {
                let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
                let bytes: Vec<u8> = bytes.collect();
                EncodedVector::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

/// The error, with this API's name of the field.
fn api_error(error: EvaluateError) -> ApiError {
    match error {
        EvaluateError::Submit(SubmitError::Field {
            field: "prompt" | "prompt.text",
            found,
            expected,
        }) => ApiError::field("input", format!("`input` is {found}; expected {expected}")),
        EvaluateError::Submit(SubmitError::PromptTooLong {
            found,
            expected,
            tokens_min,
            tokens_max,
            ..
        }) => {
            let excess = PromptExcess {
                tokens_min,
                tokens_max,
            };
            ApiError::prompt_too_long("input", (&found, &expected), excess)
        }
        // The model, not the request, is to blame.
        EvaluateError::Submit(SubmitError::Field {
            field: "embedding" | "embedding.pooling",
            expected,
            ..
        }) => ApiError::unprocessable(
            "model",
            format!("`model` cannot embed; expected {expected}"),
        ),
        EvaluateError::Submit(SubmitError::Text(error)) => ApiError::text("input", &error),
        EvaluateError::Submit(SubmitError::NoTokenizer { .. }) => {
            ApiError::unprocessable("input", "this model has no tokenizer; expected token ids")
        }
        EvaluateError::Submit(SubmitError::TooLarge { .. }) => {
            let message = "`input` needs more memory than the cache of this server has";
            ApiError::unprocessable("input", message)
        }
        EvaluateError::Submit(error) => error.into(),
        EvaluateError::Generate(error) => error.into(),
        other => ApiError::internal(other.to_string()),
    }
}
