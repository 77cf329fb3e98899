//! Answers that go on with an assistant's text, in all dialects: the prompt ends with that text.

use crate::common::client::{CHAT, MESSAGES, Server, TEXT};
use crate::common::responses::{RESPONSES, events, joined, text};
use serde_json::{Value, json};

/// The assistant's text that the answer goes on with.
const BEGUN: &str = "It will be <end> of  ";

fn conversation(reasoning: Option<&str>) -> Value {
    let mut begun = json!({"role": "assistant", "content": BEGUN});
    if let Some(reasoning) = reasoning {
        begun["reasoning_content"] = json!(reasoning);
    }
    json!([{"role": "user", "content": "What will be?"}, begun])
}

/// The text of a conversation's prompt.
async fn prompt(server: &Server, body: &Value) -> String {
    let tokens = server.post("/tokenize", body).await.ok();
    let tokens = json!({"tokens": tokens["tokens"]});
    let text = server.post("/detokenize", &tokens).await.ok();
    text["prompt"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn prompt_ends_with_the_text_that_goes_on() {
    let server = Server::new().await;
    for reasoning in [None, Some("Hm.")] {
        let body = json!({"messages": conversation(reasoning), "continue_final_message": true});
        let thought = reasoning.map_or(String::new(), |text| format!("<think>{text}</think>"));
        let expected = format!("user: What will be?\nassistant: {thought}{BEGUN}");
        assert_eq!(prompt(&server, &body).await, expected);
    }
    let tools = json!([{"type": "function", "function": {"name": "clock"}}]);
    let body = json!({"messages": conversation(None), "continue_final_message": true,
                      "tools": tools});
    assert!(prompt(&server, &body).await.ends_with(BEGUN));
}

/// Each dialect's answer is the text that the model writes behind the same prompt.
#[tokio::test]
async fn all_dialects_go_on_with_the_same_text() {
    let server = Server::new().await;
    let messages = conversation(None);
    // A conversation's special token is text; in a plain text it would be the token.
    let body = json!({"messages": messages, "continue_final_message": true});
    let tokens = server.post("/tokenize", &body).await.ok()["tokens"].clone();
    let count = tokens.as_array().expect("tokens").len();
    let plain = json!({"prompt": tokens, "max_tokens": 20, "temperature": 0, "ignore_eos": true});
    let plain = server.post(TEXT, &plain).await.ok();
    let expected = plain["choices"][0]["text"]
        .as_str()
        .expect("text")
        .to_owned();

    let mut chat = json!({
        "messages": messages, "max_tokens": 20, "temperature": 0, "ignore_eos": true,
        "continue_final_message": true, "add_generation_prompt": false,
    });
    let answer = server.post(CHAT, &chat).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], *expected);
    assert_eq!(answer["usage"]["prompt_tokens"], count);
    chat["stream"] = json!(true);
    let parts = server.stream(CHAT, &chat).await;
    let parts = parts
        .iter()
        .map(|part| part["choices"][0]["delta"]["content"].as_str());
    assert_eq!(
        parts.map(Option::unwrap_or_default).collect::<String>(),
        expected
    );

    let mut response = json!({
        "input": messages, "max_output_tokens": 20, "temperature": 0,
        "continue_final_message": true,
    });
    let answer = server.post(RESPONSES, &response).await.ok();
    assert!(expected.starts_with(text(&answer)), "{answer}: {expected}");
    assert_eq!(answer["usage"]["input_tokens"], count);
    response["stream"] = json!(true);
    let streamed = events(&server, &response).await;
    assert_eq!(
        joined(&streamed, "response.output_text.delta"),
        text(&answer)
    );

    let message = json!({"messages": messages, "max_tokens": 20, "temperature": 0});
    let answer = server.post(MESSAGES, &message).await.ok();
    let block = answer["content"][0]["text"].as_str().expect("text");
    assert!(expected.starts_with(block), "{answer}: {expected}");
    let counted = json!({"messages": messages});
    let counted = server
        .post("/v1/messages/count_tokens", &counted)
        .await
        .ok();
    assert_eq!(counted["input_tokens"], count);
}

#[tokio::test]
async fn reasoning_that_a_client_begins_goes_on() {
    let server = Server::new().await;
    let begun = json!({"role": "assistant", "content": "<think>Let me see"});
    let body = json!({
        "messages": [{"role": "user", "content": "What?"}, begun], "max_tokens": 40,
        "continue_final_message": true, "thinking_token_budget": 9, "ignore_eos": true,
    });
    let answer = server.post(CHAT, &body).await.ok();
    let message = &answer["choices"][0]["message"];
    assert!(
        message["reasoning"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{answer}"
    );
    assert!(
        message["content"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{answer}"
    );
    // A character that the budget would cut is completed.
    let details = &answer["usage"]["completion_tokens_details"];
    let tokens = details["reasoning_tokens"].as_u64().expect("usage");
    assert!((9..=12).contains(&tokens), "{answer}");
}

#[tokio::test]
async fn what_cannot_go_on_is_rejected() {
    let server = Server::new().await;
    let user = json!({"role": "user", "content": "a"});
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let called = json!({"role": "assistant", "content": "a", "tool_calls": [call]});
    let (this, other) = ("continue_final_message", "add_generation_prompt");
    for (messages, more, status, field) in [
        (json!([user]), json!({this: true}), 400, this),
        (json!([user, called]), json!({this: true}), 400, this),
        (
            conversation(None),
            json!({this: true, other: true}),
            400,
            other,
        ),
        (
            conversation(None),
            json!({this: false, other: false}),
            422,
            other,
        ),
    ] {
        let mut body = json!({"messages": messages, "max_tokens": 1});
        let more = more.as_object().expect("fields").clone();
        body.as_object_mut().expect("an object").extend(more);
        let answer = server.post(CHAT, &body).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        assert_eq!(answer.body["error"]["param"], field, "{}", answer.body);
    }
    let block = json!({"type": "tool_use", "id": "c1", "name": "f", "input": {}});
    let begun = json!({"role": "assistant", "content": [block]});
    let body = json!({"messages": [user, begun], "max_tokens": 1});
    let answer = server.post(MESSAGES, &body).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    let body = json!({"input": "a", this: true});
    assert_eq!(server.post(RESPONSES, &body).await.status, 400);
}
