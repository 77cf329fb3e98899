//! The budget for results, and requests that are submitted together.

use crate::common::{engine, small};
use motet::config::EngineConfig;
use motet::error::{BestOfError, QueueLimit, ReserveError, SubmitError};
use motet::model::oracle::OracleConfig;
use motet::request::FinishReason;
use motet::{Engine, KeptOutputs, Request, Shutdown, TokenId};

fn oracle() -> OracleConfig {
    OracleConfig {
        vocab_size: 200,
        context_tokens_max: 512,
        ..OracleConfig::default()
    }
}

fn config(results_bytes_max: usize) -> EngineConfig {
    let mut config = small();
    config.scheduler.sequences_max = 4;
    config.scheduler.admission.queue_max = 8;
    config.scheduler.admission.results_bytes_max = results_bytes_max;
    config
}

fn scored(tokens: u32) -> Request {
    let mut request = Request::tokens((0..tokens).map(|at| 1 + at % 190).collect::<Vec<TokenId>>());
    request.output_tokens_max = 0;
    request.prompt_logprobs = Some(20);
    request
}

async fn idle(engine: &Engine) {
    // All bytes are free again.
    let most = engine.config().scheduler.admission.results_bytes_max / 2;
    crate::common::until("all results are released", || {
        engine.reserve_results(Some("probe"), most).is_ok()
    })
    .await;
}

#[tokio::test]
async fn scores_that_never_fit_are_rejected_for_good() {
    // A token takes 208 bytes.
    let engine = engine(&oracle(), config(100_000)).await;
    let stream = engine.submit(scored(200)).await.expect("40 kB fit");
    let kept = stream.results();
    let score = stream.collect().await.expect("a score");
    assert_eq!(score.prompt_logprobs.len(), 199);
    match engine.submit(scored(300)).await {
        Err(SubmitError::ResultsTooLarge {
            needed_bytes,
            most_bytes,
        }) => assert!(needed_bytes > most_bytes && most_bytes == 50_000),
        other => panic!("expected too many results, got {other:?}"),
    }
    // Results count until their caller drops them.
    match engine.submit(scored(200)).await {
        Err(SubmitError::QueueFull { what, .. }) => assert_eq!(what, QueueLimit::Results),
        other => panic!("expected a full budget, got {other:?}"),
    }
    drop(kept);
    engine.submit(scored(200)).await.expect("it is free again");
    idle(&engine).await;
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn callers_reserve_from_the_same_budget() {
    let engine = engine(&oracle(), config(100_000)).await;
    let never = engine.reserve_results(None, 50_001).err();
    assert!(matches!(never, Some(ReserveError::TooLarge { .. })));
    let mut kept = engine.reserve_results(Some("ann"), 40_000).expect("half");
    assert!(kept.resize(50_000).is_ok() && kept.resize(50_001).is_err());
    assert_eq!(kept.bytes(), 50_000);
    let full = engine.reserve_results(Some("ann"), 1).err();
    assert!(matches!(full, Some(ReserveError::Full { .. })));
    let other = engine
        .reserve_results(Some("bob"), 25_000)
        .expect("half of the rest");
    assert!(engine.submit(scored(200)).await.is_err());
    drop((kept, other));
    idle(&engine).await;
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn requests_are_submitted_together_or_not_at_all() {
    let engine = engine(&oracle(), config(1 << 20)).await;
    let request = |first| {
        let request = Request::tokens([first, 2, 3]).output_tokens_max(4);
        request.ignore_end_tokens()
    };
    let all = vec![request(1), request(2).n(2), request(3)];
    let streams = engine.submit_all(all).await.expect("five outputs");
    let outputs: Vec<usize> = streams.iter().map(Vec::len).collect();
    assert_eq!(outputs, [1, 2, 1]);
    for stream in streams.into_iter().flatten() {
        assert_eq!(stream.prompt_tokens(), 3);
        let output = stream.collect().await.expect("an output");
        assert_eq!(output.finish.reason, FinishReason::Length);
    }
    let before = engine.stats();
    for (requests, expected) in [
        ((0..13).map(request).collect::<Vec<_>>(), "at most 12"),
        (vec![request(1), request(2).n(12)], "at most 12"),
        (vec![request(1), scored(0)], "at least one token"),
    ] {
        match engine.submit_all(requests).await {
            Err(error @ SubmitError::Field { .. }) => {
                assert!(error.to_string().contains(expected), "{error}");
            }
            other => panic!("expected {expected}, got {other:?}"),
        }
    }
    assert!(
        engine
            .submit_all(Vec::new())
            .await
            .expect("none")
            .is_empty()
    );
    assert_eq!(engine.stats().steps, before.steps, "none has begun");
    idle(&engine).await;
    engine.shutdown(Shutdown::Abort).await;
}

/// A user who is admitted does not end what another's request that runs still needs.
#[tokio::test]
async fn reservation_grows_beside_those_of_other_users() {
    let engine = engine(&oracle(), config(100_000)).await;
    let mut ann = engine.reserve_results(Some("ann"), 40_000).expect("fits");
    let bob = engine.reserve_results(Some("bob"), 30_000).expect("fits");
    let full = engine.reserve_results(Some("ann"), 1).err();
    assert!(matches!(full, Some(ReserveError::Full { .. })));
    ann.resize(50_000).expect("half of the budget");
    let never = ann.resize(50_001).err();
    assert!(matches!(never, Some(ReserveError::TooLarge { .. })));
    drop((ann, bob));
    idle(&engine).await;
    engine.shutdown(Shutdown::Abort).await;
}

/// The parts that the engine keeps of a request and those that its caller keeps are one sum.
#[tokio::test]
async fn request_is_too_large_by_all_that_is_kept_of_it() {
    let engine = engine(&oracle(), config(100_000)).await;
    let kept = KeptOutputs {
        logprobs_tokens_max: usize::MAX,
        is_unread: false,
    };
    let request = |output_tokens_max| {
        let mut request = scored(100).logprobs(20);
        request.output_tokens_max = output_tokens_max;
        request
    };
    // 20 kB of the prompt, and 256 bytes for each token of the output.
    for (others, output_tokens_max, fits) in [
        (0, 100, true),
        (0, 130, false),
        (10_000, 100, false),
        (0, usize::MAX, false),
    ] {
        let reserved = engine.reserve_results(None, others);
        let mut results = reserved.expect("it is small");
        let requests = vec![request(output_tokens_max)];
        let submitted = engine.submit_all_keeping(requests, kept, &mut results);
        match submitted.await {
            Ok(streams) if fits => {
                assert_eq!(results.bytes(), others + 256 * output_tokens_max);
                // More of the outputs still counts with what the engine keeps.
                let never = results.resize(30_000).err();
                assert!(matches!(never, Some(ReserveError::TooLarge { .. })));
                drop(streams);
            }
            Err(SubmitError::ResultsTooLarge { .. }) if !fits => {}
            other => panic!("{others}, {output_tokens_max}: {other:?}"),
        }
        drop(results);
        idle(&engine).await;
    }
    engine.shutdown(Shutdown::Abort).await;
}

/// A request is checked before bytes are reserved for it, and its rejections are counted.
#[tokio::test]
async fn best_of_is_rejected_like_other_requests() {
    let engine = engine(&oracle(), config(100_000)).await;
    let request = |top| {
        let request = Request::tokens([1, 2, 3]).output_tokens_max(200);
        request.n(1).best_of(2).logprobs(top)
    };
    for (top, expected) in [(20, "results may take"), (usize::MAX, "at most 20")] {
        let before = engine.stats().rejected;
        match engine.best_of(request(top)).await {
            Err(BestOfError::Submit(error)) => {
                assert!(error.to_string().contains(expected), "{error}");
            }
            other => panic!("expected {expected}, got {other:?}"),
        }
        assert_eq!(engine.stats().rejected, before + 1);
    }
    let best = engine.best_of(request(5).output_tokens_max(100)).await;
    assert_eq!(best.expect("it fits").len(), 1);
    idle(&engine).await;
    engine.shutdown(Shutdown::Abort).await;
}

/// Prompts that one user may never have waiting together are no reason to come again.
#[tokio::test]
async fn prompts_of_a_user_that_never_fit_are_rejected_for_good() {
    let mut config = config(1 << 20);
    config.scheduler.admission.user_queue_tokens_max = Some(100);
    let engine = engine(&oracle(), config).await;
    let prompt = |user: &str, tokens| {
        let tokens: Vec<TokenId> = vec![1; tokens];
        Request::tokens(tokens).output_tokens_max(1).user(user)
    };
    let all = vec![prompt("ann", 80), prompt("bob", 80), prompt("ann", 80)];
    match engine.submit_all(all).await {
        Err(SubmitError::Field { field, found, .. }) => {
            assert_eq!((field, &*found), ("requests", "160 tokens long"));
        }
        other => panic!("expected too many tokens, got {other:?}"),
    }
    // One of each fits, and a single one is admitted whatever its length.
    let all = vec![prompt("ann", 120), prompt("bob", 80)];
    engine.submit_all(all).await.expect("one of each");
    engine.shutdown(Shutdown::Abort).await;
}
