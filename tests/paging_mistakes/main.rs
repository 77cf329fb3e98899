//! Bad folders, tiers that are too small, and folders that are lost while they are needed. The
//! result is a clear error at the start, or an engine that goes on serving and reports the loss.

#[path = "../common/mod.rs"]
mod common;
mod lost;
#[cfg(unix)]
mod unprivileged;

use std::path::Path;
use std::time::Duration;

use common::engine;
use motet::config::{DiskConfig, EngineConfig};
use motet::error::StartError;
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig, StepCost};
use motet::request::Sampling;
use motet::{Engine, Request, Shutdown, TokenId};
use motet_storage::tiers::TierError;
use motet_testkit::folder::Folder;

fn oracle(seed: u64) -> OracleConfig {
    OracleConfig {
        context_tokens_max: 256,
        end_tokens: vec![0],
        tail_block_tokens: 16,
        // Computing takes longer than loading, so that copies are asked for.
        cost: StepCost {
            per_token: Duration::from_micros(50),
            ..StepCost::default()
        },
        seed,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    }
}

/// A device for a few conversations.
fn config(oracle: &OracleConfig, folder: &Path) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 2;
    config.cache.device_bytes_max = oracle.spec().tail_bytes(256) * 4;
    config.pager.host_bytes_max = 5 << 18;
    config.pager.label_bytes_max = Some(1 << 18);
    config.pager.clean_part = 1.0;
    config.pager.disk = Some(DiskConfig {
        folder: folder.to_owned(),
        bytes_max: 1 << 20,
    });
    config
}

fn opening(user: u32) -> Vec<TokenId> {
    (1..120).map(|i| 1 + (user * 37 + i) % 900).collect()
}

/// Serves so many users in turn; returns the number of tokens that were not computed for them.
async fn serve(engine: &Engine, oracle: &OracleConfig, users: std::ops::Range<u32>) -> usize {
    let mut cached = 0;
    for user in users {
        let request = Request::tokens(opening(user)).output_tokens_max(4);
        let output = engine
            .submit(request)
            .await
            .expect("the file system works")
            .collect();
        let output = tokio::time::timeout(Duration::from_secs(20), output);
        let output = output.await.expect("it ends").expect("an output");
        let expected = oracle.reference_tokens(&opening(user), 4, Sampling::GREEDY);
        assert_eq!(output.tokens, expected, "user {user}");
        cached += output.finish.usage.cached_tokens;
    }
    cached
}

async fn rejected(oracle: &OracleConfig, config: EngineConfig) -> TierError {
    let oracle = oracle.clone();
    let built = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")));
    match built.config(config).start().await {
        Err(StartError::Disk(error)) => error,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it starts"),
    }
}

#[tokio::test]
async fn invalid_folder_is_rejected_at_start() {
    let oracle = oracle(0);
    let folder = Folder::new("mistakes-nowhere");
    let inside = folder.0.join("a").join("b");
    let error = rejected(&oracle, config(&oracle, &inside)).await;
    assert!(matches!(error, TierError::Missing { .. }), "{error}");
    assert!(
        error.to_string().contains("motet-mistakes-nowhere"),
        "{error}"
    );

    let file = Folder::new("mistakes-file");
    std::fs::write(&file.0, "not a folder").expect("the file system works");
    let error = rejected(&oracle, config(&oracle, &file.0)).await;
    assert!(matches!(error, TierError::NotAFolder { .. }), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn unwritable_folder_is_rejected_at_start() {
    if !unprivileged::is_bound("unwritable_folder_is_rejected_at_start") {
        return;
    }
    let oracle = oracle(0);
    let folder = Folder::new("mistakes-read-only");
    std::fs::create_dir(&folder.0).expect("a folder");
    unprivileged::permit(&folder.0, 0o555);
    let error = rejected(&oracle, config(&oracle, &folder.0)).await;
    assert!(matches!(error, TierError::Denied { .. }), "{error}");
    unprivileged::permit(&folder.0, 0o755);
}

#[tokio::test]
async fn a_folder_serves_one_engine_at_a_time() {
    let oracle = oracle(0);
    let folder = Folder::new("mistakes-shared");
    let first = engine(&oracle, config(&oracle, &folder.0)).await;
    let error = rejected(&oracle, config(&oracle, &folder.0)).await;
    assert!(matches!(error, TierError::Locked { .. }), "{error}");
    serve(&first, &oracle, 0..3).await;
    first.shutdown(Shutdown::Finish).await;
    let second = engine(&oracle, config(&oracle, &folder.0)).await;
    serve(&second, &oracle, 0..3).await;
    second.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn copies_of_another_model_are_not_used() {
    let folder = Folder::new("mistakes-other");
    let (ours, others) = (oracle(1), oracle(2));
    let first = engine(&others, config(&others, &folder.0)).await;
    serve(&first, &others, 0..6).await;
    first.shutdown(Shutdown::Finish).await;
    let second = engine(&ours, config(&ours, &folder.0)).await;
    assert_eq!(second.stats().pager.disk_copies, 0);
    let cached = serve(&second, &ours, 0..6).await;
    assert_eq!(cached, 0, "nothing of it serves this model");
    second.shutdown(Shutdown::Finish).await;
}

/// Neither state that is to leave the device nor a former engine's copies fit into host memory.
#[tokio::test]
async fn engine_serves_without_a_host_tier_smaller_than_a_segment() {
    let folder = Folder::new("mistakes-small");
    let oracle = oracle(0);
    let first = engine(&oracle, config(&oracle, &folder.0)).await;
    // Each copy is larger than a page of memory.
    let long =
        |user: u32| -> Vec<TokenId> { (0..250).map(|i| 1 + (user * 37 + i) % 900).collect() };
    for user in 0..9 {
        let request = Request::tokens(long(user)).output_tokens_max(4);
        first
            .submit(request)
            .await
            .expect("the file system works")
            .collect()
            .await
            .expect("an output");
    }
    first.shutdown(Shutdown::Finish).await;
    let mut config = config(&oracle, &folder.0);
    // Less than a page, and the labels of some copies.
    config.pager.host_bytes_max = 21 << 10;
    config.pager.label_bytes_max = Some(15 << 10);
    let second = engine(&oracle, config).await;
    assert!(second.stats().pager.disk_copies > 0, "some were left");
    for user in 0..9 {
        let request = Request::tokens(long(user)).output_tokens_max(4);
        let output = second
            .submit(request)
            .await
            .expect("the file system works")
            .collect();
        let output = tokio::time::timeout(Duration::from_secs(20), output);
        let output = output.await.expect("it ends").expect("an output");
        assert_eq!(
            output.tokens,
            oracle.reference_tokens(&long(user), 4, Sampling::GREEDY)
        );
    }
    serve(&second, &oracle, 0..12).await;
    let stats = second.stats().pager;
    assert_eq!((stats.host_copies, stats.unpacked), (0, 0), "{stats:?}");
    assert!(stats.rejected > 0, "{stats:?}");
    second.shutdown(Shutdown::Finish).await;
}
