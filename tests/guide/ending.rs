use std::time::Duration;

use motet::{Engine, Shutdown};

async fn end(engine: Engine, grace: Duration) {
    // Requests inside may finish within `grace`; new ones get `SubmitError::Draining`.
    tokio::time::timeout(grace, engine.drain()).await.ok();
    engine.shutdown(Shutdown::Abort).await;
}

// The guide shows what stands above.

#[tokio::test]
async fn admitted_requests_finish_or_are_aborted() {
    use motet::Request;
    use motet::error::GenerateError;

    let engine = crate::speaking().await;
    let ends = Request::tokens([2]).output_tokens_max(8);
    let ends = engine.submit(ends).await.expect("it is accepted");
    end(engine, Duration::from_secs(3600)).await;
    assert_eq!(ends.collect().await.expect("it may finish").tokens.len(), 8);

    let engine = crate::speaking().await;
    // Its stream is not read, so it would never finish.
    let stays = Request::tokens([1]).output_tokens_max(400);
    let stays = engine.submit(stays).await.expect("it is accepted");
    end(engine, Duration::from_millis(1)).await;
    assert_eq!(stays.collect().await, Err(GenerateError::Shutdown));
}
