//! From a message to the engine's request.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::HeaderMap;
use motet::Request;
use motet::error::SubmitError;
use motet::grammar::GrammarSource;
use motet::request::{Prompt, Sampling};
use motet_text::StopStrings;
use vllm_proto::candidate_tokens::Select;
use vllm_proto::decoding_parameters::StructuredOutput;
use vllm_proto::generate_request::Prompt as SentPrompt;
use vllm_proto::{
    CandidateTokens, DecodingParameters, GenerateRequest, KvCacheParameters, RandomSampling,
    StoppingCriteria,
};

use super::answer::AnswerParts;
use crate::api::NAME_BYTES_MAX;
use crate::app::App;
use crate::class::Class;
use crate::conversation::{Tenancy, check_schema_bytes};
use crate::error::ApiError;
use crate::keys::Caller;

/// The header with the time that a client waits for its answer.
const TIMEOUT: &str = "grpc-timeout";
/// Most output tokens of a request that names none, as the protocol says.
const OUTPUT_TOKENS_MAX: usize = 20;

/// A message as the engine takes it.
#[derive(Debug)]
pub(super) struct PreparedRequest {
    pub(super) request: Request,
    pub(super) parts: AnswerParts,
    /// The field that the grammar comes from, for errors.
    pub(super) grammar_field: &'static str,
}

impl PreparedRequest {
    /// Reads a message.
    ///
    /// # Errors
    ///
    /// A field that has another value than it may have, or that this server does not serve.
    pub(super) fn read(
        app: &App,
        caller: &Caller,
        headers: &HeaderMap,
        sent: GenerateRequest,
    ) -> Result<Self, ApiError> {
        check_supported(&sent)?;
        let named = Some(sent.model.as_str()).filter(|name| !name.is_empty());
        app.model_names.check(named)?;
        let stopping = sent.stopping.unwrap_or_default();
        let decoding = sent.decoding.unwrap_or_default();
        let sampling = sent.sampling.unwrap_or_default();
        let response = sent.response.unwrap_or_default();
        let kv = sent.kv.unwrap_or_default();
        let (prompt, prompt_tokens) = match sent.prompt {
            Some(SentPrompt::Text(text)) => (Prompt::Text(text), Vec::new()),
            Some(SentPrompt::TokenIds(tokens)) => {
                let is_kept = response.prompt_token_ids || response.prompt_logprobs;
                let kept = if is_kept {
                    tokens.ids.clone()
                } else {
                    Vec::new()
                };
                (Prompt::Tokens(tokens.ids), kept)
            }
            None => {
                let message = "`text` or `token_ids` is missing";
                return Err(ApiError::field("token_ids", message));
            }
        };
        if response.prompt_token_ids && matches!(prompt, Prompt::Text(_)) {
            let message =
                "`response.prompt_token_ids` is set beside `text`; expected it with `token_ids`";
            return Err(ApiError::field("response.prompt_token_ids", message));
        }
        let (grammar, grammar_field) = grammar(decoding.structured_output.as_ref())?;
        let mut request = Request::new(prompt).output_tokens_max(match stopping.max_new_tokens {
            0 => OUTPUT_TOKENS_MAX,
            tokens => tokens as usize,
        });
        request.sampling = sampling_of(sent.temperature, &sampling, &decoding);
        request.n = sampling.num_sequences.max(1) as usize;
        request.logit_bias = decoding.logit_bias.into_iter().collect::<BTreeMap<_, _>>();
        request.grammar = grammar;
        set_stopping(&mut request, stopping)?;
        request.special_tokens_in_text = response.skip_special_tokens == Some(false);
        request.logprobs = alternatives(
            response.output_logprobs,
            response.output_candidates.as_ref(),
            "response.output_candidates",
        )?;
        request.prompt_logprobs = alternatives(
            response.prompt_logprobs,
            response.prompt_candidates.as_ref(),
            "response.prompt_candidates",
        )?;
        request.finish_within = timeout(headers)?;
        apply_tenancy(app, caller, &kv, sent.priority, &mut request)?;
        let parts = AnswerParts::new(app, &request, &response, prompt_tokens);
        Ok(Self {
            request,
            parts,
            grammar_field,
        })
    }

    /// The error of a request that the engine rejects.
    pub(super) fn submit_error(grammar_field: &str, error: SubmitError) -> ApiError {
        ApiError::submit(error, field_name, grammar_field)
    }
}

/// Rejects fields that ask for what this server does not do, rather than ignoring them. Hints and
/// sessions are advice and change no token.
fn check_supported(sent: &GenerateRequest) -> Result<(), ApiError> {
    let decoding = sent.decoding.as_ref();
    let stopping = sent.stopping.as_ref();
    let kv = sent.kv.as_ref();
    let has = |of: Option<bool>| of == Some(true);
    let unsupported = [
        ("media", !sent.media.is_empty()),
        ("lora_name", !sent.lora_name.is_empty()),
        ("truncate_prompt_tokens", sent.truncate_prompt_tokens > 0),
        (
            "decoding.allowed_token_ids",
            has(decoding.map(|decoding| !decoding.allowed_token_ids.is_empty())),
        ),
        (
            "decoding.bad_words_token_ids",
            has(decoding.map(|decoding| !decoding.bad_words_token_ids.is_empty())),
        ),
        (
            "stopping.include_stop_strings",
            has(stopping.map(|stopping| stopping.include_stop_strings)),
        ),
        (
            "stopping.thinking_token_budget",
            has(stopping.map(|stopping| stopping.thinking_token_budget.unwrap_or(-1) >= 0)),
        ),
        (
            "engine_reasoning_gate.reasoning_ended",
            sent.engine_reasoning_gate
                .as_ref()
                .is_some_and(|gate| gate.reasoning_ended == Some(false))
                && has(decoding.map(|decoding| decoding.structured_output.is_some())),
        ),
        (
            "kv.kv_transfer_params",
            has(kv.map(|kv| kv.kv_transfer_params.is_some())),
        ),
        (
            "kv.ec_transfer_params",
            has(kv.map(|kv| kv.ec_transfer_params.is_some())),
        ),
    ];
    match unsupported.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((field, _)) => {
            let message = format!("`{field}` is set, which this server does not support");
            Err(ApiError::unprocessable(*field, message))
        }
    }
}

fn sampling_of(
    temperature: Option<f32>,
    sampling: &RandomSampling,
    decoding: &DecodingParameters,
) -> Sampling {
    let has_repetition = decoding.repetition_penalty != 0.0;
    Sampling {
        temperature: temperature.unwrap_or(0.0),
        top_k: sampling.top_k.unwrap_or(0),
        top_p: sampling.top_p.unwrap_or(1.0),
        min_p: sampling.min_p.unwrap_or(0.0),
        seed: sampling.seed.map_or_else(rand::random, i64::cast_unsigned),
        repetition_penalty: if has_repetition {
            decoding.repetition_penalty
        } else {
            1.0
        },
        presence_penalty: decoding.presence_penalty,
        frequency_penalty: decoding.frequency_penalty,
        penalty_window: u32::MAX,
        // The repetition penalty also counts the prompt, as over HTTP.
        penalize_prompt: has_repetition,
    }
}

fn set_stopping(request: &mut Request, stopping: StoppingCriteria) -> Result<(), ApiError> {
    let longest = stopping.stop_strings.iter().map(String::len).max();
    if let Some(bytes) = longest.filter(|bytes| *bytes > StopStrings::BYTES_MAX) {
        let message = format!(
            "`stopping.stop_strings` has a string of {bytes} bytes; expected 1 to {} bytes",
            StopStrings::BYTES_MAX
        );
        return Err(ApiError::field("stopping.stop_strings", message));
    }
    request.output_tokens_min = stopping.min_new_tokens as usize;
    request.stop_tokens = stopping.stop_token_ids;
    request.stop_strings = stopping.stop_strings;
    request.ignore_end_tokens = stopping.ignore_eos;
    Ok(())
}

/// The grammar that the output follows, and the field that it comes from.
fn grammar(
    sent: Option<&StructuredOutput>,
) -> Result<(Option<GrammarSource>, &'static str), ApiError> {
    let Some(sent) = sent else {
        return Ok((None, "decoding.grammar"));
    };
    let (source, field) = match sent {
        StructuredOutput::JsonObject(false) => return Ok((None, "decoding.json_object")),
        StructuredOutput::JsonObject(true) => (GrammarSource::Json, "decoding.json_object"),
        StructuredOutput::Json(schema) => {
            check_schema_bytes(schema, "decoding.json")?;
            (GrammarSource::JsonSchema(schema.clone()), "decoding.json")
        }
        StructuredOutput::Regex(regex) => (GrammarSource::Regex(regex.clone()), "decoding.regex"),
        StructuredOutput::Grammar(lark) => (GrammarSource::Lark(lark.clone()), "decoding.grammar"),
        StructuredOutput::Choice(choice) => {
            let bytes = choice.choices.iter().map(String::len).sum::<usize>();
            if bytes > GrammarSource::LARK_BYTES_MAX {
                let message = format!(
                    "`decoding.choice` has {bytes} bytes; expected at most {}",
                    GrammarSource::LARK_BYTES_MAX
                );
                return Err(ApiError::field("decoding.choice", message));
            }
            let grammar = GrammarSource::of_choices(&choice.choices).ok_or_else(|| {
                let message = "`decoding.choice` is empty; expected at least one choice";
                ApiError::field("decoding.choice", message)
            })?;
            (grammar, "decoding.choice")
        }
        StructuredOutput::StructuralTag(_) => {
            let message = "`decoding.structural_tag` is set, which this server does not support; \
                           `decoding.grammar` may say the same in Lark";
            return Err(ApiError::unprocessable("decoding.structural_tag", message));
        }
    };
    Ok((Some(source), field))
}

/// The number of alternatives to a token with its log probability; `None` where none are parts.
fn alternatives(
    has_logprobs: bool,
    candidates: Option<&CandidateTokens>,
    field: &'static str,
) -> Result<Option<usize>, ApiError> {
    match candidates.and_then(|candidates| candidates.select.as_ref()) {
        None => Ok(has_logprobs.then_some(0)),
        Some(Select::TopN(count)) => Ok(Some(*count as usize)),
        Some(Select::TokenIds(_) | Select::All(_)) => {
            let message = format!("`{field}` names tokens; expected `top_n`");
            Err(ApiError::unprocessable(field, message))
        }
    }
}

/// The time in which the client wants its answer.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(sent) = headers.get(TIMEOUT) else {
        return Ok(None);
    };
    let read = sent.to_str().ok().and_then(|sent| {
        let (number, unit) = sent.split_at_checked(sent.len().checked_sub(1)?)?;
        let nanoseconds = match unit {
            "H" => 3_600_000_000_000,
            "M" => 60_000_000_000,
            "S" => 1_000_000_000,
            "m" => 1_000_000,
            "u" => 1_000,
            "n" => 1_u64,
            _ => return None,
        };
        // The protocol has at most eight digits.
        let is_number =
            (1..=8).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        let number = number.parse::<u64>().ok().filter(|_| is_number)?;
        Some(Duration::from_nanos(number.saturating_mul(nanoseconds)))
    });
    let message = "`grpc-timeout` is no time; expected up to eight digits and a unit, as `30S`";
    read.map(Some)
        .ok_or_else(|| ApiError::field(TIMEOUT, message))
}

fn apply_tenancy(
    app: &App,
    caller: &Caller,
    kv: &KvCacheParameters,
    priority: i32,
    request: &mut Request,
) -> Result<(), ApiError> {
    let bytes = kv.cache_salt.len();
    if bytes > NAME_BYTES_MAX {
        let message =
            format!("`kv.cache_salt` has {bytes} bytes; expected at most {NAME_BYTES_MAX}");
        return Err(ApiError::field("kv.cache_salt", message));
    }
    let tenancy = Tenancy {
        user: None,
        cache_salt: Some(kv.cache_salt.as_str()).filter(|salt| !salt.is_empty()),
        uses_cache: Some(!kv.bypass_prefix_cache),
        class: Some(Class::of_number(i64::from(priority))).filter(|_| priority != 0),
    };
    tenancy.apply(app, caller, request)
}

/// The protocol's name of a field of the engine's request.
fn field_name(field: &'static str) -> &'static str {
    match field {
        "prompt.text" => "text",
        "prompt.tokens" | "prompt" | "requests" => "token_ids",
        "output_tokens_max" => "stopping.max_new_tokens",
        "output_tokens_min" => "stopping.min_new_tokens",
        "stop_strings" => "stopping.stop_strings",
        "stop_tokens" => "stopping.stop_token_ids",
        "ignore_end_tokens" => "stopping.ignore_eos",
        "logit_bias" => "decoding.logit_bias",
        "sampling.temperature" => "temperature",
        "sampling.repetition_penalty" => "decoding.repetition_penalty",
        "sampling.presence_penalty" => "decoding.presence_penalty",
        "sampling.frequency_penalty" => "decoding.frequency_penalty",
        "n" => "sampling.num_sequences",
        "logprobs" => "response.output_candidates.top_n",
        "prompt_logprobs" => "response.prompt_candidates.top_n",
        "special_tokens_in_text" => "response.skip_special_tokens",
        "cache_salt" => "kv.cache_salt",
        "cache" => "kv.bypass_prefix_cache",
        "finish_within" => TIMEOUT,
        other => other,
    }
}
