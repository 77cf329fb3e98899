//! Isolation of tenants: salts, and limits for each user.

use std::time::Duration;

use crate::common::{engine, small, until};
use motet::config::DiskConfig;
use motet::error::{QueueLimit, SubmitError};
use motet::model::LayerKind;
use motet::model::oracle::OracleConfig;
use motet::request::Usage;
use motet::{Engine, PinId, Request, Shutdown, TokenId};
use motet_testkit::folder::Folder;

const OUTPUT_TOKENS: usize = 4;

fn oracle() -> OracleConfig {
    OracleConfig {
        context_tokens_max: 512,
        end_one_in: 0,
        tail_block_tokens: 16,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    }
}

fn prompt(tokens: u32) -> Vec<TokenId> {
    (1..=tokens).collect()
}

fn of(salt: Option<&str>) -> Request {
    let request = Request::tokens(prompt(100)).output_tokens_max(OUTPUT_TOKENS);
    match salt {
        Some(salt) => request.cache_salt(salt),
        None => request,
    }
}

/// Runs a request to its end. Returns its usage, and the number of tokens that the model
/// evaluated meanwhile.
async fn run(engine: &Engine, request: Request) -> (Usage, usize) {
    let before = engine.stats().evaluated_tokens;
    let stream = engine.submit(request).await.expect("it is accepted");
    let usage = stream.collect().await.expect("an output").finish.usage;
    until("its last step has finished", || engine.stats().running == 0).await;
    let evaluated = engine.stats().evaluated_tokens - before;
    (usage, usize::try_from(evaluated).expect("a few"))
}

/// Whether this is the cost of a request that reuses nothing. The last sampled token is never
/// evaluated, except in a step that was already in flight.
fn is_full_cost(evaluated: usize) -> bool {
    (100 + OUTPUT_TOKENS - 1..=100 + OUTPUT_TOKENS).contains(&evaluated)
}

#[tokio::test]
async fn equal_prompt_of_another_salt_costs_full_price() {
    let engine = engine(&oracle(), small()).await;
    for salt in [None, Some(""), Some("a"), Some("b")] {
        let (usage, evaluated) = run(&engine, of(salt)).await;
        assert_eq!(usage.cached_tokens, 0, "{salt:?}");
        assert!(is_full_cost(evaluated), "{salt:?}: {evaluated}");
        let (usage, evaluated) = run(&engine, of(salt)).await;
        assert!(
            usage.cached_tokens >= 99,
            "its own prefix is found: {usage:?}"
        );
        assert!(evaluated < 10, "it is not computed again: {evaluated}");
    }
    engine.shutdown(Shutdown::Abort).await;
}

/// All requests come at once. One request of a salt computes for the others of its salt, and for
/// no other salt.
#[tokio::test]
async fn sequences_never_wait_for_another_salt() {
    let engine = engine(&oracle(), small()).await;
    let mut streams = Vec::new();
    for salt in ["a", "b", "a", "b"] {
        streams.push(engine.submit(of(Some(salt))).await.expect("it is accepted"));
    }
    let mut cached = Vec::new();
    for stream in streams {
        let completion = stream.collect().await.expect("an output");
        cached.push(completion.finish.usage.cached_tokens);
    }
    assert_eq!(cached[..2], [0, 0], "the first request of each salt");
    assert!(cached[2..].iter().all(|cached| *cached >= 96), "{cached:?}");
    until("all steps have finished", || engine.stats().running == 0).await;
    let evaluated = engine.stats().evaluated_tokens;
    let outputs = 4 * OUTPUT_TOKENS as u64;
    assert!(
        (200..=200 + 2 * 4 + outputs).contains(&evaluated),
        "{evaluated}"
    );
    engine.shutdown(Shutdown::Abort).await;
}

/// The same holds in host memory, on the disk, and after a restart.
#[tokio::test]
async fn copies_are_found_by_their_own_salt_only() {
    let folder = Folder::new("isolation");
    let mut oracle = oracle();
    // Loading is faster than computing.
    oracle.cost.per_token = Duration::from_micros(50);
    let mut config = small();
    config.pager.host_bytes_max = 64 << 20;
    config.pager.clean_part = 1.0;
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 64 << 20,
    });
    // Too little memory for two prompts: the second evicts the first.
    let spec = oracle.spec();
    config.cache.device_bytes_max = spec.tail_bytes(512)
        + spec.scratch_bytes_per_token * config.scheduler.chunking.step_tokens_max;
    let first = engine(&oracle, config.clone()).await;
    run(&first, of(Some("a"))).await;
    until("it is copied out", || first.stats().pager.host_copies > 0).await;
    const NAME: &str = "a salt whose name is long";
    let large = Request::tokens(vec![7; 500])
        .output_tokens_max(8)
        .cache_salt(NAME);
    run(&first, large).await;
    let evicted = first.stats().cache.evicted_segments;
    assert!(evicted > 0, "the device was too small");
    let (usage, evaluated) = run(&first, of(Some("b"))).await;
    assert_eq!(
        usage.cached_tokens, 0,
        "the copy in host memory has another salt"
    );
    assert!(is_full_cost(evaluated), "{evaluated}");
    until("it is copied out", || first.stats().pager.host_copies > 1).await;
    first.shutdown(Shutdown::Finish).await;

    let files = std::fs::read_dir(&folder.0).expect("the tier's folder");
    let files = files.map(|file| std::fs::read(file.expect("listed").path()).expect("whole"));
    let is_named = |file: &Vec<u8>| file.windows(NAME.len()).any(|part| part == NAME.as_bytes());
    // The lock file is one of them.
    let files: Vec<Vec<u8>> = files.collect();
    assert!(files.len() > 2 && !files.iter().any(is_named));

    let second = engine(&oracle, config).await;
    assert!(second.stats().pager.disk_copies > 0, "something was found");
    for salt in [None, Some("c")] {
        let (usage, evaluated) = run(&second, of(salt)).await;
        assert_eq!(
            usage.cached_tokens, 0,
            "the copy on the disk has another salt"
        );
        assert!(is_full_cost(evaluated), "{evaluated}");
    }
    assert_eq!(
        second.stats().pager.read,
        0,
        "nothing was loaded for other salts"
    );
    let (usage, _) = run(&second, of(Some("a"))).await;
    assert!(
        usage.cached_tokens > 50,
        "its own prefix is found: {usage:?}"
    );
    second.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn inspection_and_cache_commands_are_limited_to_their_salt() {
    let engine = engine(&oracle(), small()).await;
    let tokens = async |salt| {
        let tree = engine.cache_tree(salt).await.expect("it lives");
        let nodes = tree.nodes.iter().map(|node| node.tokens.len());
        nodes.sum::<usize>()
    };
    run(&engine, of(Some("a"))).await;
    assert!(tokens(Some("a")).await >= 100);
    for other in [None, Some(""), Some("b")] {
        assert_eq!(tokens(other).await, 0, "{other:?} sees nothing");
        let result = engine.clear_cache(other).await;
        result.expect("there is nothing to clear");
    }
    assert!(
        tokens(Some("a")).await >= 100,
        "other salts do not clear it"
    );
    let warmed = engine.warm(of(Some("b"))).await.expect("it is accepted");
    assert_eq!(warmed.cached_tokens, 0, "warming reveals nothing");
    let pin = engine
        .pin(of(Some("c")), None)
        .await
        .expect("it is accepted");
    assert_eq!(pin, PinId(1));
    engine.clear_cache(Some("a")).await.expect("it lives");
    assert_eq!(tokens(Some("a")).await, 0);
    assert!(tokens(Some("b")).await >= 100 && tokens(Some("c")).await >= 100);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn user_limits_bound_one_user_only() {
    let mut oracle = oracle();
    oracle.cost.base = Duration::from_millis(1);
    let mut config = small();
    config.scheduler.sequences_max = 1;
    config.scheduler.admission.user_requests_max = Some(3);
    config.scheduler.admission.user_queue_tokens_max = Some(150);
    let engine = engine(&oracle, config).await;
    let ask = |user: &str, tokens| {
        let request = Request::tokens(prompt(tokens)).output_tokens_max(300);
        engine.submit(request.user(user))
    };
    let queue_limit = |result: Result<motet::TokenStream, SubmitError>| match result {
        Err(SubmitError::QueueFull {
            what,
            retry_after,
            request,
        }) => {
            assert!(retry_after > Duration::ZERO);
            assert_eq!(request.output_tokens_max, 300, "it is given back");
            what
        }
        other => panic!("expected a rejection, got {other:?}"),
    };
    let mut running = ask("ada", 10).await.expect("it is empty");
    running.next().await.expect("a token").expect("no fault");
    let queued = ask("ada", 100).await.expect("one of her requests waits");
    assert_eq!(queue_limit(ask("ada", 100).await), QueueLimit::UserTokens);
    let third = ask("ada", 50).await.expect("that many tokens may wait");
    assert_eq!(queue_limit(ask("ada", 10).await), QueueLimit::UserRequests);
    let others = [ask("bob", 100).await, ask("bob", 50).await];
    assert!(others.iter().all(Result::is_ok), "his share is his own");
    let unnamed = engine.submit(of(None)).await;
    assert!(unnamed.is_ok(), "so is the share of unnamed users");
    match engine.submit_many(of(None).user("eve").n(4)).await {
        Err(SubmitError::Field { field: "n", .. }) => {}
        other => panic!("four could never be inside, got {other:?}"),
    }
    drop((queued, third));
    until("her places are given back", || engine.health().waiting == 3).await;
    // Freed tokens are available at once, or as soon as the sequence has ended.
    let mut retried = ask("ada", 150).await;
    for _ in 0..1000 {
        if retried.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        retried = ask("ada", 150).await;
    }
    assert!(retried.is_ok(), "{retried:?}");
    engine.shutdown(Shutdown::Abort).await;
}
