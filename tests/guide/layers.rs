use std::time::Duration;

use motet::{Engine, EngineService, Request, TokenStream};
use tower::limit::ConcurrencyLimit;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

/// The service of a whole server: at most 32 requests wait for admission or are being set up.
fn layered(engine: &Engine) -> ConcurrencyLimit<EngineService> {
    let layers = ServiceBuilder::new().concurrency_limit(32);
    layers.service(engine.service())
}

/// Waits for admission, for ten seconds at most.
async fn submit(
    service: &ConcurrencyLimit<EngineService>,
    request: Request,
) -> Result<TokenStream, BoxError> {
    let mut service = service.clone();
    let admitted = async { service.ready().await?.call(request).await };
    Ok(tokio::time::timeout(Duration::from_secs(10), admitted).await??)
}

// The guide shows what stands above.

#[tokio::test]
async fn a_request_passes_the_layers() {
    let engine = crate::speaking().await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(4);
    let service = layered(&engine);
    let stream = submit(&service, request.clone()).await;
    let stream = stream.expect("it is admitted");
    assert_eq!(stream.collect().await.expect("an output").tokens.len(), 4);
    engine.shutdown(motet::Shutdown::Abort).await;
    let error = submit(&service, request).await.expect_err("it has stopped");
    let error = error.downcast::<motet::error::SubmitError>();
    let error = *error.expect("the engine's own error");
    assert!(
        matches!(error, motet::error::SubmitError::Draining),
        "{error}"
    );
}
