//! A model that calls a tool.
//!
//! ```sh
//! cargo xtask setup --model smollm2-135m-instruct   # once
//! cargo run --release --features mlx --example tools -- MODEL
//! ```

use motet::chat::{Answer, ChatRequest};
use motet::text::{Message, Tool, ToolChoice};
use motet::{Engine, Shutdown};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let model = std::env::args_os().nth(1);
    let model = model.ok_or_else(|| anyhow::anyhow!("name the path of a model"))?;
    let engine = Engine::open(model)?.start().await?;
    let answer = answer(&engine, "Is it raining in Graz?").await?;
    println!("{}\n{:?}", answer.text(), answer.usage);
    engine.shutdown(Shutdown::Finish).await;
    Ok(())
}

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
