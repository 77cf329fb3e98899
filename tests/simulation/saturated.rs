//! Classes that are saturated, in turn and together: each of them always has more requests
//! than there are slots. Every class progresses, those with few requests as well.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use motet::model::sampling::Sampling;
use motet::request::{ContextLimit, Priority};
use motet::{Request, Shutdown, TokenId};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::classes::{CLASSES, ClassWatch, OUTPUT_TOKENS_MAX, PROMPT_TOKENS_MAX};
use crate::house::{World, budgets_hold, close, on_paused_clock, open};
use crate::plan::Plan;
use crate::reader::read;
use crate::record::{History, Record};
use crate::truth::Truth;

/// Callers of a class that is not saturated.
const FEW: u64 = 2;
/// Users of each class.
const USERS: u64 = 3;
/// Within this time all have seen enough.
const ALL_IS_SEEN: Duration = Duration::from_secs(3_600);

/// Runs a seed.
///
/// # Panics
///
/// When a class starves, and so on.
pub(crate) fn run(seed: u64, folder: PathBuf, record_lines: bool) -> History {
    on_paused_clock(record_lines, async |record: Record| {
        let world = Rc::new(World::new(Plan::saturated(seed), &record, folder));
        live(&world).await;
    })
}

async fn live(world: &Rc<World>) {
    open(world, 0).await;
    let saturating = 2 * world.plan.config.scheduler.sequences_max as u64 + 2;
    let mut callers = JoinSet::new();
    let mut number = 0;
    for class in CLASSES {
        let many = match watch(world).saturates(class) {
            true => saturating,
            false => FEW,
        };
        for _ in 0..many {
            callers.spawn_local(call(Rc::clone(world), class, number));
            number += 1;
        }
    }
    let served = timeout(ALL_IS_SEEN, async {
        while let Some(ended) = callers.join_next().await {
            ended.expect("a caller does not panic");
        }
    });
    if served.await.is_err() {
        let stats = world.engine().map(|engine| engine.stats());
        panic!("not all is seen: {stats:?}");
    }
    close(world, Shutdown::Finish).await;
}

fn watch(world: &World) -> &ClassWatch {
    world.plan.classes.as_ref().expect("classes are watched")
}

/// A caller that asks again as soon as it has its answer, or now and then.
async fn call(world: Rc<World>, class: Priority, number: u64) {
    let mut dice = world.plan.rng(number);
    let sampling = Sampling::GREEDY;
    while !watch(&world).is_done() {
        if !watch(&world).saturates(class) {
            sleep(world.pause(&mut dice, 0..=300)).await;
        }
        let tokens = dice.random_range(1..=PROMPT_TOKENS_MAX);
        let prompt: Vec<TokenId> = (0..tokens).map(|_| dice.random_range(1..50)).collect();
        let output_tokens_max = dice.random_range(1..=OUTPUT_TOKENS_MAX);
        let request = Request::tokens(prompt.clone())
            .output_tokens_max(output_tokens_max)
            .sampling(sampling)
            .priority(class)
            .user(format!("{class:?} {}", number % USERS));
        let engine = world.engine().expect("it is open");
        let stream = engine.submit(request).await;
        drop(engine);
        let mut stream = stream.expect("there is room in the queue");
        world.record.count("sequences", 1);
        let mut truth = Truth::new(
            &world.plan.oracle,
            prompt,
            output_tokens_max,
            sampling,
            ContextLimit::Stop,
        );
        read(&world, &mut stream, &mut truth, &mut dice).await;
        budgets_hold(&world);
    }
}
