//! Scheduling on the oracle: priority classes, users, deadlines, positions in the queue, and
//! low memory. Each output equals its reference run in every case.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{bytes, engine, until};
use motet::config::EngineConfig;
use motet::error::{Deadline, GenerateError};
use motet::grammar::GrammarSource;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::{LayerKind, Model};
use motet::request::Sampling;
use motet::request::{FinishReason, Priority};
use motet::{Engine, Request, Shutdown, TokenId};

fn oracle() -> OracleConfig {
    let mut oracle = OracleConfig {
        context_tokens_max: 512,
        end_tokens: vec![0],
        tail_block_tokens: 16,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    };
    // Long enough for all submitted requests to arrive before the next step.
    oracle.cost.base = Duration::from_millis(2);
    oracle
}

fn config(sequences_max: usize) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = sequences_max;
    config.scheduler.chunking.step_tokens_max = 64;
    config
}

/// A prompt that shares no prefix with the prompts of other numbers.
fn prompt(number: u32) -> Vec<TokenId> {
    (1..20).map(|i| 1 + (number * 37 + i) % 900).collect()
}

fn request(number: u32, tokens: usize) -> Request {
    Request::tokens(prompt(number)).output_tokens_max(tokens)
}

#[tokio::test]
async fn urgent_request_preempts_background_request_which_resumes_later() {
    let oracle = oracle();
    let engine = engine(&oracle, config(1)).await;
    let background = request(1, 60).priority(Priority::Background);
    let background = engine.submit(background).await.expect("it is accepted");
    until("the background request runs", || {
        engine.stats().running == 1
    })
    .await;
    let normal = engine.submit(request(2, 4)).await.expect("it is accepted");
    let urgent = request(3, 4).priority(Priority::Urgent);
    let urgent = engine.submit(urgent).await.expect("it is accepted");
    let order = std::sync::Mutex::new(Vec::new());
    let outputs = async |stream: motet::TokenStream, number: u32, tokens| {
        let output = stream.collect().await.expect("an output").tokens;
        order.lock().expect("no panic").push(number);
        let expected = oracle.reference_tokens(&prompt(number), tokens, Sampling::GREEDY);
        assert_eq!(
            output, expected,
            "request {number}: as in its reference run"
        );
    };
    tokio::join!(
        outputs(background, 1, 60),
        outputs(normal, 2, 4),
        outputs(urgent, 3, 4)
    );
    assert!(
        engine.stats().preempted >= 1,
        "the background request was preempted"
    );
    let order = order.into_inner().expect("no panic");
    assert_eq!(
        order.last(),
        Some(&1),
        "the background request finishes last"
    );
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn polite_user_does_not_wait_for_all_requests_of_a_greedy_one() {
    let engine = engine(&oracle(), config(2)).await;
    let mut greedy = Vec::new();
    for number in 0..20 {
        let request = request(number, 8).user("greedy");
        greedy.push(engine.submit(request).await.expect("it is accepted"));
    }
    until("some requests have finished", || {
        engine.stats().finished >= 2
    })
    .await;
    let request = request(99, 8).user("polite");
    let polite = engine.submit(request).await.expect("it is accepted");
    // The polite user starts at the service level of the greedy one, which then gets more.
    while let Some(queue_position) = polite.queue_position().await
        && queue_position.position > 0
    {
        assert!(
            engine.stats().finished < 8,
            "the polite request starts soon"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    polite.collect().await.expect("an output");
    let finished = engine.stats().finished;
    assert!(finished < 15, "{finished} requests came first");
    for stream in greedy {
        stream.collect().await.expect("an output");
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn lower_usage_user_preempts_heavier_user() {
    let oracle = oracle();
    let mut config = config(2);
    config.scheduler.fairness.locality_service = 0.0;
    let engine = engine(&oracle, config).await;
    let mut greedy = Vec::new();
    for number in 0..2 {
        let request = request(number, 200).user("greedy");
        greedy.push(engine.submit(request).await.expect("it is accepted"));
    }
    until("both run", || engine.stats().running == 2).await;
    let polite = engine.submit(request(2, 4).user("polite")).await;
    let polite = polite
        .expect("it is accepted")
        .collect()
        .await
        .expect("an output");
    assert_eq!(
        polite.tokens,
        oracle.reference_tokens(&prompt(2), 4, Sampling::GREEDY)
    );
    let stats = engine.stats();
    assert_eq!((stats.preempted, stats.running + stats.waiting), (1, 2));
    for (number, stream) in (0..).zip(greedy) {
        let output = stream.collect().await.expect("an output").tokens;
        let expected = oracle.reference_tokens(&prompt(number), 200, Sampling::GREEDY);
        assert_eq!(
            output, expected,
            "request {number}: as in its reference run"
        );
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn queue_position_is_reported_until_the_start() {
    let engine = engine(&oracle(), config(1)).await;
    let mut streams = Vec::new();
    for number in 0..4 {
        streams.push(
            engine
                .submit(request(number, 30))
                .await
                .expect("it is accepted"),
        );
    }
    until("the first runs", || engine.stats().running == 1).await;
    let mut positions = Vec::new();
    for stream in &streams {
        positions.push(
            stream
                .queue_position()
                .await
                .map(|queue_position| queue_position.position),
        );
    }
    assert_eq!(positions, [None, Some(0), Some(1), Some(2)]);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn deadlines_drop_waiting_and_end_running_sequences() {
    let oracle = oracle();
    let engine = engine(&oracle, config(1)).await;
    let soon = Duration::from_millis(60);
    let running = request(1, 400).finish_within(soon);
    let running = engine.submit(running).await.expect("it is accepted");
    let waiting = request(2, 4).start_within(soon / 3);
    let waiting = engine.submit(waiting).await.expect("it is accepted");
    match waiting.collect().await {
        Err(GenerateError::DeadlineMissed { deadline, .. }) => {
            assert_eq!(deadline, Deadline::Start);
        }
        other => panic!("expected a missed start, got {other:?}"),
    }
    let output = running.collect().await.expect("the output so far");
    assert_eq!(output.finish.reason, FinishReason::Deadline);
    let expected = oracle.reference_tokens(&prompt(1), 400, Sampling::GREEDY);
    assert!(
        expected.starts_with(&output.tokens),
        "a prefix of the full output"
    );
    assert!(output.tokens.len() < 400);
    let after = engine.submit(request(3, 4)).await.expect("it is accepted");
    after.collect().await.expect("the slot is free again");
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn preemption_under_memory_pressure_keeps_every_output() {
    let mut oracle = oracle();
    oracle.cost.base = Duration::ZERO;
    oracle.layer_bytes = 1024.into();
    let spec = Oracle::new(oracle.clone()).expect("valid").spec().clone();
    let mut config = config(8);
    // Memory for five of the eight sequences in full.
    config.cache.device_bytes_max = 5 * spec.tail_bytes(19 + 300);
    config.cache.full_sequences_min = 1;
    let engine = engine(&oracle, config).await;
    let mut streams = BTreeMap::new();
    for number in 0..8 {
        let request = request(number, 300).user(format!("user {}", number % 2));
        streams.insert(
            number,
            engine.submit(request).await.expect("it is accepted"),
        );
    }
    for (number, stream) in streams {
        let output = stream.collect().await.expect("an output").tokens;
        let expected = oracle.reference_tokens(&prompt(number), 300, Sampling::GREEDY);
        assert_eq!(
            output, expected,
            "request {number}: as in its reference run"
        );
    }
    assert!(engine.stats().preempted > 0, "some sequence was preempted");
    let peak = oracle.counters.now().bytes_peak;
    assert!(peak <= 5 * spec.tail_bytes(19 + 300), "{peak} bytes");
    engine.shutdown(Shutdown::Abort).await;
}

/// Every sampling setting, through the whole engine, beside other sequences.
#[tokio::test]
async fn sampling_options_are_respected_in_every_step() {
    let mut oracle = oracle();
    oracle.cost.base = Duration::ZERO;
    oracle.vocab_size = 257;
    oracle.end_tokens = vec![256];
    oracle.end_one_in = 10;
    let shared = oracle.clone();
    let engine = Engine::builder(move || Ok(Oracle::new(shared.clone()).expect("valid")))
        .text(bytes())
        .config(config(8))
        .start()
        .await
        .expect("the engine starts");
    let prompt: Vec<TokenId> = (1..20).collect();
    let base = || Request::tokens(prompt.clone()).output_tokens_max(40);
    let expected = oracle.reference_tokens(&prompt, 40, Sampling::GREEDY);

    let plain = base().logprobs(3);
    let banned = base().bias(expected[0], f32::NEG_INFINITY);
    let long = base().output_tokens_min(40);
    let digits = base().grammar(GrammarSource::Regex("[0-9]{3}-[a-f]+!".into()));
    let streams = [plain, banned, long, digits].map(|request| engine.submit(request));
    let mut outputs = Vec::new();
    for stream in streams {
        outputs.push(
            stream
                .await
                .expect("it is accepted")
                .collect()
                .await
                .expect("an output"),
        );
    }
    let [plain, banned, long, digits] = outputs.try_into().expect("four outputs");

    let end = expected.iter().position(|token| *token == 256);
    assert_eq!(plain.tokens, expected[..end.unwrap_or(40)]);
    assert_eq!(plain.logprobs.len(), plain.tokens.len());
    for (token, logprobs) in plain.tokens.iter().zip(&plain.logprobs) {
        assert_eq!(logprobs.top.len(), 3);
        assert_eq!(
            logprobs.top[0],
            (*token, logprobs.logprob),
            "greedy sampling takes the likeliest token"
        );
    }
    assert_ne!(banned.tokens.first(), Some(&expected[0]));
    assert_eq!(
        long.tokens.len(),
        40,
        "the end token was not sampled before"
    );
    assert_eq!(long.finish.reason, FinishReason::Length);
    let text = digits.text;
    let (numbers, letters) = text.split_at(4);
    assert!(
        numbers.ends_with('-') && numbers[..3].bytes().all(|b| b.is_ascii_digit()),
        "{text}"
    );
    let letters = letters.strip_suffix('!').unwrap_or(letters);
    assert!(
        letters.bytes().all(|b| (b'a'..=b'f').contains(&b)),
        "{text}"
    );
    engine.shutdown(Shutdown::Abort).await;
}
