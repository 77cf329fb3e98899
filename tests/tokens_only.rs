//! An engine of tokens: nothing here needs feature `text` or `grammar`. `cargo xtask test` runs it
//! without them, too.

use motet::error::SubmitError;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::FinishReason;
use motet::{Engine, Request, Shutdown};

async fn engine() -> Engine {
    let oracle = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
    Engine::builder(oracle)
        .start()
        .await
        .expect("the engine starts")
}

#[tokio::test]
async fn tokens_are_answered_and_forked() {
    let engine = engine().await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(8);
    let stream = engine.submit(request).await.expect("it is admitted");
    let whole = stream.collect().await.expect("an output");
    assert_eq!(whole.tokens.len(), 8);
    assert_eq!(whole.finish.reason, FinishReason::Length);

    let endless = Request::tokens([1, 2, 3]).output_tokens_max(1000);
    let mut source = engine.submit(endless).await.expect("it is admitted");
    source.next().await.expect("a piece").expect("no fault");
    let fork = Request::tokens([]).output_tokens_max(8);
    let fork = engine.fork(&source.handle(), Some(3), fork).await;
    let fork = fork.expect("it is admitted").collect().await;
    assert_eq!(fork.expect("an output").tokens, whole.tokens);
    assert!(source.handle().cancel());
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn a_text_needs_a_tokenizer() {
    let engine = engine().await;
    let error = engine.submit(Request::text("hello")).await;
    let error = error.expect_err("no tokenizer");
    assert!(matches!(error, SubmitError::NoTokenizer { .. }), "{error}");
    engine.shutdown(Shutdown::Abort).await;
}
