//! The content of a request appears in no log, no metric and no error, however the request is
//! rejected or fails.
#![cfg(motet_injected)]

mod common;

use std::fmt::Write;
use std::sync::{Mutex, OnceLock};

use common::{byte_vocabulary, until};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use motet::config::EngineConfig;
use motet::failpoint::Failpoints;
use motet::grammar::GrammarSource;
use motet::model::LayerKind;
use motet::model::oracle::{Faults, Oracle, OracleConfig};
use motet::text::{Message, TextCodec};
use motet::{Engine, HealthState, Request, Shutdown, TokenId};
use motet_model::oracle::StepFault;

const OUTPUT_TOKENS: usize = 4;
/// Devices that are lost until the breaker has opened.
const LOSSES_MAX: usize = 100;
/// The model's vocabulary size, larger than the tokenizer's.
const VOCABULARY: usize = 500_000;
/// A token outside the vocabulary.
const STRAY_TOKEN: TokenId = 424_242_424;

/// A word and tokens that appear in requests and nowhere else. The vocabulary skips the second.
const MARK: &str = "xyzzyplugh";
const MARKED_TOKEN: TokenId = 424_242;
const SKIPPED_TOKEN: TokenId = 414_141;

/// All log output, and all names and labels of metrics.
fn captured_log() -> &'static Mutex<String> {
    static CAPTURED_LOG: OnceLock<Mutex<String>> = OnceLock::new();
    CAPTURED_LOG.get_or_init(Mutex::default)
}

fn capture(what: std::fmt::Arguments<'_>) {
    let mut captured_log = captured_log()
        .lock()
        .expect("no thread panics while it holds the lock");
    writeln!(captured_log, "{what}").expect("writing to a string does not fail");
}

/// Captures every event and span, at every level.
struct LogCapture;

impl tracing::Subscriber for LogCapture {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut Fields);
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut Fields);
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        capture(format_args!("log: {}", event.metadata().target()));
        event.record(&mut Fields);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Fields;

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        capture(format_args!("log: {field} {value:?}"));
    }
}

impl Recorder for LogCapture {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        capture(format_args!("metric: {key:?}"));
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        capture(format_args!("metric: {key:?}"));
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        capture(format_args!("metric: {key:?}"));
        Histogram::noop()
    }
}

/// Puts the word into every field that can hold it.
fn marked(request: Request) -> Request {
    Request {
        stop_strings: vec![MARK.into()],
        ..request.user(MARK).cache_salt(MARK).prediction(MARK)
    }
}

/// Captures an error and its sources, formatted with `Display` and `Debug`.
fn capture_error(error: &(dyn std::error::Error + 'static)) {
    capture(format_args!("error: {error} {error:?} {error:#?}"));
    if let Some(source) = error.source() {
        capture_error(source);
    }
}

async fn submit_and_capture(engine: &Engine, request: Request) {
    capture(format_args!("request: {request:?} {request:#?}"));
    match engine.submit(request).await {
        Ok(stream) => {
            capture(format_args!("stream: {stream:?}"));
            if let Err(error) = stream.collect().await {
                capture_error(&error);
            }
        }
        Err(error) => capture_error(&error),
    }
}

/// Bytes as tokens, and the marked token far behind them.
fn text() -> TextCodec {
    /// Types of a GGUF file's tokens.
    const NORMAL: i32 = 1;
    const UNUSED: i32 = 5;

    let mut vocabulary = byte_vocabulary();
    let unused = vocabulary.tokens.len()..MARKED_TOKEN as usize;
    vocabulary
        .token_types
        .extend(unused.clone().map(|_| UNUSED));
    vocabulary
        .tokens
        .extend(unused.map(|id| format!("[PAD{id}]")));
    vocabulary.token_types.push(NORMAL);
    vocabulary.tokens.push("marked".into());
    TextCodec::from_gguf(&vocabulary).expect("a vocabulary")
}

async fn start(faults: &Faults, failpoints: &Failpoints) -> Engine {
    let oracle = OracleConfig {
        vocab_size: VOCABULARY,
        end_tokens: vec![256],
        end_one_in: 0,
        context_tokens_max: 512,
        tail_block_tokens: 16,
        faults: faults.clone(),
        ..OracleConfig::with_layers(&[LayerKind::Full])
    };
    let mut config = EngineConfig::default();
    config.scheduler.admission.queue_max = 0;
    config.scheduler.sequences_max = 2;
    config.scheduler.chunking.step_tokens_max = 32;
    config.scheduler.admission.user_requests_max = Some(1);
    config.scheduler.unread_tokens_max = 4;
    config.recovery.rebuilds_max = 3;
    let builder = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")));
    let builder = builder
        .config(config)
        .text(text())
        .failpoints(failpoints.clone());
    builder.start().await.expect("the engine starts")
}

/// Tokens, texts, grammars and chats that are rejected, each for a different reason.
fn invalid_requests() -> Vec<Request> {
    let one = || Request::tokens([1]);
    vec![
        Request::tokens([1, STRAY_TOKEN]),
        Request::tokens([1, SKIPPED_TOKEN]),
        one().stop_token(STRAY_TOKEN),
        one().bias(STRAY_TOKEN, 1.0),
        one().bias(MARKED_TOKEN, f32::NAN),
        one().grammar(GrammarSource::Regex(format!("({MARK}"))),
        one().grammar(GrammarSource::Lark(format!("start: {MARK}"))),
        one().grammar(GrammarSource::JsonSchema(format!("{{{MARK}"))),
        Request::chat([Message::user(MARK)]),
        Request::text(MARK.repeat(200)),
        one().output_tokens_max(0),
    ]
}

#[tokio::test]
async fn request_content_is_in_no_log_metric_or_error() {
    tracing::subscriber::set_global_default(LogCapture).expect("it is the only one here");
    metrics::set_global_recorder(LogCapture).expect("it is the only one here");
    let (faults, failpoints) = (Faults::default(), Failpoints::default());
    let engine = start(&faults, &failpoints).await;
    capture(format_args!("engine: {engine:?}"));
    let ask = || {
        let request = Request::tokens([1, MARKED_TOKEN]).stop_token(MARKED_TOKEN);
        marked(request.output_tokens_max(OUTPUT_TOKENS))
    };

    for request in invalid_requests() {
        submit_and_capture(&engine, marked(request)).await;
    }
    // The engine is full for one user, and then for all. No stream is read, so no sequence
    // finishes.
    let holds = || ask().bias(65, 1e6).output_tokens_max(400);
    let first = engine.submit(holds()).await;
    submit_and_capture(&engine, ask()).await;
    let other = engine.submit(holds().user("other")).await;
    let occupying_requests = [first, other];
    submit_and_capture(&engine, ask().user("third")).await;
    drop(occupying_requests);
    until("they have ended", || is_idle(&engine)).await;

    // Steps that fail, and a model that panics.
    for fault in [StepFault::Fail, StepFault::Panic] {
        faults.next_steps(6, fault);
        submit_and_capture(&engine, ask()).await;
        until("it has ended", || is_idle(&engine)).await;
        faults.clear();
    }
    // Actors that die until the breaker opens.
    for failpoint in [&failpoints.scheduler, &failpoints.cache] {
        failpoint.arm(1);
        submit_and_capture(&engine, ask()).await;
    }
    for _ in 0..LOSSES_MAX {
        if is_broken(&engine) {
            break;
        }
        failpoints.device.arm(1);
        submit_and_capture(&engine, ask()).await;
    }
    assert!(is_broken(&engine), "the breaker opens");
    submit_and_capture(&engine, ask()).await;
    capture(format_args!("{:?} {:?}", engine.stats(), engine.health()));
    engine.shutdown(Shutdown::Abort).await;

    tracing::trace!("the last word");
    let captured_log = captured_log()
        .lock()
        .expect("no thread panics while it holds the lock");
    let marks = [
        MARK.to_owned(),
        MARKED_TOKEN.to_string(),
        SKIPPED_TOKEN.to_string(),
    ];
    for line in captured_log.lines() {
        let is_mentioned = marks.iter().any(|mark| line.contains(mark));
        assert!(!is_mentioned, "{line}");
    }
    for provoked in [
        "metric: ",
        "request: Request",
        "beyond the vocabulary",
        "for a token",
        "Grammar",
        "no chat template",
        "UserRequests",
        "what: Requests",
        "a token id that the vocabulary skips",
        "the device failed",
        "the scheduler has panicked",
        "the cache has panicked",
        "the engine is broken",
        // All levels are captured.
        "the last word",
    ] {
        assert!(
            captured_log.contains(provoked),
            "`{provoked}` in {captured_log}"
        );
    }
}

fn is_broken(engine: &Engine) -> bool {
    matches!(engine.health().state, HealthState::Broken { .. })
}

fn is_idle(engine: &Engine) -> bool {
    engine.health().state == HealthState::Ready
}
