//! Those who come: what each asks for, and how often.

use std::rc::Rc;
use std::time::Duration;

use motet::error::{KeepError, SubmitError};
use motet::model::sampling::Sampling;
use motet::request::{CacheUse, ContextLimit, Priority};
use motet::{Engine, Request, TokenId, TokenStream};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::time::{sleep, timeout};

use crate::fate::millis;
use crate::house::World;
use crate::plan::Fault;
use crate::reader::{failed, read};
use crate::truth::Truth;

/// So often somebody comes again who was sent away.
const TRIES_MAX: usize = 40;

/// What somebody asks for.
struct Wish {
    request: Request,
    prompt: Vec<TokenId>,
    output_tokens_max: usize,
    sampling: Sampling,
    at_limit: ContextLimit,
    has_deadline: bool,
}

/// One user's visit.
pub(crate) async fn visit(world: Rc<World>, number: u64) {
    let mut dice = world.plan.rng(number);
    sleep(world.pause(&mut dice, 0..=3_000)).await;
    let mut talk = opening(&mut dice);
    for _ in 0..dice.random_range(1..=5) {
        let wish = wish(&world, &talk, number, &mut dice);
        match dice.random_range(0..20) {
            0 => look_after(&world, wish.request, &mut dice).await,
            1 | 2 => many(&world, wish, &mut dice).await,
            3 | 4 => fork(&world, wish, &mut dice).await,
            _ => talk = converse(&world, wish, &mut dice).await,
        }
        talk.extend((0..dice.random_range(1..=8)).map(|_| dice.random_range(1..50)));
        if talk.len() + 20 > world.plan.oracle.context_tokens_max || dice.random_bool(0.1) {
            talk = opening(&mut dice);
        }
        sleep(world.pause(&mut dice, 0..=3_000)).await;
    }
}

/// A prompt that begins like some others.
fn opening(dice: &mut ChaCha8Rng) -> Vec<TokenId> {
    let shared = [0, 9, 30, 60][dice.random_range(0..4)];
    let mut prompt: Vec<TokenId> = (0..shared).map(|at| 1 + at * 7 % 48).collect();
    prompt.extend((0..dice.random_range(1..=25)).map(|_| dice.random_range(1..50)));
    prompt
}

fn wish(world: &World, talk: &[TokenId], number: u64, dice: &mut ChaCha8Rng) -> Wish {
    let context = world.plan.oracle.context_tokens_max;
    let mut sampling = Sampling::GREEDY;
    if dice.random_bool(0.5) {
        sampling.temperature = 1.0;
        sampling.seed = dice.random();
    }
    let shifts = dice.random_bool(0.15);
    let at_limit = match shifts {
        true => ContextLimit::Shift {
            keep: dice.random_range(0..context / 4),
        },
        false => ContextLimit::Stop,
    };
    let output_tokens_max = match shifts {
        true => dice.random_range(1..=context),
        false => dice.random_range(1..=50),
    };
    let mut request = Request::tokens(talk)
        .output_tokens_max(output_tokens_max)
        .sampling(sampling)
        .priority(
            [Priority::Background, Priority::Normal, Priority::Urgent][dice.random_range(0..3)],
        )
        .user(format!("user {}", number % 5))
        .retention(dice.random_range(0..3));
    request.at_context_limit = at_limit;
    if dice.random_bool(0.1) {
        request = request.without_cache();
    } else if dice.random_bool(0.2) {
        request = request.cache_salt("another");
    }
    if request.cache == CacheUse::Shared && dice.random_bool(0.3) {
        request = request.restore_point(dice.random_range(0..=talk.len()));
    }
    request.tells_prefill = dice.random_bool(0.1);
    let has_deadline = dice.random_bool(0.1);
    if has_deadline {
        let time = millis(dice, 1..=20_000);
        request = match dice.random_bool(0.5) {
            true => request.start_within(time),
            false => request.finish_within(time),
        };
    }
    Wish {
        request,
        prompt: talk.to_vec(),
        output_tokens_max,
        sampling,
        at_limit,
        has_deadline,
    }
}

impl Wish {
    /// What output number `index` must be.
    fn truth(&self, world: &World, index: u64) -> Truth {
        let sampling = Sampling {
            seed: self.sampling.seed.wrapping_add(index),
            ..self.sampling
        };
        let mut truth = Truth::new(
            &world.plan.oracle,
            self.prompt.clone(),
            self.output_tokens_max,
            sampling,
            self.at_limit,
        );
        truth.has_deadline = self.has_deadline;
        truth
    }
}

/// Asks until it is let in, or gives up. `ask` gives the request back that it could not
/// place.
async fn let_in<T>(
    world: &World,
    request: Request,
    dice: &mut ChaCha8Rng,
    ask: impl AsyncFn(&Engine, Request) -> Result<T, SubmitError>,
) -> Option<T> {
    let mut request = request;
    for _ in 0..TRIES_MAX {
        let Some(engine) = world.engine() else {
            sleep(world.pause(dice, 10..=2_000)).await;
            continue;
        };
        let again = request.clone();
        let asked = ask(&engine, request).await;
        drop(engine);
        match asked {
            Ok(let_in) => return Some(let_in),
            Err(SubmitError::QueueFull {
                retry_after,
                request: back,
                what,
            }) => {
                world.record.count("refused: queue full", 1);
                world.record.say(format_args!("full of {what}"));
                assert_eq!(*back, again, "a refused request comes back as it was");
                request = *back;
                sleep(retry_after).await;
            }
            Err(SubmitError::Draining) => {
                let plan = &world.plan;
                let ends = plan.has_any(&[Fault::Drained, Fault::Aborted]);
                assert!(ends, "nobody shuts this house");
                world.record.count("refused: draining", 1);
                request = again;
                sleep(world.pause(dice, 10..=2_000)).await;
            }
            Err(SubmitError::Broken { reason }) => {
                let opens = world.plan.rate(Fault::BreakerOpens) > 0.0;
                assert!(opens, "nothing fails that often: {reason}");
                world.record.count("refused: engine broken", 1);
                request = again;
                sleep(world.pause(dice, 10..=2_000)).await;
            }
            Err(SubmitError::Field { field, .. }) if field.ends_with("_by") => {
                world.record.count("refused: deadline over", 1);
                return None;
            }
            Err(error) => panic!("a sound request is refused: {error}"),
        }
    }
    world.record.count("behaviour: gives up", 1);
    None
}

async fn submit(world: &World, request: Request, dice: &mut ChaCha8Rng) -> Option<TokenStream> {
    let hasty = dice.random_bool(0.05);
    let stream = let_in(world, request, dice, async |engine, request| {
        if hasty {
            world.record.count("behaviour: withdraws", 1);
            // Looked at once, and dropped unless that was enough.
            let submit = timeout(Duration::ZERO, engine.submit(request)).await;
            return match submit {
                Ok(submitted) => submitted.map(Some),
                Err(_) => Ok(None),
            };
        }
        engine.submit(request).await.map(Some)
    });
    let stream = stream.await.flatten()?;
    world.record.count("sequences", 1);
    world.record.say(format_args!(
        "{} of {} tokens",
        stream.sequence(),
        stream.prompt_tokens()
    ));
    Some(stream)
}

/// One turn of a conversation: what is known of it afterwards.
async fn converse(world: &World, wish: Wish, dice: &mut ChaCha8Rng) -> Vec<TokenId> {
    let mut truth = wish.truth(world, 0);
    let again = wish.request.clone();
    if let Some(mut stream) = submit(world, wish.request.clone(), dice).await {
        if dice.random_bool(0.1) {
            let place = stream.queue_place().await;
            world.record.say(format_args!("its place: {place:?}"));
        }
        let whole = read(world, &mut stream, &mut truth, dice).await;
        drop(stream);
        if !whole && dice.random_bool(0.5) {
            world.record.count("behaviour: asks for the same again", 1);
            if let Some(mut stream) = submit(world, again, dice).await {
                truth = wish.truth(world, 0);
                read(world, &mut stream, &mut truth, dice).await;
            }
        }
    }
    match wish.at_limit {
        ContextLimit::Stop => truth.known(),
        ContextLimit::Shift { .. } => truth.prompt,
    }
}

/// Several outputs of one prompt, read one after another.
async fn many(world: &World, mut wish: Wish, dice: &mut ChaCha8Rng) {
    let most = world.plan.config.scheduler.sequences_max + world.plan.config.scheduler.queue_max;
    let outputs = dice.random_range(1..=4.min(most));
    wish.request.n = outputs;
    let request = wish.request.clone();
    let streams = let_in(world, request, dice, async |engine, request| {
        engine.submit_many(request).await
    });
    let Some(streams) = streams.await else {
        return;
    };
    world.record.count("sequences", streams.len() as u64);
    world.record.count("behaviour: wants several outputs", 1);
    for (index, mut stream) in (0..).zip(streams) {
        let mut truth = wish.truth(world, index);
        // Those that are read later have waited.
        truth.is_slow = index > 0;
        // They continue the first, which may have failed before they could.
        truth.is_fork = index > 0;
        read(world, &mut stream, &mut truth, dice).await;
    }
}

/// Reads a little, then continues in two ways.
async fn fork(world: &World, wish: Wish, dice: &mut ChaCha8Rng) {
    let mut truth = wish.truth(world, 0);
    let Some(mut stream) = submit(world, wish.request, dice).await else {
        return;
    };
    for _ in 0..dice.random_range(0..=10) {
        match stream.next().await {
            Some(Ok(piece)) => piece.token.into_iter().for_each(|token| truth.told(token)),
            Some(Err(error)) => return failed(world, stream.sequence(), &truth, &error),
            None => return,
        }
    }
    let known = truth.known();
    let at = dice.random_range(1..=known.len());
    let appended: Vec<TokenId> = (0..dice.random_range(0..=6))
        .map(|_| dice.random_range(1..50))
        .collect();
    let prompt = [&known[..at], &appended[..]].concat();
    let context = world.plan.oracle.context_tokens_max;
    let output_tokens_max = dice.random_range(1..=20);
    if prompt.len() >= context {
        return;
    }
    let request = Request::tokens(appended)
        .output_tokens_max(output_tokens_max)
        .sampling(wish.sampling);
    let Some(engine) = world.engine() else {
        return;
    };
    let rewinds = dice.random_bool(0.3);
    let (forked, source) = if rewinds {
        (engine.rewind(stream, at, request).await, None)
    } else {
        let forked = engine.fork(&stream, Some(at), request).await;
        (forked, Some(stream))
    };
    drop(engine);
    let mut other = match forked {
        Ok(other) => other,
        // The engine is another since, or full.
        Err(
            SubmitError::QueueFull { .. }
            | SubmitError::Draining
            | SubmitError::Broken { .. }
            | SubmitError::Field {
                field: "source", ..
            },
        ) => return,
        Err(error) => panic!("a sound fork is refused: {error}"),
    };
    world.record.count("sequences", 1);
    let behaviour = match rewinds {
        true => "behaviour: rewinds",
        false => "behaviour: forks",
    };
    world.record.count(behaviour, 1);
    let mut others_truth = Truth::new(
        &world.plan.oracle,
        prompt,
        output_tokens_max,
        wish.sampling,
        wish.at_limit,
    );
    others_truth.is_fork = true;
    truth.is_slow = true;
    let both = dice.random_bool(0.7);
    read(world, &mut other, &mut others_truth, dice).await;
    if both && let Some(mut stream) = source {
        read(world, &mut stream, &mut truth, dice).await;
    }
}

/// Warms, pins, clears or looks at what is cached.
async fn look_after(world: &World, request: Request, dice: &mut ChaCha8Rng) {
    let Some(engine) = world.engine() else {
        return;
    };
    world.record.count("behaviour: looks after the cache", 1);
    let salt = request.cache_salt.clone();
    let request = Request {
        start_by: None,
        finish_by: None,
        cache: CacheUse::Shared,
        ..request
    };
    let done = match dice.random_range(0..4) {
        0 => engine.warm(request).await.map(drop),
        1 if world.plan.pins => pin(world, &engine, request, dice).await,
        2 => engine.clear_cache(salt.as_deref()).await,
        _ => engine.cache_tree(salt.as_deref()).await.map(drop),
    };
    let ends = [Fault::Drained, Fault::Aborted, Fault::BreakerOpens];
    match done {
        Ok(()) => {}
        Err(KeepError::Submit(error)) => match *error {
            SubmitError::QueueFull { .. } => {}
            SubmitError::Draining | SubmitError::Broken { .. } if world.plan.has_any(&ends) => {}
            error => panic!("a sound request is refused: {error}"),
        },
        Err(KeepError::Stopped) if world.plan.has_any(&ends) => {}
        Err(KeepError::Cache(error)) => world.record.say(format_args!("not kept: {error}")),
        Err(KeepError::Generate(error)) => {
            world.record.say(format_args!("not kept: {error}"));
            world.record.count("refused: not kept", 1);
        }
        Err(error) => panic!("{error}"),
    }
}

async fn pin(
    world: &World,
    engine: &Engine,
    request: Request,
    dice: &mut ChaCha8Rng,
) -> Result<(), KeepError> {
    let time_to_live = dice.random_bool(0.5).then(|| millis(dice, 10..=30_000));
    let pin = engine.pin(request, time_to_live).await?;
    sleep(world.pause(dice, 0..=5_000)).await;
    match engine.unpin(pin).await {
        // It has expired, or the engine is going.
        Err(KeepError::Cache(_) | KeepError::Stopped) => Ok(()),
        done => done,
    }
}
