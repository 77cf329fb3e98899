//! Drafts and predicted outputs, on the oracle: the tokens stay the same, and limits hold.

use std::time::Duration;

use crate::common::{self, bytes, read, small, until};
use motet::config::EngineConfig;
use motet::error::{QueueLimit, SubmitError};
use motet::model::oracle::{Faults, Oracle, OracleConfig};
use motet::monitor::DraftCounts;
use motet::request::{Completion, FinishReason, Prediction, Sampling};
use motet::{Engine, Request, Shutdown, TokenId};
use motet_model::oracle::{OracleCounters, StepCost, StepFault};

const PROMPT: [TokenId; 3] = [1, 2, 3];

/// An oracle whose steps take long beside their rows, so that drafts pay.
fn oracle() -> OracleConfig {
    OracleConfig {
        context_tokens_max: 512,
        tail_block_tokens: 16,
        cost: StepCost {
            base: Duration::from_millis(1),
            ..StepCost::default()
        },
        ..common::byte_oracle()
    }
}

fn request(tokens: usize) -> Request {
    Request::tokens(PROMPT).output_tokens_max(tokens)
}

/// The output of such a request.
fn output(tokens: usize) -> Vec<TokenId> {
    oracle().reference_tokens(&PROMPT, tokens, Sampling::GREEDY)
}

/// A request whose output is text that a prediction can spell: printable bytes.
fn printable(tokens: usize) -> Request {
    let others = 94..257;
    others.fold(request(tokens), |request, token| {
        request.bias(token, f32::NEG_INFINITY)
    })
}

async fn complete(engine: &Engine, request: Request) -> Completion {
    let stream = engine.submit(request).await.expect("it is valid");
    stream.collect().await.expect("an output")
}

fn accepted(completion: &Completion) -> usize {
    completion.finish.usage.accepted_prediction_tokens
}

#[tokio::test]
async fn predicted_tokens_take_fewer_steps_and_are_the_same() {
    let oracle = oracle();
    let engine = common::engine(&oracle, small()).await;
    let expected = output(60);
    let predicted = complete(&engine, request(60).prediction_tokens(&expected[..])).await;
    let steps = oracle.counters.now().steps;
    assert_eq!(predicted.tokens, expected);
    assert_eq!(predicted.finish.usage.prediction_tokens, 60);
    // The first token comes before anything is proposed.
    assert!(accepted(&predicted) >= 50, "{:?}", predicted.finish);
    assert!(steps < 60, "{steps}");
    let drafts = engine.stats().drafts;
    assert!(drafts.accepted_tokens > 0, "{drafts:?}");
    assert!(drafts.accepted_tokens <= drafts.draft_tokens);

    // The prediction has other tokens in between.
    let mut edited = expected.clone();
    edited.splice(20..25, [7; 9]);
    let predicted = complete(&engine, request(60).prediction_tokens(edited)).await;
    assert_eq!(predicted.tokens, expected);
    engine.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn without_speculation_nothing_is_drafted() {
    let expected = output(60);
    let predicted = || request(60).prediction_tokens(output(60));
    let mut off = small();
    off.scheduler.speculation.enabled = false;
    for (config, request, prediction_tokens) in [
        (small(), request(60).speculation(false), 0),
        (off, predicted(), 60),
    ] {
        let engine = common::engine(&oracle(), config).await;
        let completion = complete(&engine, request).await;
        assert_eq!(completion.tokens, expected);
        let usage = completion.finish.usage;
        assert_eq!(usage.prediction_tokens, prediction_tokens);
        assert_eq!(usage.accepted_prediction_tokens, 0);
        assert_eq!(engine.stats().drafts, DraftCounts::default());
        engine.shutdown(Shutdown::Finish).await;
    }
}

/// The tokens after the same prompt and a finished answer are drafted: for the same salt, until it is
/// cleared.
#[tokio::test]
async fn answers_are_drafted_for_their_salt_only() {
    let engine = common::engine(&oracle(), small()).await;
    let expected = output(60);
    let accepted_of = async |request: Request| {
        let before = engine.stats().drafts.accepted_tokens;
        assert_eq!(complete(&engine, request).await.tokens, expected);
        engine.stats().drafts.accepted_tokens - before
    };
    let with_salt = |salt: &str| request(60).cache_salt(salt);
    assert_eq!(accepted_of(with_salt("a")).await, 0);
    assert!(accepted_of(with_salt("a")).await > 0);
    assert_eq!(accepted_of(with_salt("a").speculation(false)).await, 0);
    assert_eq!(accepted_of(with_salt("b")).await, 0);
    assert_eq!(accepted_of(request(60).without_cache()).await, 0);
    engine
        .clear_cache(Some("a"))
        .await
        .expect("the engine works");
    assert_eq!(accepted_of(with_salt("a")).await, 0);
    engine.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn prediction_may_be_text() {
    let engine = common::engine_with_text(&oracle(), bytes(), small()).await;
    let plain = complete(&engine, printable(60).speculation(false)).await;
    let predicted = complete(&engine, printable(60).prediction(plain.text.clone())).await;
    assert_eq!(
        (&predicted.tokens, &predicted.text),
        (&plain.tokens, &plain.text)
    );
    assert_eq!(predicted.finish.usage.prediction_tokens, 60);
    assert!(accepted(&predicted) >= 50, "{:?}", predicted.finish);

    // Special tokens that it spells are text, and none is added.
    let spelled = complete(&engine, printable(4).prediction("<end>")).await;
    assert_eq!(spelled.finish.usage.prediction_tokens, "<end>".len());
    let empty = complete(&engine, printable(4).prediction("")).await;
    assert_eq!(empty.finish.usage.prediction_tokens, 0);
    // A long one is tokenised on the threads of long prompts.
    let long = complete(&engine, printable(4).prediction("x".repeat(10_000))).await;
    assert_eq!(long.finish.usage.prediction_tokens, 10_000);
    assert_eq!(long.tokens, plain.tokens[..4]);
    engine.shutdown(Shutdown::Finish).await;
}

fn of_eight() -> EngineConfig {
    let mut config = small();
    config.scheduler.speculation.prediction_tokens_max = 8;
    config
}

#[tokio::test]
async fn invalid_prediction_is_an_error_of_its_field() {
    let engine = common::engine_with_text(&oracle(), bytes(), of_eight()).await;
    let source = engine.submit(request(500)).await.expect("it is valid");
    for request in [
        request(4).prediction_tokens([1; 9]),
        request(4).prediction_tokens([1, 257]),
        request(4).prediction("nine bytes".to_owned()),
        // Longer than any eight tokens.
        request(4).prediction("x".repeat(1 << 20)),
        request(4).prediction("a").speculation(false),
        request(0).prompt_logprobs(0).prediction("a"),
    ] {
        let empty = Request {
            prompt: Request::tokens([]).prompt,
            ..request.clone()
        };
        for result in [
            engine.submit(request.clone()).await.map(|_| ()),
            engine.submit_many(request.clone()).await.map(|_| ()),
            engine.fork(&source, None, empty).await.map(|_| ()),
        ] {
            match result {
                Err(SubmitError::Field { field, .. }) => assert_eq!(field, "prediction"),
                other => panic!("expected an error about {request:?}, got {other:?}"),
            }
        }
    }
    let fits = complete(&engine, request(4).prediction("8 bytes.")).await;
    assert_eq!(fits.finish.usage.prediction_tokens, 8);
    drop(source);
    engine.shutdown(Shutdown::Abort).await;

    let without_tokenizer = common::engine(&oracle(), small()).await;
    let error = without_tokenizer.submit(request(4).prediction("a")).await;
    assert!(matches!(
        error,
        Err(SubmitError::NoTokenizer {
            field: "prediction"
        })
    ));
    without_tokenizer.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn each_output_and_each_fork_has_its_prediction() {
    let engine = common::engine(&oracle(), small()).await;
    let expected = output(60);
    let several = request(60).n(3).prediction_tokens(&expected[..]);
    let streams = engine.submit_many(several).await.expect("it is valid");
    for stream in streams {
        let completion = stream.collect().await.expect("an output");
        assert_eq!(completion.tokens, expected);
        assert_eq!(completion.finish.usage.prediction_tokens, 60);
        assert!(accepted(&completion) >= 50, "{:?}", completion.finish);
    }
    let mut source = engine.submit(request(400)).await.expect("it is valid");
    let read = read(&mut source, 10).await;
    let forked = Request::tokens([])
        .output_tokens_max(50)
        .prediction_tokens(&expected[10..]);
    let at = Some(PROMPT.len() + read.len());
    let fork = engine.fork(&source, at, forked).await.expect("it is valid");
    let completion = fork.collect().await.expect("an output");
    assert_eq!(completion.tokens, expected[10..]);
    assert!(accepted(&completion) >= 40, "{:?}", completion.finish);
    drop(source);
    engine.shutdown(Shutdown::Abort).await;
}

/// The output ends in the text, before the scheduler knows that it does.
#[tokio::test]
async fn predicted_tokens_before_a_stop_string_count() {
    let engine = common::engine_with_text(&oracle(), bytes(), small()).await;
    let plain = complete(&engine, printable(60).speculation(false)).await;
    let (_, stop) = plain.text.split_at(40);
    let predicted = printable(60).prediction(plain.text.clone()).stop(stop);
    let completion = complete(&engine, predicted).await;
    assert_eq!(completion.finish.reason, FinishReason::StopString);
    assert!(plain.text.starts_with(&completion.text));
    assert!(accepted(&completion) > 0, "{:?}", completion.finish);
    engine.shutdown(Shutdown::Finish).await;
}

/// A draft brings as many tokens as the channels have space for, however late a reader is.
#[tokio::test]
async fn paused_reader_receives_all_tokens_of_its_drafts() {
    let mut config = small();
    config.scheduler.unread_tokens_max = 2;
    config.scheduler.speculation.draft_tokens_max =
        motet::config::SpeculationConfig::DRAFT_TOKENS_MAX;
    let engine = common::engine_with_text(&oracle(), bytes(), config).await;
    let plain = complete(&engine, printable(400).speculation(false)).await;
    let before = engine.stats().output_tokens;
    let predicted = printable(400).prediction(plain.text.clone());
    let stream = engine.submit(predicted).await.expect("it is valid");
    until("it pauses", || engine.stats().paused == 1).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    // The tokens that may be unread, and those of the steps that were planned by then.
    let ahead = engine.stats().output_tokens - before;
    assert!(ahead <= 2 + 3 * 96, "{ahead}");
    let completion = stream.collect().await.expect("it lost no token");
    assert_eq!(completion.tokens, plain.tokens);
    assert!(accepted(&completion) > 300, "{:?}", completion.finish);
    engine.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn prediction_that_waits_counts_like_a_prompt() {
    let mut config = small();
    config.scheduler.sequences_max = 1;
    config.scheduler.admission.queue_tokens_max = 100;
    let engine = common::engine(&oracle(), config).await;
    let mut running = engine.submit(request(500)).await.expect("it is valid");
    read(&mut running, 1).await;
    let predicted = || request(4).prediction_tokens([1; 60]);
    let _waiting = engine.submit(predicted()).await.expect("it fits");
    let _short = engine.submit(request(4)).await.expect("it fits as well");
    match engine.submit(predicted()).await {
        Err(SubmitError::QueueFull { what, request, .. }) => {
            assert_eq!(what, QueueLimit::Tokens);
            let expected = Some(Prediction::Tokens(vec![1; 60]));
            assert_eq!(request.prediction, expected, "it is given back");
        }
        other => panic!("expected a full queue, got {other:?}"),
    }
    drop(running);
    engine.shutdown(Shutdown::Abort).await;
}

/// An engine with this draft model beside the oracle.
async fn engine_with_draft(draft: OracleConfig, config: EngineConfig) -> Engine {
    let mut oracle = oracle();
    oracle.cost.base = Duration::from_millis(10);
    Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")))
        .draft_model(move || Ok(Oracle::new(draft.clone()).expect("a valid oracle")))
        .config(config)
        .start()
        .await
        .expect("the engine starts")
}

/// The same model, whose steps take no time.
fn quick() -> OracleConfig {
    OracleConfig {
        cost: StepCost::default(),
        counters: OracleCounters::default(),
        faults: Faults::default(),
        ..oracle()
    }
}

/// Each of eight sequences has other tokens, so that nothing else drafts them.
#[tokio::test]
async fn tokens_of_a_draft_model_are_the_same() {
    let other = OracleConfig { seed: 7, ..quick() };
    let silent = OracleConfig {
        context_tokens_max: 4,
        ..quick()
    };
    for (draft, is_good) in [(quick(), true), (other, false), (silent, false)] {
        let engine = engine_with_draft(draft.clone(), small()).await;
        let sampling = |seed| Sampling {
            temperature: if seed % 2 == 0 { 0.0 } else { 1.0 },
            seed,
            ..Sampling::GREEDY
        };
        let requests = (0..8).map(|seed| {
            let prompt = [1, 2, seed as TokenId + 3];
            let request = Request::tokens(prompt).output_tokens_max(100);
            let expected = oracle().reference_tokens(&prompt, 100, sampling(seed));
            (request.sampling(sampling(seed)), expected)
        });
        let mut streams = Vec::new();
        for (request, expected) in requests {
            let stream = engine.submit(request).await.expect("it is valid");
            streams.push((stream, expected));
        }
        for (stream, expected) in streams {
            let completion = stream.collect().await.expect("an output");
            assert_eq!(completion.tokens, expected);
        }
        let drafts = engine.stats().drafts;
        assert!(drafts.accepted_tokens > 100 || !is_good, "{drafts:?}");
        engine.shutdown(Shutdown::Finish).await;
        assert_eq!(draft.counters.now().tails_alive, 0);
    }
}

#[tokio::test]
async fn engine_goes_on_without_a_draft_model_that_fails() {
    for fault in [StepFault::Fail, StepFault::FailFinish, StepFault::Panic] {
        let draft = quick();
        draft.faults.at_step(3, fault);
        let engine = engine_with_draft(draft.clone(), small()).await;
        assert_eq!(complete(&engine, request(60)).await.tokens, output(60));
        assert_eq!(draft.counters.now().tails_alive, 0, "it is dropped");
        engine.shutdown(Shutdown::Finish).await;
    }
}

#[tokio::test]
async fn draft_model_with_other_tokens_is_an_error_at_the_start() {
    let build = || Ok(Oracle::new(oracle()).expect("a valid oracle"));
    let other = || {
        let other = OracleConfig {
            vocab_size: 1_000,
            ..oracle()
        };
        Ok(Oracle::new(other).expect("a valid oracle"))
    };
    let error = Engine::builder(build).draft_model(other).start().await;
    let error = error.expect_err("it cannot draft").to_string();
    assert!(
        error.contains("cannot draft for") && error.contains("1000"),
        "{error}"
    );
    let mut off = small();
    off.scheduler.speculation.enabled = false;
    let engine = Engine::builder(build).draft_model(other).config(off);
    let engine = engine.start().await.expect("it is not built");
    engine.shutdown(Shutdown::Finish).await;
}
