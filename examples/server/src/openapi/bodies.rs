//! Schemas of request bodies.

use motet::Request;
use motet::text::StopStrings;
use serde_json::{Map, Value, json};

use super::{described, object, reference};
use crate::app::App;
use crate::openai::parameters::NAME_BYTES_MAX;
use crate::openai::text::PROMPTS_MAX;

pub(super) fn schemas(app: &App) -> Map<String, Value> {
    let tokens = tokens(app);
    let mut chat = parameters(app);
    chat.extend(conversation());
    chat.extend(fields(json!({
        "logprobs": optional(&json!({"type": "boolean"})),
        "top_logprobs": optional(&counted(0, Request::LOGPROBS_MAX as u64)),
    })));
    let mut text = parameters(app);
    text.extend(prompts(&tokens));
    let mut tokenize_chat = conversation();
    tokenize_chat.extend(fields(json!({
        "add_generation_prompt": optional(&json!({"type": "boolean"})),
    })));
    let tokenize_text = json!({
        "prompt": {"type": "string"},
        "add_special_tokens": optional(&json!({"type": "boolean"})),
    });
    Map::from_iter([
        ("ChatRequest".into(), object(chat.into(), &["messages"])),
        ("TextRequest".into(), object(text.into(), &["prompt"])),
        ("Message".into(), message()),
        (
            "Tokenize".into(),
            json!({"anyOf": [
                object(tokenize_text, &["prompt"]),
                object(tokenize_chat.into(), &["messages"]),
            ]}),
        ),
        (
            "Detokenize".into(),
            object(json!({"tokens": tokens}), &["tokens"]),
        ),
    ])
}

/// The common fields of both endpoints.
fn parameters(app: &App) -> Map<String, Value> {
    let context = app.engine.model().context_tokens_max as u64;
    let mut all = fields(json!({
        "model": {
            "enum": [app.model, null],
            "description": "Another is answered with 404",
        },
        "max_tokens": described(
            optional(&counted(1, u64::MAX)),
            "Reduced to the rest of the context; the default is 16 for completions, and all of it for chats",
        ),
        "max_completion_tokens": described(
            optional(&counted(1, u64::MAX)),
            "The newer name of `max_tokens`; it takes precedence",
        ),
        "min_tokens": described(
            optional(&counted(0, u64::MAX)),
            "Fewest tokens before an end token; at most `max_tokens`",
        ),
        "n": described(
            optional(&counted(1, Request::N_MAX as u64)),
            "At most the requests that this server can hold",
        ),
        "stream": optional(&json!({"type": "boolean"})),
        "stream_options": optional(&object(
            json!({"include_usage": optional(&json!({"type": "boolean"}))}),
            &[],
        )),
        "user": described(
            optional(&json!({"type": "string", "maxLength": NAME_BYTES_MAX})),
            "Users share the model fairly; with API keys, the key is the user",
        ),
        "cache_salt": described(
            optional(&json!({"type": "string", "maxLength": NAME_BYTES_MAX})),
            "Cached state is shared with requests of the same salt only",
        ),
        "cache_prompt": described(
            optional(&json!({"type": "boolean"})),
            "If false, neither read nor write the cache; not with `cache_salt`",
        ),
        "return_progress": described(
            optional(&json!({"type": "boolean"})),
            "Report the progress of each prompt in a stream: parts with `prompt_progress`",
        ),
        "priority": described(
            json!({"enum": ["background", "normal", "urgent", null]}),
            &format!(
                "A priority class: a higher one starts first. One above that of the key is answered with \
                 403; of a key that has none, the highest is {}",
                app.conduct.class_max
            ),
        ),
        "context_shift": described(
            optional(&json!({"type": "boolean"})),
            "Continue when the context is full, and drop its oldest part",
        ),
        "num_keep": described(
            optional(&counted(0, context - 1)),
            "Tokens at the beginning that are never dropped; implies `context_shift`",
        ),
    }));
    all.extend(sampling(app));
    all.extend(endings(app));
    all
}

fn sampling(app: &App) -> Map<String, Value> {
    let finite = || json!({"type": "number", "minimum": -f32::MAX, "maximum": f32::MAX});
    let from_0 = json!({"type": "number", "minimum": 0, "maximum": f32::MAX});
    let above_0 =
        |maximum: f32| json!({"type": "number", "exclusiveMinimum": 0, "maximum": maximum});
    let vocabulary = app.engine.model().vocab_size;
    let bias = json!({
        "type": "object",
        "maxProperties": Request::LOGIT_BIAS_MAX,
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": finite(),
    });
    fields(json!({
        "temperature": described(optional(&from_0), "0 is greedy; the default is 1"),
        "top_p": optional(&above_0(1.0)),
        "top_k": described(
            optional(&json!({"type": "integer", "minimum": -1, "maximum": u32::MAX})),
            "-1 and 0 mean all tokens",
        ),
        "min_p": optional(&json!({"type": "number", "minimum": 0, "maximum": 1})),
        "seed": optional(&json!({
            "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX,
        })),
        "presence_penalty": optional(&finite()),
        "frequency_penalty": optional(&finite()),
        "repetition_penalty": described(
            optional(&above_0(f32::MAX)),
            "All penalties then count the prompt, too",
        ),
        "logit_bias": described(
            optional(&bias),
            &format!("By token id, below {vocabulary}"),
        ),
    }))
}

fn endings(app: &App) -> Map<String, Value> {
    let stop = json!({"type": "string", "minLength": 1, "maxLength": StopStrings::BYTES_MAX});
    let mut stop_tokens = tokens(app);
    stop_tokens["maxItems"] = json!(Request::STOP_TOKENS_MAX);
    let kind = |name: &str| json!({"const": name});
    let named = object(json!({"schema": {}}), &["schema"]);
    let format = json!({"anyOf": [
        object(json!({"type": kind("text")}), &["type"]),
        object(json!({"type": kind("json_object")}), &["type"]),
        object(
            json!({"type": kind("json_schema"), "json_schema": named}),
            &["type", "json_schema"],
        ),
        {"type": "null"},
    ]});
    fields(json!({
        "stop": {"anyOf": [
            stop,
            {"type": "array", "items": stop, "maxItems": StopStrings::COUNT_MAX},
            {"type": "null"},
        ]},
        "stop_token_ids": optional(&stop_tokens),
        "ignore_eos": described(
            optional(&json!({"type": "boolean"})),
            "Continue past the model's end tokens; not with a `response_format`",
        ),
        "response_format": described(format, "A format that llguidance compiles and the output can follow; else 422"),
    }))
}

fn conversation() -> Map<String, Value> {
    fields(json!({
        "messages": {"type": "array", "items": reference("Message"), "minItems": 1},
        "tools": described(
            optional(&json!({"type": "array"})),
            "Passed to the model through its chat template",
        ),
        "tool_choice": described(
            json!({"enum": ["auto", "none", null]}),
            "Tools do not constrain the output, so other values are answered with 422",
        ),
        "chat_template_kwargs": optional(&json!({"type": "object"})),
    }))
}

fn message() -> Value {
    let part = object(
        json!({"type": {"const": "text"}, "text": {"type": "string"}}),
        &["type", "text"],
    );
    let content = json!({"anyOf": [
        {"type": "string"},
        {"type": "array", "items": part},
        {"type": "null"},
    ]});
    let fields = json!({
        "role": {"type": "string"},
        "content": content,
        "tool_calls": optional(&json!({"type": "array"})),
    });
    let described_as = "Further fields are passed to the chat template unchanged";
    described(object(fields, &["role"]), described_as)
}

fn prompts(tokens: &Value) -> Map<String, Value> {
    let mut prompt_tokens = tokens.clone();
    prompt_tokens["minItems"] = json!(1);
    let many = |items: &Value| json!({"type": "array", "items": items, "minItems": 1, "maxItems": PROMPTS_MAX});
    let text = json!({"type": "string", "minLength": 1});
    fields(json!({
        "prompt": {"anyOf": [text, many(&text), prompt_tokens, many(&prompt_tokens)]},
        "logprobs": optional(&counted(0, Request::LOGPROBS_MAX as u64)),
        "echo": described(
            optional(&json!({"type": "boolean"})),
            "The prompt before the output; not with `logprobs`",
        ),
        "best_of": described(
            optional(&counted(1, Request::N_MAX as u64)),
            "Generate this many and return the `n` likeliest; at least `n`, and not with `stream`",
        ),
        "suffix": described(
            json!({"enum": ["", null]}),
            "No other is supported",
        ),
    }))
}

fn tokens(app: &App) -> Value {
    let most = app.engine.model().vocab_size as u64 - 1;
    json!({"type": "array", "items": counted(0, most)})
}

fn counted(from: u64, to: u64) -> Value {
    json!({"type": "integer", "minimum": from, "maximum": to})
}

/// The schema, or `null`.
fn optional(schema: &Value) -> Value {
    let mut schema = schema.clone();
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

fn fields(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields,
        other => unreachable!("{other} is written as an object"),
    }
}
