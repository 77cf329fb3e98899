use motet::error::SubmitError;
use motet::{Engine, Request, TokenStream};

/// The stream goes into a response; its tokens are counted even if the client leaves.
async fn respond(engine: &Engine, request: Request) -> Result<TokenStream, SubmitError> {
    let stream = engine.submit(request).await?;
    let sequence = stream.handle();
    tokio::spawn(async move {
        if let Ok(finish) = sequence.finished().await {
            println!("{} tokens, {:?}", finish.usage.output_tokens, finish.reason);
        }
    });
    Ok(stream)
}

// The guide shows what stands above.

#[tokio::test]
async fn a_response_leaves_its_usage_behind() {
    let engine = crate::speaking().await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(200);
    let mut stream = respond(&engine, request).await.expect("it is admitted");
    stream.next().await.expect("a piece").expect("no fault");
    let sequence = stream.handle();
    drop(stream);
    let finish = sequence.finished().await.expect("a finish");
    assert!(finish.usage.output_tokens > 0);
}
