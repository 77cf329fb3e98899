//! Saturated classes, in turn and together: each of them always has more requests than there
//! are slots. Every class progresses, including those with few requests.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use motet::request::{ContextLimit, Priority, Sampling};
use motet::{Request, Shutdown, TokenId};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::classes::{CLASSES, ClassWatch, OUTPUT_TOKENS_MAX, PROMPT_TOKENS_MAX};
use crate::expected::ExpectedOutput;
use crate::harness::{SimulationHarness, budgets_hold, close, on_paused_clock, open};
use crate::plan::Plan;
use crate::reader::read;
use crate::record::{History, Record};

/// Callers of a class that is not saturated.
const FEW: u64 = 2;
/// Users of each class.
const USERS: u64 = 3;
/// The check of classes is done within this time.
const FINISHED_WITHIN: Duration = Duration::from_secs(3_600);

/// Runs a seed.
///
/// # Panics
///
/// If a class starves, or another check fails.
pub(crate) fn run(seed: u64, folder: PathBuf, record_lines: bool) -> History {
    on_paused_clock(record_lines, async |record: Record| {
        let harness = Rc::new(SimulationHarness::new(
            Plan::saturated(seed),
            &record,
            folder,
        ));
        live(&harness).await;
    })
}

async fn live(harness: &Rc<SimulationHarness>) {
    open(harness, 0).await;
    let saturating = 2 * harness.plan.config.scheduler.sequences_max as u64 + 2;
    let mut callers = JoinSet::new();
    let mut number = 0;
    for class in CLASSES {
        let many = if watch(harness).saturates(class) {
            saturating
        } else {
            FEW
        };
        for _ in 0..many {
            callers.spawn_local(call(Rc::clone(harness), class, number));
            number += 1;
        }
    }
    let served = timeout(FINISHED_WITHIN, async {
        while let Some(ended) = callers.join_next().await {
            ended.expect("a caller does not panic");
        }
    });
    if served.await.is_err() {
        let stats = harness.engine().map(|engine| engine.stats());
        panic!("not every class was seen long enough: {stats:?}");
    }
    close(harness, Shutdown::Finish).await;
}

fn watch(harness: &SimulationHarness) -> &ClassWatch {
    harness.plan.classes.as_ref().expect("classes are watched")
}

/// A caller that submits its next request as soon as it has an answer, or now and then.
async fn call(harness: Rc<SimulationHarness>, class: Priority, number: u64) {
    let mut rng = harness.plan.rng(number);
    let sampling = Sampling::GREEDY;
    while !watch(&harness).is_done() {
        if !watch(&harness).saturates(class) {
            sleep(harness.pause(&mut rng, 0..=300)).await;
        }
        let tokens = rng.random_range(1..=PROMPT_TOKENS_MAX);
        let prompt: Vec<TokenId> = (0..tokens).map(|_| rng.random_range(1..50)).collect();
        let output_tokens_max = rng.random_range(1..=OUTPUT_TOKENS_MAX);
        let request = Request::tokens(prompt.clone())
            .output_tokens_max(output_tokens_max)
            .sampling(sampling)
            .priority(class)
            .user(format!("{class:?} {}", number % USERS));
        let engine = harness.engine().expect("it is open");
        let stream = engine.submit(request).await;
        drop(engine);
        let mut stream = stream.expect("the queue has capacity");
        harness.record.count("sequences", 1);
        let mut expected = ExpectedOutput::new(
            &harness.plan.oracle,
            prompt,
            output_tokens_max,
            sampling,
            ContextLimit::Stop,
        );
        read(&harness, &mut stream, &mut expected, &mut rng).await;
        budgets_hold(&harness);
    }
}
