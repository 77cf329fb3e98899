use std::time::Duration;

use motet::config::{EngineConfig, InterToken};

fn settings() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 32; // running at once
    config.scheduler.admission.queue_max = 128; // waiting; further ones are rejected
    config.scheduler.admission.user_requests_max = Some(16); // of one user, running or waiting
    config.scheduler.chunking.inter_token = InterToken::Absolute(Duration::from_millis(50));
    config.scheduler.unread_timeout = Some(Duration::from_secs(60));
    config.cache.device_bytes_max = 4 << 30; // cached state, beside the weights
    config
}

// The guide shows what stands above.

#[tokio::test]
async fn an_engine_runs_with_these_settings() {
    use motet::model::oracle::OracleConfig;

    let engine = crate::common::engine(&OracleConfig::default(), settings()).await;
    assert_eq!(engine.config().scheduler, settings().scheduler);
}
