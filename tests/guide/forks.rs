use motet::request::Completion;
use motet::{Engine, Request, TokenStream};

/// Forks a story: continues all of it so far in another way, while the story goes on.
async fn another_end(engine: &Engine, story: &TokenStream) -> anyhow::Result<Completion> {
    let turn = Request::text(" But then").temperature(0.8).seed(1);
    let end = engine.fork(story, None, turn).await?;
    Ok(end.collect().await?)
}

// The guide shows what stands above.

#[tokio::test]
async fn a_story_has_two_ends() {
    let engine = crate::speaking().await;
    // More tokens than a sequence may be ahead of its reader: it stays alive while it is not read.
    let story = Request::text("Once upon a time").output_tokens_max(400);
    let mut story = engine.submit(story).await.expect("it is accepted");
    story.next().await.expect("a piece").expect("no fault");
    let end = another_end(&engine, &story).await.expect("an output");
    assert_eq!(end.tokens.len(), 256);
    let usage = end.finish.usage;
    assert!(usage.prompt_tokens > "Once upon a time But then".len());
    assert!(usage.cached_tokens >= "Once upon a time".len(), "{usage:?}");
    let rest = story.collect().await.expect("a complete output").tokens;
    assert_eq!(rest.len(), 399);
}
