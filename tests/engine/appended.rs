//! Tokens that are appended without a sample, on the oracle: those that a grammar forces, and the
//! end of a reasoning whose budget is used up.

use std::time::Duration;

use crate::common::{self, bytes, small};
use motet::config::EngineConfig;
use motet::error::{GenerateError, SubmitError};
use motet::grammar::GrammarSource;
use motet::model::oracle::OracleConfig;
use motet::request::{Completion, FinishReason, ReasoningBudget, Sampling};
use motet::text::TextCodec;
use motet::{Engine, Request, Shutdown, TokenId};
use motet_model::oracle::{StepCost, StepFault};

const END: TokenId = 256;
/// Two answers of which the first letter decides.
const ANSWER: &str = "(yes, beyond all reasonable doubt|no, and that for many reasons)(!|\\?)";

fn oracle() -> OracleConfig {
    OracleConfig {
        context_tokens_max: 256,
        tail_block_tokens: 16,
        ..common::byte_oracle()
    }
}

async fn engine(oracle: &OracleConfig, config: EngineConfig) -> Engine {
    common::engine_with_text(oracle, bytes(), config).await
}

fn without_forced_tokens() -> EngineConfig {
    let mut config = small();
    config.grammar.forced_tokens = false;
    config
}

fn regex(prompt: impl Into<Vec<TokenId>>, expression: &str) -> Request {
    let source = GrammarSource::Regex(expression.into());
    Request::tokens(prompt)
        .grammar(source)
        .output_tokens_max(100)
}

async fn complete(engine: &Engine, request: Request) -> Result<Completion, GenerateError> {
    let stream = engine.submit(request).await.expect("it is valid");
    stream.collect().await
}

fn budget(is_open: bool, close: &[TokenId], tokens_max: usize) -> ReasoningBudget {
    ReasoningBudget {
        open: vec![60],
        close: close.to_vec(),
        is_open,
        opens_once: false,
        tokens_max,
    }
}

/// The output of the oracle alone, where these tokens are put in at an offset.
fn with_inserted(
    oracle: &OracleConfig,
    prompt: &[TokenId],
    at: usize,
    inserted: &[TokenId],
    tokens: usize,
) -> Vec<TokenId> {
    let mut output = oracle.reference_tokens(prompt, at, Sampling::GREEDY);
    output.extend_from_slice(inserted);
    let so_far = [prompt, &output].concat();
    let left = tokens.saturating_sub(output.len());
    output.extend(oracle.reference_tokens(&so_far, left, Sampling::GREEDY));
    output.truncate(tokens);
    output
}

#[tokio::test]
async fn forced_tokens_take_fewer_steps_and_are_the_same() {
    let mut outputs = Vec::new();
    let mut steps = Vec::new();
    for config in [small(), without_forced_tokens()] {
        let oracle = oracle();
        let engine = engine(&oracle, config).await;
        let mut all = Vec::new();
        for seed in 0..6 {
            let before = oracle.counters.now().steps;
            let request = regex([1, 2, 3], ANSWER).temperature(1.0).seed(seed);
            let completion = complete(&engine, request).await.expect("an output");
            assert_eq!(completion.finish.reason, FinishReason::EndToken);
            assert_eq!(
                completion.finish.usage.output_tokens,
                completion.tokens.len()
            );
            all.push((completion.tokens, completion.text));
            if seed == 0 {
                steps.push(oracle.counters.now().steps - before);
            }
        }
        outputs.push(all);
        engine.shutdown(Shutdown::Finish).await;
    }
    assert_eq!(outputs[0], outputs[1]);
    let texts = outputs[0].iter().map(|(_, text)| text.as_str());
    assert!(texts.clone().any(|text| text.starts_with("yes, ")));
    assert!(texts.clone().any(|text| text.starts_with("no, ")));
    // Each of about thirty tokens takes a step without them.
    assert!(steps[1] >= 28 && steps[0] <= 10, "{steps:?}");
}

/// Limits hold within a run of forced tokens, as they do for sampled ones.
#[tokio::test]
async fn run_of_forced_tokens_ends_where_the_output_must() {
    let table: [(&str, Request); 5] = [
        ("length", regex([1, 2, 3], ANSWER).output_tokens_max(9)),
        (
            "stop token",
            regex([1, 2, 3], ANSWER).stop_token(token_of(b'b')),
        ),
        (
            "stop token",
            regex([1, 2, 3], ANSWER).stop_token(token_of(b'm')),
        ),
        (
            "stop string",
            regex([1, 2, 3], ANSWER).stop("asons").stop("reason"),
        ),
        (
            "bias",
            regex([1, 2, 3], ANSWER).bias(token_of(b'a'), f32::NEG_INFINITY),
        ),
    ];
    let forcing = engine(&oracle(), small()).await;
    let sampling = engine(&oracle(), without_forced_tokens()).await;
    for (name, request) in table {
        let found = complete(&forcing, request.clone()).await;
        let expected = complete(&sampling, request).await;
        match (&found, &expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!(found.tokens, expected.tokens, "{name}");
                assert_eq!(found.text, expected.text, "{name}");
                assert_eq!(found.finish.reason, expected.finish.reason, "{name}");
            }
            (Err(found), Err(expected)) => {
                assert_eq!(found.to_string(), expected.to_string(), "{name}");
            }
            _ => panic!("{name}: {found:?}, and {expected:?} without forced tokens"),
        }
    }
    forcing.shutdown(Shutdown::Finish).await;
    sampling.shutdown(Shutdown::Finish).await;
}

/// The byte's token in the vocabulary of the tests.
fn token_of(letter: u8) -> TokenId {
    let text = bytes();
    let tokens = text
        .tokenizer()
        .encode(&char::from(letter).to_string(), false);
    tokens.expect("a byte")[0]
}

/// The log probability of a token needs its row.
#[tokio::test]
async fn each_token_has_its_log_probability() {
    let engine = engine(&oracle(), small()).await;
    let completion = complete(&engine, regex([1, 2, 3], ANSWER).logprobs(1)).await;
    let completion = completion.expect("an output");
    assert_eq!(completion.logprobs.len(), completion.tokens.len());
    let plain = complete(&engine, regex([1, 2, 3], ANSWER))
        .await
        .expect("an output");
    assert_eq!(plain.tokens, completion.tokens);
    engine.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn budget_ends_the_reasoning() {
    let oracle = oracle();
    let engine = common::engine(&oracle, small()).await;
    let prompt = [1, 2, 3];
    for (tokens_max, close) in [
        (5, &[70][..]),
        (1, &[70, 71, 72]),
        (0, &[70, 71]),
        (19, &[70]),
    ] {
        let request = Request::tokens(prompt)
            .output_tokens_max(20)
            .reasoning(budget(true, close, tokens_max));
        let completion = complete(&engine, request).await.expect("an output");
        let expected = with_inserted(&oracle, &prompt, tokens_max, close, 20);
        assert_eq!(completion.tokens, expected, "{tokens_max}");
        let usage = completion.finish.usage;
        assert_eq!(
            (usage.reasoning_tokens, usage.output_tokens),
            (tokens_max, 20)
        );
    }
    // A budget that is not used up changes nothing, and neither does one that never begins.
    for (is_open, reasoning_tokens) in [(true, 20), (false, 0)] {
        let request = Request::tokens(prompt)
            .output_tokens_max(20)
            .reasoning(budget(is_open, &[70], 1_000));
        let completion = complete(&engine, request).await.expect("an output");
        let expected = oracle.reference_tokens(&prompt, 20, Sampling::GREEDY);
        assert_eq!(completion.tokens, expected);
        assert_eq!(completion.finish.usage.reasoning_tokens, reasoning_tokens);
    }
    engine.shutdown(Shutdown::Finish).await;
}

/// The byte of each token in the vocabulary of the tests, without the end token.
fn byte_table() -> Vec<u8> {
    let text = bytes();
    let byte = |token| text.tokenizer().token_bytes(token).expect("known")[0];
    (0..END).map(byte).collect()
}

/// A prompt after which the oracle's tokens stand for bytes that fulfil a condition.
fn prompt_before(
    oracle: &OracleConfig,
    tokens: usize,
    condition: impl Fn(&[u8]) -> bool,
) -> [TokenId; 2] {
    let table = byte_table();
    let mut prompts = (0..END).flat_map(|first| (0..END).map(move |last| [first, last]));
    let prompt = prompts.find(|prompt| {
        let output = oracle.reference_tokens(prompt, tokens, Sampling::GREEDY);
        let bytes = output.iter().map(|token| table.get(*token as usize));
        let bytes: Option<Vec<u8>> = bytes.map(Option::<&u8>::copied).collect();
        bytes.is_some_and(|bytes| condition(&bytes))
    });
    prompt.expect("one of thousands")
}

/// The budget is one token, which may be the first byte of a character.
#[tokio::test]
async fn reasoning_ends_after_the_character_that_it_has_begun() {
    let oracle = oracle();
    let engine_with_text = engine(&oracle, small()).await;
    let engine_of_tokens = common::engine(&oracle, small()).await;
    let close = [token_of(b'<'), token_of(b'/'), token_of(b'>')];
    let reasoning = ReasoningBudget {
        // It does not begin again.
        open: Vec::new(),
        ..budget(true, &close, 1)
    };
    let is_one_character =
        |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(|text| text.chars().count() == 1);
    for length in 1..=4 {
        let prompt = prompt_before(&oracle, length, is_one_character);
        let request = Request::tokens(prompt)
            .output_tokens_max(20)
            .reasoning(reasoning.clone());
        let completion = complete(&engine_with_text, request.clone())
            .await
            .expect("an output");
        let expected = with_inserted(&oracle, &prompt, length, &close, 20);
        assert_eq!(completion.tokens, expected, "{length}");
        assert_eq!(completion.finish.usage.reasoning_tokens, length);
        let (character, _) = completion.text.split_once("</>").expect("an end");
        assert!(is_one_character(character.as_bytes()), "{character}");
        assert!(!character.contains('\u{fffd}'), "{length}");
        // Tokens without text end at once.
        let completion = complete(&engine_of_tokens, request)
            .await
            .expect("an output");
        assert_eq!(
            completion.tokens,
            with_inserted(&oracle, &prompt, 1, &close, 20)
        );
    }
    // Each of these bytes begins a character, and none is completed.
    let prompt = prompt_before(&oracle, 5, |bytes| {
        bytes.iter().all(|byte| (0xC2..0xF5).contains(byte))
    });
    let request = Request::tokens(prompt)
        .output_tokens_max(20)
        .reasoning(reasoning.clone());
    let completion = complete(&engine_with_text, request)
        .await
        .expect("an output");
    assert_eq!(
        completion.tokens,
        with_inserted(&oracle, &prompt, 4, &close, 20)
    );
    engine_with_text.shutdown(Shutdown::Finish).await;
    engine_of_tokens.shutdown(Shutdown::Finish).await;
}

#[test]
fn special_token_is_spelled_out_and_ends_a_character() {
    let spelling = bytes().token_spelling();
    assert_eq!(spelling.spelling(token_of(b'a')), b"a");
    assert_eq!(spelling.spelling(END), b"<end>");
    assert_eq!(
        spelling.spelling(END + 1),
        b"",
        "the vocabulary does not have it"
    );
}

/// The grammar allows characters of three and four bytes, and forces all bytes after the first.
#[tokio::test]
async fn grammar_completes_the_character_before_the_reasoning_ends() {
    let close = [token_of(b'<'), token_of(b'/'), token_of(b'>')];
    for config in [small(), without_forced_tokens()] {
        let engine = engine(&oracle(), config).await;
        let mut ended = [0; 4];
        for seed in 0..60 {
            let tokens_max = 1 + seed % 12;
            let request = regex([1, 2, 3], "(こ|😀){0,60}</>(yes|no)")
                .temperature(1.0)
                .seed(seed as u64)
                .reasoning(budget(true, &close, tokens_max));
            let completion = complete(&engine, request).await.expect("an output");
            let (reasoning, answer) = completion.text.split_once("</>").expect("an end");
            assert!(["yes", "no"].contains(&answer), "{answer}");
            let tokens = reasoning.len();
            assert_eq!(completion.finish.usage.reasoning_tokens, tokens);
            if let Some(excess) = tokens.checked_sub(tokens_max) {
                let last = reasoning.chars().next_back().map_or(0, char::len_utf8);
                assert!(excess < last, "{reasoning}");
                ended[excess] += 1;
            }
        }
        // Characters were complete with the budget, and after each number of tokens beyond it.
        assert!(ended.iter().all(|ends| *ends > 0), "{ended:?}");
        engine.shutdown(Shutdown::Finish).await;
    }
}

/// Two tokens of the vocabulary merge the mark's ends with the text beside it.
#[tokio::test]
async fn closing_mark_is_seen_in_merged_tokens() {
    let mut vocabulary = common::byte_vocabulary();
    vocabulary.tokens.extend(["x</", "><"].map(str::to_owned));
    vocabulary.token_types.extend([1, 1]);
    let merged: [TokenId; 2] = [END + 1, END + 2];
    let text = TextCodec::from_gguf(&vocabulary).expect("a vocabulary");
    let oracle = OracleConfig {
        vocab_size: text.tokenizer().vocab_size(),
        ..oracle()
    };
    let mut config = small();
    config.grammar.forced_tokens = false;
    let engine = common::engine_with_text(&oracle, text, config).await;
    let close = [b'<', b'/', b't', b'>'].map(token_of);
    let mut seen = [0; 2];
    for seed in 0..80 {
        let tokens_max = [2, usize::MAX][seed % 2];
        let request = regex([1, 2, 3], "(a|x){1,4}</t>(<yes>|none)")
            .temperature(1.0)
            .seed(seed as u64)
            .reasoning(budget(true, &close, tokens_max));
        let completion = complete(&engine, request).await.expect("an output");
        let (reasoning, answer) = completion.text.split_once("</t>").expect("an end");
        assert!(["<yes>", "none"].contains(&answer), "{answer}");
        // A merged token before the mark is a token of the last letter.
        let counted = completion.finish.usage.reasoning_tokens;
        assert_eq!(counted, reasoning.len(), "{}", completion.text);
        assert!(counted <= tokens_max, "{}", completion.text);
        for (seen, token) in seen.iter_mut().zip(merged) {
            *seen += usize::from(completion.tokens.contains(&token));
        }
    }
    assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
    engine.shutdown(Shutdown::Finish).await;
}

/// Penalties look at appended tokens as well, so the device needs another sampler.
#[tokio::test]
async fn sampler_knows_the_appended_tokens() {
    let oracle = oracle();
    let prompt = [1, 2];
    let begun = oracle.reference_tokens(&prompt, 2, Sampling::GREEDY);
    let next = |close: &[TokenId]| {
        let so_far = [&prompt[..], &begun, close].concat();
        oracle.reference_tokens(&so_far, 1, Sampling::GREEDY)[0]
    };
    // A mark after which the model would write the mark's first token.
    let mut marks = (80..240).flat_map(|first| (80..240).map(move |last| [first, last]));
    let close = marks.find(|close| next(close) == close[0]);
    let close = close.expect("one of thousands");
    let engine = engine(&oracle, small()).await;
    let request = Request::tokens(prompt)
        .output_tokens_max(5)
        .repetition_penalty(1e6)
        .reasoning(budget(true, &close, 2));
    let completion = complete(&engine, request).await.expect("an output");
    assert_eq!(completion.tokens[..4], [&begun[..], &close].concat());
    assert_ne!(
        completion.tokens[4], close[0],
        "it is in the output already"
    );
    engine.shutdown(Shutdown::Finish).await;
}

/// The grammar lets the reasoning come first. Its walk does not know the appended end, and reads
/// the output again.
#[tokio::test]
async fn grammar_accepts_the_end_of_the_reasoning() {
    let oracle = oracle();
    let engine = engine(&oracle, small()).await;
    let close = [token_of(b'<'), token_of(b'/'), token_of(b'>')];
    for tokens_max in [0, 1, 6, 40] {
        let request = regex([1, 2, 3], "[a-z]{0,200}</>(yes|no), surely")
            .reasoning(budget(true, &close, tokens_max));
        let completion = complete(&engine, request).await.expect("an output");
        let (reasoning, answer) = completion.text.split_once("</>").expect("an end");
        assert!(reasoning.len() <= tokens_max, "{}", completion.text);
        assert!(["yes, surely", "no, surely"].contains(&answer), "{answer}");
        assert_eq!(completion.finish.usage.reasoning_tokens, reasoning.len());
    }
    // A grammar that does not allow the end fails its request.
    let request = regex([1, 2, 3], "[a-z]{20}").reasoning(budget(true, &close, 4));
    let error = complete(&engine, request)
        .await
        .expect_err("no end is allowed");
    assert!(matches!(error, GenerateError::Grammar(_)), "{error}");
    engine.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn invalid_budget_is_rejected_by_its_field() {
    let engine = engine(&oracle(), small()).await;
    for (field, reasoning) in [
        ("reasoning.close", budget(true, &[], 1)),
        ("reasoning.close", budget(true, &[257], 1)),
        ("reasoning.open", budget(false, &[60], 1)),
    ] {
        let request = Request::tokens([1]).reasoning(reasoning);
        match engine.submit(request).await {
            Err(SubmitError::Field { field: found, .. }) => assert_eq!(found, field),
            other => panic!("expected a complaint about {field}, got {other:?}"),
        }
    }
    engine.shutdown(Shutdown::Finish).await;
}

/// Requests of all kinds at once: preempted for want of memory, forked, and computed again after
/// steps that fail and a model that panics. Each gets the tokens that it gets alone.
#[tokio::test]
async fn batch_memory_forks_and_failures_do_not_show() {
    const REQUESTS: u32 = 24;
    let close = [token_of(b'<'), token_of(b'/'), token_of(b'>')];
    let request = |number: u32| {
        let prompt: Vec<TokenId> = (0..20 + number % 5)
            .map(|at| 1 + (at * number) % 50)
            .collect();
        let request = regex(
            prompt,
            "[a-z]{0,30}</>(yes|no), surely and certainly[!?]{1,9}",
        )
        .temperature(1.0)
        .seed(u64::from(number));
        match number % 3 {
            0 => request.reasoning(budget(true, &close, (number % 7) as usize)),
            _ => request,
        }
    };
    let alone = engine(&oracle(), without_forced_tokens()).await;
    let mut expected = Vec::new();
    for number in 0..REQUESTS {
        let completion = complete(&alone, request(number)).await.expect("an output");
        expected.push((completion.tokens, completion.finish.usage.reasoning_tokens));
    }
    alone.shutdown(Shutdown::Finish).await;

    let mut oracle = oracle();
    oracle.cost = StepCost {
        base: Duration::from_micros(200),
        ..StepCost::default()
    };
    let spec = oracle.spec();
    let mut config = small();
    config.context_tokens_max = Some(96);
    config.cache.full_sequences_min = 1;
    config.cache.device_bytes_max = spec.tail_bytes(96) * 2;
    config.scheduler.step_retries_max = 100;
    let engine = engine(&oracle, config).await;
    let mut streams = Vec::new();
    for number in 0..REQUESTS {
        streams.push(engine.submit(request(number)).await.expect("it is valid"));
        let fault = [StepFault::Fail, StepFault::Panic][number as usize % 2];
        oracle.faults.next_steps(1, fault);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let fork = Request::tokens([1]).output_tokens_max(3);
    let forks = [engine.fork(&streams[0], None, fork).await];
    let mut collected = Vec::new();
    for stream in streams {
        let completion = stream.collect().await.expect("an output");
        collected.push((completion.tokens, completion.finish.usage.reasoning_tokens));
    }
    assert_eq!(collected, expected);
    for fork in forks.into_iter().flatten() {
        // Its source may have ended before.
        fork.collect().await.ok();
    }
    engine.shutdown(Shutdown::Finish).await;
}
