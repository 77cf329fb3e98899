//! The cores under every order of a few messages.
//!
//! `MOTET_ORDERS_STATES` sets the number of states that are explored in each of ten setups.
//! The default takes some seconds; 120000 are a million in all, and take minutes.

#[allow(dead_code, reason = "shared with another test; only a part is used")]
#[path = "../core_histories/appended.rs"]
mod appended;
mod cache;
#[allow(dead_code, reason = "the harness may have a draft model")]
#[path = "../core_histories/draft_model.rs"]
mod draft_model;
#[allow(dead_code, reason = "the harness may follow blocks")]
#[path = "../core_histories/followed_blocks.rs"]
mod followed_blocks;
#[allow(dead_code, reason = "shared with another test; only a part is used")]
#[path = "../core_histories/harness.rs"]
mod harness;
#[allow(dead_code, reason = "the harness may lose something")]
#[path = "../core_histories/losses.rs"]
mod losses;
mod pager;
#[allow(dead_code, reason = "the harness may have a pager")]
#[path = "../core_histories/pager_harness.rs"]
mod pager_harness;
mod scheduler;

use std::cell::Cell;

use cache::CacheWorld;
#[cfg(motet_injected)]
use motet_testkit::explorer::Violation;
use motet_testkit::explorer::{World, explore};
use pager::{PagerWorld, Tiers};
use scheduler::SchedulerWorld;

thread_local!(static HUSH: Cell<bool> = const { Cell::new(false) });

/// Hides the output of expected panics.
fn hush_expected_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let is_expected = |at: &std::panic::Location<'_>| at.file().contains("oracle");
            if !HUSH.get() && !info.location().is_some_and(is_expected) {
                eprintln!("{info}");
            }
        }));
    });
}

/// Number of states to explore in each setup: `MOTET_ORDERS_STATES`, or else `few`.
fn states_max(few: usize) -> usize {
    let many = std::env::var("MOTET_ORDERS_STATES");
    many.ok().and_then(|many| many.parse().ok()).unwrap_or(few)
}

/// Explores all states that can follow these beginnings, and prints their number.
#[track_caller]
fn survives<W: World>(name: &str, setups: &[W::Setup], beginnings: &[&[W::Act]], few: usize) {
    hush_expected_panics();
    let mut states = 0;
    for setup in setups {
        match explore::<W>(*setup, beginnings, states_max(few)) {
            Ok(explored) => {
                println!("{name}, {setup:?}: {explored:?}");
                states += explored.states;
            }
            Err(violation) => panic!("{name}: {}\nafter {}", violation.what, violation.order),
        }
    }
    println!("{name}: {states} states");
}

#[test]
fn the_pager_survives_every_order() {
    let setups = [
        Tiers::HostAndDisk,
        Tiers::FewLabels,
        Tiers::Host,
        Tiers::Remote,
    ];
    survives::<PagerWorld>("pager", &setups, &pager::BEGINNINGS, 15_000);
}

#[test]
fn the_cache_survives_every_order() {
    survives::<CacheWorld>("cache", &cache::SETUPS, &cache::BEGINNINGS, 10_000);
}

#[test]
fn the_scheduler_survives_every_order() {
    survives::<SchedulerWorld>(
        "scheduler",
        &scheduler::SETUPS,
        &scheduler::BEGINNINGS,
        6_000,
    );
}

/// Orders that once broke an invariant.
#[test]
fn past_violations_are_survived() {
    use cache::Act::*;
    let setup = cache::SETUPS[3];
    // A leased segment that was being exported was counted twice after a clear.
    motet_testkit::explorer::replay::<CacheWorld>(
        setup,
        &[
            OpenSlot(0),
            Step(0),
            OpenSlot(1),
            OpenSlot(2),
            Close(0),
            Close(1),
            OpenSlot(1),
            ExtendGrant(2),
            Clear,
        ],
    );
    // Bytes reserved for a load that was cancelled stayed reserved when its confirmation
    // crossed a cancel.
    let crossed = [cache::BEGINNINGS[3], &[End(0, false), Discard(0)]].concat();
    motet_testkit::explorer::replay::<CacheWorld>(cache::SETUPS[2], &crossed);
}

/// One of the explorers finds each injected bug, and none reports a violation without one.
#[cfg(motet_injected)]
#[test]
fn each_injected_bug_is_found() {
    use motet_sync::injected::{Bug, inject};

    fn found<W: World>(setups: &[W::Setup], beginnings: &[&[W::Act]]) -> Option<Violation> {
        let mut tried = setups
            .iter()
            .map(|setup| explore::<W>(*setup, beginnings, 15_000));
        tried.find_map(Result::err)
    }
    hush_expected_panics();
    let look = |bug: Bug| {
        HUSH.set(true);
        inject(Some(bug));
        let violation = match bug {
            Bug::StaleDetachedState => {
                found::<PagerWorld>(&[Tiers::HostAndDisk, Tiers::Host], &pager::BEGINNINGS)
            }
            Bug::TokenTwice | Bug::LostCheckpoint | Bug::StaleAnswer => {
                found::<SchedulerWorld>(&scheduler::SETUPS, &scheduler::BEGINNINGS)
            }
            _ => found::<CacheWorld>(&cache::SETUPS, &cache::BEGINNINGS),
        };
        inject(None);
        HUSH.set(false);
        match &violation {
            Some(found) => println!("{bug:?}: {}\nafter {}", found.what, found.order),
            None => println!("{bug:?} is not found"),
        }
        violation.is_some()
    };
    let all = Bug::OF_CORES.map(|bug| (bug, look(bug)));
    assert!(all.iter().all(|(_, found)| *found), "{all:?}");
}
