//! The store of responses, on the oracle.

use crate::common::client::{Answer, Server};
use crate::common::responses::{RESPONSES, ask, assert_rejected, events, id};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use serde_json::{Value, json};

#[tokio::test]
async fn stored_response_is_read_and_deleted() {
    let server = Server::new().await;
    let input = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "What will be?"}]},
    ]);
    let response = server
        .post(RESPONSES, &ask(json!({"input": input})))
        .await
        .ok();
    let path = format!("{RESPONSES}/{}", id(&response));
    assert_eq!(server.get(&path).await.ok(), response);

    let items = server
        .get(&format!("{path}/input_items?order=asc"))
        .await
        .ok();
    let texts: Vec<_> = items["data"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| (&item["role"], &item["content"][0]["text"]))
        .collect();
    let expected = [
        (&json!("developer"), &json!("Be brief.")),
        (&json!("user"), &json!("What will be?")),
    ];
    assert_eq!(texts, expected);
    assert_eq!(items["has_more"], false);
    assert_eq!(items["first_id"], items["data"][0]["id"]);
    let page = server
        .get(&format!("{path}/input_items?limit=1"))
        .await
        .ok();
    assert_eq!(page["data"], json!([items["data"][1]]));
    assert_eq!(page["has_more"], true);
    let wrong = server.get(&format!("{path}/input_items?limit=0")).await;
    assert_rejected(&wrong, 400, "limit");
    let streamed = server.get(&format!("{path}?stream=true")).await;
    assert_rejected(&streamed, 422, "stream");

    // An item is found by its id.
    let reference = json!([
        {"type": "item_reference", "id": response["output"][0]["id"]},
        {"role": "user", "content": "Why?"},
    ]);
    server
        .post(RESPONSES, &ask(json!({"input": reference})))
        .await
        .ok();

    let delete = || {
        let request = Request::builder().method(Method::DELETE).uri(&path);
        server.send(request.body(Body::empty()).expect("a request"))
    };
    let deleted = Answer::of(delete().await).await.ok();
    let expected = json!({"id": id(&response), "object": "response", "deleted": true});
    assert_eq!(deleted, expected);
    assert_eq!(
        Answer::of(delete().await).await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(server.get(&path).await.status, StatusCode::NOT_FOUND);
    let answer = server
        .post(RESPONSES, &ask(json!({"input": reference})))
        .await;
    assert_rejected(&answer, 400, "input[0].id");
}

#[tokio::test]
async fn streamed_response_is_stored_and_others_are_not() {
    let server = Server::new().await;
    let all = events(&server, &ask(json!({"stream": true}))).await;
    let response = &all.last().expect("an end")["response"];
    let path = format!("{RESPONSES}/{}", id(response));
    assert_eq!(server.get(&path).await.ok(), *response);

    let response = server
        .post(RESPONSES, &ask(json!({"store": false})))
        .await
        .ok();
    assert_eq!(response["store"], false);
    let path = format!("{RESPONSES}/{}", id(&response));
    let unknown = server.get(&path).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(unknown.body["error"]["code"], "response_not_found");
}

#[tokio::test]
async fn forgotten_responses_are_reported_with_the_bounds() {
    let server = Server::with("--stored-responses-max 2", "").await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let more = json!({"previous_response_id": ids.last()});
        let response = server.post(RESPONSES, &ask(more)).await.ok();
        ids.push(id(&response).to_owned());
    }
    let forgotten = server.get(&format!("{RESPONSES}/{}", ids[0])).await;
    assert_eq!(forgotten.status, StatusCode::NOT_FOUND);
    let message = forgotten.body["error"]["message"].to_string();
    let expected = "unknown or forgotten; the store keeps at most 2 responses / 67108864 bytes";
    assert!(message.contains(expected), "{message}");
    let more = ask(json!({"previous_response_id": ids[0]}));
    for answer in [
        server.post(RESPONSES, &more).await,
        server
            .post(RESPONSES, &ask(json!({"previous_response_id": "resp_1"})))
            .await,
    ] {
        assert_rejected(&answer, 400, "previous_response_id");
        assert_eq!(answer.body["error"]["code"], "previous_response_not_found");
    }
    // The newest still continues the whole conversation.
    let last = server.get(&format!("{RESPONSES}/{}", ids[2])).await.ok();
    let next = server
        .post(RESPONSES, &ask(json!({"previous_response_id": ids[2]})))
        .await
        .ok();
    assert!(next["usage"]["input_tokens"].as_u64() > last["usage"]["input_tokens"].as_u64());
}

#[tokio::test]
async fn conversation_longer_than_the_store_is_answered_and_not_kept() {
    let server = Server::with("--stored-bytes-max 8000", "").await;
    let short = server.post(RESPONSES, &ask(json!({}))).await.ok();
    let long = ask(json!({"input": "x".repeat(7000)}));
    let long = server.post(RESPONSES, &long).await.ok();
    let status = |response: &Value| {
        let path = format!("{RESPONSES}/{}", id(response));
        let server = &server;
        async move { server.get(&path).await.status }
    };
    assert_eq!(status(&long).await, StatusCode::NOT_FOUND);
    assert_eq!(status(&short).await, StatusCode::OK);
}

#[tokio::test]
async fn store_can_be_turned_off() {
    let server = Server::with("--stored-responses-max 0", "").await;
    let response = server.post(RESPONSES, &ask(json!({}))).await.ok();
    assert_eq!(response["store"], false);
    let answer = server.post(RESPONSES, &ask(json!({"store": true}))).await;
    assert_rejected(&answer, 422, "store");
}

#[tokio::test]
async fn key_sees_only_its_own_responses() {
    let server = Server::with("", "ann secret-a\nbob secret-b").await;
    let send = async |method: Method, path: &str, key: &str, body: Option<&Value>| {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, format!("Bearer {key}"))
            .header(header::CONTENT_TYPE, "application/json");
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        Answer::of(server.send(request.body(body).expect("a request")).await).await
    };
    let body = ask(json!({}));
    let response = send(Method::POST, RESPONSES, "secret-a", Some(&body))
        .await
        .ok();
    let path = format!("{RESPONSES}/{}", id(&response));
    let items = format!("{path}/input_items");
    for (method, path) in [
        (Method::GET, &path),
        (Method::GET, &items),
        (Method::DELETE, &path),
    ] {
        let answer = send(method, path, "secret-b", None).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
    }
    let next = ask(json!({"previous_response_id": id(&response)}));
    let answer = send(Method::POST, RESPONSES, "secret-b", Some(&next)).await;
    assert_rejected(&answer, 400, "previous_response_id");
    let reference = json!([{"type": "item_reference", "id": response["output"][0]["id"]}]);
    let reference = ask(json!({"input": reference}));
    let answer = send(Method::POST, RESPONSES, "secret-b", Some(&reference)).await;
    assert_rejected(&answer, 400, "input[0].id");
    let answer = send(Method::GET, &path, "secret-c", None).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);

    send(Method::GET, &path, "secret-a", None).await.ok();
    send(Method::POST, RESPONSES, "secret-a", Some(&next))
        .await
        .ok();
    send(Method::DELETE, &path, "secret-a", None).await.ok();
}
