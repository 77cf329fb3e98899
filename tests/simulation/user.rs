//! Users: their requests, and how often they come.

use std::rc::Rc;
use std::time::Duration;

use motet::error::{CacheCommandError, SubmitError};
use motet::request::{CacheUse, ContextLimit, Priority, Sampling};
use motet::{Engine, Request, TokenId, TokenStream};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::time::{sleep, timeout};

use crate::expected::ExpectedOutput;
use crate::fault_schedule::millis;
use crate::harness::SimulationHarness;
use crate::plan::Fault;
use crate::reader::{failed, read};

/// Attempts of a user whose request is rejected.
const TRIES_MAX: usize = 40;

/// A user's planned request.
struct PlannedRequest {
    request: Request,
    prompt: Vec<TokenId>,
    output_tokens_max: usize,
    sampling: Sampling,
    at_context_limit: ContextLimit,
    has_deadline: bool,
}

/// One user's visit.
pub(crate) async fn visit(harness: Rc<SimulationHarness>, number: u64) {
    let mut rng = harness.plan.rng(number);
    sleep(harness.pause(&mut rng, 0..=3_000)).await;
    let mut conversation = opening(&mut rng);
    for _ in 0..rng.random_range(1..=5) {
        let planned = planned(&harness, &conversation, number, &mut rng);
        match rng.random_range(0..20) {
            0 => use_cache_commands(&harness, planned.request, &mut rng).await,
            1 | 2 => submit_outputs(&harness, planned, &mut rng).await,
            3 | 4 => fork(&harness, planned, &mut rng).await,
            _ => conversation = converse(&harness, planned, &mut rng).await,
        }
        conversation.extend((0..rng.random_range(1..=8)).map(|_| rng.random_range(1..50)));
        if conversation.len() + 20 > harness.plan.oracle.context_tokens_max || rng.random_bool(0.1)
        {
            conversation = opening(&mut rng);
        }
        sleep(harness.pause(&mut rng, 0..=3_000)).await;
    }
}

/// A prompt with the same beginning as some others.
fn opening(rng: &mut ChaCha8Rng) -> Vec<TokenId> {
    let shared = [0, 9, 30, 60][rng.random_range(0..4)];
    let mut prompt: Vec<TokenId> = (0..shared).map(|at| 1 + at * 7 % 48).collect();
    prompt.extend((0..rng.random_range(1..=25)).map(|_| rng.random_range(1..50)));
    prompt
}

fn planned(
    harness: &SimulationHarness,
    conversation: &[TokenId],
    number: u64,
    rng: &mut ChaCha8Rng,
) -> PlannedRequest {
    let context = harness.plan.oracle.context_tokens_max;
    let mut sampling = Sampling::GREEDY;
    if rng.random_bool(0.5) {
        sampling.temperature = 1.0;
        sampling.seed = rng.random();
    }
    let shifts = rng.random_bool(0.15);
    let at_context_limit = if shifts {
        ContextLimit::Shift {
            keep: rng.random_range(0..context / 4),
        }
    } else {
        ContextLimit::Stop
    };
    let output_tokens_max = if shifts {
        rng.random_range(1..=context)
    } else {
        rng.random_range(1..=50)
    };
    let mut request = Request::tokens(conversation)
        .output_tokens_max(output_tokens_max)
        .sampling(sampling)
        .priority(
            [Priority::Background, Priority::Normal, Priority::Urgent][rng.random_range(0..3)],
        )
        .user(format!("user {}", number % 5))
        .retention(rng.random_range(0..3));
    request.at_context_limit = at_context_limit;
    if rng.random_bool(0.1) {
        request = request.without_cache();
    } else if rng.random_bool(0.2) {
        request = request.cache_salt("another");
    }
    if request.cache == CacheUse::Shared && rng.random_bool(0.3) {
        request = request.restore_point(rng.random_range(0..=conversation.len()));
    }
    request.report_prefill_progress = rng.random_bool(0.1);
    let has_deadline = rng.random_bool(0.1);
    if has_deadline {
        let time = millis(rng, 1..=20_000);
        request = if rng.random_bool(0.5) {
            request.start_within(time)
        } else {
            request.finish_within(time)
        };
    }
    PlannedRequest {
        request,
        prompt: conversation.to_vec(),
        output_tokens_max,
        sampling,
        at_context_limit,
        has_deadline,
    }
}

impl PlannedRequest {
    /// The expected output number `index`.
    fn expected(&self, harness: &SimulationHarness, index: u64) -> ExpectedOutput {
        let sampling = Sampling {
            seed: self.sampling.seed.wrapping_add(index),
            ..self.sampling
        };
        let mut expected = ExpectedOutput::new(
            &harness.plan.oracle,
            self.prompt.clone(),
            self.output_tokens_max,
            sampling,
            self.at_context_limit,
        );
        expected.has_deadline = self.has_deadline;
        expected
    }
}

/// Submits until the request is admitted, or gives up. `ask` returns a rejected request.
async fn admitted<T>(
    harness: &SimulationHarness,
    request: Request,
    rng: &mut ChaCha8Rng,
    ask: impl AsyncFn(&Engine, Request) -> Result<T, SubmitError>,
) -> Option<T> {
    let mut request = request;
    for _ in 0..TRIES_MAX {
        let Some(engine) = harness.engine() else {
            sleep(harness.pause(rng, 10..=2_000)).await;
            continue;
        };
        let original = request.clone();
        let asked = ask(&engine, request).await;
        drop(engine);
        match asked {
            Ok(admitted) => return Some(admitted),
            Err(SubmitError::QueueFull {
                retry_after,
                request: returned,
                what,
            }) => {
                harness.record.count("rejected: queue full", 1);
                harness.record.log(format_args!("full of {what}"));
                assert_eq!(
                    *returned, original,
                    "a rejected request is returned unchanged"
                );
                request = *returned;
                sleep(retry_after).await;
            }
            Err(SubmitError::Draining) => {
                let plan = &harness.plan;
                let ends = plan.has_any(&[Fault::Drained, Fault::Aborted]);
                assert!(ends, "the engine is not shut down here");
                harness.record.count("rejected: draining", 1);
                request = original;
                sleep(harness.pause(rng, 10..=2_000)).await;
            }
            Err(SubmitError::Broken { reason }) => {
                let opens = harness.plan.rate(Fault::BreakerOpens) > 0.0;
                assert!(opens, "failures are bounded: {reason}");
                harness.record.count("rejected: engine broken", 1);
                request = original;
                sleep(harness.pause(rng, 10..=2_000)).await;
            }
            Err(SubmitError::Field { field, .. }) if field.ends_with("_by") => {
                harness.record.count("rejected: deadline over", 1);
                return None;
            }
            Err(error) => panic!("a sound request is rejected: {error}"),
        }
    }
    harness.record.count("behaviour: gives up", 1);
    None
}

async fn submit(
    harness: &SimulationHarness,
    request: Request,
    rng: &mut ChaCha8Rng,
) -> Option<TokenStream> {
    let hasty = rng.random_bool(0.05);
    let stream = admitted(harness, request, rng, async |engine, request| {
        if hasty {
            harness.record.count("behaviour: cancels at once", 1);
            // Polled once, and dropped unless that was enough.
            let submit = timeout(Duration::ZERO, engine.submit(request)).await;
            return match submit {
                Ok(submitted) => submitted.map(Some),
                Err(_) => Ok(None),
            };
        }
        engine.submit(request).await.map(Some)
    });
    let stream = stream.await.flatten()?;
    harness.record.count("sequences", 1);
    harness.record.log(format_args!(
        "{} of {} tokens",
        stream.sequence(),
        stream.prompt_tokens()
    ));
    Some(stream)
}

/// Runs one turn of a conversation, and returns all tokens known afterwards.
async fn converse(
    harness: &SimulationHarness,
    planned: PlannedRequest,
    rng: &mut ChaCha8Rng,
) -> Vec<TokenId> {
    let mut expected = planned.expected(harness, 0);
    let original = planned.request.clone();
    if let Some(mut stream) = submit(harness, planned.request.clone(), rng).await {
        if rng.random_bool(0.1) {
            let queue_position = stream.queue_position().await;
            harness
                .record
                .log(format_args!("its place: {queue_position:?}"));
        }
        let is_complete = read(harness, &mut stream, &mut expected, rng).await;
        drop(stream);
        if !is_complete && rng.random_bool(0.5) {
            harness
                .record
                .count("behaviour: asks for the same again", 1);
            if let Some(mut stream) = submit(harness, original, rng).await {
                expected = planned.expected(harness, 0);
                read(harness, &mut stream, &mut expected, rng).await;
            }
        }
    }
    match planned.at_context_limit {
        ContextLimit::Stop => expected.known(),
        ContextLimit::Shift { .. } => expected.prompt,
    }
}

/// Several outputs of one prompt, read one after another.
async fn submit_outputs(
    harness: &SimulationHarness,
    mut planned: PlannedRequest,
    rng: &mut ChaCha8Rng,
) {
    let most = harness.plan.config.scheduler.sequences_max
        + harness.plan.config.scheduler.admission.queue_max;
    let outputs = rng.random_range(1..=4.min(most));
    planned.request.n = outputs;
    let request = planned.request.clone();
    let streams = admitted(harness, request, rng, async |engine, request| {
        engine.submit_many(request).await
    });
    let Some(streams) = streams.await else {
        return;
    };
    harness.record.count("sequences", streams.len() as u64);
    harness.record.count("behaviour: wants several outputs", 1);
    for (index, mut stream) in (0..).zip(streams) {
        let mut expected = planned.expected(harness, index);
        // Outputs that are read later have waited.
        expected.is_slow = index > 0;
        // They continue the first, which may have failed before they could.
        expected.is_fork = index > 0;
        read(harness, &mut stream, &mut expected, rng).await;
    }
}

/// Reads a little, then continues in two ways.
async fn fork(harness: &SimulationHarness, planned: PlannedRequest, rng: &mut ChaCha8Rng) {
    let mut expected = planned.expected(harness, 0);
    let Some(mut stream) = submit(harness, planned.request, rng).await else {
        return;
    };
    for _ in 0..rng.random_range(0..=10) {
        match stream.next().await {
            Some(Ok(piece)) if piece.finish.is_some() => return,
            Some(Ok(piece)) => piece
                .token
                .into_iter()
                .for_each(|token| expected.received(token)),
            Some(Err(error)) => return failed(harness, stream.sequence(), &expected, &error),
            None => return,
        }
    }
    let known = expected.known();
    let at = rng.random_range(1..=known.len());
    let appended: Vec<TokenId> = (0..rng.random_range(0..=6))
        .map(|_| rng.random_range(1..50))
        .collect();
    let prompt = [&known[..at], &appended[..]].concat();
    let context = harness.plan.oracle.context_tokens_max;
    let output_tokens_max = rng.random_range(1..=20);
    if prompt.len() >= context {
        return;
    }
    let request = Request::tokens(appended)
        .output_tokens_max(output_tokens_max)
        .sampling(planned.sampling);
    let Some(engine) = harness.engine() else {
        return;
    };
    let rewinds = rng.random_bool(0.3);
    let (forked, source) = if rewinds {
        (engine.rewind(stream, at, request).await, None)
    } else {
        let forked = engine.fork(&stream, Some(at), request).await;
        (forked, Some(stream))
    };
    drop(engine);
    let mut other = match forked {
        Ok(other) => other,
        // The engine was replaced since, or is full.
        Err(
            SubmitError::QueueFull { .. }
            | SubmitError::Draining
            | SubmitError::Broken { .. }
            | SubmitError::Field {
                field: "source", ..
            },
        ) => return,
        Err(error) => panic!("a sound fork is rejected: {error}"),
    };
    harness.record.count("sequences", 1);
    let behaviour = if rewinds {
        "behaviour: rewinds"
    } else {
        "behaviour: forks"
    };
    harness.record.count(behaviour, 1);
    let mut fork_expected = ExpectedOutput::new(
        &harness.plan.oracle,
        prompt,
        output_tokens_max,
        planned.sampling,
        planned.at_context_limit,
    );
    fork_expected.is_fork = true;
    expected.is_slow = true;
    let both = rng.random_bool(0.7);
    read(harness, &mut other, &mut fork_expected, rng).await;
    if both && let Some(mut stream) = source {
        read(harness, &mut stream, &mut expected, rng).await;
    }
}

/// Warms, pins, clears or inspects the cache.
async fn use_cache_commands(harness: &SimulationHarness, request: Request, rng: &mut ChaCha8Rng) {
    let Some(engine) = harness.engine() else {
        return;
    };
    harness.record.count("behaviour: looks after the cache", 1);
    let salt = request.cache_salt.clone();
    let request = Request {
        start_within: None,
        finish_within: None,
        cache: CacheUse::Shared,
        ..request
    };
    let done = match rng.random_range(0..4) {
        0 => engine.warm(request).await.map(drop),
        1 if harness.plan.pins => pin(harness, &engine, request, rng).await,
        2 => engine.clear_cache(salt.as_deref()).await,
        _ => engine.cache_tree(salt.as_deref()).await.map(drop),
    };
    let ends = [Fault::Drained, Fault::Aborted, Fault::BreakerOpens];
    match done {
        Ok(()) => {}
        Err(CacheCommandError::Submit(error)) => match *error {
            SubmitError::QueueFull { .. } => {}
            SubmitError::Draining | SubmitError::Broken { .. } if harness.plan.has_any(&ends) => {}
            error => panic!("a sound request is rejected: {error}"),
        },
        Err(CacheCommandError::Stopped) if harness.plan.has_any(&ends) => {}
        Err(CacheCommandError::Cache(error)) => {
            harness.record.log(format_args!("not kept: {error}"))
        }
        Err(CacheCommandError::Generate(error)) => {
            harness.record.log(format_args!("not kept: {error}"));
            harness.record.count("rejected: not kept", 1);
        }
        Err(error) => panic!("{error}"),
    }
}

async fn pin(
    harness: &SimulationHarness,
    engine: &Engine,
    request: Request,
    rng: &mut ChaCha8Rng,
) -> Result<(), CacheCommandError> {
    let time_to_live = rng.random_bool(0.5).then(|| millis(rng, 10..=30_000));
    let pin = engine.pin(request, time_to_live).await?;
    sleep(harness.pause(rng, 0..=5_000)).await;
    match engine.unpin(pin).await {
        // It has expired, or the engine is stopping.
        Err(CacheCommandError::Cache(_) | CacheCommandError::Stopped) => Ok(()),
        done => done,
    }
}
