//! Log probabilities of prompts, and embeddings, over the API on the oracle.

use crate::common::client::{Server, TEXT};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const EMBEDDINGS: &str = "/v1/embeddings";

async fn choice(server: &Server, body: Value) -> Value {
    let answer = server.post(TEXT, &body).await.ok();
    answer["choices"][0].clone()
}

fn numbers(list: &Value) -> Vec<Option<f64>> {
    let list = list.as_array().expect("a list").iter();
    list.map(Value::as_f64).collect()
}

/// Evaluators of language models read this: a null for the first token, then one number for each
/// token of the prompt and of the output.
#[tokio::test]
async fn echo_with_logprobs_scores_the_prompt() {
    let server = Server::new().await;
    let body = json!({
        "prompt": "one two", "max_tokens": 3, "echo": true, "logprobs": 2, "temperature": 0,
        "ignore_eos": true,
    });
    let whole = choice(&server, body).await;
    assert!(whole["text"].as_str().expect("text").starts_with("one two"));
    let logprobs = &whole["logprobs"];
    let scored = numbers(&logprobs["token_logprobs"]);
    assert_eq!(scored.len(), 7 + 3, "tokens of the oracle are bytes");
    assert_eq!(scored[0], None);
    assert!(
        scored[1..]
            .iter()
            .all(|one| one.is_some_and(|one| one <= 0.0))
    );
    for field in ["tokens", "top_logprobs", "text_offset"] {
        assert_eq!(
            logprobs[field].as_array().map(Vec::len),
            Some(10),
            "{field}"
        );
    }
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert_eq!(
        logprobs["top_logprobs"][1].as_object().map(|top| top.len()),
        Some(2)
    );
    assert_eq!(logprobs["tokens"][4], "t");
    assert_eq!(logprobs["text_offset"][4], 4);

    // The generated tokens have the log probabilities that they have as a prompt.
    let tokens = server
        .post("/tokenize", &json!({"prompt": "one two"}))
        .await
        .ok();
    assert_eq!(tokens["count"], 7);
    let alone = json!({
        "prompt": tokens["tokens"], "max_tokens": 0, "echo": true, "logprobs": 2,
    });
    let alone = choice(&server, alone).await;
    assert_eq!(alone["text"], "one two");
    assert_eq!(alone["finish_reason"], "length");
    assert_eq!(numbers(&alone["logprobs"]["token_logprobs"]), scored[..7]);
}

/// Evaluators take the token after the prompt off the end of the list, so that it must be there also
/// where it ends the output.
#[tokio::test]
async fn one_token_after_an_echoed_prompt_is_listed_whatever_it_is() {
    let server = Server::new().await;
    let mut ended = 0;
    // One in 64 outputs of the oracle ends at once.
    for first in 1..=4 {
        let prompts: Vec<[u32; 2]> = (1..=100).map(|token| [first, token]).collect();
        let body = json!({
            "prompt": prompts, "max_tokens": 1, "echo": true, "logprobs": 1, "temperature": 0,
        });
        let answer = server.post(TEXT, &body).await.ok();
        assert_eq!(answer["usage"]["completion_tokens"], prompts.len());
        for (at, prompt) in prompts.iter().enumerate() {
            let choice = &answer["choices"][at];
            for field in ["token_logprobs", "tokens", "top_logprobs", "text_offset"] {
                let list = choice["logprobs"][field].as_array();
                assert_eq!(list.map(Vec::len), Some(3), "{field}: {choice}");
            }
            if choice["finish_reason"] == "stop" {
                ended += 1;
                check_ended(&server, prompt, choice).await;
            }
        }
    }
    assert!(ended > 0, "no output of the oracle ends at once");
}

/// Checks an output that ends with its only token.
async fn check_ended(server: &Server, prompt: &[u32], ended: &Value) {
    let spelled = json!({"tokens": prompt});
    let spelled = server.post("/detokenize", &spelled).await.ok();
    assert_eq!(ended["text"], spelled["prompt"], "its token has no text");
    // Its log probability is the one that it has where it does not end the output.
    let body = json!({
        "prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 1, "temperature": 0,
        "ignore_eos": true,
    });
    let whole = choice(server, body).await;
    assert_eq!(whole["finish_reason"], "length");
    assert_eq!(whole["logprobs"], ended["logprobs"]);
}

#[tokio::test]
async fn prompt_logprobs_have_the_form_of_vllm() {
    let server = Server::new().await;
    let body = json!({
        "prompt": [[5, 6, 7, 8], [9, 10]], "max_tokens": 0, "prompt_logprobs": 1,
    });
    let answer = server.post(TEXT, &body).await.ok();
    assert_eq!(answer["usage"]["prompt_tokens"], 6);
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let first = answer["choices"][0]["prompt_logprobs"].as_array();
    let first = first.expect("one for each token");
    assert_eq!((first.len(), &first[0]), (4, &Value::Null));
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    let own = &first[1]["6"];
    assert!(own["logprob"].as_f64().expect("a number") <= 0.0, "{own}");
    let likeliest = first[1].as_object().expect("by token").values();
    let ranks: Vec<_> = likeliest
        .filter_map(|entry| entry["rank"].as_u64())
        .collect();
    assert_eq!(ranks, [1], "one alternative was asked for");
    let spelled = server
        .post("/detokenize", &json!({"tokens": [6]}))
        .await
        .ok();
    assert_eq!(own["decoded_token"], spelled["prompt"]);
    let second = &answer["choices"][1]["prompt_logprobs"];
    assert_eq!(second.as_array().map(Vec::len), Some(2));
}

/// Continuations of one prompt compute it once.
#[tokio::test]
async fn scores_of_continuations_use_the_cache() {
    let server = Server::new().await;
    let prompt: Vec<u32> = (0..120).map(|at| 1 + at * at % 200).collect();
    let with = |end: &[u32]| [&prompt[..], end].concat();
    let body = json!({
        "prompt": [with(&[3, 4]), with(&[5]), with(&[6, 7, 8])], "max_tokens": 0,
        "prompt_logprobs": 0, "logprob_start_len": 120,
    });
    let answer = server.post(TEXT, &body).await.ok();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(cached, 2 * 119);
    let choices = answer["choices"].as_array().expect("choices").iter();
    let scored = choices.map(|choice| {
        let all = choice["prompt_logprobs"].as_array().expect("a list");
        all.iter().filter(|one| !one.is_null()).count()
    });
    assert_eq!(scored.collect::<Vec<_>>(), [2, 1, 3]);
    // The whole prompt gives the same numbers for them.
    let whole = json!({"prompt": with(&[6, 7, 8]), "max_tokens": 0, "prompt_logprobs": 0});
    let whole = choice(&server, whole).await;
    for at in 120..123 {
        let expected = &answer["choices"][2]["prompt_logprobs"][at];
        assert_eq!(&whole["prompt_logprobs"][at], expected);
    }
}

#[tokio::test]
async fn contradictions_are_rejected_by_field() {
    let server = Server::new().await;
    for (field, more, status) in [
        (
            "stream",
            json!({"echo": true, "logprobs": 0, "stream": true}),
            422,
        ),
        ("stream", json!({"prompt_logprobs": 0, "stream": true}), 422),
        ("prompt_logprobs", json!({"prompt_logprobs": 21}), 400),
        ("prompt_logprobs", json!({"prompt_logprobs": -1}), 400),
        ("max_tokens", json!({"max_tokens": 0}), 400),
        ("max_tokens", json!({"max_tokens": 0, "echo": true}), 400),
        ("n", json!({"prompt_logprobs": 0, "n": 2}), 400),
        ("best_of", json!({"prompt_logprobs": 0, "best_of": 2}), 400),
        (
            "best_of",
            json!({"echo": true, "logprobs": 0, "best_of": 2}),
            400,
        ),
        ("logprob_start_len", json!({"logprob_start_len": 1}), 400),
        (
            "logprob_start_len",
            json!({"prompt_logprobs": 0, "logprob_start_len": 5}),
            400,
        ),
        (
            "context_shift",
            json!({"prompt_logprobs": 0, "context_shift": true}),
            400,
        ),
        (
            "presence_penalty",
            json!({"prompt_logprobs": 0, "max_tokens": 0, "presence_penalty": 1}),
            400,
        ),
        (
            "logit_bias",
            json!({"prompt_logprobs": 0, "max_tokens": 0, "logit_bias": {"1": 2}}),
            400,
        ),
        (
            "prompt",
            json!({"prompt_logprobs": 0, "prompt": [1, 999]}),
            400,
        ),
        ("prompt", json!({"prompt_logprobs": 0, "prompt": []}), 400),
    ] {
        let mut body = json!({"prompt": "12345"});
        body.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("one").clone());
        let answer = server.post(TEXT, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{body}: {}", answer.body);
        assert_eq!(
            answer.body["error"]["param"], field,
            "{body}: {}",
            answer.body
        );
    }
    // Settings that clients send with every request are no contradiction.
    let usual = json!({
        "prompt": "12345", "max_tokens": 0, "echo": true, "logprobs": 1, "temperature": 1.0,
        "top_p": 1.0, "seed": 7, "stop": ["\n"],
    });
    assert_eq!(server.post(TEXT, &usual).await.status, StatusCode::OK);
}

fn vector(entry: &Value) -> Vec<f32> {
    let numbers = entry["embedding"].as_array().expect("numbers").iter();
    numbers
        .map(|number| number.as_f64().expect("a number") as f32)
        .collect()
}

fn length(vector: &[f32]) -> f32 {
    vector
        .iter()
        .map(|number| number * number)
        .sum::<f32>()
        .sqrt()
}

#[tokio::test]
async fn embeddings_of_texts_and_tokens() {
    let server = Server::new().await;
    let one = server.post(EMBEDDINGS, &json!({"input": "ab"})).await.ok();
    assert_eq!(
        (&one["object"], &one["model"]),
        (&json!("list"), &json!("oracle"))
    );
    assert_eq!(one["usage"], json!({"prompt_tokens": 2, "total_tokens": 2}));
    assert_eq!(one["data"][0]["object"], "embedding");
    let first = vector(&one["data"][0]);
    assert!((length(&first) - 1.0).abs() < 1e-5);

    let many = json!({"input": ["xyz", "ab", "ab"], "model": "oracle", "user": "someone"});
    let many = server.post(EMBEDDINGS, &many).await.ok();
    assert_eq!(many["usage"]["prompt_tokens"], 7);
    let indices = many["data"].as_array().expect("a list").iter();
    let indices: Vec<_> = indices.map(|entry| &entry["index"]).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert_eq!(
        (vector(&many["data"][1]), vector(&many["data"][2])),
        (first.clone(), first.clone())
    );
    assert_ne!(vector(&many["data"][0]), first);

    let ab = server
        .post("/tokenize", &json!({"prompt": "ab"}))
        .await
        .ok();
    let ab = &ab["tokens"];
    let tokens = json!({"input": [ab, [1]], "encoding_format": "base64"});
    let tokens = server.post(EMBEDDINGS, &tokens).await.ok();
    let bytes = tokens["data"][0]["embedding"].as_str().expect("a text");
    let bytes = STANDARD.decode(bytes).expect("base64");
    let chunks = bytes.as_chunks::<4>().0.iter();
    let decoded: Vec<f32> = chunks.map(|chunk| f32::from_le_bytes(*chunk)).collect();
    assert_eq!(decoded, first);

    let cut = json!({"input": ab, "dimensions": 4, "encoding_format": "float"});
    let cut = vector(&server.post(EMBEDDINGS, &cut).await.ok()["data"][0]);
    assert_eq!(cut.len(), 4);
    assert!((length(&cut) - 1.0).abs() < 1e-5);
    let scale = length(&first[..4]);
    for (cut, whole) in cut.iter().zip(&first) {
        assert!((cut * scale - whole).abs() < 1e-5);
    }
}

#[tokio::test]
async fn invalid_embeddings_are_rejected_by_field() {
    let server = Server::new().await;
    for (field, body, status) in [
        ("input", json!({}), 400),
        ("input", json!({"input": ""}), 400),
        ("input", json!({"input": ["a", ""]}), 400),
        ("input", json!({"input": []}), 400),
        ("input", json!({"input": [[]]}), 400),
        ("input", json!({"input": [1, 999]}), 400),
        ("input", json!({"input": 7}), 400),
        ("input", json!({"input": vec!["a"; 129]}), 400),
        ("dimensions", json!({"input": "a", "dimensions": 0}), 400),
        ("dimensions", json!({"input": "a", "dimensions": 13}), 400),
        (
            "encoding_format",
            json!({"input": "a", "encoding_format": "hex"}),
            400,
        ),
        ("model", json!({"input": "a", "model": "another"}), 404),
        ("priority", json!({"input": "a", "priority": "first"}), 400),
    ] {
        let answer = server.post(EMBEDDINGS, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{body}: {}", answer.body);
        assert_eq!(
            answer.body["error"]["param"], field,
            "{body}: {}",
            answer.body
        );
    }
}

/// The offsets of tokens in the text, where a token is a byte.
#[tokio::test]
async fn offsets_count_characters_that_take_several_tokens() {
    let server = Server::new().await;
    let body =
        json!({"prompt": "Hi \u{1f60a} there", "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = server.post(TEXT, &body).await.ok();
    let offsets = &answer["choices"][0]["logprobs"]["text_offset"];
    assert_eq!(*offsets, json!([0, 1, 2, 3, 3, 3, 3, 4, 5, 6, 7, 8, 9]));
}

#[tokio::test]
async fn offsets_are_the_same_whole_and_streamed() {
    let server = Server::new().await;
    for seed in 0..4 {
        let mut body = json!({"prompt": "a", "logprobs": 0, "max_tokens": 60, "ignore_eos": true,
                              "seed": seed});
        let whole = server.post(TEXT, &body).await.ok();
        let choice = &whole["choices"][0];
        let offsets = choice["logprobs"]["text_offset"]
            .as_array()
            .expect("a list");
        assert_eq!(offsets.len(), 60);
        let characters = choice["text"].as_str().expect("text").chars().count();
        assert!(
            offsets
                .iter()
                .all(|offset| offset.as_u64() <= Some(characters as u64))
        );
        body["stream"] = json!(true);
        let parts = server.stream(TEXT, &body).await;
        let parts = parts
            .iter()
            .map(|part| &part["choices"][0]["logprobs"]["text_offset"]);
        let streamed = parts.filter_map(Value::as_array).flatten().cloned();
        assert_eq!(&streamed.collect::<Vec<Value>>(), offsets, "{whole}");
    }
}
