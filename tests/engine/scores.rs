//! Scores of a prompt's tokens and embeddings, on the oracle: alone, batched, from the cache,
//! after preemption, after lost steps and a lost device, they are those of the reference.

use std::time::Duration;

use crate::common::{engine, small, until};
use motet::config::EngineConfig;
use motet::error::{EvaluateError, SubmitError};
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::{
    DeclaredPooling, Embedding, FinishReason, Pooling, Priority, Prompt, TokenLogprobs,
};
use motet::{Engine, Request, TokenId};
use motet_model::oracle::StepFault;

const KINDS: [&[LayerKind]; 3] = [
    &[LayerKind::Full],
    &[LayerKind::Full, LayerKind::Window { tokens: 8 }],
    &[LayerKind::Full, LayerKind::Recurrent],
];

fn oracle(layers: &[LayerKind]) -> OracleConfig {
    OracleConfig {
        vocab_size: 200,
        context_tokens_max: 512,
        tail_block_tokens: 16,
        ..OracleConfig::with_layers(layers)
    }
}

fn tokens(seed: u32, count: u32) -> Vec<TokenId> {
    (0..count)
        .map(|at| 1 + (seed * 37 + at * at * 11 + at) % 190)
        .collect()
}

fn embedding(pooling: Pooling) -> Embedding {
    Embedding {
        pooling: Some(pooling),
        is_normalized: false,
        ..Embedding::default()
    }
}

/// The embedding of the reference, not scaled.
fn expected_vector(oracle: &OracleConfig, prompt: &[TokenId], pooling: Pooling) -> Vec<f32> {
    let states = oracle.reference_hidden_states(prompt);
    let pooled = match pooling {
        Pooling::Mean => &states[..],
        Pooling::Last => &states[states.len() - 1..],
    };
    let numbers = 0..states[0].len();
    let sum = |index| pooled.iter().map(|state| state[index]).sum::<f64>();
    numbers
        .map(|index| (sum(index) / pooled.len() as f64) as f32)
        .collect()
}

/// A request, and what it must return.
struct Case {
    request: Request,
    logprobs: Vec<TokenLogprobs>,
    vector: Option<Vec<f32>>,
    output: Vec<TokenId>,
}

/// Scores of continuations of one prompt, scores of whole prompts that generate some tokens after
/// them, and embeddings.
fn cases(oracle: &OracleConfig) -> Vec<Case> {
    let prompt = tokens(1, 70);
    let mut cases = Vec::new();
    for seed in 0..6 {
        let continuation = tokens(10 + seed, 1 + 9 * seed);
        let all = [&prompt[..], &continuation].concat();
        cases.push(Case {
            request: Request::score(&prompt, &continuation).prompt_logprobs(2),
            logprobs: oracle.reference_logprobs(&all, prompt.len(), 2),
            vector: None,
            output: Vec::new(),
        });
        let own = tokens(20 + seed, 40 + seed);
        cases.push(Case {
            request: Request::tokens(&own[..])
                .prompt_logprobs(0)
                .output_tokens_max(6)
                .ignore_end_tokens(),
            logprobs: oracle.reference_logprobs(&own, 1, 0),
            vector: None,
            output: oracle.reference_tokens(&own, 6, Default::default()),
        });
        let pooling = [Pooling::Mean, Pooling::Last][seed as usize % 2];
        let text = [&prompt[..50], &tokens(30 + seed, 20)].concat();
        cases.push(Case {
            request: Request::tokens(&text[..]).embedding(embedding(pooling)),
            logprobs: Vec::new(),
            vector: Some(expected_vector(oracle, &text, pooling)),
            output: Vec::new(),
        });
    }
    cases
}

async fn check_one(engine: &Engine, case: &Case, way: &str) {
    let stream = engine.submit(case.request.clone()).await;
    let found = stream.expect("it is accepted").collect().await;
    let found = found.expect("it ends well");
    assert_eq!(found.prompt_logprobs, case.logprobs, "{way}");
    assert_eq!(found.embedding, case.vector, "{way}");
    assert_eq!(found.tokens, case.output, "{way}");
    assert_eq!(found.finish.reason, FinishReason::Length, "{way}");
    let Prompt::Tokens(prompt) = &case.request.prompt else {
        panic!("prompts are tokens");
    };
    assert_eq!(found.finish.usage.prompt_tokens, prompt.len(), "{way}");
}

/// All cases at once, beside sequences that decode.
async fn check_all(engine: &Engine, oracle: &OracleConfig, way: &str) {
    let decoding = tokens(3, 20);
    let request = Request::tokens(&decoding[..])
        .output_tokens_max(60)
        .ignore_end_tokens();
    let decoding_stream = engine.submit(request).await.expect("it is accepted");
    let mut streams = Vec::new();
    let cases = cases(oracle);
    for case in &cases {
        let stream = engine.submit(case.request.clone()).await;
        streams.push(stream.expect("it is accepted"));
    }
    for (case, stream) in cases.iter().zip(streams) {
        let found = stream.collect().await.expect("it ends well");
        assert_eq!(found.prompt_logprobs, case.logprobs, "{way}");
        assert_eq!(found.embedding, case.vector, "{way}");
        assert_eq!(found.tokens, case.output, "{way}");
    }
    let decoded = decoding_stream.collect().await.expect("it ends well");
    let expected = oracle.reference_tokens(&decoding, 60, Default::default());
    assert_eq!(decoded.tokens, expected, "{way}");
}

#[tokio::test]
async fn results_do_not_depend_on_batch_and_cache() {
    for layers in KINDS {
        let oracle = oracle(layers);
        let engine = engine(&oracle, small()).await;
        for case in cases(&oracle) {
            check_one(&engine, &case, "alone").await;
        }
        for case in cases(&oracle) {
            check_one(&engine, &case, "from the cache").await;
        }
        check_all(&engine, &oracle, "in one batch").await;
    }
}

#[tokio::test]
async fn results_do_not_depend_on_preemption() {
    for layers in KINDS {
        let mut oracle = oracle(layers);
        oracle.cost.base = Duration::from_millis(1);
        let mut config = small();
        config.scheduler.sequences_max = 1;
        config.scheduler.chunking.step_tokens_max = 8;
        let engine = engine(&oracle, config).await;
        for (number, case) in cases(&oracle).into_iter().enumerate() {
            let background = Request {
                priority: Priority::Background,
                ..case.request.clone()
            };
            let before = engine.stats().preempted;
            let evaluated = engine.stats().evaluated_tokens;
            let stream = engine.submit(background).await.expect("it is accepted");
            until("a chunk is computed", || {
                engine.stats().evaluated_tokens > evaluated || engine.stats().finished > 0
            })
            .await;
            let urgent = tokens(50 + number as u32, 9);
            let urgent = Request::tokens(urgent).output_tokens_max(2);
            let urgent = urgent.priority(Priority::Urgent).ignore_end_tokens();
            let urgent = engine.submit(urgent).await.expect("it is accepted");
            urgent.collect().await.expect("it ends well");
            let found = stream.collect().await.expect("it ends well");
            let way = format!("{} preemptions", engine.stats().preempted - before);
            assert_eq!(found.prompt_logprobs, case.logprobs, "{way}");
            assert_eq!(found.embedding, case.vector, "{way}");
            assert_eq!(found.tokens, case.output, "{way}");
        }
        assert!(engine.stats().preempted > 0, "{layers:?}");
    }
}

#[tokio::test]
async fn results_survive_failed_steps_and_a_lost_device() {
    for layers in KINDS {
        let oracle = oracle(layers);
        let mut config = small();
        config.scheduler.step_retries_max = 20;
        let engine = engine(&oracle, config).await;
        for (step, fault) in [
            (3, StepFault::Fail),
            (7, StepFault::FailFinish),
            (9, StepFault::Panic),
            (15, StepFault::Fail),
        ] {
            oracle.faults.at_step(step, fault);
        }
        check_all(&engine, &oracle, "with failed steps").await;
    }
}

/// Many continuations of one prompt compute the prompt once, but for the token before them.
#[tokio::test]
async fn continuations_of_one_prompt_compute_it_once() {
    let oracle = oracle(&[LayerKind::Full]);
    let engine = engine(&oracle, EngineConfig::default()).await;
    let prompt = tokens(1, 200);
    let mut own = 0;
    for seed in 0..20 {
        let continuation = tokens(10 + seed, 1 + seed % 3);
        own += continuation.len();
        let score = engine.score(Request::score(&prompt, &continuation)).await;
        let score = score.expect("it is scored");
        assert_eq!(score.logprobs.len(), continuation.len());
        let cached = if seed == 0 { 0 } else { prompt.len() - 1 };
        assert_eq!(score.usage.cached_tokens, cached);
        let tokens = prompt.len() + continuation.len();
        assert_eq!(score.usage.prompt_tokens, tokens);
        let sum: f64 = score
            .logprobs
            .iter()
            .map(|one| f64::from(one.logprob))
            .sum();
        assert_eq!(score.sum(), sum);
    }
    let evaluated = engine.stats().evaluated_tokens as usize;
    assert_eq!(evaluated, prompt.len() - 1 + own);
}

/// A mean needs the state of every token, and so does the log probability of every token.
#[tokio::test]
async fn rows_that_are_needed_are_computed_again() {
    let oracle = oracle(&[LayerKind::Full]);
    let engine = engine(&oracle, EngineConfig::default()).await;
    let prompt = tokens(1, 100);
    let plain = Request::tokens(&prompt[..]).output_tokens_max(1);
    let plain = engine.submit(plain).await.expect("it is accepted");
    plain.collect().await.expect("it ends well");
    let request = || Request::tokens(&prompt[..]);
    let logprobs = |from| {
        request()
            .output_tokens_max(0)
            .prompt_logprobs(0)
            .prompt_logprobs_from(from)
    };
    for (request, cached) in [
        (request().embedding(embedding(Pooling::Last)), 99),
        (request().embedding(embedding(Pooling::Mean)), 0),
        (logprobs(0), 0),
        (logprobs(1), 0),
        (logprobs(41), 40),
        (logprobs(99), 98),
    ] {
        let stream = engine
            .submit(request.clone())
            .await
            .expect("it is accepted");
        let found = stream.collect().await.expect("it ends well");
        assert_eq!(found.finish.usage.cached_tokens, cached, "{request:?}");
    }
}

#[tokio::test]
async fn embeddings_are_as_the_model_declares() {
    let oracle = oracle(&[LayerKind::Full]);
    let prompt = tokens(1, 30);
    let open = async |pooling| {
        let oracle = oracle.clone();
        let build = move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle"));
        let engine = Engine::builder(build).pooling(pooling).start().await;
        engine.expect("the engine starts")
    };
    for (declared, pooling) in [
        (DeclaredPooling::Undeclared, Pooling::Last),
        (DeclaredPooling::Declared(Pooling::Last), Pooling::Last),
        (DeclaredPooling::Declared(Pooling::Mean), Pooling::Mean),
    ] {
        let engine = open(declared).await;
        let raw = expected_vector(&oracle, &prompt, pooling);
        for dimensions in [None, Some(5), Some(1)] {
            let embedding = Embedding {
                dimensions,
                ..Embedding::default()
            };
            let request = Request::tokens(&prompt[..]).embedding(embedding);
            let found = engine.embed(request).await.expect("it is embedded");
            assert_eq!(found.usage.prompt_tokens, prompt.len());
            let cut = &raw[..dimensions.unwrap_or(raw.len())];
            let length = cut.iter().map(|number| number * number).sum::<f32>().sqrt();
            assert_eq!(found.numbers.len(), cut.len());
            for (found, raw) in found.numbers.iter().zip(cut) {
                assert!((found - raw / length).abs() < 1e-5, "{found}, {raw}");
            }
        }
    }
    let engine = open(DeclaredPooling::Unsupported("mode `max`".into())).await;
    let error = engine.embed(Request::tokens(&prompt[..])).await;
    let error = error.expect_err("it is not supported");
    assert!(error.to_string().contains("mode `max`"), "{error}");
    let named = Request::tokens(&prompt[..]).embedding(embedding(Pooling::Mean));
    engine
        .embed(named)
        .await
        .expect("the request names another");
}

/// A caller that leaves frees everything, in the middle of its prompt too.
#[tokio::test]
async fn scores_can_be_cancelled() {
    let mut oracle = oracle(&[LayerKind::Full]);
    oracle.cost.base = Duration::from_millis(1);
    let mut config = small();
    config.scheduler.chunking.step_tokens_max = 8;
    let engine = engine(&oracle, config).await;
    let request = Request::tokens(tokens(1, 300)).prompt_logprobs(1);
    let stream = engine.submit(request.output_tokens_max(0)).await;
    until("a chunk is computed", || {
        engine.stats().evaluated_tokens > 0
    })
    .await;
    drop(stream.expect("it is accepted"));
    until("it is gone", || {
        let stats = engine.stats();
        stats.running == 0 && stats.cache.reserved_bytes == 0
    })
    .await;
    assert!(engine.stats().evaluated_tokens < 300);
}

#[tokio::test]
async fn invalid_requests_are_rejected_by_field() {
    let oracle = oracle(&[LayerKind::Full]);
    let engine = engine(&oracle, EngineConfig::default()).await;
    let score = || Request::score(&[1, 2, 3], &[4, 5]);
    let embed = || Request::tokens([1, 2, 3]).embedding(Embedding::default());
    let cut = |dimensions| Embedding {
        dimensions: Some(dimensions),
        ..Embedding::default()
    };
    let table = [
        ("prompt", Request::score(&[1, 2, 3], &[4, 999])),
        ("prompt", Request::score(&[], &[])),
        ("prompt_logprobs_from", Request::score(&[1, 2, 3], &[])),
        (
            "prompt_logprobs_from",
            Request::tokens([1, 2]).prompt_logprobs_from(1),
        ),
        ("prompt_logprobs", score().prompt_logprobs(21)),
        ("prompt_logprobs", score().embedding(Embedding::default())),
        ("sampling.temperature", score().temperature(0.7)),
        ("sampling.top_k", score().top_k(3)),
        ("sampling.top_p", score().top_p(0.5)),
        ("sampling.min_p", score().min_p(0.5)),
        (
            "sampling.repetition_penalty",
            score().repetition_penalty(1.1),
        ),
        ("sampling.presence_penalty", score().presence_penalty(1.0)),
        ("sampling.frequency_penalty", score().frequency_penalty(1.0)),
        ("logit_bias", score().bias(1, 2.0)),
        ("logprobs", score().logprobs(2)),
        ("stop_tokens", score().stop_token(2)),
        ("output_tokens_min", score().output_tokens_min(1)),
        ("n", score().n(2)),
        ("at_context_limit", score().shift(1)),
        (
            "prompt",
            Request::tokens([]).embedding(Embedding::default()),
        ),
        (
            "prompt",
            Request::tokens([1, 999]).embedding(Embedding::default()),
        ),
        ("output_tokens_max", embed().output_tokens_max(4)),
        ("embedding.dimensions", embed().embedding(cut(0))),
        ("embedding.dimensions", embed().embedding(cut(13))),
        ("sampling.temperature", embed().temperature(0.7)),
        ("at_context_limit", embed().shift(1)),
    ];
    for (expected, request) in table {
        match engine.submit(request.clone()).await {
            Err(SubmitError::Field { field, .. }) => assert_eq!(field, expected, "{request:?}"),
            other => panic!("expected an error about {expected}, got {other:?}"),
        }
    }
    let not_scored = engine.score(Request::tokens([1, 2])).await;
    let Err(EvaluateError::Submit(SubmitError::Field { field, .. })) = not_scored else {
        panic!("{not_scored:?}");
    };
    assert_eq!(field, "prompt_logprobs");
    let source = Request::tokens([1, 2]).output_tokens_max(100);
    let source = engine
        .submit(source.ignore_end_tokens())
        .await
        .expect("it is accepted");
    for (expected, request) in [("prompt_logprobs", score()), ("embedding", embed())] {
        match engine.fork(&source, None, request).await {
            Err(SubmitError::Field { field, .. }) => assert_eq!(field, expected),
            other => panic!("expected an error about {expected}, got {other:?}"),
        }
    }
    // One token has no log probability, and is no mistake.
    let single = Request::tokens([7]).prompt_logprobs(0).output_tokens_max(0);
    let score = engine.score(single).await.expect("it is scored");
    assert_eq!((score.logprobs.len(), score.usage.prompt_tokens), (0, 1));
}
