//! From Dynamo's request to the engine's.
//!
//! A request that continues at this worker comes as a prompt with the tokens that were delivered
//! already, and with less left of `max_tokens` and `min_tokens`; nothing says how many they are. Draws
//! are by position in prompt and output together, and so go on as they would have. Stop strings are the
//! frontend's.

use dynamo_backend_common::{
    DynamoError, GuidedDecodingOptions, PreprocessedRequest, SamplingOptions,
};
use motet::Request;
use motet::grammar::GrammarSource;
use motet::request::{Prompt, Sampling};
use motet_server::class::Class;
use serde_json::Value;

use crate::errors;

/// Reads a request for a model with this context.
///
/// # Errors
///
/// A field that asks for what this worker does not do.
pub(crate) fn read(
    sent: PreprocessedRequest,
    context_tokens: usize,
) -> Result<Request, DynamoError> {
    check_supported(&sent)?;
    let PreprocessedRequest {
        token_ids,
        stop_conditions: stop,
        sampling_options: sampling,
        output_options: output,
        routing,
        ..
    } = sent;
    let tokens = std::sync::Arc::unwrap_or_clone(token_ids);
    let output_tokens_max = stop.max_tokens.map_or(context_tokens, |most| most as usize);
    let mut request = Request::new(Prompt::Tokens(tokens)).output_tokens_max(output_tokens_max);
    request.output_tokens_min = stop.min_tokens.unwrap_or(0) as usize;
    request.sampling = sampling_of(&sampling);
    request.grammar = sampling.guided_decoding.map(grammar).transpose()?.flatten();
    request.stop_tokens = stop.stop_token_ids.unwrap_or_default();
    request
        .stop_tokens
        .extend(stop.stop_token_ids_hidden.unwrap_or_default());
    // The frontend ends the output after a stop token that it shows. The engine would end it before.
    let shows_stop = stop
        .stop_token_ids_visible
        .is_some_and(|shown| !shown.is_empty());
    let shows_stop = shows_stop && request.grammar.is_none();
    request.ignore_end_tokens = stop.ignore_eos == Some(true) || shows_stop;
    request.logprobs = output.logprobs.map(|count| count as usize);
    if let Some(routing) = routing {
        request.cache_salt = routing.cache_namespace;
        // Dynamo's number is higher the earlier a request starts, and vLLM's is lower.
        let number = routing.priority.map_or(0, |priority| -i64::from(priority));
        request.priority = Class::of_number(number).priority();
    }
    Ok(request)
}

/// Rejects what would change the output and is not done here. Hints change no token.
fn check_supported(sent: &PreprocessedRequest) -> Result<(), DynamoError> {
    let (sampling, stop) = (&sent.sampling_options, &sent.stop_conditions);
    let is_above_one = |count: Option<u8>| count.is_some_and(|count| count > 1);
    let lora = sent
        .routing
        .as_ref()
        .and_then(|routing| routing.lora_name.as_ref());
    let unsupported = [
        ("n", is_above_one(sampling.n)),
        ("best_of", is_above_one(sampling.best_of)),
        ("use_beam_search", sampling.use_beam_search == Some(true)),
        ("max_thinking_tokens", stop.max_thinking_tokens.is_some()),
        (
            "prompt_logprobs",
            sent.output_options.prompt_logprobs.is_some(),
        ),
        ("prompt_embeds", sent.prompt_embeds.is_some()),
        (
            "multi_modal_data",
            sent.multi_modal_data
                .as_ref()
                .is_some_and(|media| !media.is_empty()),
        ),
        ("lora_name", lora.is_some()),
        ("prefill_result", sent.prefill_result.is_some()),
    ];
    match unsupported.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((field, _)) => Err(errors::invalid(format!(
            "`{field}` is set, which this worker does not support"
        ))),
    }
}

fn sampling_of(sent: &SamplingOptions) -> Sampling {
    Sampling {
        temperature: sent.temperature.unwrap_or(1.0),
        // -1 is all tokens, as 0 is.
        top_k: sent
            .top_k
            .map_or(0, |most| u32::try_from(most).unwrap_or(0)),
        top_p: sent.top_p.unwrap_or(1.0),
        min_p: sent.min_p.unwrap_or(0.0),
        seed: sent.seed.map_or_else(rand::random, i64::cast_unsigned),
        repetition_penalty: sent.repetition_penalty.unwrap_or(1.0),
        presence_penalty: sent.presence_penalty.unwrap_or(0.0),
        frequency_penalty: sent.frequency_penalty.unwrap_or(0.0),
        penalty_window: u32::MAX,
        // The repetition penalty also counts the prompt, as vLLM's does.
        penalize_prompt: sent.repetition_penalty.is_some(),
    }
}

/// The grammar that the output follows. The frontend has seen to it that there is one at most.
fn grammar(sent: GuidedDecodingOptions) -> Result<Option<GrammarSource>, DynamoError> {
    if sent.structural_tag.is_some() {
        return Err(errors::invalid(
            "`structural_tag` is set, which this worker does not support; `grammar` may say the same in Lark",
        ));
    }
    Ok(match (sent.json, sent.regex, sent.grammar, sent.choice) {
        (Some(Value::String(schema)), ..) => Some(GrammarSource::JsonSchema(schema)),
        (Some(schema), ..) if !schema.is_null() => {
            Some(GrammarSource::JsonSchema(schema.to_string()))
        }
        (_, Some(regex), ..) => Some(GrammarSource::Regex(regex)),
        (_, _, Some(lark), _) => Some(GrammarSource::Lark(lark)),
        (_, _, _, Some(choices)) => {
            let grammar = GrammarSource::of_choices(&choices);
            let empty = || errors::invalid("`choice` is empty; expected at least one choice");
            Some(grammar.ok_or_else(empty)?)
        }
        _ => None,
    })
}
