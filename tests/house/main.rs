//! The scheduler's and the cache's cores with the oracle as device, without threads
//! or actors: messages are delivered in a random order, everything is checked after
//! each, and every sequence must get exactly the tokens that it gets alone.

mod alone;
mod classes;
#[path = "../common/folder.rs"]
mod folder;
mod found;
mod histories;
mod house;
mod losses;
mod pages;
mod room;

use histories::{KINDS, Seen, history, history_of_losses, paged_history};
use house::{Caller, House};
use motet::model::oracle::OracleConfig;
use motet::model::sampling::Sampling;
use motet::{SequenceId, TokenId, UserId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[test]
fn any_order_of_messages_gives_every_caller_its_own_tokens() {
    let mut seen = Seen::default();
    for seed in histories(2_500) {
        seen.add(&history(seed, false));
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 2_500
            || seen.told > 50_000
                && seen.forks > 2_000
                && seen.shifts > 300
                && seen.preempted > 300
                && seen.overlapped > 1_000,
        "these histories prove little: {seen:?}"
    );
}

#[test]
fn whatever_leaves_the_device_and_comes_back_is_what_it_was() {
    let mut seen = Seen::default();
    for seed in histories(600) {
        paged_history(seed, false, &mut seen);
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 500
            || seen.told > 10_000
                && seen.packed > 1_000
                && seen.unpacked > 250
                && seen.read > 30
                && seen.written > 500,
        "these histories prove little: {seen:?}"
    );
}

#[test]
fn and_so_with_failing_devices_and_disks() {
    be_quiet_about_oracles();
    let mut seen = Seen::default();
    for seed in histories(600) {
        paged_history(10_000 + seed, true, &mut seen);
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 500
            || seen.unpacked > 200
                && seen.failures > 100
                && seen.moves_failed > 20
                && seen.pagers_rebuilt > 1_000,
        "these histories prove little: {seen:?}"
    );
}

/// So many histories, or `MOTET_HISTORIES`, or only number `MOTET_HISTORY`.
fn histories(many: u64) -> std::ops::Range<u64> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    match number("MOTET_HISTORY") {
        Some(one) => one..one + 1,
        None => 0..number("MOTET_HISTORIES").unwrap_or(many),
    }
}

/// An oracle that panics was told to.
fn be_quiet_about_oracles() {
    std::panic::set_hook(Box::new(|info| {
        let told = |at: &std::panic::Location<'_>| at.file().contains("oracle");
        if !info.location().is_some_and(told) {
            eprintln!("{info} on {:?}", std::thread::current());
        }
    }));
}

#[test]
fn and_so_with_failing_steps_and_panics() {
    be_quiet_about_oracles();
    let mut seen = Seen::default();
    for seed in histories(2_500) {
        seen.add(&history(10_000 + seed, true));
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 2_500
            || seen.told > 50_000 && seen.failures > 500 && seen.edits_failed > 500,
        "these histories prove little: {seen:?}"
    );
}

#[test]
fn and_so_when_the_device_the_cache_and_the_scheduler_are_lost() {
    be_quiet_about_oracles();
    let mut seen = Seen::default();
    for seed in histories(1_500) {
        history_of_losses(20_000 + seed, &mut seen);
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 1_000
            || seen.told > 20_000
                && seen.lost.iter().all(|lost| *lost > 150)
                && seen.pagers_rebuilt > 500,
        "these histories prove little: {seen:?}"
    );
}

#[test]
fn sixteen_equal_beginnings_are_computed_once() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut house = House::new(kinds, 10_000);
        let shared: Vec<TokenId> = (0..200).map(|i| 1 + i % 40).collect();
        for user in 0..16 {
            let mut prompt = shared.clone();
            prompt.extend([41 + user % 8, 41 + user / 8, 3]);
            house.submit(prompt, 4, Sampling::GREEDY);
        }
        house.run_until_idle(&mut rng);
        house.check_end();
        let told: usize = house.callers.values().map(|c| c.told.len()).sum();
        let evaluated = house.oracle.counters.now().tokens_evaluated as usize;
        // Two users may share the token after the common beginning.
        // An end is seen one step late.
        let most = shared.len() + 16 * 3 + told + 16;
        assert!(
            evaluated <= most,
            "{kinds:?}: {evaluated} tokens evaluated, at most {most} needed"
        );
    }
}

/// Who comes while another's step is under way comes too late for a state that is not
/// kept. Then one of them computes what all share, and not each.
#[test]
fn latecomers_compute_a_common_beginning_once() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut house = House::new(kinds, 10_000);
        let shared: Vec<TokenId> = (0..20).map(|i| 1 + i % 40).collect();
        let prompt = |user: TokenId| {
            let mut prompt = shared.clone();
            prompt.extend((0..30).map(|i| 41 + (user + i) % 8));
            prompt
        };
        house.submit(prompt(0), 4, Sampling::GREEDY);
        while house.oracle.counters.now().tokens_evaluated < 32 {
            (0..3).any(|way| house.deliver(way));
        }
        for user in 1..8 {
            house.submit(prompt(user), 4, Sampling::GREEDY);
        }
        house.run_until_idle(&mut rng);
        house.check_end();
        let told: usize = house.callers.values().map(|c| c.told.len()).sum();
        let evaluated = house.oracle.counters.now().tokens_evaluated as usize;
        let most = 2 * shared.len() + 8 * 30 + told + 8;
        assert!(
            evaluated <= most,
            "{kinds:?}: {evaluated} tokens evaluated, at most {most} needed"
        );
    }
}

/// While a sequence that begins alike lives on, those who come one after another find
/// the common beginning, once one of them has computed it.
#[test]
fn a_live_sequence_does_not_keep_others_from_sharing() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let endless = OracleConfig {
            end_tokens: Vec::new(),
            end_one_in: 0,
            ..House::new(kinds, 0).oracle
        };
        let mut house = House::of(endless, 10_000);
        let prompt = |user: TokenId| (1..25).chain([40 + user, 48]).collect::<Vec<TokenId>>();
        house.submit(prompt(0), 200, Sampling::GREEDY);
        for user in 1..5 {
            while house.callers[&SequenceId(1)].told.len() < 4 * user as usize {
                (0..3).any(|way| house.deliver(way));
            }
            house.submit(prompt(user), 1, Sampling::GREEDY);
        }
        house.run_until_idle(&mut rng);
        house.check_end();
        let told: usize = house.callers.values().map(|c| c.told.len()).sum();
        let evaluated = house.oracle.counters.now().tokens_evaluated as usize;
        let most = 2 * 24 + 5 * 2 + told + 5;
        assert!(
            evaluated <= most,
            "{kinds:?}: {evaluated} tokens evaluated, at most {most} needed"
        );
    }
}

#[test]
fn nobody_small_overtakes_who_is_large() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let mut house = House::new(KINDS[0], 200);
    let small = |house: &mut House, rng: &mut ChaCha8Rng| {
        house.submit_caller(Caller {
            prompt: (0..20).map(|_| rng.random_range(1..40)).collect(),
            output_tokens_max: 8,
            user: Some(UserId(0)),
            ..Caller::default()
        })
    };
    for _ in 0..12 {
        small(&mut house, &mut rng);
    }
    let prompt: Vec<TokenId> = (0..150).map(|i| 1 + i % 40).collect();
    let large = house.submit_caller(Caller {
        prompt,
        output_tokens_max: 40,
        user: Some(UserId(0)),
        ..Caller::default()
    });
    let mut later = Vec::new();
    while house.callers[&large].end.is_none() {
        assert!(later.len() < 2_000, "the large one comes to its turn");
        later.push(small(&mut house, &mut rng));
        for _ in 0..10 {
            let way = rng.random_range(0..3);
            house.deliver(way);
        }
    }
    let overtook = later.iter().filter(|s| house.callers[s].end.is_some());
    assert!(
        overtook.count() <= 8,
        "at most those that were asked beside it"
    );
    house.run_until_idle(&mut rng);
    house.check_end();
}

#[test]
fn a_poisoned_sequence_fails_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut house = House::new(KINDS[0], 10_000);
    house.oracle.faults.poison(49);
    for user in 0..6 {
        let poison = if user == 3 { 49 } else { 7 };
        house.submit(vec![1, 2, 3, user, poison, 5], 6, Sampling::GREEDY);
    }
    house.run_until_idle(&mut rng);
    house.check_end();
    for (sequence, caller) in &house.callers {
        let failed = matches!(caller.end, Some(Err(_)));
        assert_eq!(
            failed,
            *sequence == SequenceId(4),
            "{sequence} ended in {:?}",
            caller.end
        );
    }
}
