//! Answers against the description of the API, by a validator of JSON schemas: whole answers,
//! parts of streams, and errors.

use crate::common::client::{CHAT, MESSAGES, Server};
use crate::common::responses::{RESPONSES, ask, clock, events, id, letters};
use serde_json::{Value, json};

/// The schemas of the running server.
struct Description(Value);

impl Description {
    async fn of(server: &Server) -> Self {
        Self(server.get("/openapi.json").await.ok()["components"].clone())
    }

    #[track_caller]
    fn check(&self, schema: &str, answer: &Value) {
        self.check_all(schema, std::slice::from_ref(answer));
    }

    #[track_caller]
    fn check_all(&self, schema: &str, answers: &[Value]) {
        let reference = format!("#/components/schemas/{schema}");
        let root = json!({"$ref": reference, "components": self.0});
        let validator = jsonschema::validator_for(&root).expect("a schema");
        for answer in answers {
            let errors: Vec<String> = validator
                .iter_errors(answer)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert!(errors.is_empty(), "{schema}: {errors:?}: {answer}");
        }
    }
}

/// Requests of both dialects that call a tool, that reason, and that end early.
fn requests() -> Vec<(Value, Value)> {
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
                        "required": ["a"], "additionalProperties": false});
    let messages = json!([{"role": "user", "content": "What will be?"}]);
    let common = |chat: Value, anthropic: Value| {
        let both = [chat, anthropic].map(|more| {
            let mut body = json!({"messages": messages, "seed": 1, "max_tokens": 2000});
            let more = more.as_object().expect("fields").clone();
            body.as_object_mut().expect("an object").extend(more);
            body
        });
        let [chat, anthropic] = both;
        (chat, anthropic)
    };
    let function = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let tool = json!({"name": "f", "input_schema": schema});
    vec![
        common(json!({}), json!({})),
        common(
            json!({"tools": [function], "tool_choice": "required"}),
            json!({"tools": [tool], "tool_choice": {"type": "any"}}),
        ),
        common(
            json!({"chat_template_kwargs": {"enable_thinking": true}, "thinking_token_budget": 9}),
            json!({"thinking": {"type": "enabled", "budget_tokens": 9}}),
        ),
        common(
            json!({"max_tokens": 4, "logprobs": true}),
            json!({"max_tokens": 4, "stop_sequences": ["a"]}),
        ),
    ]
}

fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body
}

#[tokio::test]
async fn answers_fit_their_description() {
    let server = Server::new().await;
    let description = Description::of(&server).await;
    for (chat, anthropic) in requests() {
        description.check("ChatRequest", &chat);
        let answer = server.post(CHAT, &chat).await.ok();
        description.check("ChatCompletion", &answer);
        let parts = server.stream(CHAT, &streamed(&chat)).await;
        description.check_all("ChatPart", &parts);
        description.check("MessagesRequest", &anthropic);
        let answer = server.post(MESSAGES, &anthropic).await.ok();
        description.check("AnthropicMessage", &answer);
        let events = server.events(MESSAGES, &streamed(&anthropic)).await;
        let events: Vec<Value> = events.into_iter().map(|(_, event)| event).collect();
        description.check_all("MessageEvent", &events);
    }
    let counted =
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]});
    description.check("CountTokens", &counted);
    let counted = server
        .post("/v1/messages/count_tokens", &counted)
        .await
        .ok();
    description.check("CountedTokens", &counted);
    let rejected = server.post(MESSAGES, &json!({"messages": []})).await;
    description.check("MessagesError", &rejected.body);
    let rejected = server.post(CHAT, &json!({"messages": []})).await;
    description.check("Error", &rejected.body);
}

#[tokio::test]
async fn responses_fit_their_description() {
    let server = Server::new().await;
    let description = Description::of(&server).await;
    let requests = [
        json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1}),
        json!({"max_output_tokens": 4, "metadata": {"a": "b"}, "user": "ann", "text": letters()}),
        json!({
            "tools": [clock()], "tool_choice": "required", "max_output_tokens": 2000,
            "parallel_tool_calls": false,
            "reasoning": {"effort": "low", "summary": "auto"}, "thinking_token_budget": 16,
        }),
        json!({"input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "1", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "noon"},
        ]}),
    ];
    for request in requests {
        let body = ask(request);
        description.check("ResponseRequest", &body);
        let response = server.post(RESPONSES, &body).await.ok();
        description.check("Response", &response);
        let events = events(&server, &streamed(&body)).await;
        description.check_all("ResponseEvent", &events);
        let items = format!("{RESPONSES}/{}/input_items", id(&response));
        description.check("ResponseItems", &server.get(&items).await.ok());
    }
    let unknown = server.get("/v1/responses/x").await;
    description.check("Error", &unknown.body);
}

/// The validator finds what does not fit: an answer of the other dialect.
#[tokio::test]
#[should_panic(expected = "ChatCompletion")]
async fn answer_of_another_dialect_does_not_fit() {
    let server = Server::new().await;
    let description = Description::of(&server).await;
    let (_, anthropic) = &requests()[0];
    let answer = server.post(MESSAGES, anthropic).await.ok();
    description.check("ChatCompletion", &answer);
}

/// Bodies that the description excludes are rejected by the server too.
#[tokio::test]
async fn bodies_that_are_not_described_are_rejected() {
    let server = Server::new().await;
    let description = Description::of(&server).await;
    let message = |content: Value| json!({"max_tokens": 4, "messages": [{"role": "user", "content": content}]});
    let tool = |tool: Value| json!({"max_tokens": 4, "messages": [{"role": "user", "content": "x"}], "tools": [tool]});
    for (path, schema, body) in [
        (
            MESSAGES,
            "MessagesRequest",
            message(json!([{"type": "image"}])),
        ),
        (
            MESSAGES,
            "MessagesRequest",
            message(json!([{"type": "text"}])),
        ),
        (MESSAGES, "MessagesRequest", tool(json!({"name": "a"}))),
        (
            MESSAGES,
            "MessagesRequest",
            tool(json!({"name": "a b", "input_schema": {}})),
        ),
        (CHAT, "ChatRequest", tool(json!({"type": "function"}))),
        (
            CHAT,
            "ChatRequest",
            tool(json!({"type": "function", "function": {"name": ""}})),
        ),
        (
            CHAT,
            "ChatRequest",
            tool(json!({"type": "function", "function": {"name": "a", "strict": 1}})),
        ),
    ] {
        let root =
            json!({"$ref": format!("#/components/schemas/{schema}"), "components": description.0});
        let validator = jsonschema::validator_for(&root).expect("a schema");
        assert!(!validator.is_valid(&body), "{body}");
        let status = server.post(path, &body).await.status;
        assert_eq!(status, 400, "{body}");
    }
}
