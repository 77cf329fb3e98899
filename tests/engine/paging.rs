//! Cold state leaves the device and comes back, on the oracle. Wherever state was moved, each
//! caller's output equals the reference run's.

use std::time::Duration;

use crate::common::{engine, until};
use motet::config::{DiskConfig, EngineConfig};
use motet::model::oracle::{OracleConfig, StepCost};
use motet::model::{LayerKind, ModelSpec, SegmentSize};
use motet::request::Sampling;
use motet::{Engine, Request, Shutdown, TokenId};
use motet_testkit::folder::Folder;

const TURNS: usize = 3;

fn oracle(layers: &[LayerKind]) -> OracleConfig {
    OracleConfig {
        context_tokens_max: 512,
        end_tokens: vec![0],
        tail_block_tokens: 16,
        // Computing takes longer than loading, also on a busy machine.
        cost: StepCost {
            per_token: Duration::from_micros(50),
            ..StepCost::default()
        },
        ..OracleConfig::with_layers(layers)
    }
}

/// A device for a few conversations, and host memory for all.
fn config(spec: &ModelSpec) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 4;
    config.scheduler.chunking.step_tokens_max = 64;
    config.cache.device_bytes_max = spec.tail_bytes(512) * 3 / 2;
    config.cache.restore_interval_tokens = 64;
    config.pager.host_bytes_max = 64 << 20;
    config
}

fn opening(user: u32) -> Vec<TokenId> {
    (1..120).map(|i| 1 + (user * 37 + i) % 900).collect()
}

/// Several users have several turns each, one after another. By its next turn, each
/// conversation's state has left the device.
async fn converse(engine: &Engine, oracle: &OracleConfig, users: u32) -> usize {
    let mut conversations: Vec<Vec<TokenId>> = (0..users).map(opening).collect();
    let mut cached = 0;
    for turn in 0..TURNS {
        for (user, conversation) in (0..).zip(&mut conversations) {
            let request = Request::tokens(conversation.clone()).output_tokens_max(20);
            let output = engine
                .submit(request)
                .await
                .expect("it is accepted")
                .collect();
            let output = output.await.expect("an output");
            let expected = oracle.reference_tokens(conversation, 20, Sampling::GREEDY);
            assert_eq!(output.tokens, expected, "user {user}, turn {turn}");
            cached += output.finish.usage.cached_tokens;
            conversation.extend(&output.tokens);
            conversation.extend([901 + user, 950]);
        }
    }
    cached
}

#[tokio::test]
async fn offloaded_state_is_loaded_back_unchanged() {
    for layers in [
        &[LayerKind::Full][..],
        &[LayerKind::Full, LayerKind::Window { tokens: 32 }],
        &[LayerKind::Full, LayerKind::Recurrent],
    ] {
        let oracle = oracle(layers);
        let spec = oracle.spec();
        let engine = engine(&oracle, config(&spec)).await;
        let cached = converse(&engine, &oracle, 12).await;
        let stats = engine.stats();
        assert!(stats.cache.evicted_segments > 0, "the device was too small");
        assert!(stats.pager.unpacked > 0, "{layers:?}: something came back");
        assert!(
            cached > 12 * 100,
            "{layers:?}: {cached} tokens were not computed again"
        );
        until("nothing is moving", || engine.stats().running == 0).await;
        assert!(stats.pager.host_bytes <= 64 << 20);
        engine.shutdown(Shutdown::Finish).await;
    }
}

#[tokio::test]
async fn a_restart_finds_what_was_on_the_disk() {
    let folder = Folder::new("paging-restart");
    let oracle = oracle(&[LayerKind::Full]);
    let spec = oracle.spec();
    let mut config = config(&spec);
    config.pager.clean_part = 1.0;
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 64 << 20,
    });
    let first = engine(&oracle, config.clone()).await;
    converse(&first, &oracle, 4).await;
    first.shutdown(Shutdown::Finish).await;
    let second = engine(&oracle, config).await;
    assert!(second.stats().pager.disk_copies > 0 || second.stats().pager.copies == 0);
    let request = Request::tokens(opening(2)).output_tokens_max(5);
    let output = second
        .submit(request)
        .await
        .expect("it is accepted")
        .collect()
        .await;
    let output = output.expect("an output");
    assert_eq!(
        output.tokens,
        oracle.reference_tokens(&opening(2), 5, Sampling::GREEDY)
    );
    assert!(
        output.finish.usage.cached_tokens > 100,
        "{:?}",
        output.finish.usage
    );
    assert!(second.stats().pager.read > 0, "it came from the disk");
    second.shutdown(Shutdown::Finish).await;
}

/// A disk tier, and defaults otherwise.
fn on_disk(folder: &Folder) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.pager.host_bytes_max = 64 << 20;
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 64 << 20,
    });
    config
}

/// Tokens of this prompt that an engine finds in its cache.
async fn cached(engine: &Engine, prompt: &[TokenId]) -> usize {
    let request = Request::tokens(prompt).output_tokens_max(1);
    let output = engine
        .submit(request)
        .await
        .expect("it is accepted")
        .collect();
    output.await.expect("an output").finish.usage.cached_tokens
}

#[tokio::test]
async fn the_next_start_finds_what_was_computed_before_a_shutdown() {
    let oracle = oracle(&[LayerKind::Full]);
    for how in [Shutdown::Finish, Shutdown::Abort] {
        let folder = Folder::new("paging-shutdown");
        let first = engine(&oracle, on_disk(&folder)).await;
        for user in 0..4 {
            assert_eq!(cached(&first, &opening(user)).await, 0);
        }
        // One prompt is pinned, and one is cut off.
        let pinned = Request::tokens(opening(4));
        first.pin(pinned, None).await.expect("it is accepted");
        let long = Request::tokens(opening(5)).output_tokens_max(300);
        let mut stream = first
            .submit(long.ignore_end_tokens())
            .await
            .expect("it is accepted");
        stream.next().await.expect("a token").expect("no error");
        if how == Shutdown::Finish {
            drop(stream);
        }
        first.shutdown(how).await;
        let second = engine(&oracle, on_disk(&folder)).await;
        for user in 0..6 {
            let prompt = opening(user);
            let found = cached(&second, &prompt).await;
            assert_eq!(found, prompt.len() - 1, "user {user}, {how:?}");
        }
        second.shutdown(Shutdown::Abort).await;
    }
}

#[tokio::test]
async fn flushed_copies_are_on_disk() {
    let oracle = oracle(&[LayerKind::Full]);
    let folder = Folder::new("paging-flush");
    let mut config = on_disk(&folder);
    // Much less than the bytes that are flushed: they are written in parts.
    let prompt_bytes = oracle
        .spec()
        .segment_bytes(SegmentSize::whole(opening(0).len()));
    config.pager.host_bytes_max = 8 * prompt_bytes + (1 << 20);
    config.pager.label_bytes_max = Some(1 << 19);
    let first = engine(&oracle, config.clone()).await;
    for user in 0..20 {
        assert_eq!(cached(&first, &opening(user)).await, 0);
    }
    first.flush().await.expect("there is time");
    let stats = first.stats().pager;
    assert_eq!(stats.disk_copies, stats.copies, "{stats:?}");
    assert!(stats.disk_copies >= 20, "{stats:?}");
    // Nothing is left to write, and nothing is written again.
    first.flush().await.expect("there is time");
    assert_eq!(first.stats().pager.written, stats.written);
    first.shutdown(Shutdown::Abort).await;
    let second = engine(&oracle, config).await;
    for user in 0..20 {
        let prompt = opening(user);
        assert_eq!(
            cached(&second, &prompt).await,
            prompt.len() - 1,
            "user {user}"
        );
    }
    second.shutdown(Shutdown::Abort).await;
}
