//! Options for the cache and for a full context, and the cache after a restart.

mod common;
#[allow(dead_code, reason = "other tests take more of it")]
#[path = "../../../tests/common/scratch.rs"]
mod scratch;

use std::path::Path;
use std::sync::Arc;

use axum::http::StatusCode;
use common::client::{Answer, CHAT, Server, TEXT, chat, post};
use motet_server::serve;
use scratch::Scratch;
use serde_json::{Value, json};
use tokio::net::TcpListener;

fn cached(answer: &Value) -> u64 {
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().expect("a number")
}

#[tokio::test]
async fn cache_prompt_false_neither_reads_nor_fills_the_cache() {
    let server = Server::new().await;
    let ask = async |more: Value| server.post(CHAT, &chat(more)).await.ok();
    assert_eq!(cached(&ask(json!({"cache_prompt": false})).await), 0);
    assert_eq!(cached(&ask(json!({})).await), 0, "nothing was cached");
    assert_eq!(cached(&ask(json!({"cache_prompt": false})).await), 0);
    assert!(cached(&ask(json!({"cache_prompt": true})).await) > 0);
    let both = json!({"cache_prompt": false, "cache_salt": "tenant"});
    let rejected = server.post(CHAT, &chat(both)).await;
    assert_eq!(rejected.status, StatusCode::BAD_REQUEST);
    assert_eq!(rejected.body["error"]["param"], "cache_salt");
}

#[tokio::test]
async fn cache_prompt_false_works_with_a_key() {
    let server = Server::with("", "ann secret-a\n").await;
    let mut request = post(CHAT, &chat(json!({"cache_prompt": false})));
    let key = "Bearer secret-a".parse().expect("a header");
    request.headers_mut().insert("authorization", key);
    let answer = Answer::of(server.send(request).await).await.ok();
    assert_eq!(cached(&answer), 0);
}

#[tokio::test]
async fn prefill_progress_is_streamed_on_request() {
    let server = Server::new().await;
    let asks = json!({"stream": true, "return_progress": true});
    let events = server.stream(CHAT, &chat(asks)).await;
    let progress: Vec<&Value> = events
        .iter()
        .map(|event| &event["prompt_progress"])
        .filter(|progress| !progress.is_null())
        .collect();
    let last = progress.last().expect("the end of the prompt is reported");
    assert_eq!(last["processed"], last["total"]);
    assert_eq!(progress[0]["processed"], 0);
    assert_eq!((&last["index"], &last["cache"]), (&json!(0), &json!(0)));
    let others = server.stream(CHAT, &chat(json!({"stream": true}))).await;
    assert!(
        others
            .iter()
            .all(|event| event["prompt_progress"].is_null())
    );
}

/// The oracle's context is 8,192 tokens, each a byte.
const CONTEXT: usize = 8192;

#[tokio::test]
async fn context_shift_continues_past_a_full_context() {
    let server = Server::new().await;
    let ask = async |prompt: usize, more: Value| {
        let mut body = json!({
            "prompt": vec![97; prompt],
            "temperature": 0,
            "ignore_eos": true,
            "max_tokens": 40,
        });
        let fields = more.as_object().expect("fields").clone();
        body.as_object_mut().expect("an object").extend(fields);
        server.post(TEXT, &body).await
    };
    let tokens = |answer: &Value| {
        let usage = &answer["usage"];
        let count = |field: &str| usage[field].as_u64().expect("a number") as usize;
        (count("prompt_tokens"), count("completion_tokens"))
    };
    let stops = ask(CONTEXT - 8, json!({})).await.ok();
    assert_eq!(
        tokens(&stops),
        (CONTEXT - 8, 8),
        "the output ends where the context is full"
    );
    let goes_on = ask(CONTEXT - 8, json!({"context_shift": true})).await.ok();
    assert_eq!(tokens(&goes_on), (CONTEXT - 8, 40));
    // A prompt that is too long loses its middle: the excess, and half of the tokens that need
    // not be kept.
    let rejected = ask(CONTEXT + 4, json!({})).await;
    assert_eq!(rejected.status, StatusCode::BAD_REQUEST);
    for keep in [0, 1000] {
        let shifts = json!({"context_shift": true, "num_keep": keep});
        let answer = ask(CONTEXT + 4, shifts).await.ok();
        let left = CONTEXT - (CONTEXT - keep) / 2;
        assert_eq!(tokens(&answer), (left, 40), "{keep} are kept");
    }
    // `num_keep` implies a shift, which may still be forbidden.
    let keeps = ask(CONTEXT - 8, json!({"num_keep": 5})).await.ok();
    assert_eq!(tokens(&keeps).1, 40);
    let stays = json!({"num_keep": 5, "context_shift": false});
    assert_eq!(tokens(&ask(CONTEXT - 8, stays).await.ok()).1, 8);
    let rejected = ask(8, json!({"num_keep": CONTEXT})).await;
    assert_eq!(rejected.status, StatusCode::BAD_REQUEST);
    assert_eq!(rejected.body["error"]["param"], "num_keep");
}

/// Serves at a socket, sends one request, and shuts down as on SIGTERM.
async fn serve_once(disk: &Path, prompt: usize) -> Value {
    let arguments = format!("--disk {}", disk.display());
    let app = Arc::new(common::app(&arguments, "").await);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let server = Server::of(Arc::clone(&app));
    let body = json!({"prompt": vec![97; prompt], "temperature": 0, "max_tokens": 4});
    let answer = server.post(TEXT, &body).await.ok();
    drop(server);
    let ended = serve::serve(app, listener, std::future::ready(())).await;
    ended.expect("it ends well");
    answer
}

#[tokio::test]
async fn restart_loads_prompts_from_disk() {
    let disk = Scratch::new();
    assert_eq!(cached(&serve_once(disk.path(), 2000).await), 0);
    let found = cached(&serve_once(disk.path(), 2000).await);
    assert!(found >= 1980, "{found} of 2,000 tokens are found again");
}
