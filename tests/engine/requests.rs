//! Options of requests, on the oracle: several outputs at once, stop strings and deadlines,
//! bounds with a time to retry, and the engine's health.

use std::time::Duration;

use crate::common::{bytes, engine, small, until};
use motet::error::{BestOfError, GenerateError, QueueLimit, SubmitError};
use motet::grammar::GrammarSource;
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::{FinishReason, Priority, Sampling};
use motet::{Engine, HealthState, Request, Shutdown, TokenId};

fn oracle() -> OracleConfig {
    OracleConfig {
        context_tokens_max: 512,
        end_tokens: vec![0],
        end_one_in: 0,
        tail_block_tokens: 16,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    }
}

fn slow_oracle(step: Duration) -> OracleConfig {
    let mut oracle = oracle();
    oracle.cost.base = step;
    oracle
}

fn prompt(tokens: u32) -> Vec<TokenId> {
    (1..=tokens).collect()
}

#[tokio::test]
async fn rejections_name_the_field_and_are_counted() {
    let engine = engine(&oracle(), small()).await;
    let hour = Duration::from_secs(3600);
    let good = || Request::tokens([1, 2]);
    let table = [
        ("n", good().n(0)),
        ("n", good().n(2)),
        ("best_of", good().best_of(2)),
        ("stop_tokens", good().stop_token(1_000_000)),
        ("logit_bias", good().bias(1_000_000, 1.0)),
        ("logprobs", good().logprobs(21)),
        (
            "sampling.repetition_penalty",
            good().repetition_penalty(-1.0),
        ),
        ("weight", good().weight(-2.0)),
        ("stop_strings", good().stop("")),
        ("start_within", good().start_within(Duration::ZERO)),
        ("finish_within", good().finish_within(Duration::ZERO)),
        (
            "finish_within",
            good().start_within(2 * hour).finish_within(hour),
        ),
    ];
    let rejected = table.len() as u64;
    for (field, request) in table {
        match engine.submit(request).await {
            Err(SubmitError::Field { field: found, .. }) => assert_eq!(found, field),
            other => panic!("expected a complaint about {field}, got {other:?}"),
        }
    }
    // More outputs than could ever be inside at once.
    let mut config = small();
    config.scheduler.admission.queue_max = 2;
    let tiny = self::engine(&oracle(), config).await;
    match tiny.submit_many(good().n(7)).await {
        Err(SubmitError::Field {
            field, expected, ..
        }) => {
            assert_eq!(field, "n");
            assert!(expected.contains('6'), "{expected}");
        }
        other => panic!("expected a complaint about n, got {other:?}"),
    }
    assert_eq!(engine.stats().rejected, rejected);
    assert_eq!(
        engine.health().state,
        HealthState::Ready,
        "no request is inside"
    );
    tiny.shutdown(Shutdown::Abort).await;
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn invalid_grammar_is_rejected_at_submit() {
    let oracle = OracleConfig {
        vocab_size: 257,
        end_tokens: vec![256],
        ..oracle()
    };
    let without_tokenizer = engine(&oracle, small()).await;
    let good = || Request::tokens([1, 2]).output_tokens_max(4);
    let error = without_tokenizer
        .submit(good().grammar(GrammarSource::Json))
        .await;
    assert!(matches!(
        error,
        Err(SubmitError::NoTokenizer { field: "grammar" })
    ));
    without_tokenizer.shutdown(Shutdown::Abort).await;

    let engine = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")))
        .text(bytes())
        .start()
        .await
        .unwrap();
    let regex = |text: &str| good().grammar(GrammarSource::Regex(text.into()));
    let schema = |text: &str| good().grammar(GrammarSource::JsonSchema(text.into()));
    for (field, request) in [
        ("grammar", regex("(")),
        ("grammar", schema("{")),
        ("grammar", schema(r#"{"type": "fish"}"#)),
        ("grammar", good().grammar(GrammarSource::Lark("?!".into()))),
        ("ignore_end_tokens", regex("a").ignore_end_tokens()),
    ] {
        match engine.submit(request).await {
            Err(SubmitError::Field { field: found, .. }) => assert_eq!(found, field),
            Err(SubmitError::Grammar { why }) => {
                assert_eq!(field, "grammar");
                assert!(!why.reveal().is_empty(), "the reason is for its caller");
            }
            other => panic!("expected a complaint about {field}, got {other:?}"),
        }
    }
    assert!(engine.submit(regex("a+")).await.is_ok());
    assert!(engine.submit(schema("{}")).await.is_ok());
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn multiple_outputs_match_their_seeds_references() {
    let oracle = oracle();
    let mut config = small();
    config.scheduler.admission.queue_max = 4;
    let engine = engine(&oracle, config).await;
    let sampling = Sampling {
        temperature: 1.0,
        seed: 41,
        ..Sampling::GREEDY
    };
    let request = Request::tokens(prompt(100))
        .sampling(sampling)
        .output_tokens_max(20)
        .user("ada")
        .priority(Priority::Urgent)
        .n(6);
    let streams = engine.submit_many(request).await.unwrap();
    assert_eq!(streams.len(), 6);
    for (index, stream) in streams.into_iter().enumerate() {
        assert_eq!(stream.prompt_tokens(), 100);
        let seed = sampling.seed + index as u64;
        let expected = oracle.reference_tokens(&prompt(100), 20, Sampling { seed, ..sampling });
        let completion = stream.collect().await.unwrap();
        assert_eq!(completion.tokens, expected, "output {index}");
        assert_eq!(completion.finish.usage.prompt_tokens, 100);
    }
    let evaluated = engine.stats().evaluated_tokens;
    assert!(
        evaluated < 2 * 100 + 6 * 20,
        "the prompt is computed once, not six times: {evaluated}"
    );
    engine.shutdown(Shutdown::Abort).await;
}

/// The tokens of an output do not depend on where its prompt ends: a request that has the output so
/// far as the end of its prompt samples the rest of the same output.
#[tokio::test]
async fn continuation_samples_the_rest_of_the_same_output() {
    const TOKENS: usize = 30;
    let engine = engine(&oracle(), small()).await;
    let warm = Sampling {
        temperature: 1.0,
        seed: 5,
        ..Sampling::GREEDY
    };
    let penalised = Sampling {
        repetition_penalty: 1.3,
        frequency_penalty: 0.2,
        ..warm
    };
    for sampling in [warm, penalised] {
        let run = async |prompt: Vec<TokenId>, tokens| {
            let request = Request::tokens(prompt).sampling(sampling);
            let request = request.output_tokens_max(tokens).ignore_end_tokens();
            let stream = engine.submit(request).await.expect("it is accepted");
            stream
                .collect()
                .await
                .expect("no fault was asked for")
                .tokens
        };
        let whole = run(prompt(60), TOKENS).await;
        assert_eq!(whole.len(), TOKENS);
        for sampled in [1, 2, 13, TOKENS - 1] {
            let (before, rest) = whole.split_at(sampled);
            let continued = run([&prompt(60)[..], before].concat(), TOKENS - sampled).await;
            assert_eq!(continued, rest, "after {sampled} tokens");
        }
    }
}

#[tokio::test]
async fn multiple_outputs_are_admitted_all_or_none() {
    let mut config = small();
    config.scheduler.admission.queue_max = 0;
    let engine = engine(&slow_oracle(Duration::from_millis(1)), config).await;
    let request = || Request::tokens([5, 6]).output_tokens_max(400);
    let two = engine.submit_many(request().n(2)).await.unwrap();
    match engine.submit_many(request().n(3)).await {
        Err(SubmitError::QueueFull { what, request, .. }) => {
            assert_eq!((what, request.n), (QueueLimit::Requests, 3));
        }
        other => panic!("expected a full queue, got {other:?}"),
    }
    let others = engine.submit_many(request().n(1).best_of(2)).await;
    assert_eq!(others.expect("two more fit in the queue").len(), 2);
    drop(two);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn best_of_returns_the_best_n() {
    let oracle = oracle();
    let engine = engine(&oracle, small()).await;
    let sampling = Sampling {
        temperature: 1.0,
        seed: 7,
        ..Sampling::GREEDY
    };
    let request = Request::tokens([1, 2, 3])
        .sampling(sampling)
        .output_tokens_max(8);
    let best = engine.best_of(request.clone().n(2).best_of(4)).await;
    let best = best.expect("no fault was asked for");
    let possible: Vec<_> = (0..4)
        .map(|index| Sampling {
            seed: 7 + index,
            ..sampling
        })
        .map(|sampling| oracle.reference_tokens(&[1, 2, 3], 8, sampling))
        .collect();
    assert_eq!(best.len(), 2);
    for completion in &best {
        assert!(possible.contains(&completion.tokens));
        assert!(completion.logprobs.is_empty(), "they were not requested");
    }
    let rejected = engine.best_of(request.n(0)).await;
    assert!(matches!(
        rejected,
        Err(BestOfError::Submit(SubmitError::Field { field: "n", .. }))
    ));
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn stop_token_ends_the_output_and_is_excluded() {
    let oracle = oracle();
    let engine = engine(&oracle, small()).await;
    let expected = oracle.reference_tokens(&[1, 2, 3], 10, Sampling::GREEDY);
    let stop = expected[4];
    let first = expected.iter().position(|token| *token == stop).unwrap();
    let request = Request::tokens([1, 2, 3]).output_tokens_max(10);
    let stopped = engine.submit(request.stop_token(stop)).await.unwrap();
    let completion = stopped.collect().await.unwrap();
    assert_eq!(completion.tokens, expected[..first]);
    assert_eq!(completion.finish.reason, FinishReason::StopToken);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn the_last_item_of_a_stream_is_its_finish() {
    use futures_util::{StreamExt, TryStreamExt};

    let oracle = oracle();
    let engine = engine(&oracle, small()).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(4);
    let stream = engine.submit(request).await.unwrap();
    // Combinators hide the stream's type, and so all methods of its own.
    let items = stream.boxed().map_ok(|piece| (piece.token, piece.finish));
    let items: Vec<_> = items.try_collect().await.unwrap();
    let (last, tokens) = items.split_last().unwrap();
    let expected = oracle.reference_tokens(&[1, 2, 3], 4, Sampling::GREEDY);
    let expected: Vec<_> = expected.into_iter().map(|t| (Some(t), None)).collect();
    assert_eq!(tokens, expected);
    let (token, finish) = last;
    let finish = finish.expect("the last item has the finish");
    assert_eq!((*token, finish.reason), (None, FinishReason::Length));
    assert_eq!(
        (finish.usage.prompt_tokens, finish.usage.output_tokens),
        (3, 4)
    );
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn queue_can_be_full_of_tokens_before_requests() {
    let mut config = small();
    config.scheduler.sequences_max = 1;
    config.scheduler.admission.queue_tokens_max = 100;
    let engine = engine(&slow_oracle(Duration::from_millis(1)), config).await;
    let request = |tokens| Request::tokens(prompt(tokens)).output_tokens_max(100);
    let mut running = engine.submit(request(200)).await.unwrap();
    // A prompt no longer waits once its sequence runs.
    running.next().await.unwrap().unwrap();
    let long = engine.submit(request(200)).await;
    let _queued = long.expect("a long prompt is accepted when no other waits");
    match engine.submit(request(10)).await {
        Err(SubmitError::QueueFull {
            what, retry_after, ..
        }) => {
            assert_eq!(what, QueueLimit::Tokens);
            assert!(retry_after > Duration::ZERO);
        }
        other => panic!("expected a queue full of tokens, got {other:?}"),
    }
    drop(running);
    until("the long one gets its slot", || {
        engine.stats().prompt_tokens == 400
    })
    .await;
    assert!(engine.submit(request(10)).await.is_ok());
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn health_distinguishes_busy_from_stopped() {
    let oracle = slow_oracle(Duration::from_millis(2));
    let engine = engine(&oracle, small()).await;
    assert_eq!(engine.health().state, HealthState::Ready);
    let request = Request::tokens([1, 2]).output_tokens_max(200);
    let mut stream = engine.submit(request).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let health = engine.health();
    assert_eq!((health.state, health.running), (HealthState::Busy, 1));
    drop(stream);
    until("the device is idle", || {
        engine.health().state == HealthState::Ready
    })
    .await;
    engine.drain().await;
    assert_eq!(engine.health().state, HealthState::Stopped);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn finishing_shutdown_completes_every_stream() {
    let oracle = slow_oracle(Duration::from_micros(200));
    let engine = engine(&oracle, small()).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(50);
    let mut callers = Vec::new();
    for _ in 0..10 {
        let stream = engine.submit(request.clone()).await.unwrap();
        callers.push(tokio::spawn(stream.collect()));
    }
    engine.shutdown(Shutdown::Finish).await;
    for caller in callers {
        let completion = caller.await.unwrap().expect("it may finish");
        assert_eq!(completion.tokens.len(), 50);
    }
    assert_eq!(oracle.counters.now().tails_alive, 0);
}

/// A caller that reads nothing pauses its own sequence. Once it reads, it gets the whole output.
#[tokio::test]

async fn slow_reader_pauses_only_its_own_sequence() {
    let oracle = oracle();
    let mut config = small();
    config.scheduler.unread_tokens_max = 8;
    let engine = engine(&oracle, config).await;
    let slow = Request::tokens([1, 2, 3]).output_tokens_max(300);
    let slow = engine.submit(slow).await.unwrap();
    let other = Request::tokens([4, 5]).output_tokens_max(200);
    let other = engine.submit(other).await.unwrap().collect().await.unwrap();
    assert_eq!(
        other.tokens,
        oracle.reference_tokens(&[4, 5], 200, Sampling::GREEDY)
    );
    until("the slow one pauses", || engine.health().paused == 1).await;
    let tokens_ahead = engine.stats().output_tokens - 200;
    assert!(
        (8..12).contains(&tokens_ahead),
        "{tokens_ahead} tokens ahead of its reader"
    );
    let completion = slow.collect().await.unwrap();
    let expected = oracle.reference_tokens(&[1, 2, 3], 300, Sampling::GREEDY);
    assert_eq!(completion.tokens, expected);
    engine.shutdown(Shutdown::Abort).await;
}

/// A sequence whose caller reads nothing for too long fails.
#[tokio::test]

async fn stream_without_reader_is_cut_off() {
    let mut config = small();
    config.scheduler.unread_tokens_max = 4;
    config.scheduler.unread_timeout = Some(Duration::from_millis(50));
    let engine = engine(&oracle(), config).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(300);
    let stream = engine.submit(request).await.unwrap();
    until("the slow reader fails", || engine.stats().failed == 1).await;
    match stream.collect().await {
        Err(GenerateError::SlowReader { unread, waited }) => {
            assert!(unread >= 4 && waited >= Duration::from_millis(50));
        }
        other => panic!("expected a slow reader, got {other:?}"),
    }
    engine.shutdown(Shutdown::Abort).await;
}
