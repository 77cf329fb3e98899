//! Requests to an engine.

use std::time::Duration;

use motet::model::oracle::{Oracle, OracleConfig};
use motet::{Engine, Request};
use tokio::runtime::Runtime;

use super::input::FuzzInput;

/// An engine, and its runtime.
struct EngineHarness {
    runtime: Runtime,
    engine: Engine,
}

/// Any request is rejected with a reason, or has a stream.
pub fn request(input: &[u8]) {
    thread_local!(static HARNESS: EngineHarness = EngineHarness::new());
    let request = any_request(&mut FuzzInput(input));
    HARNESS.with(|harness| {
        harness.runtime.block_on(async {
            match harness.engine.submit(request).await {
                Ok(stream) => drop(stream),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            // The engine then learns that the stream was dropped.
            tokio::task::yield_now().await;
        });
    });
}

impl EngineHarness {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let oracle = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
        let engine = runtime.block_on(Engine::builder(oracle).start());
        let engine = engine.expect("the oracle starts");
        Self { runtime, engine }
    }
}

/// Sets each field if a bit says so.
fn any_request(input: &mut FuzzInput<'_>) -> Request {
    let prompt: Vec<u32> = (0..input.below(20)).map(|_| number(input) as u32).collect();
    let mut request = Request::tokens(prompt);
    let fields = input.u64();
    for field in (0..22).filter(|field| fields >> field & 1 == 1) {
        request = with_field(request, field, input);
    }
    request
}

fn with_field(request: Request, field: u32, input: &mut FuzzInput<'_>) -> Request {
    match field {
        0 => request.output_tokens_max(number(input)),
        1 => request.output_tokens_min(number(input)),
        2 => request.temperature(input.f32()),
        3 => request.top_k(number(input) as u32),
        4 => request.top_p(input.f32()),
        5 => request.min_p(input.f32()),
        6 => request.seed(input.u64()),
        7 => request.bias(number(input) as u32, input.f32()),
        8 => request.logprobs(number(input)),
        9 => request.stop(String::from_utf8_lossy(input.0)),
        10 => request.stop_token(number(input) as u32),
        11 => request.ignore_end_tokens(),
        12 => request.repetition_penalty(input.f32()),
        13 => request.presence_penalty(input.f32()),
        14 => request.frequency_penalty(input.f32()),
        15 => request.n(number(input)),
        16 => request.best_of(number(input)),
        17 => request.weight(f64::from(input.f32())),
        18 => request.start_within(Duration::from_nanos(number(input) as u64)),
        19 => request.finish_within(Duration::from_secs(number(input) as u64)),
        20 => request.shift(number(input)),
        _ => request.restore_point(number(input)),
    }
}

/// A number that is often small or the largest.
fn number(input: &mut FuzzInput<'_>) -> usize {
    match input.byte() {
        small @ 0..=199 => usize::from(small),
        200..=219 => usize::MAX,
        220..=229 => usize::MAX / 2,
        _ => input.u64() as usize,
    }
}
