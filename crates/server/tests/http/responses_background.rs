//! Responses that are answered without their clients, and read from any event on.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::common::client::{Answer, Server, post, whole};
use crate::common::responses::{RESPONSES, ask, events, id};

/// A test that waits longer has failed.
const TIMEOUT: Duration = Duration::from_secs(60);

fn path(id: &str, query: &str) -> String {
    format!("{RESPONSES}/{id}{query}")
}

/// Events from this path.
async fn events_at(server: &Server, path: &str) -> Vec<Value> {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let response = timeout(TIMEOUT, server.send(request))
        .await
        .expect("in time");
    assert_eq!(response.status(), StatusCode::OK);
    let kind = &response.headers()[header::CONTENT_TYPE];
    assert_eq!(kind, "text/event-stream");
    let text = timeout(TIMEOUT, whole(response)).await.expect("in time");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).expect("JSON"))
        .collect()
}

/// Reads the response until it has ended.
async fn ended(server: &Server, id: &str) -> Value {
    let ended = async {
        loop {
            let response = server.get(&path(id, "")).await.ok();
            if response["status"] != "in_progress" {
                return response;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, ended).await.expect("in time")
}

async fn cancel(server: &Server, id: &str) -> Answer {
    server.post(&path(id, "/cancel"), &json!({})).await
}

/// The text of a response.
fn text(response: &Value) -> String {
    let text = &response["output"][0]["content"][0]["text"];
    text.as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn a_background_response_is_answered_without_its_client() {
    let server = Server::new().await;
    let direct = server.post(RESPONSES, &ask(json!({}))).await.ok();
    let begun = server
        .post(RESPONSES, &ask(json!({"background": true})))
        .await
        .ok();
    assert_eq!(begun["background"], true);
    let response = ended(&server, id(&begun)).await;
    assert_eq!(response["status"], direct["status"]);
    assert_eq!(text(&response), text(&direct));
    let next = json!({"previous_response_id": id(&begun), "input": "And then?"});
    server.post(RESPONSES, &ask(next)).await.ok();
}

#[tokio::test]
async fn events_are_read_from_any_one_on_and_are_the_same_each_time() {
    let server = Server::new().await;
    let undisturbed = events(&server, &ask(json!({"stream": true}))).await;
    let body = ask(json!({"stream": true, "background": true}));
    let mut response = server.send(post(RESPONSES, &body)).await;
    // The client reads the first event, and disconnects.
    let first = response.body_mut().frame().await.expect("an event");
    let first = first.expect("no error").into_data().expect("data");
    let first = String::from_utf8(first.to_vec()).expect("text");
    let data = first.lines().find_map(|line| line.strip_prefix("data: "));
    let created: Value = serde_json::from_str(data.expect("data")).expect("JSON");
    drop(response);
    let id = id(&created["response"]);

    let all = events_at(&server, &path(id, "?stream=true")).await;
    let names = |events: &[Value]| -> Vec<Value> {
        events.iter().map(|event| event["type"].clone()).collect()
    };
    assert_eq!(names(&all), names(&undisturbed));
    let numbers = all.iter().map(|event| event["sequence_number"].as_u64());
    assert!(numbers.eq((0..).map(Some).take(all.len())), "{all:?}");
    assert_eq!(all, events_at(&server, &path(id, "?stream=true")).await);
    for after in [0, 1, 7, all.len() - 2, all.len() - 1, all.len() + 5] {
        let rest = format!("?stream=true&starting_after={after}");
        let rest = events_at(&server, &path(id, &rest)).await;
        let expected = all.get(after + 1..).unwrap_or_default();
        assert_eq!(rest, expected, "{after}");
    }
    let last = &all.last().expect("one")["response"];
    assert_eq!(*last, server.get(&path(id, "")).await.ok());
}

#[tokio::test]
async fn a_reader_follows_an_answer_that_goes_on() {
    let server = Server::new().await;
    let more = json!({"stream": true, "background": true, "max_output_tokens": 2_000});
    let begun = server.send(post(RESPONSES, &ask(more.clone()))).await;
    let mut quiet = more;
    quiet["stream"] = false.into();
    let other = server.post(RESPONSES, &ask(quiet)).await.ok();
    let followed = events_at(&server, &path(id(&other), "?stream=true")).await;
    let own = timeout(TIMEOUT, whole(begun)).await.expect("in time");
    let own = own
        .lines()
        .filter(|line| line.starts_with("data: "))
        .count();
    assert_eq!(followed.len(), own);
    let deltas = followed.iter().filter_map(|event| event["delta"].as_str());
    let deltas: String = deltas.collect();
    assert_eq!(deltas, text(&followed.last().expect("one")["response"]));
}

/// A request with a key.
async fn send(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> Answer {
    let request = Request::builder().method(method).uri(path);
    let request = request
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {key}"));
    let request = request.body(Body::from(body.to_string()));
    Answer::of(server.send(request.expect("a request")).await).await
}

/// Waits until a key with one place has it again.
async fn until_free(server: &Server, key: &str) {
    let free = async {
        while send(server, key, "POST", RESPONSES, &ask(json!({})))
            .await
            .status
            != StatusCode::OK
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, free).await.expect("the place is free");
}

#[tokio::test]
async fn a_key_at_its_limit_reads_and_cancels_its_own_response() {
    let server = Server::with("", "ann secret-a 1\nbob secret-b").await;
    let empty = json!({});
    let long = ask(json!({"background": true, "max_output_tokens": 8_000}));
    let begun = send(&server, "secret-a", "POST", RESPONSES, &long)
        .await
        .ok();
    let one = path(id(&begun), "");
    let cancelling = path(id(&begun), "/cancel");
    let streamed = path(id(&begun), "?stream=true");
    // It takes the key's one place until it ends, and is no other key's.
    let busy = send(&server, "secret-a", "POST", RESPONSES, &long).await;
    assert_eq!(busy.status, StatusCode::TOO_MANY_REQUESTS);
    for (method, path) in [
        ("GET", &one),
        ("GET", &streamed),
        ("DELETE", &one),
        ("POST", &cancelling),
    ] {
        let foreign = send(&server, "secret-b", method, path, &empty).await;
        assert_eq!(foreign.status, StatusCode::NOT_FOUND, "{method} {path}");
    }
    let read = send(&server, "secret-a", "GET", &one, &empty).await.ok();
    assert_eq!(read["status"], "in_progress");
    let cancelled = send(&server, "secret-a", "POST", &cancelling, &empty)
        .await
        .ok();
    assert_eq!(cancelled["status"], "cancelled");
    let again = send(&server, "secret-a", "POST", &cancelling, &empty)
        .await
        .ok();
    assert_eq!(again, cancelled);
    let stored = send(&server, "secret-a", "GET", &one, &empty).await.ok();
    assert_eq!(stored, cancelled);
    until_free(&server, "secret-a").await;
    send(&server, "secret-a", "DELETE", &one, &empty).await.ok();
    let gone = send(&server, "secret-a", "GET", &one, &empty).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_deleted_response_ends_and_is_not_stored() {
    let server = Server::with("", "ann secret-a 1").await;
    let long = ask(json!({"background": true, "max_output_tokens": 8_000}));
    let begun = send(&server, "secret-a", "POST", RESPONSES, &long)
        .await
        .ok();
    let one = path(id(&begun), "");
    send(&server, "secret-a", "DELETE", &one, &json!({}))
        .await
        .ok();
    // Its key has its place again once it has ended.
    until_free(&server, "secret-a").await;
    let gone = send(&server, "secret-a", "GET", &one, &json!({})).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn older_recordings_are_dropped_and_their_responses_are_read_whole() {
    let server = Server::new().await;
    let mut ids = Vec::new();
    for _ in 0..34 {
        let body = ask(json!({"background": true, "max_output_tokens": 4}));
        let begun = server.post(RESPONSES, &body).await.ok();
        ended(&server, id(&begun)).await;
        ids.push(id(&begun).to_owned());
    }
    let dropped = async {
        while server.get(&path(&ids[1], "?stream=true")).await.status == StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, dropped).await.expect("in time");
    assert_eq!(
        server.get(&path(&ids[0], "")).await.ok()["status"],
        "incomplete"
    );
    events_at(&server, &path(&ids[33], "?stream=true")).await;
}

#[tokio::test]
async fn events_are_forgotten_after_their_time_and_the_response_is_not() {
    let server = Server::with("--background-seconds 0", "").await;
    let begun = server
        .post(RESPONSES, &ask(json!({"background": true})))
        .await
        .ok();
    let id = id(&begun);
    let forgotten = async {
        while server.get(&path(id, "?stream=true")).await.status == StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, forgotten).await.expect("in time");
    assert_eq!(server.get(&path(id, "")).await.ok()["status"], "incomplete");
    let ended = cancel(&server, id).await;
    assert_eq!(ended.status, StatusCode::BAD_REQUEST);
    let unknown = cancel(&server, "resp_x").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn wrong_reads_are_named() {
    let server = Server::new().await;
    let direct = server.post(RESPONSES, &ask(json!({}))).await.ok();
    let direct = id(&direct);
    for (query, status, field) in [
        ("?stream=maybe", 400, "stream"),
        ("?stream=true&starting_after=-1", 400, "starting_after"),
        ("?starting_after=3", 400, "starting_after"),
        ("?stream=true", 422, "stream"),
    ] {
        let answer = server.get(&path(direct, query)).await;
        assert_eq!(answer.status.as_u16(), status, "{query}");
        assert_eq!(answer.body["error"]["param"], field, "{query}");
    }
    let unknown = server.get(&path("resp_x", "?stream=true")).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let body = ask(json!({"background": true, "store": false}));
    let answer = server.post(RESPONSES, &body).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer.body["error"]["param"], "background");
}

/// An answer whose log probabilities outgrow the memory of one user ends with the error that says so.
#[tokio::test]
async fn an_answer_that_outgrows_its_memory_names_the_limit() {
    let server = Server::with("--results-mib 1", "").await;
    let schema = json!({"type": "string", "pattern": "^[a-z]{4000}$"});
    let format = json!({"type": "json_schema", "name": "letters", "schema": schema});
    let body = ask(json!({
        "background": true, "max_output_tokens": null, "top_logprobs": 20,
        "include": ["message.output_text.logprobs"], "text": {"format": format},
    }));
    let begun = server.post(RESPONSES, &body).await.ok();
    let response = ended(&server, id(&begun)).await;
    assert_eq!(response["status"], "failed", "{response}");
    let error = response["error"]["message"].as_str().expect("a message");
    assert!(error.contains("--results-mib"), "{error}");
    let events = events_at(&server, &path(id(&begun), "?stream=true")).await;
    assert_eq!(events.last().expect("an end")["type"], "response.failed");
}
