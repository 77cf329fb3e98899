//! The engine with its real actors and device thread, on the oracle. Every output equals
//! the reference run, errors name the bad input, and all resources are freed.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::common::engine;
use motet::config::EngineConfig;
use motet::error::{BestOfError, GenerateError, QueueLimit, StartError, SubmitError};
use motet::grammar::GrammarSource;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::{LayerKind, ModelError};
use motet::request::FinishReason;
use motet::request::Sampling;
use motet::{Engine, EngineBuilder, HealthState, Request, Shutdown, TokenId, TokenStream};
use motet_model::oracle::{StepCost, StepFault};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn oracle() -> OracleConfig {
    OracleConfig {
        context_tokens_max: 512,
        end_tokens: vec![0],
        end_one_in: 60,
        tail_block_tokens: 16,
        ..OracleConfig::with_layers(&[LayerKind::Full, LayerKind::Window { tokens: 8 }])
    }
}

fn small() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 8;
    config.scheduler.chunking.step_tokens_max = 32;
    config
}

fn expected_tokens(
    oracle: &OracleConfig,
    prompt: &[TokenId],
    tokens: usize,
    sampling: Sampling,
) -> Vec<TokenId> {
    let mut expected_tokens = oracle.reference_tokens(prompt, tokens, sampling);
    let end = expected_tokens.iter().position(|token| *token == 0);
    expected_tokens.truncate(end.unwrap_or(tokens));
    expected_tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_concurrent_callers_get_their_reference_outputs() {
    let oracle = oracle();
    let engine = engine(&oracle, small()).await;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut callers = Vec::new();
    for caller in 0..64u64 {
        let shared = [0, 40, 90][rng.random_range(0..3)];
        let mut prompt: Vec<TokenId> = (1..=shared).collect();
        prompt.extend((0..rng.random_range(1..30)).map(|_| rng.random_range(1..900)));
        let sampling = Sampling {
            temperature: (caller % 2) as f32,
            seed: caller,
            ..Sampling::GREEDY
        };
        let output = rng.random_range(1..60);
        let request = Request::tokens(prompt.clone())
            .output_tokens_max(output)
            .sampling(sampling);
        let stream = engine.submit(request).await.expect("it is accepted");
        let expected_tokens = expected_tokens(&oracle, &prompt, output, sampling);
        callers.push((stream, prompt, expected_tokens, output));
    }
    let mut output_tokens = 0;
    for (stream, prompt, expected_tokens, output) in callers {
        output_tokens += expected_tokens.len() as u64;
        let completion = stream.collect().await.expect("no fault was asked for");
        assert_eq!(completion.tokens, expected_tokens);
        let usage = completion.finish.usage;
        assert_eq!(usage.prompt_tokens, prompt.len());
        assert_eq!(usage.output_tokens, expected_tokens.len());
        assert!(
            usage.cached_tokens < prompt.len(),
            "one token is always evaluated"
        );
        let expected = if expected_tokens.len() == output {
            FinishReason::Length
        } else {
            FinishReason::EndToken
        };
        assert_eq!(completion.finish.reason, expected);
    }
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.failed, stats.running), (64, 0, 0));
    assert_eq!(
        stats.output_tokens, output_tokens,
        "each token is counted once"
    );
    assert!(
        stats.steps_by_sequences.len() > 1,
        "sequences share steps: {stats:?}"
    );
    engine.shutdown(Shutdown::Abort).await;
    let counts = oracle.counters.now();
    assert_eq!(
        (counts.segments_alive, counts.tails_alive),
        (0, 0),
        "nothing leaks"
    );
}

#[tokio::test]
async fn shared_system_prompt_is_computed_once_for_sixteen_users() {
    let oracle = oracle();
    let mut config = small();
    config.scheduler.sequences_max = 16;
    let engine = engine(&oracle, config).await;
    let system: Vec<TokenId> = (1..=200).collect();
    let mut streams = Vec::new();
    for user in 0..16 {
        let mut prompt = system.clone();
        prompt.extend([500 + user, 7]);
        let request = Request::tokens(prompt)
            .output_tokens_max(4)
            .ignore_end_tokens();
        streams.push(engine.submit(request).await.unwrap());
    }
    for stream in streams {
        stream.collect().await.unwrap();
    }
    let evaluated = engine.stats().evaluated_tokens;
    assert!(evaluated >= 200);
    assert_eq!(
        evaluated,
        200 + 16 * (2 + 3),
        "the system prompt, then each user's own"
    );
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn invalid_requests_are_rejected_by_field_and_affect_no_other() {
    let oracle = oracle();
    let mut config = small();
    config.cache.device_bytes_max = 2 * 1024;
    config.cache.full_sequences_min = 0;
    let engine = engine(&oracle, config).await;
    let bystander = Request::tokens([1, 2, 3]).output_tokens_max(40);
    let bystander = engine.submit(bystander).await.unwrap();

    let field = async |request: Request| match engine.submit(request).await {
        Err(SubmitError::Field {
            field, expected, ..
        })
        | Err(SubmitError::PromptTooLong {
            field, expected, ..
        }) => {
            assert!(!expected.is_empty());
            field
        }
        other => panic!("expected a field to be named, got {other:?}"),
    };
    assert_eq!(field(Request::tokens([])).await, "prompt");
    assert_eq!(field(Request::tokens(vec![1; 512])).await, "prompt");
    assert_eq!(field(Request::tokens([1, 1_000])).await, "prompt");
    assert_eq!(
        field(Request::tokens([1]).output_tokens_max(0)).await,
        "output_tokens_max"
    );
    assert_eq!(
        field(Request::tokens([1]).temperature(f32::NAN)).await,
        "sampling.temperature"
    );
    assert_eq!(
        field(Request::tokens([1]).top_p(0.0)).await,
        "sampling.top_p"
    );
    let error = engine.submit(Request::text("hello")).await.unwrap_err();
    assert!(matches!(error, SubmitError::NoTokenizer { .. }), "{error}");
    let error = engine
        .submit(Request::tokens([1]).output_tokens_max(4).stop("x"))
        .await
        .unwrap_err();
    assert!(matches!(error, SubmitError::NoTokenizer { .. }), "{error}");
    let large = Request::tokens(vec![1; 500]).output_tokens_max(500);
    let error = engine.submit(large).await.unwrap_err();
    assert!(matches!(error, SubmitError::TooLarge { .. }), "{error}");

    let completion = bystander.collect().await.unwrap();
    assert_eq!(
        completion.tokens,
        expected_tokens(&oracle, &[1, 2, 3], 40, Sampling::GREEDY)
    );
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn full_engine_rejects_and_returns_the_request() {
    let mut oracle = oracle();
    oracle.cost.base = Duration::from_millis(2);
    oracle.end_one_in = 0;
    let mut config = small();
    config.scheduler.sequences_max = 1;
    config.scheduler.admission.queue_max = 2;
    let engine = engine(&oracle, config).await;
    let request = || Request::tokens([5, 6]).output_tokens_max(400);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(engine.submit(request()).await.unwrap());
    }
    match engine.submit(request()).await {
        Err(SubmitError::QueueFull {
            retry_after,
            request: given_back,
            what: QueueLimit::Requests,
        }) => {
            assert!(retry_after > Duration::ZERO);
            assert_eq!(*given_back, request());
        }
        other => panic!("expected a full queue, got {other:?}"),
    }
    // Dropping a queued request frees its place in the queue.
    streams.pop();
    tokio::time::timeout(Duration::from_secs(10), async {
        while engine.submit(request()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("the place of a dropped request is free again");
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn dropped_stream_is_cancelled_and_releases_everything() {
    let mut oracle = oracle();
    oracle.cost.base = Duration::from_millis(1);
    oracle.end_one_in = 0;
    let engine = engine(&oracle, small()).await;
    let mut stream = engine
        .submit(Request::tokens([1, 2, 3]).output_tokens_max(400))
        .await
        .unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    tokio::time::timeout(Duration::from_secs(10), engine.drain())
        .await
        .expect("a cancelled sequence ends long before its 400 tokens");
    let error = engine.submit(Request::tokens([1])).await.unwrap_err();
    assert!(matches!(error, SubmitError::Draining), "{error}");
    engine.shutdown(Shutdown::Abort).await;
    assert_eq!(oracle.counters.now().tails_alive, 0);
}

/// An engine whose steps take a millisecond, and a sequence on it that is far from its end.
async fn long_sequence() -> (Engine, TokenStream) {
    let mut oracle = oracle();
    oracle.cost.base = Duration::from_millis(1);
    oracle.end_one_in = 0;
    let engine = engine(&oracle, small()).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(400);
    let mut stream = engine.submit(request).await.unwrap();
    stream.next().await.unwrap().unwrap();
    (engine, stream)
}

#[tokio::test]
async fn a_handle_cancels_its_sequence_and_returns_its_usage() {
    let (engine, stream) = long_sequence().await;
    let handle = stream.handle();
    assert_eq!(handle.sequence(), stream.sequence());
    let body = tokio::spawn(stream.collect());
    let clone = handle.clone();
    assert!(clone.cancel(), "the first cancellation");
    assert!(!handle.cancel(), "there is nothing left to cancel");
    let completion = body.await.unwrap().expect("an output until then");
    let finish = handle.finished().await.expect("a finish");
    assert_eq!(finish.reason, FinishReason::Cancelled);
    assert_eq!(completion.finish, finish);
    // One token had been read before.
    assert_eq!(completion.tokens.len() + 1, finish.usage.output_tokens);
    assert!(finish.usage.output_tokens < 400);
    assert_eq!(handle.queue_position().await, None);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn a_handle_does_not_keep_its_sequence_alive() {
    let (engine, stream) = long_sequence().await;
    let handle = stream.handle();
    drop(stream);
    let finish = handle.finished().await.expect("a finish");
    assert_eq!(finish.reason, FinishReason::Cancelled);
    assert!((1..400).contains(&finish.usage.output_tokens));
    assert!(!handle.cancel(), "it is cancelled");
    let fork = engine.fork(&handle, None, Request::default()).await;
    let failed = fork.expect("it is accepted").collect().await;
    assert!(
        matches!(failed, Err(GenerateError::ForkSource(_))),
        "{failed:?}"
    );
    engine.shutdown(Shutdown::Abort).await;
    assert_eq!(handle.queue_position().await, None);
}

#[tokio::test]
async fn a_dropped_handle_cancels_nothing() {
    let (engine, mut stream) = long_sequence().await;
    let handle = stream.handle();
    let fork = Request::default().output_tokens_max(2);
    let fork = engine
        .fork(&handle, None, fork)
        .await
        .expect("it is admitted");
    drop(handle);
    assert_eq!(fork.collect().await.expect("an output").tokens.len(), 2);
    stream.next().await.unwrap().unwrap();
    let handle = stream.handle();
    engine.shutdown(Shutdown::Abort).await;
    assert_eq!(handle.finished().await, Err(GenerateError::Shutdown));
    assert!(!handle.cancel(), "it has ended");
}

/// The fields of an embedder's struct, whose types have no parameter.
#[derive(Debug)]
struct Embedder {
    builder: Option<EngineBuilder>,
    engine: Option<Engine>,
}

#[tokio::test]
async fn builder_and_engine_can_be_named_in_a_struct() {
    let build = || Ok(Oracle::new(oracle()).expect("a valid oracle"));
    let mut embedder = Embedder {
        builder: Some(Engine::builder(build)),
        engine: None,
    };
    let builder = embedder.builder.take().expect("it is set");
    embedder.engine = Some(builder.start().await.expect("the engine starts"));
    let engine = embedder.engine.expect("it is set");
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn abort_ends_every_stream_with_an_error() {
    let mut oracle = oracle();
    oracle.cost.base = Duration::from_millis(1);
    oracle.end_one_in = 0;
    let engine = engine(&oracle, small()).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(400);
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(engine.submit(request.clone()).await.unwrap());
    }
    engine.shutdown(Shutdown::Abort).await;
    for stream in streams {
        assert_eq!(stream.collect().await, Err(GenerateError::Shutdown));
    }
    assert_eq!(oracle.counters.now().segments_alive, 0);
}

#[tokio::test]
async fn dropped_engine_lets_its_streams_finish() {
    let mut oracle = oracle();
    oracle.end_one_in = 0;
    let engine = engine(&oracle, small()).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(40);
    let stream = engine.submit(request).await.unwrap();
    drop(engine);
    let completion = stream.collect().await.expect("it may finish");
    assert_eq!(
        completion.tokens,
        oracle.reference_tokens(&[1, 2, 3], 40, Sampling::GREEDY)
    );
    let counters = oracle.counters.clone();
    crate::common::until("the engine stops", move || {
        counters.now().segments_alive == 0
    })
    .await;
}

#[tokio::test]
async fn aborted_engine_ends_its_sequences_before_it_shuts_down() {
    let mut oracle = oracle();
    oracle.end_one_in = 0;
    let engine = engine(&oracle, small()).await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(400);
    let stream = engine.submit(request.clone()).await.unwrap();
    engine.shutdown(Shutdown::Abort).await;
    assert_eq!(stream.collect().await, Err(GenerateError::Shutdown));
    let late = engine.submit(request).await;
    assert!(matches!(late, Err(SubmitError::Draining)), "{late:?}");
    engine.shutdown(Shutdown::Abort).await;
    assert_eq!(oracle.counters.now().segments_alive, 0);
}

#[tokio::test]
async fn clones_share_one_engine_and_any_of_them_shuts_it_down() {
    let oracle = oracle();
    let engine = engine(&oracle, small()).await;
    let clone = engine.clone();
    let stream = engine
        .submit(Request::tokens([1, 2]))
        .await
        .expect("it is admitted");
    assert_eq!(clone.health().state, HealthState::Busy);
    drop(engine);
    assert!(stream.collect().await.is_ok(), "a clone keeps the engine");
    let other = clone.clone();
    tokio::join!(
        clone.shutdown(Shutdown::Finish),
        other.shutdown(Shutdown::Finish)
    );
    assert_eq!(other.health().state, HealthState::Stopped);
    assert_eq!(oracle.counters.now().segments_alive, 0);
    let late = other.submit(Request::tokens([1])).await;
    assert!(matches!(late, Err(SubmitError::Draining)), "{late:?}");
    other.shutdown(Shutdown::Abort).await;
}

/// Polls a future once. It must not be ready.
async fn poll_once<F: Future>(future: &mut Pin<Box<F>>) {
    let started = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()));
    assert!(started.await, "it waits for something");
}

/// The requests have passed admission and wait for their grammars when the engine is aborted.
/// The scheduler receives them after it has ended all others.
#[tokio::test]
async fn requests_in_setup_end_when_the_engine_is_aborted() {
    let mut oracle = oracle();
    oracle.end_one_in = 0;
    let model = oracle.clone();
    let engine = Engine::builder(move || Ok(Oracle::new(model.clone()).expect("valid")))
        .text(crate::common::bytes())
        .config(small())
        .start()
        .await
        .expect("the engine starts");
    let request = |prompt: Vec<TokenId>| {
        let request = Request::tokens(prompt).output_tokens_max(100);
        request.grammar(GrammarSource::Regex("[a-f]{100}".into()))
    };
    let several = Request {
        n: 3,
        ..request(vec![1, 2])
    };
    let plain = Request::tokens([1, 2, 3]).output_tokens_max(400);
    let source = engine.submit(plain).await.expect("it is accepted");

    let mut one = Box::pin(engine.submit(request(vec![1])));
    let mut fork = Box::pin(engine.fork(&source, None, request(vec![9])));
    let mut many = Box::pin(engine.submit_many(several));
    let best_of = Request {
        best_of: Some(2),
        ..request(vec![3])
    };
    let mut best = Box::pin(engine.best_of(best_of));
    poll_once(&mut one).await;
    poll_once(&mut fork).await;
    poll_once(&mut many).await;
    poll_once(&mut best).await;
    engine.shutdown(Shutdown::Abort).await;

    let draining = |error: SubmitError| assert!(matches!(error, SubmitError::Draining), "{error}");
    draining(many.await.expect_err("the engine has ended"));
    draining(one.await.expect_err("the engine has ended"));
    draining(fork.await.expect_err("the engine has ended"));
    match best.await {
        Err(BestOfError::Submit(error)) => draining(error),
        other => panic!("{other:?}"),
    }
    assert_eq!(source.collect().await, Err(GenerateError::Shutdown));
    engine.drain().await;
    engine.shutdown(Shutdown::Abort).await;
    assert_eq!(oracle.counters.now().tails_alive, 0);
}

#[tokio::test]
async fn failed_steps_and_panics_are_survived() {
    let mut oracle = oracle();
    oracle.end_one_in = 0;
    oracle.cost = StepCost {
        base: Duration::from_micros(200),
        ..StepCost::default()
    };
    let engine = engine(&oracle, small()).await;
    oracle.faults.at_step(5, StepFault::Fail);
    oracle.faults.at_step(30, StepFault::Panic);
    oracle.faults.poison(77);
    let mut streams = Vec::new();
    for user in 0..12 {
        let prompt = vec![1, 2, 3, user, if user == 4 { 77 } else { 8 }];
        let request = Request::tokens(prompt.clone()).output_tokens_max(30);
        streams.push((engine.submit(request).await.unwrap(), prompt, user));
    }
    for (stream, prompt, user) in streams {
        let result = stream.collect().await;
        if user == 4 {
            assert!(
                matches!(result, Err(GenerateError::Device { attempts: 3, .. })),
                "{result:?}"
            );
        } else {
            let tokens = result.expect("only the poisoned request fails").tokens;
            assert_eq!(
                tokens,
                expected_tokens(&oracle, &prompt, 30, Sampling::GREEDY)
            );
        }
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn failed_start_reports_its_cause() {
    let failing = Engine::builder(|| Err::<Oracle, _>(ModelError::Device("no memory".into())));
    assert!(matches!(
        failing.start().await,
        Err(StartError::Model(ModelError::Device(_)))
    ));
    let mut config = EngineConfig::default();
    config.scheduler.chunking.step_tokens_max = 0;
    let oracle = oracle();
    let failing = Engine::builder(move || Ok(Oracle::new(oracle.clone()).unwrap())).config(config);
    assert!(matches!(failing.start().await, Err(StartError::Config(_))));
}
