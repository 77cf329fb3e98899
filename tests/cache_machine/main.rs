//! The cache's core and the device's table against a naive model, in random order.
//!
//! | file | what is there |
//! |---|---|
//! | `setup.rs` | the model's shape and the cache's settings |
//! | `operation.rs` | what can happen, as data that shrinks |
//! | `system.rs`, `steps.rs` | the system under test, and how it runs |
//! | `apply_operation.rs`, `moves.rs`, `mistakes.rs` | operations, carried out |
//! | `grants.rs` | what sequences are granted, and what is cached of those to come |
//! | `naive.rs`, `reference_device.rs` | plain token lists: what may be cached; what the device holds |
//! | `block_follower.rs` | what is cached, as who follows its blocks knows it |
//! | `checks.rs` | what must be true after each operation |
//! | `mutant.rs`, `injected.rs` | bugs, and that each is noticed |
//!
//! Whether a sequence gets a slot depends on bytes, of which a naive model knows
//! nothing. So the reference machine only draws operations, which name sequences by
//! number; the naive model stands beside the system and is told of the answers.
//!
//! `PROPTEST_CASES` and `MOTET_SEED` vary how many histories there are, and which.

mod apply_operation;
mod block_follower;
mod checks;
mod grants;
mod injected;
mod mistakes;
mod moves;
mod mutant;
mod naive;
mod operation;
mod reference_device;
mod setup;
mod steps;
mod system;

use std::sync::{Mutex, Once};
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use operation::{Operation, any_operation};
use setup::{Setup, any_setup};
use system::{System, Tally};

/// Histories, and operations that each asks for at most.
const HISTORIES: u32 = 800;
const OPERATIONS_MAX: usize = 400;

/// Fewer of any kind, in a hundred thousand operations, would prove little.
const OF_EACH_MIN: usize = 40;

/// Kinds of operations, and of what comes of them.
const KINDS: (usize, usize) = (36, 21);

/// Operations that were carried out, and what came of them, of all histories that
/// ended well and had no planted bug.
static TALLIES: Mutex<[Tally; 2]> = Mutex::new([Tally::new(), Tally::new()]);

/// Draws operations.
#[derive(Debug)]
struct Histories;

impl ReferenceStateMachine for Histories {
    type State = Setup;
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<Setup> {
        any_setup().boxed()
    }

    fn transitions(_: &Setup) -> BoxedStrategy<Operation> {
        thread_local!(static ANY: BoxedStrategy<Operation> = any_operation());
        ANY.with(Clone::clone)
    }

    fn apply(setup: Setup, _: &Operation) -> Setup {
        setup
    }
}

/// Carries them out.
struct CacheMachine;

impl StateMachineTest for CacheMachine {
    type SystemUnderTest = System;
    type Reference = Histories;

    fn init_test(setup: &Setup) -> System {
        System::new(setup)
    }

    fn apply(mut system: System, _: &Setup, operation: Operation) -> System {
        system.apply_operation(&operation);
        system
    }

    fn check_invariants(system: &System, _: &Setup) {
        system.check();
    }

    fn teardown(mut system: System, setup: Setup) {
        let seen = [system.tally.clone(), system.consequences.clone()];
        system.finish();
        if setup.injected.is_some() {
            return;
        }
        let mut tallies = TALLIES.lock().expect("nobody panics while counting");
        for (tally, seen) in tallies.iter_mut().zip(seen) {
            for (kind, count) in seen {
                *tally.entry(kind).or_insert(0) += count;
            }
        }
    }
}

fn config(cases: u32) -> Config {
    Config {
        cases,
        rng_seed: RngSeed::Fixed(number("MOTET_SEED").unwrap_or(3)),
        failure_persistence: None,
        max_shrink_iters: number("PROPTEST_MAX_SHRINK_ITERS").unwrap_or(20_000),
        ..Config::default()
    }
}

/// A number that the environment sets.
fn number<N: std::str::FromStr>(name: &str) -> Option<N> {
    std::env::var(name).ok()?.parse().ok()
}

/// Panics that the oracle was told to are no news.
fn hush_injected_panics() {
    static HUSHED: Once = Once::new();
    HUSHED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let hushed = injected::HUSH.with(std::cell::Cell::get);
            if !hushed && !info.to_string().contains("(injected)") {
                usual(info);
            }
        }));
    });
}

#[test]
fn any_history_agrees_with_the_naive_model() {
    hush_injected_panics();
    let started = Instant::now();
    let cases = number("PROPTEST_CASES").unwrap_or(HISTORIES);
    let config = config(cases);
    let strategy = Histories::sequential_strategy(1..OPERATIONS_MAX);
    let outcome = TestRunner::new(config.clone()).run(&strategy, |(setup, operations, seen)| {
        CacheMachine::test_sequential(config.clone(), setup, operations, seen);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let [operations, consequences] = &*TALLIES.lock().expect("nobody panics while counting");
    let operation_count: usize = operations.values().sum();
    let took = started.elapsed();
    println!("{operation_count} operations in {took:.1?}: {operations:#?}, {consequences:#?}");
    for (kind, count) in operations.iter().chain(consequences) {
        let least = OF_EACH_MIN * operation_count / 100_000;
        assert!(
            *count >= least,
            "`{kind}` happened {count} times: too rarely"
        );
    }
    assert_eq!(
        (operations.len(), consequences.len()),
        KINDS,
        "each kind happens"
    );
}
