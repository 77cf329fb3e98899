//! The cache's core and the device's table against a naive model, in random order.
//!
//! | file | content |
//! |---|---|
//! | `setup.rs` | the model's shape and the cache's settings |
//! | `operation.rs` | the operations, as data that shrinks |
//! | `system.rs`, `steps.rs` | the system under test, and how it runs |
//! | `apply_operation.rs`, `moves.rs`, `mistakes.rs` | carrying operations out |
//! | `grants.rs` | grants of sequences, and cached prefixes of later ones |
//! | `checks.rs` | invariants after each operation |
//! | `mutant.rs`, `injected.rs` | bugs, and that each is noticed |
//!
//! Whether a sequence gets a slot depends on bytes, and a naive model knows none. The reference
//! machine therefore only generates operations, which name sequences by number. The naive model
//! (`motet_testkit::naive`) stands beside the system and receives its answers.
//!
//! `PROPTEST_CASES` and `MOTET_SEED` vary the number of histories and their seeds.

mod apply_operation;
mod checks;
mod grants;
mod injected;
mod mistakes;
mod moves;
mod mutant;
mod operation;
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

/// Histories, and the most operations of each.
const HISTORIES: u32 = 800;
const OPERATIONS_MAX: usize = 400;

/// Least number of operations of each kind; fewer in a hundred thousand would prove little.
const OF_EACH_MIN: usize = 40;

/// Kinds of operations, and of their consequences.
const KINDS: (usize, usize) = (36, 22);

/// Operations that were carried out, and their consequences, in all histories that succeeded
/// without an injected bug.
static TALLIES: Mutex<[Tally; 2]> = Mutex::new([Tally::new(), Tally::new()]);

/// Generates operations.
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
        let mut tallies = TALLIES.lock().expect("counting does not panic");
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

/// A number from the environment.
fn number<N: std::str::FromStr>(name: &str) -> Option<N> {
    std::env::var(name).ok()?.parse().ok()
}

/// Hides the output of panics that were injected into the oracle.
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
    let [operations, consequences] = &*TALLIES.lock().expect("counting does not panic");
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
