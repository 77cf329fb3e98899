use std::time::Duration;

use motet::error::SubmitError;
use motet::text::TextError;

/// The HTTP status, and the time after which to retry.
fn status(error: &SubmitError) -> (u16, Option<Duration>) {
    match error {
        SubmitError::Text(TextError::Panicked { .. }) => (500, None),
        SubmitError::Field { .. } | SubmitError::PromptTooLong { .. } | SubmitError::Text(_) => {
            (400, None)
        }
        SubmitError::QueueFull { retry_after, .. } => (429, Some(*retry_after)),
        SubmitError::Draining | SubmitError::Broken { .. } => (503, None),
        _ => (422, None), // this model or this engine's memory cannot serve it
    }
}

// The guide shows what stands above.

#[tokio::test]
async fn full_engine_returns_retry_after() {
    use motet::model::oracle::OracleConfig;
    use motet::{Request, Shutdown};

    let mut config = crate::common::small();
    config.scheduler.sequences_max = 1;
    config.scheduler.admission.queue_max = 0;
    let engine = crate::common::engine(&OracleConfig::default(), config).await;
    let senseless = engine.submit(Request::tokens([])).await;
    assert_eq!(status(&senseless.expect_err("no prompt")), (400, None));
    let wordy = engine.submit(Request::text("hello")).await;
    assert_eq!(status(&wordy.expect_err("no tokenizer")), (422, None));
    // Its stream is not read, so it stays inside the engine.
    let long = Request::tokens([1]).output_tokens_max(900);
    let _stream = engine.submit(long.clone()).await.expect("it is accepted");
    let full = engine.submit(long.clone()).await.expect_err("it is full");
    let (number, retry_after) = status(&full);
    assert!(number == 429 && retry_after.is_some(), "{full}");
    engine.shutdown(Shutdown::Abort).await;
    let late = engine.submit(long).await.expect_err("it ends");
    assert_eq!(status(&late), (503, None));
}
