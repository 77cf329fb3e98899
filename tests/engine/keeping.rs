//! The engine's cache as an embedder sees it, on the oracle: forks, shifts, retention, tenants,
//! and rejections.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::read;
use crate::common::slow_oracle as oracle;
use motet::cache::{BlockEvent, BlockHash, CacheError};
use motet::config::EngineConfig;
use motet::error::{CacheCommandError, FollowError, GenerateError, StartError, SubmitError};
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::{ContextLimit, FinishReason, Sampling};
use motet::{BlockBatch, Engine, PinId, Request, Shutdown, TokenId};
use motet_model::oracle::{ShiftRule, StepCost};

const FULL: &[LayerKind] = &[LayerKind::Full];
const MIXED: &[LayerKind] = &[
    LayerKind::Full,
    LayerKind::Window { tokens: 6 },
    LayerKind::Recurrent,
];

async fn start(oracle: &OracleConfig, config: EngineConfig) -> Result<Engine, StartError> {
    let oracle = oracle.clone();
    let build = move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle"));
    Engine::builder(build).config(config).start().await
}

async fn engine(oracle: &OracleConfig) -> Engine {
    let engine = start(oracle, EngineConfig::default()).await;
    engine.expect("the engine starts")
}

fn text(tokens: std::ops::Range<u32>) -> Vec<TokenId> {
    tokens.collect()
}

#[tokio::test]
async fn a_fork_continues_its_source_and_shares_its_state() {
    for layers in [FULL, MIXED] {
        let oracle = oracle(layers);
        let engine = engine(&oracle).await;
        let prompt = text(1..41);
        let request = Request::tokens(prompt.clone()).output_tokens_max(80);
        let request = request.ignore_end_tokens().turn_end(39);
        let mut source = engine.submit(request).await.unwrap();
        let mut history = prompt.clone();
        history.extend(read(&mut source, 10).await);
        let before = engine.stats().evaluated_tokens;

        let appended = vec![500, 501];
        let request = Request::tokens(appended.clone())
            .output_tokens_max(12)
            .ignore_end_tokens();
        let fork = engine.fork(&source, Some(50), request).await.unwrap();
        let completion = fork.collect().await.unwrap();
        let mut continued = history.clone();
        continued.extend(appended);
        let expected = oracle.reference_tokens(&continued, 12, Sampling::GREEDY);
        assert_eq!(completion.tokens, expected, "{layers:?}");
        let usage = completion.finish.usage;
        assert_eq!(usage.prompt_tokens, 52);
        // Recurrent and window state is there at the end of the turn.
        assert!(usage.cached_tokens >= 39, "{layers:?}: {usage:?}");

        let rest = source.collect().await.unwrap().tokens;
        history.extend(rest);
        let expected = oracle.reference_tokens(&prompt, 80, Sampling::GREEDY);
        assert_eq!(history[prompt.len()..], expected, "{layers:?}: the source");
        let evaluated = engine.stats().evaluated_tokens - before;
        assert!(
            evaluated < 80 + 12 + 20,
            "{layers:?}: {evaluated} evaluated"
        );
        engine.shutdown(Shutdown::Abort).await;
    }
}

/// The fork's own request cannot change either.
#[tokio::test]
async fn fork_has_the_salt_and_context_limit_of_its_source() {
    let oracle = oracle(FULL);
    let mut config = EngineConfig::default();
    // The source pauses long before its context is full.
    config.scheduler.unread_tokens_max = 16;
    let engine = start(&oracle, config).await.unwrap();
    let prompt = text(1..41);
    let request = Request::tokens(prompt.clone()).output_tokens_max(1000);
    let request = request.ignore_end_tokens().cache_salt("a").shift(20);
    let mut source = engine.submit(request).await.unwrap();
    read(&mut source, 1).await;
    let request = Request::tokens([500]).output_tokens_max(200);
    let request = request.ignore_end_tokens().cache_salt("b");
    let fork = engine.fork(&source, Some(40), request).await.unwrap();
    let tokens = fork.collect().await.unwrap().tokens;
    let rule = ShiftRule {
        context_tokens: 128,
        keep: 20,
    };
    let continued = [prompt, vec![500]].concat();
    let expected = oracle.reference_tokens_with_shifts(&continued, 200, Sampling::GREEDY, rule);
    assert_eq!(tokens, expected, "it goes on past the context");
    drop(source);
    engine.drain().await;
    for (salt, has_nodes) in [(Some("a"), true), (Some("b"), false), (None, false)] {
        let tree = engine.cache_tree(salt).await.unwrap();
        assert_eq!(!tree.nodes.is_empty(), has_nodes, "{salt:?}");
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn invalid_forks_are_rejected() {
    let oracle = oracle(FULL);
    let engine = engine(&oracle).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(40);
    let mut source = engine.submit(request.ignore_end_tokens()).await.unwrap();
    read(&mut source, 1).await;
    let next_request = || Request::tokens([7]).output_tokens_max(4);
    let past_computed = engine
        .fork(&source, Some(100), next_request())
        .await
        .unwrap();
    match past_computed.collect().await.unwrap_err() {
        GenerateError::ForkPastEnd { at, .. } => assert_eq!(at, 100),
        other => panic!("{other}"),
    }
    while source.next().await.is_some() {}
    let late_fork = engine.fork(&source, None, next_request()).await.unwrap();
    match late_fork.collect().await.unwrap_err() {
        GenerateError::ForkSource(sequence) => assert_eq!(sequence, source.sequence()),
        other => panic!("{other}"),
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn a_full_context_shifts_and_goes_on() {
    for (layers, can_shift) in [(FULL, true), (FULL, false), (MIXED, true)] {
        let oracle = OracleConfig {
            can_shift,
            cost: StepCost::default(),
            ..oracle(layers)
        };
        let engine = engine(&oracle).await;
        let prompt = text(1..60);
        let rule = ShiftRule {
            context_tokens: 128,
            keep: 20,
        };
        let request = Request::tokens(prompt.clone())
            .output_tokens_max(400)
            .ignore_end_tokens()
            .shift(20);
        let mut callers = Vec::new();
        for _ in 0..3 {
            callers.push(engine.submit(request.clone()).await.unwrap());
        }
        let expected = oracle.reference_tokens_with_shifts(&prompt, 400, Sampling::GREEDY, rule);
        for caller in callers {
            let completion = caller.collect().await.unwrap();
            assert_eq!(completion.tokens, expected, "{layers:?}, {can_shift}");
            assert_eq!(completion.finish.reason, FinishReason::Length);
        }
        engine.shutdown(Shutdown::Abort).await;
    }
}

#[tokio::test]
async fn shifting_output_is_at_most_ten_contexts_long() {
    let oracle = OracleConfig {
        context_tokens_max: 32,
        cost: StepCost::default(),
        ..oracle(FULL)
    };
    let engine = engine(&oracle).await;
    for (requested, generated) in [(319, 319), (321, 320), (100_000, 320)] {
        let request = Request::tokens([1, 2])
            .output_tokens_max(requested)
            .shift(1);
        let stream = engine.submit(request.ignore_end_tokens()).await.unwrap();
        let completion = stream.collect().await.unwrap();
        assert_eq!(completion.tokens.len(), generated, "of {requested}");
        assert_eq!(completion.finish.reason, FinishReason::Length);
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn too_long_prompt_loses_its_middle_if_allowed() {
    let oracle = oracle(FULL);
    let engine = engine(&oracle).await;
    let long = text(1..301);
    let error = engine.submit(Request::tokens(long.clone())).await;
    assert!(matches!(
        error,
        Err(SubmitError::PromptTooLong {
            field: "prompt",
            tokens_min: 300,
            tokens_max: 127,
            ..
        })
    ));
    let request = Request::tokens(long.clone()).output_tokens_max(5).shift(28);
    let completion = engine.submit(request).await.unwrap().collect().await;
    let completion = completion.unwrap();
    assert_eq!(completion.finish.usage.prompt_tokens, 128 - 50);
    let left: Vec<TokenId> = long[..28].iter().chain(&long[250..]).copied().collect();
    assert_eq!(
        completion.tokens,
        oracle.reference_tokens(&left, 5, Sampling::GREEDY)
    );

    let mut request = Request::tokens([1]);
    request.at_context_limit = ContextLimit::Shift { keep: 128 };
    match engine.submit(request).await.unwrap_err() {
        SubmitError::Field { field, .. } => assert_eq!(field, "at_context_limit.keep"),
        other => panic!("{other}"),
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn warmed_prompts_are_cached_and_pinned_prompts_stay() {
    for layers in [FULL, MIXED] {
        let oracle = oracle(layers);
        let engine = engine(&oracle).await;
        let system = Request::tokens(text(1..51));
        engine.warm(system.clone()).await.unwrap();
        let pin = engine.pin(system, None).await.unwrap();
        let ask = async |last: TokenId| {
            let mut prompt = text(1..51);
            prompt.push(last);
            let request = Request::tokens(prompt).output_tokens_max(2);
            let stream = engine.submit(request).await.unwrap();
            stream.collect().await.unwrap().finish.usage.cached_tokens
        };
        assert_eq!(ask(900).await, 50, "{layers:?}");
        engine.clear_cache(None).await.unwrap();
        let tree = engine.cache_tree(None).await.unwrap();
        let remaining: usize = tree.nodes.iter().map(|node| node.tokens.len()).sum();
        assert_eq!(remaining, 50, "only pinned state is left");
        assert!(tree.nodes.iter().all(|node| node.pins == 1));
        assert_eq!(ask(901).await, 50, "{layers:?}");
        engine.unpin(pin).await.unwrap();
        engine.clear_cache(None).await.unwrap();
        assert_eq!(engine.stats().cache.segments, 0);
        assert_eq!(ask(902).await, 0, "{layers:?}");
        match engine.unpin(pin).await.unwrap_err() {
            CacheCommandError::Cache(CacheError::UnknownPin(unknown)) => assert_eq!(unknown, pin),
            other => panic!("{other}"),
        }
        engine.shutdown(Shutdown::Abort).await;
    }
}

#[tokio::test]
async fn pins_expire_and_have_a_budget() {
    let oracle = oracle(FULL);
    let mut config = EngineConfig::default();
    config.cache.pinned_bytes_max = Some(60 * 8);
    let engine = start(&oracle, config).await.unwrap();
    let soon = Some(Duration::from_millis(500));
    engine
        .pin(Request::tokens(text(1..51)), soon)
        .await
        .unwrap();
    let next_request = engine.pin(Request::tokens(text(60..80)), None).await;
    match next_request.unwrap_err() {
        CacheCommandError::Cache(CacheError::PinTooLarge { bytes_max, .. }) => {
            assert_eq!(bytes_max, 60 * 8);
        }
        other => panic!("{other}"),
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
    engine
        .pin(Request::tokens(text(60..80)), None)
        .await
        .unwrap();
    engine.clear_cache(None).await.unwrap();
    assert_eq!(
        engine.stats().cache.cached_tokens,
        20,
        "the first has expired"
    );
    assert!(engine.unpin(PinId(99)).await.is_err());
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn tenants_share_nothing() {
    let oracle = oracle(FULL);
    let engine = engine(&oracle).await;
    let ask = async |salt: Option<&str>| {
        let mut request = Request::tokens(text(1..101)).output_tokens_max(2);
        request.cache_salt = salt.map(str::to_owned);
        let stream = engine.submit(request).await.unwrap();
        stream.collect().await.unwrap().finish.usage.cached_tokens
    };
    assert_eq!(ask(None).await, 0);
    assert_eq!(ask(None).await, 99);
    assert_eq!(ask(Some("a")).await, 0);
    assert_eq!(ask(Some("b")).await, 0);
    assert_eq!(ask(Some("a")).await, 99);
    let tree = engine.cache_tree(Some("nobody")).await.unwrap();
    assert!(tree.nodes.is_empty());
    engine.clear_cache(Some("a")).await.unwrap();
    assert_eq!(ask(Some("a")).await, 0);
    assert_eq!(ask(Some("b")).await, 99);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn restore_points_let_recurrent_models_resume() {
    let oracle = oracle(&[LayerKind::Recurrent]);
    let engine = engine(&oracle).await;
    let ask = async |request: Request| {
        let stream = engine.submit(request.output_tokens_max(1)).await.unwrap();
        stream.collect().await.unwrap().finish.usage.cached_tokens
    };
    let with = |last: &[TokenId]| {
        let mut tokens = text(1..61);
        tokens.extend(last);
        Request::tokens(tokens)
    };
    assert_eq!(ask(with(&[700, 701]).restore_point(60)).await, 0);
    assert_eq!(ask(with(&[702])).await, 60, "where it was asked for");
    assert_eq!(ask(with(&[703, 704, 705])).await, 60);
    let mut branch = text(1..41);
    branch.extend([800, 801]);
    assert_eq!(
        ask(Request::tokens(branch.clone())).await,
        0,
        "not there yet"
    );
    branch[41] = 802;
    assert_eq!(
        ask(Request::tokens(branch)).await,
        40,
        "where it branched off"
    );
    let again = Request::tokens(text(101..131));
    assert_eq!(ask(again.clone()).await, 0);
    assert_eq!(ask(again.clone()).await, 0, "its second visit");
    assert_eq!(ask(again).await, 29, "before its last token");
    match engine
        .submit(with(&[]).restore_point(99))
        .await
        .unwrap_err()
    {
        SubmitError::Field { field, .. } => assert_eq!(field, "restore_points"),
        other => panic!("{other}"),
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn a_budget_too_small_for_the_worst_case_is_an_error_at_the_start() {
    let oracle = oracle(FULL);
    let mut config = EngineConfig::default();
    config.cache.device_bytes_max = 100 * 8;
    match start(&oracle, config.clone()).await.unwrap_err() {
        StartError::Config(error) => {
            assert_eq!(error.field, "cache.device_bytes_max");
            assert!(error.to_string().contains("1024 bytes"), "{error}");
        }
        other => panic!("{other}"),
    }
    config.cache.full_sequences_min = 0;
    start(&oracle, config)
        .await
        .unwrap()
        .shutdown(Shutdown::Abort)
        .await;
}

/// The whole blocks of sixteen tokens that a reader of these batches knows.
fn known(batches: &[BlockBatch]) -> BTreeSet<BlockHash> {
    let mut known = BTreeSet::new();
    for event in batches.iter().flat_map(|batch| batch.events.iter()) {
        match event {
            BlockEvent::Stored { hashes, tokens, .. } => {
                assert_eq!(tokens.len(), 16 * hashes.len());
                known.extend(hashes);
            }
            BlockEvent::Removed { hashes, .. } => known.retain(|hash| !hashes.contains(hash)),
            _ => known.clear(),
        }
    }
    known
}

#[tokio::test]
async fn followers_receive_block_events_as_the_cache_changes() {
    let engine = engine(&oracle(FULL)).await;
    engine
        .warm(Request::tokens(text(1..40)))
        .await
        .expect("it is accepted");
    let mut early = engine
        .follow_blocks()
        .await
        .expect("there is no follower yet");
    let mut batches = vec![early.next().await.expect("all that is there")];
    assert_eq!(known(&batches).len(), 2, "whole blocks only");

    let longer = Request::tokens(text(1..70));
    engine
        .warm(longer.clone().cache_salt("a tenant"))
        .await
        .expect("it is accepted");
    engine.warm(longer).await.expect("it is accepted");
    batches.push(early.next().await.expect("a tenant's"));
    batches.push(early.next().await.expect("what follows"));
    assert_eq!(known(&batches).len(), 8, "tenants have blocks of their own");
    let mut late = engine.follow_blocks().await.expect("another may follow");
    let all = late.next().await.expect("all that is there");
    assert_eq!(
        known(&[all]),
        known(&batches),
        "a late follower knows the same"
    );

    engine
        .clear_cache(Some("a tenant"))
        .await
        .expect("it is whole");
    batches.push(early.next().await.expect("the removed blocks"));
    assert_eq!(known(&batches).len(), 4);
    let numbers: Vec<u64> = batches.iter().map(|batch| batch.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3], "none was missed");

    early.request_all().await.expect("the engine works");
    let again = early.next().await.expect("all that is there, again");
    assert!(again.lists_all && batches[0].lists_all && !batches[3].lists_all);
    assert_eq!((again.number, known(&[again])), (4, known(&batches)));
    late.next().await.expect("the removed blocks");
    engine
        .warm(Request::tokens(text(1..90)))
        .await
        .expect("it is accepted");
    let next = late.next().await.expect("what follows");
    assert_eq!(next.number, 2, "another follower is not sent it");
    engine.shutdown(Shutdown::Abort).await;
    while early.next().await.is_some() {}
    assert_eq!(early.request_all().await, Err(FollowError::Stopped));
}

#[tokio::test]
async fn blocks_of_a_running_prompt_are_announced_once_computed() {
    let mut config = EngineConfig::default();
    // The sequence pauses long before it ends.
    config.scheduler.unread_tokens_max = 16;
    let engine = start(&oracle(FULL), config).await.unwrap();
    let request = Request::tokens(text(1..70)).ignore_end_tokens();
    let before = request.clone().output_tokens_max(50).cache_salt("before");
    let before = engine.submit(before).await.unwrap();
    let mut early = engine.follow_blocks().await.unwrap();
    let mut batches = vec![early.next().await.expect("all that is there")];
    let running = request.clone().output_tokens_max(50);
    let running = engine.submit(running).await.unwrap();
    while known(&batches).len() < 2 * 4 {
        batches.push(early.next().await.expect("the computed blocks"));
    }
    let mut late = engine.follow_blocks().await.unwrap();
    let all = late.next().await.expect("all that is there");
    assert_eq!(known(&[all]), known(&batches), "a late follower knows them");
    // Another sequence can use them.
    let other = request.output_tokens_max(1);
    let other = engine.submit(other).await.unwrap().collect().await.unwrap();
    assert_eq!(other.finish.usage.cached_tokens, 68);
    for running in [before, running] {
        running.collect().await.unwrap();
    }
    engine.clear_all_caches().await.expect("it is whole");
    while !known(&batches).is_empty() {
        batches.push(early.next().await.expect("the removed blocks"));
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn slow_follower_misses_batches_and_blocks_nothing() {
    let engine = engine(&OracleConfig::with_layers(FULL)).await;
    let mut slow = engine
        .follow_blocks()
        .await
        .expect("there is no follower yet");
    for round in 0..600 {
        let prompt = Request::tokens(text(round..round + 17));
        engine.warm(prompt).await.expect("it is accepted");
        engine.clear_all_caches().await.expect("it is whole");
    }
    for number in 0..1024 {
        let batch = slow.next().await.expect("as many as it may be behind");
        assert_eq!(batch.number, number);
    }
    engine
        .warm(Request::tokens(text(1..40)))
        .await
        .expect("it is accepted");
    let next = slow.next().await.expect("it goes on");
    assert_eq!(next.number, 1201, "missed batches are counted");
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn number_of_followers_is_limited() {
    let engine = engine(&oracle(FULL)).await;
    let mut all = Vec::new();
    let rejected = loop {
        match engine.follow_blocks().await {
            Ok(follower) => all.push(follower),
            Err(rejected) => break rejected,
        }
    };
    let followers_max = all.len();
    assert_eq!(rejected, FollowError::TooMany { followers_max });
    all.pop();
    engine.follow_blocks().await.expect("one has left");
    engine.shutdown(Shutdown::Abort).await;
}
