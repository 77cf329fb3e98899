//! Requirements for starting an engine, and the errors when they are not met.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{bytes, engine, small, until};
use motet::config::{DiskConfig, EngineConfig, InterToken};
use motet::error::{StartError, SubmitError};
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::{Model, ModelError, ModelSpec};
use motet::text::Chat;
use motet::{Engine, HealthState, Request, Shutdown};

fn oracle() -> OracleConfig {
    OracleConfig {
        context_tokens_max: 512,
        ..OracleConfig::default()
    }
}

fn config_error(config: EngineConfig) -> (&'static str, String) {
    match config.validate() {
        Err(error) => (error.field, error.to_string()),
        Ok(()) => panic!("expected an error"),
    }
}

/// Starts an engine whose model must not be loaded.
async fn start_unloaded(config: EngineConfig) -> Result<Engine, StartError> {
    let outline = Oracle::new(oracle())
        .expect("a valid oracle")
        .spec()
        .clone();
    Engine::builder(|| -> Result<Oracle, ModelError> { panic!("the model must not be loaded") })
        .outline(outline)
        .config(config)
        .start()
        .await
}

#[test]
fn runtime_without_time_is_rejected() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let error = runtime.block_on(start_unloaded(small())).err();
    let error = error.expect("an engine cannot run there");
    assert!(matches!(error, StartError::Runtime { .. }), "{error}");
    assert!(error.to_string().contains("enable_time"), "{error}");
}

#[test]
fn missing_runtime_is_rejected() {
    let mut starting = pin!(start_unloaded(small()));
    let polled = starting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else {
        panic!("the error comes at once");
    };
    assert!(
        matches!(error, StartError::Runtime { found: "none" }),
        "{error}"
    );
}

#[tokio::test]
async fn factory_panic_message_is_reported() {
    let factory = || -> Result<Oracle, ModelError> { panic!("the licence has run out") };
    let error = Engine::builder(factory).start().await.err();
    let error = error.expect("there is no model").to_string();
    assert!(error.contains("the licence has run out"), "{error}");
}

#[tokio::test]
async fn settings_are_validated_before_the_model_is_loaded() {
    let mut config = small();
    config.cache.device_bytes_max = 64;
    let error = start_unloaded(config).await.err();
    let error = error.expect("it does not fit").to_string();
    assert!(error.contains("`cache.device_bytes_max` is 64"), "{error}");
    let mut config = small();
    config.context_tokens_max = Some(513);
    let error = start_unloaded(config).await.err();
    let error = error.expect("the model has less").to_string();
    assert!(error.contains("513") && error.contains("512"), "{error}");
}

#[test]
fn invalid_settings_are_rejected_by_name() {
    type Change = fn(&mut EngineConfig);
    let changes: [(&str, Change); 9] = [
        ("context_tokens_max", |c| c.context_tokens_max = Some(0)),
        ("cache.device_bytes_max", |c| {
            c.cache.device_bytes_max = 1 << 60;
        }),
        ("pager.host_bytes_max", |c| c.pager.host_bytes_max = 1 << 60),
        ("pager.disk.bytes_max", |c| {
            c.pager.host_bytes_max = 1 << 20;
            c.pager.disk = Some(DiskConfig {
                folder: "unused".into(),
                bytes_max: 1 << 60,
            });
        }),
        ("pager.disk_timeout", |c| {
            c.pager.host_bytes_max = 1 << 20;
            c.pager.disk_timeout = Duration::ZERO;
        }),
        ("recovery.rebuilds_window", |c| {
            c.recovery.rebuilds_window = Duration::ZERO;
        }),
        ("recovery.reload_delay", |c| {
            c.recovery.reload_delay = Duration::ZERO;
        }),
        ("scheduler.unread_timeout", |c| {
            c.scheduler.unread_timeout = Some(Duration::ZERO);
        }),
        ("scheduler.chunking.inter_token", |c| {
            c.scheduler.chunking.inter_token = InterToken::Absolute(Duration::ZERO);
        }),
    ];
    for (field, change) in changes {
        let mut config = EngineConfig::default();
        change(&mut config);
        let (found, message) = config_error(config);
        assert_eq!(found, field);
        assert!(message.contains("expected"), "{message}");
    }
}

/// An oracle whose steps need scratch memory.
fn with_scratch() -> OracleConfig {
    OracleConfig {
        scratch_bytes_per_token: 48,
        ..oracle()
    }
}

/// The specification of that oracle.
fn spec_with_scratch() -> ModelSpec {
    let oracle = Oracle::new(with_scratch()).expect("a valid oracle");
    oracle.spec().clone()
}

/// Settings without a memory budget, which the engine then chooses.
fn unset() -> EngineConfig {
    let mut config = small();
    config.cache.device_bytes_max = 0;
    config.cache.full_sequences_min = 2;
    config
}

async fn start_on(device_bytes: usize, config: EngineConfig) -> Result<Engine, StartError> {
    let oracle = OracleConfig {
        device_bytes: Some(device_bytes),
        ..with_scratch()
    };
    let build = move || Oracle::new(oracle.clone()).map_err(|e| ModelError::Device(e.to_string()));
    Engine::builder(build).config(config).start().await
}

/// The scratch of a step and full sequences both count, to the byte, whether the budget is set
/// or not.
#[tokio::test]
async fn too_small_device_is_rejected_at_start() {
    let spec = spec_with_scratch();
    let mut set = unset();
    set.cache.device_bytes_max = 1 << 30;
    for config in [unset(), set] {
        let scratch = config.scratch_bytes(&spec);
        let needed = 2 * spec.tail_bytes(512) + scratch;
        assert!(scratch > 0);
        let error = start_on(needed - 1, config.clone()).await.err();
        match error.expect("a byte is missing") {
            StartError::DeviceMemory {
                needed_bytes,
                available_bytes,
                worst,
                ..
            } => {
                assert_eq!((needed_bytes, available_bytes), (needed, needed - 1));
                assert_eq!(worst.scratch_bytes, scratch);
            }
            other => panic!("{other}"),
        }
        let engine = start_on(needed, config).await.expect("it just fits");
        let budget = engine.device_budget();
        assert_eq!(
            (budget.proven_bytes, budget.scratch_bytes),
            (needed, scratch)
        );
        engine.shutdown(Shutdown::Abort).await;
    }
}

/// A given budget includes the scratch of the largest step.
#[tokio::test]
async fn budget_too_small_for_scratch_is_rejected() {
    let spec = spec_with_scratch();
    let mut config = small();
    config.cache.full_sequences_min = 1;
    let needed = spec.tail_bytes(512) + config.scratch_bytes(&spec);
    assert!(config.scratch_bytes(&spec) > 0);
    config.cache.device_bytes_max = needed - 1;
    let unloaded = || -> Result<Oracle, ModelError> { panic!("the model must not be loaded") };
    let builder = Engine::builder(unloaded).outline(spec.clone());
    let error = builder.config(config.clone()).start().await.err();
    let message = error.expect("a byte is missing").to_string();
    assert!(
        message.contains(&format!("at least {needed} bytes")),
        "{message}"
    );
    config.cache.device_bytes_max = needed;
    let engine = engine(&with_scratch(), config).await;
    let cache_bytes = engine.config().cache.device_bytes_max;
    assert_eq!(cache_bytes, spec.tail_bytes(512));
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn unset_budget_is_chosen_from_the_device_memory() {
    let check = async |device_bytes: Option<usize>, bytes: usize| {
        let oracle = OracleConfig {
            device_bytes,
            ..with_scratch()
        };
        let engine = engine(&oracle, unset()).await;
        let budget = engine.device_budget();
        assert_eq!((budget.bytes, budget.chosen_from), (bytes, device_bytes));
        let cache_bytes = engine.config().cache.device_bytes_max;
        assert_eq!(cache_bytes, bytes - budget.scratch_bytes);
        engine.shutdown(Shutdown::Abort).await;
    };
    check(Some(10 << 30), 9 << 30).await;
    check(Some(20 << 20), 18 << 20).await;
    check(None, 2 << 30).await;
}

#[tokio::test]
async fn configured_context_may_be_shorter_than_the_model_context() {
    let mut config = small();
    config.context_tokens_max = Some(64);
    let engine = engine(&oracle(), config).await;
    assert_eq!(engine.model().context_tokens_max, 64);
    let request =
        |tokens: u32| Request::tokens((1..=tokens).collect::<Vec<_>>()).ignore_end_tokens();
    let error = engine.submit(request(64)).await.err();
    let error = error.expect("no memory for a token").to_string();
    assert!(error.contains("the 64 tokens"), "{error}");
    let stream = engine.submit(request(60).output_tokens_max(100)).await;
    let output = stream.expect("it fits").collect().await.expect("an output");
    assert_eq!(output.tokens.len(), 4, "the context ends there");
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn chat_without_messages_is_rejected() {
    let engine = Engine::builder(|| Ok(Oracle::new(oracle()).expect("a valid oracle")))
        .text(bytes())
        .config(small())
        .start()
        .await
        .expect("the engine starts");
    let error = engine.submit(Request::chat(Chat::default())).await;
    match error {
        Err(SubmitError::Field { field, .. }) => assert_eq!(field, "prompt.chat"),
        other => panic!("expected an error about the chat, got {other:?}"),
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn aborted_engine_stops() {
    let mut slow = oracle();
    slow.cost.base = Duration::from_millis(2);
    slow.end_one_in = 0;
    let engine = engine(&slow, small()).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(400);
    let mut stream = engine
        .submit(request)
        .await
        .expect("the request is accepted");
    stream.next().await.expect("a token").expect("no error");
    engine.shutdown(Shutdown::Abort).await;
    until("the engine has stopped", || {
        engine.health().state == HealthState::Stopped
    })
    .await;
    engine.shutdown(Shutdown::Abort).await;
}
