use motet::Engine;
use motet::chat::{Answer, ChatRequest};
use motet::text::{Message, Tool, ToolChoice};
use serde_json::{Value, json};

/// Answers a question with the result of a call that the model makes first.
async fn answer(engine: &Engine, question: &str) -> anyhow::Result<Answer> {
    let city = json!({"type": "string", "enum": ["Graz", "Linz"]});
    let forecast = Tool {
        name: "forecast".into(),
        description: Some("Tells the weather in a city.".into()),
        parameters: json!({"type": "object", "properties": {"city": city}, "required": ["city"]}),
        is_strict: false,
    };
    let mut messages = vec![Message::user(question)];
    let ask = |messages: &[Message]| ChatRequest::new(messages.to_vec()).tools([forecast.clone()]);
    let first = ask(&messages).tool_choice(ToolChoice::Required).one_call();
    let called = engine.chat(first).await?.collect().await?;
    messages.push(called.message());
    for call in called.calls() {
        let arguments: Value = serde_json::from_str(&call.arguments)?; // they follow the schema
        let result = format!("It is raining in {}.", arguments["city"]);
        messages.push(call.result(result));
    }
    Ok(engine.chat(ask(&messages)).await?.collect().await?)
}

// The guide shows what stands above.

#[tokio::test]
async fn a_tool_is_called_and_its_result_is_read() {
    let engine = crate::speaking().await;
    let question = "Is it raining in Graz?";
    let answer = answer(&engine, question).await.expect("an answer");
    assert!(answer.end.is_some());
    let stats = engine.stats();
    assert_eq!(stats.finished, 2, "the call and the answer");
    let prompt = answer.usage.prompt_tokens;
    assert!(prompt > question.len(), "{prompt}: the call and its result");
}
