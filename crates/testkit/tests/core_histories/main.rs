//! The scheduler's and the cache's cores with the oracle as device, without threads or actors.
//! Messages are delivered in a random order, all invariants are checked after each one, and
//! every sequence must get exactly the tokens of its reference run.

mod appended;
mod draft_model;
mod followed_blocks;
mod harness;
mod histories;
mod losses;
mod memory_budget;
mod pager_harness;
mod priority_classes;
mod regressions;
mod scheduler_cases;

use harness::{Caller, HistoryHarness};
use histories::{KINDS, Seen, appending_history, history, history_of_losses, paged_history};
use motet_model::oracle::OracleConfig;
use motet_model::sampling::Sampling;
use motet_protocol::{SequenceId, TokenId, UserId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[test]
fn any_message_order_gives_each_caller_its_own_tokens() {
    let mut seen = Seen::default();
    for seed in histories(2_500) {
        seen.add(&history(seed, false));
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 2_500
            || seen.sent > 50_000
                && seen.forks > 2_000
                && seen.shifts > 300
                && seen.preempted > 300
                && seen.overlapped > 1_000
                && seen.handed_over > 300
                && seen.continued > 1_000
                && seen.drafted > 10_000
                && seen.draft_models_lost > 20,
        "these histories prove little: {seen:?}"
    );
}

#[test]
fn state_survives_offload_and_load() {
    let mut seen = Seen::default();
    for seed in histories(600) {
        paged_history(seed, false, &mut seen);
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 500
            || seen.sent > 10_000
                && seen.packed > 1_000
                && seen.unpacked > 200
                && seen.read > 30
                && seen.written > 500
                && seen.shared > 500
                && seen.fetched > 100
                && seen.copied_blocks > 1_000,
        "these histories prove little: {seen:?}"
    );
}

#[test]
fn state_survives_failing_devices_and_disks() {
    be_quiet_about_oracles();
    let mut seen = Seen::default();
    for seed in histories(600) {
        paged_history(10_000 + seed, true, &mut seen);
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 500
            || seen.unpacked > 150
                && seen.failures > 100
                && seen.moves_failed > 20
                && seen.pagers_rebuilt > 1_000,
        "these histories prove little: {seen:?}"
    );
}

/// The range of `many` histories, of `MOTET_HISTORIES`, or only number `MOTET_HISTORY`.
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

/// Hides the output of panics that were injected into the oracle.
fn be_quiet_about_oracles() {
    std::panic::set_hook(Box::new(|info| {
        let is_oracle = |at: &std::panic::Location<'_>| at.file().contains("oracle");
        if !info.location().is_some_and(is_oracle) {
            eprintln!("{info} on {:?}", std::thread::current());
        }
    }));
}

#[test]
fn callers_get_their_tokens_despite_failing_steps_and_panics() {
    be_quiet_about_oracles();
    let mut seen = Seen::default();
    for seed in histories(2_500) {
        seen.add(&history(10_000 + seed, true));
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 2_500
            || seen.sent > 50_000 && seen.failures > 500 && seen.edits_failed > 500,
        "these histories prove little: {seen:?}"
    );
}

#[test]
fn callers_get_their_tokens_when_cores_and_device_are_lost() {
    be_quiet_about_oracles();
    let mut seen = Seen::default();
    for seed in histories(1_600) {
        history_of_losses(20_000 + seed, &mut seen);
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 1_000
            || seen.sent > 20_000
                && seen.lost.iter().all(|lost| *lost > 150)
                && seen.pagers_rebuilt > 500,
        "these histories prove little: {seen:?}"
    );
}

/// Grammars force tokens, and budgets end reasonings, in histories of all kinds.
#[test]
fn appended_tokens_reach_each_caller_once() {
    be_quiet_about_oracles();
    let mut seen = Seen::default();
    for seed in histories(1_500) {
        appending_history(30_000 + seed, &mut seen);
    }
    println!("{seen:?}");
    assert!(
        seen.histories < 1_500
            || seen.sent > 30_000
                && seen.forks > 1_000
                && seen.shifts > 200
                && seen.preempted > 200
                && seen.masks_awaited > 500
                && seen.looked_ahead > 5_000
                && seen.lost[..3].iter().all(|lost| *lost > 100)
                && seen.overlapped > 500,
        "these histories prove little: {seen:?}"
    );
}

/// Histories find each injected bug of drafts.
#[test]
#[cfg(motet_injected)]
fn each_injected_bug_of_drafts_is_found() {
    use motet_sync::injected::{Bug, inject};
    for bug in Bug::OF_DRAFTS {
        inject(Some(bug));
        let mut seen = Seen::default();
        let found = (0..300).position(|seed| {
            let history = || appending_history(30_000 + seed, &mut seen);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(history)).is_err()
        });
        inject(None);
        println!("{bug:?}: found in history {found:?}");
        assert!(found.is_some(), "{bug:?} is not found: {seen:?}");
    }
}

#[test]
fn sixteen_equal_prefixes_are_computed_once() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut harness = HistoryHarness::new(kinds, 10_000);
        let shared: Vec<TokenId> = (0..200).map(|i| 1 + i % 40).collect();
        for user in 0..16 {
            let mut prompt = shared.clone();
            prompt.extend([41 + user % 8, 41 + user / 8, 3]);
            harness.submit(prompt, 4, Sampling::GREEDY);
        }
        harness.run_until_idle(&mut rng);
        harness.check_end();
        // Two users share the token after the common beginning. An end is noticed one step late.
        harness.check_computed_once(8 + 16);
    }
}

/// A sequence that arrives during another's step is too late for a state that is not kept. One
/// of them then computes the common beginning, and not each.
#[test]
fn late_arrivals_compute_a_common_prefix_once() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut harness = HistoryHarness::new(kinds, 10_000);
        let shared: Vec<TokenId> = (0..20).map(|i| 1 + i % 40).collect();
        let prompt = |user: TokenId| {
            let mut prompt = shared.clone();
            prompt.extend((0..30).map(|i| 41 + (user + i) % 8));
            prompt
        };
        harness.submit(prompt(0), 4, Sampling::GREEDY);
        while harness.oracle.counters.now().tokens_evaluated < 32 {
            (0..3).any(|channel| harness.deliver(channel));
        }
        for user in 1..8 {
            harness.submit(prompt(user), 4, Sampling::GREEDY);
        }
        harness.run_until_idle(&mut rng);
        harness.check_end();
        harness.check_computed_once(shared.len() + 8);
    }
}

/// While a sequence with the same beginning stays live, later sequences find the common
/// beginning once one of them has computed it.
#[test]
fn live_sequence_does_not_prevent_sharing() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let endless = OracleConfig {
            end_tokens: Vec::new(),
            end_one_in: 0,
            ..HistoryHarness::new(kinds, 0).oracle
        };
        let mut harness = HistoryHarness::of(endless, 10_000);
        let prompt = |user: TokenId| (1..25).chain([40 + user, 48]).collect::<Vec<TokenId>>();
        harness.submit(prompt(0), 200, Sampling::GREEDY);
        for user in 1..5 {
            while harness.callers[&SequenceId(1)].sent.len() < 4 * user as usize {
                (0..3).any(|channel| harness.deliver(channel));
            }
            harness.submit(prompt(user), 1, Sampling::GREEDY);
        }
        harness.run_until_idle(&mut rng);
        harness.check_end();
        harness.check_computed_once(24 + 5);
    }
}

#[test]
fn small_sequences_do_not_overtake_a_large_one() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let mut harness = HistoryHarness::new(KINDS[0], 200);
    let small = |harness: &mut HistoryHarness, rng: &mut ChaCha8Rng| {
        harness.submit_caller(Caller {
            prompt: (0..20).map(|_| rng.random_range(1..40)).collect(),
            output_tokens_max: 8,
            user: Some(UserId(0)),
            ..Caller::default()
        })
    };
    for _ in 0..12 {
        small(&mut harness, &mut rng);
    }
    let prompt: Vec<TokenId> = (0..150).map(|i| 1 + i % 40).collect();
    let large = harness.submit_caller(Caller {
        prompt,
        output_tokens_max: 40,
        user: Some(UserId(0)),
        ..Caller::default()
    });
    let mut later = Vec::new();
    while harness.callers[&large].end.is_none() {
        assert!(later.len() < 2_000, "the large one has its turn");
        later.push(small(&mut harness, &mut rng));
        for _ in 0..10 {
            let channel = rng.random_range(0..3);
            harness.deliver(channel);
        }
    }
    let overtook = later.iter().filter(|s| harness.callers[s].end.is_some());
    assert!(overtook.count() <= 8, "at most those that asked with it");
    harness.run_until_idle(&mut rng);
    harness.check_end();
}

#[test]
fn a_poisoned_sequence_fails_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut harness = HistoryHarness::new(KINDS[0], 10_000);
    harness.oracle.faults.poison(49);
    for user in 0..6 {
        let poison = if user == 3 { 49 } else { 7 };
        harness.submit(vec![1, 2, 3, user, poison, 5], 6, Sampling::GREEDY);
    }
    harness.run_until_idle(&mut rng);
    harness.check_end();
    for (sequence, caller) in &harness.callers {
        let failed = matches!(caller.end, Some(Err(_)));
        assert_eq!(
            failed,
            *sequence == SequenceId(4),
            "{sequence} ended in {:?}",
            caller.end
        );
    }
}
