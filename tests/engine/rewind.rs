//! Rewinding sequences to an earlier token, on the oracle.

use crate::common::{engine, read};
use motet::config::EngineConfig;
use motet::error::{GenerateError, SubmitError};
use motet::model::LayerKind;
use motet::model::oracle::OracleConfig;
use motet::monitor::EngineEvent;
use motet::request::FinishReason;
use motet::request::Sampling;
use motet::{Request, Shutdown, TokenId};

fn oracle(layers: &[LayerKind]) -> OracleConfig {
    OracleConfig {
        context_tokens_max: 256,
        ..crate::common::slow_oracle(layers)
    }
}

fn request(tokens: impl Into<Vec<TokenId>>, output_tokens: usize) -> Request {
    let request = Request::tokens(tokens).output_tokens_max(output_tokens);
    request.ignore_end_tokens()
}

#[tokio::test]
async fn rewound_sequence_continues_in_its_own_slot() {
    let oracle = oracle(&[LayerKind::Full]);
    let engine = engine(&oracle, EngineConfig::default()).await;
    let mut events = engine.events();
    let prompt: Vec<TokenId> = (1..41).collect();
    let mut source = engine.submit(request(prompt.clone(), 80)).await.unwrap();
    let first = source.sequence();
    let mut history = prompt;
    history.extend(read(&mut source, 10).await);
    let appended = [500, 501];
    let stream = engine
        .rewind(source, 45, request(appended, 12))
        .await
        .unwrap();
    let second = stream.sequence();
    let completion = stream.collect().await.unwrap();
    let continued = [&history[..45], &appended[..]].concat();
    let expected = oracle.reference_tokens(&continued, 12, Sampling::GREEDY);
    assert_eq!(completion.tokens, expected);
    let usage = completion.finish.usage;
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (47, 45));
    assert_eq!(engine.stats().cache.evicted_segments, 0);
    engine.shutdown(Shutdown::Finish).await;
    let (mut ends, mut sealed_by) = (Vec::new(), Vec::new());
    while let Some(event) = events.next().await {
        match event {
            EngineEvent::Finished {
                sequence, reason, ..
            } => ends.push((sequence, reason)),
            EngineEvent::Forked {
                sequence,
                source,
                at,
                ..
            } => sealed_by.push((sequence, source, at)),
            _ => {}
        }
    }
    assert_eq!(
        ends,
        [
            (first, FinishReason::Cancelled),
            (second, FinishReason::Length)
        ]
    );
    assert_eq!(sealed_by, [(second, first, 45)]);
}

#[tokio::test]
async fn rewind_seals_and_recomputes_nothing() {
    let oracle = oracle(&[LayerKind::Full]);
    let engine = engine(&oracle, EngineConfig::default()).await;
    let prompt: Vec<TokenId> = (1..41).collect();
    let mut stream = engine.submit(request(prompt, 180)).await.unwrap();
    for round in 0..5 {
        read(&mut stream, 4).await;
        stream = engine
            .rewind(stream, 41, request([600 + round], 180))
            .await
            .unwrap();
    }
    read(&mut stream, 4).await;
    let stats = engine.stats();
    assert_eq!(stats.cache.segments, 0, "all is in one tail");
    assert_eq!(stats.running, 1);
    // Each rewind evaluates one token and the generated ones again; some steps were in flight.
    assert!(stats.evaluated_tokens < 40 + 6 * (1 + 4 + 8), "{stats:?}");
}

/// Three cases: a model whose state cannot be truncated, a sequence whose context shifts, and a
/// sequence that has not started.
#[tokio::test]
async fn rewind_without_a_usable_slot_starts_like_a_fork() {
    let layers: [&[LayerKind]; 2] = [&[LayerKind::Full], &[LayerKind::Recurrent]];
    for layers in layers {
        for shifts in [false, true] {
            let oracle = oracle(layers);
            let engine = engine(&oracle, EngineConfig::default()).await;
            let prompt: Vec<TokenId> = (1..41).collect();
            let first = if shifts {
                request(prompt.clone(), 80).shift(4)
            } else {
                request(prompt.clone(), 80)
            };
            let mut source = engine.submit(first).await.unwrap();
            let history = [prompt, read(&mut source, 3).await].concat();
            let stream = engine.rewind(source, 42, request([9], 6)).await.unwrap();
            let continued = [&history[..42], &[9]].concat();
            let expected = oracle.reference_tokens(&continued, 6, Sampling::GREEDY);
            assert_eq!(stream.collect().await.unwrap().tokens, expected);
            // A sequence that has not started.
            let fresh = engine.submit(request([3, 1, 4], 50)).await.unwrap();
            let stream = engine.rewind(fresh, 2, request([7], 6)).await.unwrap();
            let expected = oracle.reference_tokens(&[3, 1, 7], 6, Sampling::GREEDY);
            assert_eq!(stream.collect().await.unwrap().tokens, expected);
            assert_eq!(engine.stats().running, 0);
        }
    }
}

#[tokio::test]
async fn impossible_rewind_is_an_error() {
    let oracle = oracle(&[LayerKind::Full]);
    let engine = engine(&oracle, EngineConfig::default()).await;
    let mut finished = engine.submit(request([1, 2, 3], 2)).await.unwrap();
    while finished.next().await.is_some() {}
    let stream = engine.rewind(finished, 2, request([5], 2)).await.unwrap();
    let failed = stream.collect().await.expect_err("its source has finished");
    assert!(matches!(failed, GenerateError::ForkSource(_)), "{failed}");
    let source = engine.submit(request([1, 2, 3], 60)).await.unwrap();
    let stream = engine.rewind(source, 1000, request([5], 2)).await.unwrap();
    let failed = stream.collect().await.expect_err("it has fewer tokens");
    assert!(
        matches!(failed, GenerateError::ForkPastEnd { .. }),
        "{failed}"
    );
    let source = engine.submit(request([1, 2, 3], 60)).await.unwrap();
    let uncached = request([5], 2).without_cache();
    let rejected = engine.rewind(source, 2, uncached).await;
    assert!(matches!(
        rejected,
        Err(SubmitError::Field { field: "cache", .. })
    ));
}
