//! Schemas that force very long texts, on the oracle. Their tokens are appended up to 32 at a time,
//! and an ordinary sequence beside them gets a token in each step.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::common::{byte_oracle, bytes, engine_with_text, read, small, until};
use motet::error::GenerateError;
use motet::grammar::GrammarSource;
use motet::model::oracle::OracleConfig;
use motet::monitor::{EngineEvent, Events, StepView};
use motet::request::Sampling;
use motet::request::{Completion, Finish, FinishReason};
use motet::{Engine, Request, SequenceId, Shutdown, TokenStream};
use serde_json::{Value, json};

/// Most tokens of one output that a step evaluates.
const FORCED_TOKENS_MAX: usize = 32;
/// Most tokens of a step. Several forced texts at once have more than that.
const STEP_TOKENS_MAX: usize = 64;
/// Tokens of each prompt.
const PROMPT_TOKENS: usize = 3;
/// Length of a name in the deep objects.
const NAME_BYTES: usize = 400;
/// Objects in one another: a schema may be a hundred values deep.
const OBJECTS: usize = 49;
/// Constants in one array.
const ITEMS: usize = 300;

/// A schema with long forced texts.
struct Forcing {
    name: &'static str,
    schema: Value,
    is_valid: Box<dyn Fn(&Value) -> bool>,
    end: ExpectedEnd,
    /// Tokens of its answer for each step that it is part of, at least.
    tokens_per_step_min: usize,
}

#[derive(PartialEq)]
enum ExpectedEnd {
    Answer,
    /// Its lexer has more states than it may before its text ends.
    Bound,
}

/// An output, whole or not.
#[derive(Debug)]
struct Output {
    tokens: usize,
    text: String,
    end: Result<Finish, GenerateError>,
}

fn oracle() -> OracleConfig {
    OracleConfig {
        context_tokens_max: 70_000,
        tail_block_tokens: 256,
        ..byte_oracle()
    }
}

async fn engine(oracle: &OracleConfig) -> Engine {
    let mut config = small();
    config.scheduler.sequences_max = 16;
    config.scheduler.chunking.step_tokens_max = STEP_TOKENS_MAX;
    // A task of a test may read late, and its sequence must not pause then.
    config.scheduler.unread_tokens_max = 1 << 16;
    // A step's tokens are to be those of the texts.
    config.scheduler.speculation.enabled = false;
    engine_with_text(oracle, bytes(), config).await
}

/// A text of numbers, so that ten bytes in a row are at one place only.
fn text(length: usize) -> String {
    let numbers = (0..length.div_ceil(5)).map(|number| format!("{number:05}"));
    let mut text: String = numbers.collect();
    text.truncate(length);
    text
}

impl Forcing {
    fn new(
        name: &'static str,
        schema: Value,
        tokens_per_step_min: usize,
        is_valid: impl Fn(&Value) -> bool + 'static,
    ) -> Self {
        Self {
            name,
            schema,
            is_valid: Box::new(is_valid),
            end: ExpectedEnd::Answer,
            tokens_per_step_min,
        }
    }

    fn constant(name: &'static str, value: Value, tokens_per_step_min: usize) -> Self {
        let schema = json!({ "const": value });
        Self::new(name, schema, tokens_per_step_min, move |found| {
            *found == value
        })
    }
}

fn schemas() -> Vec<Forcing> {
    let longest = text(GrammarSource::SCHEMA_BYTES_MAX - r#"{"const":""}"#.len());
    let members = ["0", "1"].map(|last| text(20_000) + last);
    let enumeration = json!({ "enum": members });
    let pattern = json!({ "type": "string", "pattern": "^(abc){1000}$" });
    let letters = json!({
        "type": "string",
        "minLength": 2_000,
        "maxLength": 2_000,
        "pattern": "^a*$",
    });
    let items = json!({
        "type": "array",
        "minItems": ITEMS,
        "maxItems": ITEMS,
        "items": { "const": text(100) },
    });
    vec![
        Forcing::constant("long constant", json!(text(20_000)), 5),
        Forcing {
            end: ExpectedEnd::Bound,
            ..Forcing::constant("constant of the longest schema", json!(longest), 5)
        },
        // White space may come between its parts.
        Forcing::constant("constant in deep arrays", nested_arrays(90), 0),
        Forcing::new("members of an enumeration", enumeration, 5, move |found| {
            members.iter().any(|member| found == member)
        }),
        Forcing::new(
            "names in deep objects",
            nested_objects(),
            3,
            is_nested_objects,
        ),
        Forcing::new("pattern of one text", pattern, 2, |found| {
            *found == "abc".repeat(1_000)
        }),
        Forcing::new("letters of one length", letters, 0, |found| {
            *found == "a".repeat(2_000)
        }),
        Forcing::new("constants in an array", items, 2, |found| {
            let items = found.as_array().expect("an array");
            items.len() == ITEMS && items.iter().all(|item| *item == text(100))
        }),
    ]
}

fn nested_objects() -> Value {
    (0..OBJECTS).fold(json!({ "const": 1 }), |inner, _| {
        let name = text(NAME_BYTES);
        json!({
            "type": "object",
            "properties": { &name: inner },
            "required": [name],
            "additionalProperties": false,
        })
    })
}

fn is_nested_objects(found: &Value) -> bool {
    let mut value = found;
    for _ in 0..OBJECTS {
        let members = value.as_object().expect("an object");
        assert_eq!(members.len(), 1);
        value = &members[&text(NAME_BYTES)];
    }
    *value == json!(1)
}

fn nested_arrays(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!([inner]))
}

fn request(schema: &Value) -> Request {
    let source = GrammarSource::JsonSchema(schema.to_string());
    Request::tokens([1, 2, 3])
        .output_tokens_max(69_000)
        .grammar(source)
}

fn constant(length: usize) -> Request {
    request(&json!({ "const": text(length) }))
}

async fn complete(engine: &Engine, request: Request) -> Completion {
    let stream = engine.submit(request).await.expect("it is accepted");
    stream.collect().await.expect("an output")
}

async fn output(mut stream: TokenStream) -> Output {
    let (mut tokens, mut text) = (0, String::new());
    while let Some(piece) = stream.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                return Output {
                    tokens,
                    text,
                    end: Err(error),
                };
            }
        };
        tokens += usize::from(piece.token.is_some());
        text.push_str(&piece.text);
        if let Some(finish) = piece.finish {
            return Output {
                tokens,
                text,
                end: Ok(finish),
            };
        }
    }
    panic!("the stream has no end")
}

/// Collects all steps until the engine ends.
fn follow_steps(mut events: Events) -> JoinHandle<Vec<Arc<StepView>>> {
    tokio::spawn(async move {
        let mut steps = Vec::new();
        while let Some(event) = events.next().await {
            if let EngineEvent::Step(step) = event {
                steps.push(step);
            }
        }
        assert_eq!(events.missed(), 0);
        steps
    })
}

fn tokens_in(step: &StepView, sequence: SequenceId) -> usize {
    let own = step.spans.iter().filter(|span| span.sequence == sequence);
    own.map(|span| span.tokens).sum()
}

/// Returns the number of steps with a sequence, and the number of others between these.
fn steps_and_gaps(steps: &[Arc<StepView>], sequence: SequenceId) -> (usize, usize) {
    let (mut with, mut gaps, mut since) = (0, 0, 0);
    for step in steps {
        if tokens_in(step, sequence) > 0 {
            gaps += if with > 0 { since } else { 0 };
            (with, since) = (with + 1, 0);
        } else {
            since += 1;
        }
    }
    (with, gaps)
}

async fn wait_until_idle(engine: &Engine) {
    until("all has ended", || {
        let stats = engine.stats();
        stats.running + stats.waiting + stats.paused == 0 && stats.cache.reserved_bytes == 0
    })
    .await;
}

/// Checks what came of a schema.
fn check_output(forcing: &Forcing, output: &Output) {
    let name = forcing.name;
    assert_eq!(
        output.text.len(),
        output.tokens,
        "{name}: each token is a byte"
    );
    match &output.end {
        Ok(finish) => {
            assert!(forcing.end == ExpectedEnd::Answer, "{name}");
            assert_eq!(finish.reason, FinishReason::EndToken, "{name}");
            assert_eq!(finish.usage.output_tokens, output.tokens, "{name}");
            let answer = serde_json::from_str(&output.text).expect("JSON");
            assert!((forcing.is_valid)(&answer), "{name}");
        }
        Err(GenerateError::Grammar(why)) => {
            assert!(
                forcing.end == ExpectedEnd::Bound,
                "{name}: {}",
                why.reveal()
            );
            assert!(why.reveal().contains("too many states"), "{name}");
            let whole = forcing.schema["const"].to_string();
            assert!(
                output.tokens > 10_000 && whole.starts_with(&output.text),
                "{name}"
            );
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

#[tokio::test]
async fn ordinary_sequence_is_in_each_step_beside_long_forced_texts() {
    const ORDINARY_TOKENS: usize = 4_000;
    let prompt = [7, 8, 9];
    let oracle = oracle();
    let engine = engine(&oracle).await;
    let steps = follow_steps(engine.events());
    let ordinary = Request::tokens(prompt).output_tokens_max(ORDINARY_TOKENS);
    let mut ordinary = engine.submit(ordinary).await.expect("it is accepted");
    let ordinary_sequence = ordinary.sequence();
    let mut ordinary_tokens = read(&mut ordinary, 1).await;
    let ordinary = tokio::spawn(ordinary.collect());
    let mut outputs = Vec::new();
    for forcing in schemas() {
        let stream = engine.submit(request(&forcing.schema)).await;
        let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", forcing.name));
        outputs.push((forcing, stream.sequence(), tokio::spawn(output(stream))));
    }
    let completion = ordinary.await.expect("no panic").expect("an output");
    ordinary_tokens.extend(completion.tokens);
    let expected = oracle.reference_tokens(&prompt, ORDINARY_TOKENS, Sampling::GREEDY);
    assert_eq!(ordinary_tokens, expected);
    let mut ended = Vec::new();
    for (forcing, sequence, output) in outputs {
        let output = output.await.expect("no panic");
        check_output(&forcing, &output);
        ended.push((forcing, sequence, output.tokens));
    }
    wait_until_idle(&engine).await;
    let stats = engine.stats();
    engine.shutdown(Shutdown::Finish).await;

    let all: usize = ended.iter().map(|(_, _, tokens)| tokens).sum();
    assert_eq!(stats.output_tokens as usize, ORDINARY_TOKENS + all);
    assert_eq!(stats.preempted, 0);
    let steps = steps.await.expect("no panic");
    let (with, gaps) = steps_and_gaps(&steps, ordinary_sequence);
    assert_eq!(
        with, ORDINARY_TOKENS,
        "its prompt, and all tokens but the last"
    );
    // It may wait for an answer of the cache now and then.
    assert!(
        gaps <= ORDINARY_TOKENS / 100,
        "{gaps} steps were without it"
    );
    for step in &steps {
        let spans = step.spans.iter().map(|span| span.tokens);
        assert!(
            spans.clone().all(|tokens| tokens <= FORCED_TOKENS_MAX),
            "{step:?}"
        );
        assert!(spans.sum::<usize>() <= STEP_TOKENS_MAX, "{step:?}");
    }
    for (forcing, sequence, tokens) in ended {
        let name = forcing.name;
        let spans = steps.iter().map(|step| tokens_in(step, sequence));
        let spans: Vec<usize> = spans.filter(|tokens| *tokens > 0).collect();
        let evaluated: usize = spans.iter().sum();
        // The step after its last token was in flight, with the token that ended it.
        let most = PROMPT_TOKENS + tokens + 1;
        assert!(
            (most - 2..=most).contains(&evaluated),
            "{name}: {evaluated}, {most}"
        );
        assert!(
            tokens >= forcing.tokens_per_step_min * spans.len(),
            "{name}: {tokens} {}",
            spans.len()
        );
    }
}

/// Each of these limits is within a run, at its end, or after its first token.
#[tokio::test]
async fn limit_within_a_long_forced_text_ends_it_at_that_token() {
    let engine = engine(&oracle()).await;
    let whole = json!(text(2_000)).to_string();
    let limits = (1..5)
        .chain(30..36)
        .chain(62..70)
        .chain(94..100)
        .chain([1_000, 1_999]);
    let mut streams = Vec::new();
    for limit in limits {
        let request = constant(2_000).output_tokens_max(limit);
        let stream = engine.submit(request).await.expect("it is accepted");
        streams.push((limit, tokio::spawn(output(stream))));
    }
    for (limit, output) in streams {
        let output = output.await.expect("no panic");
        let finish = output.end.expect("an output");
        assert_eq!(finish.reason, FinishReason::Length, "{limit}");
        assert_eq!((output.tokens, finish.usage.output_tokens), (limit, limit));
        assert_eq!(output.text, whole[..limit]);
    }
    wait_until_idle(&engine).await;
    engine.shutdown(Shutdown::Finish).await;
}

/// Stop strings are found wherever runs of forced tokens begin and end in them.
#[tokio::test]
async fn stop_string_within_a_long_forced_text_ends_it_there() {
    let engine = engine(&oracle()).await;
    let whole = json!(text(2_000)).to_string();
    for at in (20..80).chain([1_000, 1_500]) {
        let stop = &whole[at..at + 10];
        let request = constant(2_000).stop(stop);
        let completion = complete(&engine, request).await;
        assert_eq!(completion.finish.reason, FinishReason::StopString, "{at}");
        assert_eq!(completion.text, whole[..at]);
        assert_eq!(
            completion.finish.usage.output_tokens,
            at + stop.len(),
            "{at}"
        );
        assert_eq!(completion.tokens.len(), at + stop.len(), "{at}");
    }
    wait_until_idle(&engine).await;
    engine.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn cancelled_forced_text_frees_everything() {
    let engine = engine(&oracle()).await;
    let whole = json!(text(20_000)).to_string();
    for (round, tokens) in [0, 1, 2, 31, 33, 40, 65, 500, 3_000]
        .into_iter()
        .enumerate()
    {
        let mut stream = engine
            .submit(constant(20_000))
            .await
            .expect("it is accepted");
        let before = read(&mut stream, tokens).await.len();
        if round % 2 == 0 {
            stream.handle().cancel();
            let output = output(stream).await;
            let finish = output.end.expect("an output");
            assert_eq!(finish.reason, FinishReason::Cancelled, "{tokens}");
            assert_eq!(
                finish.usage.output_tokens,
                before + output.tokens,
                "{tokens}"
            );
            assert!(finish.usage.output_tokens < 20_000, "it ended by itself");
            assert_eq!(
                output.text,
                whole[before..before + output.tokens],
                "{tokens}"
            );
        } else {
            drop(stream);
        }
        wait_until_idle(&engine).await;
        engine.clear_all_caches().await.expect("nothing is leased");
        let stats = engine.stats();
        let cache = stats.cache;
        assert_eq!(
            (cache.segments, cache.sealed_bytes, cache.reserved_bytes),
            (0, 0, 0)
        );
    }
    let completion = complete(&engine, constant(1_000)).await;
    assert_eq!(completion.text, json!(text(1_000)).to_string());
    engine.shutdown(Shutdown::Finish).await;
}
