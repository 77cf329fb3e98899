use motet::text::Message;
use motet::{Engine, Request};

/// Edits a text, most of which stays as it is. Returns it, and how many tokens came as predicted.
async fn edited(engine: &Engine, text: &str, edit: &str) -> anyhow::Result<(String, usize)> {
    let question = Message::user(format!("{edit} Write the whole text again.\n{text}"));
    let request = Request::chat([question])
        .prediction(text) // the answer is the same with any prediction
        .output_tokens_max(4096);
    let completion = engine.submit(request).await?.collect().await?;
    let usage = completion.finish.usage;
    Ok((completion.text, usage.accepted_prediction_tokens))
}

// The guide shows what stands above.

#[tokio::test]
async fn predictions_change_no_answer() {
    let engine = super::speaking().await;
    let question = Message::user("Edit it. Write the whole text again.\nabcabcabc".to_owned());
    let plain = Request::chat([question]).output_tokens_max(4096);
    let plain = engine.submit(plain).await.expect("it fits");
    let plain = plain.collect().await.expect("an answer");
    let (text, accepted) = edited(&engine, "abcabcabc", "Edit it.")
        .await
        .expect("it fits");
    assert_eq!(text, plain.text);
    assert!(accepted <= plain.tokens.len());
    engine.shutdown(motet::Shutdown::Abort).await;
}
