use motet::{Engine, HealthState};

fn is_ready(engine: &Engine) -> bool {
    let state = engine.health().state;
    matches!(state, HealthState::Ready | HealthState::Busy)
}

fn should_be_replaced(engine: &Engine) -> bool {
    let state = engine.health().state;
    matches!(state, HealthState::Broken { .. } | HealthState::Dead)
}

// The guide shows what stands above.

#[tokio::test]
async fn an_engine_is_ready_until_it_drains() {
    let engine = crate::speaking().await;
    assert!(is_ready(&engine) && !should_be_replaced(&engine));
    engine.drain().await;
    assert!(!is_ready(&engine) && !should_be_replaced(&engine));
}
