use motet::grammar::GrammarSource;
use motet::text::Message;
use motet::{Engine, Request};

/// Constrains the answer to JSON of this form.
async fn colour(engine: &Engine, question: &str) -> anyhow::Result<String> {
    let schema = r#"{
        "type": "object",
        "properties": { "colour": { "enum": ["red", "green"] } },
        "required": ["colour"],
        "additionalProperties": false
    }"#;
    let request = Request::chat([Message::user(question)])
        .grammar(GrammarSource::JsonSchema(schema.into()))
        .output_tokens_max(256); // the output ends here, even if its JSON is incomplete
    Ok(engine.submit(request).await?.collect().await?.text)
}

// The guide shows what stands above.

#[tokio::test]
async fn grammar_constrains_the_output() {
    let engine = crate::speaking().await;
    let text = colour(&engine, "Which?").await.expect("an output");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let members = value.as_object().expect("an object");
    assert_eq!(members.len(), 1, "{text}");
    assert!(matches!(members["colour"].as_str(), Some("red" | "green")));
}
