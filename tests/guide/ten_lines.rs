use motet::text::Message;
use motet::{Engine, Request};

async fn answer(engine: &Engine, question: &str) -> anyhow::Result<String> {
    let request = Request::chat([Message::user(question)]).output_tokens_max(64);
    let stream = engine.submit(request).await?;
    Ok(stream.collect().await?.text)
}

// The guide shows what stands above.

#[tokio::test]
async fn a_question_is_answered() {
    let engine = crate::speaking().await;
    let text = answer(&engine, "What?").await.expect("an answer");
    assert!(!text.is_empty());
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.output_tokens), (1, 64));
}
