//! Reuse of the cache by requests, and their reports of it, on the oracle.

use std::time::Duration;

use crate::common::engine;
use crate::common::slow_oracle as oracle;
use motet::config::EngineConfig;
use motet::error::{CacheCommandError, SubmitError};
use motet::model::{LayerKind, SegmentSize};
use motet::monitor::EngineEvent;
use motet::request::{CacheUse, ContextLimit, Finish, MissReason, Prefill};
use motet::{Engine, EngineStats, Request, TokenId};

const FULL: &[LayerKind] = &[LayerKind::Full];

fn prompt(tokens: std::ops::Range<TokenId>) -> Request {
    let tokens: Vec<TokenId> = tokens.collect();
    Request::tokens(tokens)
        .output_tokens_max(4)
        .ignore_end_tokens()
}

async fn run(engine: &Engine, request: Request) -> Finish {
    let stream = engine.submit(request).await.expect("it is accepted");
    stream.collect().await.expect("it ends well").finish
}

/// The statistics once the cache has processed the ends of all sequences. Callers get their
/// outputs before that.
async fn idle_stats(engine: &Engine) -> EngineStats {
    loop {
        let stats = engine.stats();
        if stats.running == 0 && stats.cache.reserved_bytes == 0 {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn request_without_cache_reuses_and_publishes_nothing() {
    let layers: [&[LayerKind]; 2] = [FULL, &[LayerKind::Full, LayerKind::Recurrent]];
    for layers in layers {
        let engine = engine(&oracle(layers), EngineConfig::default()).await;
        let shared = run(&engine, prompt(1..41).turn_end(39)).await.usage;
        let before = idle_stats(&engine).await;
        let own = run(&engine, prompt(1..41).without_cache()).await.usage;
        assert_eq!((own.cached_tokens, own.miss), (0, None));
        let new = run(&engine, prompt(50..91).without_cache()).await.usage;
        assert_eq!(new.cached_tokens, 0);
        let after = idle_stats(&engine).await;
        assert_eq!(after.cache.cached_tokens, before.cache.cached_tokens);
        assert_eq!(after.cache.asked_tokens, before.cache.asked_tokens);
        let computed = after.evaluated_tokens - before.evaluated_tokens;
        assert_eq!(computed, (40 + 3) + (41 + 3));
        // Neither request has changed the cache.
        assert_eq!(run(&engine, prompt(50..91)).await.usage.cached_tokens, 0);
        let repeated = run(&engine, prompt(1..41)).await.usage;
        assert!(repeated.cached_tokens > shared.cached_tokens);
    }
}

#[tokio::test]
async fn outputs_and_forks_without_cache_share_while_they_live() {
    let engine = engine(&oracle(FULL), EngineConfig::default()).await;
    let streams = engine.submit_many(prompt(1..61).without_cache().n(4));
    for stream in streams.await.expect("they are accepted") {
        stream.collect().await.expect("it ends well");
    }
    let stats = idle_stats(&engine).await;
    assert!(
        stats.evaluated_tokens < 2 * 60,
        "the prompt is computed once"
    );
    assert_eq!(stats.cache.cached_tokens, 0);
    assert_eq!(stats.cache.sealed_bytes + stats.cache.reserved_bytes, 0);

    let request = prompt(1..61).without_cache().output_tokens_max(60);
    let mut source = engine.submit(request).await.expect("it is accepted");
    source.next().await;
    let fork = engine.fork(&source, Some(60), prompt(70..72)).await;
    let fork = fork.expect("it is accepted").collect().await;
    let usage = fork.expect("it ends well").finish.usage;
    assert!(
        usage.cached_tokens > 0,
        "it shares what its source computes"
    );
    drop(source);
    run(&engine, prompt(100..110)).await;
    let left = idle_stats(&engine).await.cache.cached_tokens;
    assert!(
        left < 20,
        "only the last request's tokens are cached: {left}"
    );
}

#[tokio::test]
async fn options_that_need_the_cache_are_rejected_by_name() {
    let engine = engine(&oracle(FULL), EngineConfig::default()).await;
    let field = |error: SubmitError| match error {
        SubmitError::Field { field, .. } => field,
        other => panic!("{other}"),
    };
    let salted = prompt(1..9).without_cache().cache_salt("tenant");
    let rejected = engine.submit(salted).await.expect_err("it is rejected");
    assert_eq!(field(rejected), "cache_salt");
    let restorable = prompt(1..9).without_cache().restore_point(3);
    let rejected = engine.submit(restorable).await.expect_err("it is rejected");
    assert_eq!(field(rejected), "restore_points");
    let source = engine.submit(prompt(1..9)).await.expect("it is accepted");
    let fork = engine.fork(&source, None, prompt(9..10).without_cache());
    assert_eq!(field(fork.await.expect_err("it is rejected")), "cache");
    for outcome in [
        engine.warm(prompt(1..9).without_cache()).await.map(drop),
        engine
            .pin(prompt(1..9).without_cache(), None)
            .await
            .map(drop),
    ] {
        match outcome {
            Err(CacheCommandError::Submit(error)) => assert_eq!(field(*error), "cache"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(Request::tokens([1]).cache, CacheUse::Shared);
}

/// The way of a miss reason through engine and actors. The tests of `cache::miss` cover each reason.
#[tokio::test]
async fn usage_events_and_stats_report_misses() {
    let oracle = oracle(FULL);
    let mut config = EngineConfig::default();
    let spec = oracle.spec();
    config.cache.device_bytes_max =
        spec.tail_bytes(96) + spec.segment_bytes(SegmentSize::whole(48));
    let engine = engine(&oracle, config).await;
    let mut events = engine.events();
    run(&engine, prompt(1..41)).await;
    // Fills the device's budget.
    run(&engine, prompt(200..300)).await;
    let usage = run(&engine, prompt(1..41)).await.usage;
    let miss = usage.miss.expect("less is reused than would be possible");
    assert_eq!((usage.cached_tokens, miss.reason), (0, MissReason::Evicted));
    let salted = prompt(1..41).cache_salt("tenant");
    let miss = run(&engine, salted).await.usage.miss;
    assert_eq!(miss, None, "a tenant learns nothing of another's prompts");
    let stats = idle_stats(&engine).await;
    engine.shutdown(motet::Shutdown::Finish).await;
    let (mut missed, mut evicted_tokens) = (Vec::new(), 0);
    while let Some(event) = events.next().await {
        match event {
            EngineEvent::Started { miss, .. } => missed.push(miss.map(|miss| miss.reason)),
            EngineEvent::Evicted {
                tokens, segments, ..
            } => {
                assert!(segments > 0);
                evicted_tokens += tokens;
            }
            _ => {}
        }
    }
    let reasons = [
        None,
        None,
        Some(MissReason::Evicted),
        Some(MissReason::OtherSalt),
    ];
    assert_eq!(missed, reasons);
    assert!(stats.cache.evicted_tokens >= 40);
    assert_eq!(evicted_tokens, stats.cache.evicted_tokens);
}

#[tokio::test]
async fn shifts_truncations_and_forks_are_reported() {
    for layers in [FULL, &[LayerKind::Recurrent]] {
        let oracle = oracle(layers);
        let engine = engine(&oracle, EngineConfig::default()).await;
        let mut events = engine.events();
        let request = Request {
            at_context_limit: ContextLimit::Shift { keep: 8 },
            ..prompt(1..301).output_tokens_max(100)
        };
        let mut stream = engine.submit(request).await.expect("it is accepted");
        stream.next().await;
        let fork = engine.fork(&stream, Some(20), prompt(70..72)).await;
        let name = fork.as_ref().expect("it is accepted").sequence();
        fork.expect("it is accepted")
            .collect()
            .await
            .expect("it ends well");
        let source = stream.sequence();
        let usage = stream.collect().await.expect("it ends well").finish.usage;
        // Truncation drops the excess and half of the tokens that need not be kept.
        assert_eq!(usage.truncated_tokens, 300 - usage.prompt_tokens);
        assert_eq!(usage.prompt_tokens, 68);
        // 68 and 60 tokens fill the context. It loses 60 tokens each time that it is full.
        assert_eq!(usage.shifted_tokens, 60);
        let stats = engine.stats();
        assert_eq!((stats.forked, stats.shifted), (1, 1));
        engine.shutdown(motet::Shutdown::Finish).await;
        let (mut forks, mut shifts) = (Vec::new(), Vec::new());
        while let Some(event) = events.next().await {
            match event {
                EngineEvent::Forked {
                    sequence,
                    source,
                    at,
                    ..
                } => forks.push((sequence, source, at)),
                EngineEvent::Shifted {
                    sequence, tokens, ..
                } => shifts.push((sequence, tokens)),
                _ => {}
            }
        }
        assert_eq!(forks, [(name, source, 20)]);
        assert_eq!(shifts, [(source, 60)]);
    }
}

#[tokio::test]
async fn prefill_progress_is_reported_on_request() {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 4;
    config.scheduler.chunking.step_tokens_max = 8;
    let engine = engine(&oracle(FULL), config).await;
    run(&engine, prompt(1..25)).await;
    let prefills = async |request: Request| {
        let mut stream = engine.submit(request).await.expect("it is accepted");
        let (mut prefills, mut tokens) = (Vec::<Prefill>::new(), 0);
        while let Some(piece) = stream.next().await {
            let piece = piece.expect("it ends well");
            tokens += usize::from(piece.token.is_some());
            assert!(
                piece.prefill.is_none() || tokens == 0,
                "before the first token"
            );
            prefills.extend(piece.prefill);
        }
        assert_eq!(tokens, 4);
        prefills
    };
    let all = prefills(prompt(1..121).report_prefill_progress()).await;
    let computed: Vec<usize> = all.iter().map(|prefill| prefill.computed_tokens).collect();
    assert!(computed.is_sorted_by(|a, b| a < b), "{computed:?}");
    assert!((4..=18).contains(&computed.len()), "{computed:?}");
    let first = all[0];
    assert_eq!(first.computed_tokens, first.cached_tokens);
    assert_eq!((first.cached_tokens, first.prompt_tokens), (24, 120));
    assert_eq!(all.last().expect("the last").computed_tokens, 120);
    assert!(
        prefills(prompt(1..121)).await.is_empty(),
        "only requests that ask for it"
    );
}
