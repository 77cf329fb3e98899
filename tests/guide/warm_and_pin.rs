use std::time::Duration;

use motet::error::CacheCommandError;
use motet::{Engine, PinId, Request};

/// Computes the common prefix of many prompts before the first of them arrives.
async fn warm(engine: &Engine, beginning: Request) -> Result<usize, CacheCommandError> {
    let usage = engine.warm(beginning).await?;
    Ok(usage.prompt_tokens) // in the cache now, until it is evicted
}

/// The same, and pins it: for an hour, or until `Engine::unpin`.
async fn pin(engine: &Engine, beginning: Request) -> Result<PinId, CacheCommandError> {
    let hour = Duration::from_secs(3600);
    engine.pin(beginning, Some(hour)).await
}

// The guide shows what stands above.

#[tokio::test]
async fn warmed_prefix_can_be_evicted_and_pinned_cannot() {
    let engine = crate::speaking().await;
    let beginning = || Request::text("You are a choir.");
    let tokens = warm(&engine, beginning()).await.expect("it is computed");
    let cached = || engine.stats().cache.cached_tokens;
    crate::common::until("it is published", || cached() == tokens).await;
    engine.clear_cache(None).await.expect("it lives");
    assert_eq!(cached(), 0);
    let pin = pin(&engine, beginning()).await.expect("it is computed");
    engine.clear_cache(None).await.expect("it lives");
    assert_eq!(cached(), tokens, "it stays");
    engine.unpin(pin).await.expect("it is pinned");
}
