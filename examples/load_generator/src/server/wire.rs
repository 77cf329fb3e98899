//! The messages of OpenAI's API.

use std::collections::BTreeMap;

use motet::TokenId;
use motet::text::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A `logit_bias` that effectively bans a token.
const NEVER: f32 = -100.0;

/// One request for a chat completion.
#[derive(Clone, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) messages: &'a [Message],
    pub(crate) reply_tokens_max: usize,
    pub(crate) temperature: f32,
    pub(crate) seed: u64,
    /// Continue past the end token. Motet and vLLM support this field, others ignore it.
    pub(crate) ignore_end: bool,
    /// Tokens that are never sampled.
    pub(crate) banned: &'a [TokenId],
}

/// The usage of a reply, as the server counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) prompt_tokens: usize,
    /// `None` if the server does not report it.
    pub(crate) cached_tokens: Option<usize>,
    pub(crate) output_tokens: usize,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Value>,
    stream: bool,
    stream_options: Value,
    max_tokens: usize,
    temperature: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ignore_eos: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    logit_bias: BTreeMap<TokenId, f32>,
}

impl Question<'_> {
    /// The body of the request.
    pub(super) fn body(&self, model: &str) -> Vec<u8> {
        let messages = self.messages.iter();
        let body = Body {
            model,
            messages: messages
                .map(|message| json!({"role": message.role, "content": message.content}))
                .collect(),
            stream: true,
            stream_options: json!({"include_usage": true}),
            max_tokens: self.reply_tokens_max,
            temperature: self.temperature,
            // Greedy sampling needs no seed, and mlx-lm's server does not batch requests with a
            // seed. Some servers accept at most 63 bits.
            seed: (self.temperature > 0.0).then_some(self.seed >> 1),
            ignore_eos: self.ignore_end,
            logit_bias: self.banned.iter().map(|token| (*token, NEVER)).collect(),
        };
        serde_json::to_vec(&body).expect("plain data becomes JSON")
    }
}

/// A part of a streamed reply. Fields that a server leaves out or sets to null are `None`
/// or empty.
#[derive(Debug, Deserialize)]
pub(super) struct Part {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Deserialize)]
struct Details {
    cached_tokens: Option<usize>,
}

impl Part {
    /// The server's error message, if it sent one.
    pub(super) fn error(&self) -> Option<String> {
        self.error.as_ref().map(message)
    }

    /// The part's text, reasoning included.
    pub(super) fn text(&self) -> String {
        let choices = self.choices.iter().flatten();
        let deltas = choices.filter_map(|choice| choice.delta.as_ref());
        let texts = deltas.flat_map(|delta| [&delta.reasoning_content, &delta.content]);
        texts.flatten().map(String::as_str).collect()
    }

    /// Whether this is the last part with text.
    pub(super) fn is_last(&self) -> bool {
        let mut choices = self.choices.iter().flatten();
        choices.any(|choice| choice.finish_reason.is_some())
    }

    pub(super) fn cost(&self) -> Option<Cost> {
        let usage = self.usage.as_ref()?;
        let details = usage.prompt_tokens_details.as_ref();
        Some(Cost {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: details.and_then(|details| details.cached_tokens),
            output_tokens: usage.completion_tokens,
        })
    }
}

/// The message of an error body: `{"error": {"message": …}}` in most servers.
pub(super) fn message(error: &Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let text = inner.get("message").unwrap_or(inner);
    text.as_str()
        .map_or_else(|| text.to_string(), str::to_owned)
}

/// The first model that a server lists.
pub(super) fn first_model(body: &[u8]) -> Option<String> {
    let listed: Value = serde_json::from_slice(body).ok()?;
    listed["data"][0]["id"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text: &str) -> Part {
        serde_json::from_str(text).expect("a part")
    }

    #[test]
    fn parts_of_different_servers_are_read() {
        let parsed = part(
            r#"{"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"},
                "finish_reason": null, "logprobs": null}], "usage": null}"#,
        );
        assert_eq!((parsed.text(), parsed.is_last()), ("Hi".to_owned(), false));
        assert_eq!(parsed.cost(), None);
        let last = part(r#"{"choices": [{"delta": {}, "finish_reason": "length"}]}"#);
        assert!(last.is_last() && last.text().is_empty());
        let usage = part(
            r#"{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 4}}}"#,
        );
        let cost = usage.cost().expect("a cost");
        assert_eq!((cost.prompt_tokens, cost.output_tokens), (9, 3));
        assert_eq!(cost.cached_tokens, Some(4));
        let failed = part(r#"{"error": {"message": "out of memory", "type": "server_error"}}"#);
        assert_eq!(failed.error().as_deref(), Some("out of memory"));
    }

    #[test]
    fn only_requested_fields_are_sent() {
        let question = Question {
            messages: &[Message::user("Hello?")],
            reply_tokens_max: 5,
            temperature: 0.0,
            seed: u64::MAX,
            ignore_end: false,
            banned: &[],
        };
        let body = |question: &Question<'_>| -> Value {
            serde_json::from_slice(&question.body("small")).expect("JSON")
        };
        let plain = body(&question);
        assert_eq!(
            plain["messages"],
            json!([{"role": "user", "content": "Hello?"}])
        );
        for field in ["seed", "ignore_eos", "logit_bias"] {
            assert_eq!(plain.get(field), None, "{field}");
        }
        let more = body(&Question {
            temperature: 1.0,
            ignore_end: true,
            banned: &[2],
            ..question
        });
        assert_eq!(more["seed"], json!(u64::MAX >> 1));
        assert_eq!(more["logit_bias"], json!({"2": -100.0}));
        assert_eq!(more["ignore_eos"], true);
    }

    #[test]
    fn errors_are_found_in_any_shape() {
        let check = |body: Value, expected: &str| assert_eq!(message(&body), expected);
        check(json!({"error": {"message": "no"}}), "no");
        check(json!({"error": "no"}), "no");
        check(json!({"message": "no"}), "no");
        check(json!([1]), "[1]");
    }
}
