//! A simulation of the whole engine: real actors and cores on a paused clock, the oracle as
//! device, virtual users and faults, all derived from a seed.
//!
//! `cargo xtask simulate` runs many seeds, or repeats one and prints its history.
#![cfg(motet_injected)]

mod classes;
mod devices;
mod early_cancel;
mod expected;
mod failpoints;
mod fault_schedule;
mod harness;
mod heap;
mod panics;
mod plan;
mod reader;
mod record;
mod saturated;
mod soak;
mod stalled_exports;
mod user;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use motet_testkit::folder::Folder;
use plan::Fault;
use record::{Counts, History};
use soak::{Length, SoakReport};

/// Seeds of the sample that is part of all tests.
const SAMPLE: u64 = 200;
/// The same for saturated classes.
const SATURATED_SAMPLE: u64 = 40;

/// One of so many seeds finds an injected bug.
const INJECTED_SEEDS_MAX: u64 = 1_000;

/// The kind of history that a seed generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All operations of callers, and all faults.
    Mixed,
    /// Saturated classes, in turn and together.
    Saturated,
}

/// Runs a seed. Returns its history, and the reasons for a failure.
fn run(kind: Kind, seed: u64, keeps_lines: bool) -> (History, Vec<String>) {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    panics::watch();
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let folder = Folder::new(&format!("simulation-{number}"));
    let path = folder.0.clone();
    let ran = catch_unwind(AssertUnwindSafe(|| match kind {
        Kind::Mixed => harness::run(seed, path, keeps_lines),
        Kind::Saturated => saturated::run(seed, path, keeps_lines),
    }));
    let (panics, record) = panics::take();
    let history = ran.or_else(|panic| record.map(|record| record.history()).ok_or(panic));
    let history = history.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    (history, panics)
}

/// Runs seeds on as many threads as there are cores. A failed seed is run again to print its
/// history.
fn run_all(kind: Kind, first: u64, seeds: u64) -> Counts {
    let next = AtomicU64::new(first);
    let (sums, failed) = (Mutex::new(Counts::new()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let (history, panics) = run(kind, seed, false);
                    let mut sums = sums.lock().expect("sums are whole");
                    for (what, times) in history.counts {
                        *sums.entry(what).or_default() += times;
                    }
                    if let Some(first) = panics.into_iter().next() {
                        let mut failed = failed.lock().expect("a list is whole");
                        failed.push((seed, first));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("a list is whole");
    failed.sort_unstable();
    if let Some((seed, _)) = failed.first() {
        let (history, panics) = run(kind, *seed, true);
        show(*seed, &history, &panics);
        for (seed, why) in &failed {
            println!("seed {seed}: {why}");
        }
        panic!("{} seeds failed; seed {seed} is above", failed.len());
    }
    sums.into_inner().expect("sums are whole")
}

fn show(seed: u64, history: &History, panics: &[String]) {
    for line in &history.lines {
        println!("{line}");
    }
    println!("seed {seed}, digest {:016x}", history.digest);
    for panic in panics {
        println!("{panic}");
    }
}

fn print(counts: &Counts) {
    let mut counts = counts.clone();
    println!("{:<42} {:>12}", "failures", "times");
    for fault in Fault::ALL {
        let times = counts.remove(fault.label()).unwrap_or_default();
        println!("{:<42} {times:>12}", fault.label());
    }
    println!("{:<42} {:>12}", "other counts", "times");
    for (what, times) in &counts {
        println!("{what:<42} {times:>12}");
    }
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn outputs_match_the_reference_under_faults() {
    let counts = run_all(Kind::Mixed, 0, SAMPLE);
    print(&counts);
    let missing: Vec<&str> = Fault::ALL
        .iter()
        .map(|fault| fault.label())
        .filter(|label| counts.get(label).is_none_or(|times| *times == 0))
        .collect();
    assert!(missing.is_empty(), "these never happened: {missing:?}");
    assert!(counts["tokens"] > 50_000, "these histories prove little");
}

#[test]
fn seed_determines_the_history() {
    for seed in 0..20 {
        let (once, _) = run(Kind::Mixed, seed, true);
        let (repeated, _) = run(Kind::Mixed, seed, true);
        let differs = once.lines.iter().zip(&repeated.lines).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(once.digest, repeated.digest, "seed {seed}");
        let (other, _) = run(Kind::Mixed, seed + 1_000, false);
        assert_ne!(once.digest, other.digest, "another seed, another history");
    }
}

/// Each class progresses while any others are saturated, and a lower class starts before a
/// higher one only in its turn.
#[test]
fn every_class_progresses_under_saturation() {
    let counts = run_all(Kind::Saturated, 0, SATURATED_SAMPLE);
    print(&counts);
    for label in classes::TOKENS.into_iter().chain(classes::TURNS) {
        let times = counts.get(label).copied().unwrap_or_default();
        assert!(times > 30, "{label}: {times}");
    }
}

/// The test of `cargo xtask simulate`: it runs `MOTET_SEEDS` seeds from `MOTET_SEED_FROM` on,
/// or only `MOTET_SEED`, whose history is printed. `MOTET_SATURATED` saturates classes.
#[test]
#[ignore = "run by `cargo xtask simulate`"]
fn simulate() {
    let kind = match number("MOTET_SATURATED") {
        Some(1) => Kind::Saturated,
        _ => Kind::Mixed,
    };
    if let Some(seed) = number("MOTET_SEED") {
        let (history, panics) = run(kind, seed, true);
        show(seed, &history, &panics);
        print(&history.counts);
        assert!(panics.is_empty(), "seed {seed} failed");
        return;
    }
    let from = number("MOTET_SEED_FROM").unwrap_or(0);
    let seeds = number("MOTET_SEEDS").unwrap_or(1_000);
    let started_at = std::time::Instant::now();
    let counts = run_all(kind, from, seeds);
    print(&counts);
    println!(
        "{seeds} seeds from {from} on in {:.1?}",
        started_at.elapsed()
    );
}

/// Runs one engine for a long time, in this folder. Panics with the reasons for a failure.
fn soak(name: &str, run: impl FnOnce(std::path::PathBuf) -> SoakReport) -> SoakReport {
    panics::watch();
    let folder = Folder::new(&format!("soak-{name}"));
    let path = folder.0.clone();
    let ran = catch_unwind(AssertUnwindSafe(|| run(path)));
    let (panics, _) = panics::take();
    assert!(panics.is_empty(), "{panics:?}");
    let report = ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert_eq!(report.left, [0; 4], "everything is released");
    report
}

#[test]
fn long_run_releases_everything() {
    let length = Length {
        time: Duration::from_secs(120),
        users: 20,
    };
    let report = soak("simulated", |folder| soak::simulated(&length, folder));
    assert!(report.counts["sequences"] > 200, "{:?}", report.counts);
    assert!(report.rebuilds > 0, "nothing went wrong");
}

#[test]
fn long_run_with_threads_releases_everything() {
    let length = Length {
        time: Duration::from_secs(2),
        users: 20,
    };
    let report = soak("real", |folder| soak::real(&length, folder));
    assert!(report.counts["sequences"] > 20, "{:?}", report.counts);
    assert_eq!(report.rebuilds, 0, "something has panicked");
}

/// The test of `cargo xtask soak`: `MOTET_SOAK_MINUTES` of simulated time, or
/// `MOTET_SOAK_REAL_MINUTES` of real time.
#[test]
#[ignore = "run by `cargo xtask soak`"]
fn soak_for_long() {
    let real = number("MOTET_SOAK_REAL_MINUTES");
    let minutes = real.or_else(|| number("MOTET_SOAK_MINUTES")).unwrap_or(60);
    let length = Length {
        time: Duration::from_secs(60) * u32::try_from(minutes).expect("not that long"),
        users: 40,
    };
    let started_at = std::time::Instant::now();
    let report = match real {
        Some(_) => soak("long-real", |folder| soak::real(&length, folder)),
        None => soak("long-simulated", |folder| soak::simulated(&length, folder)),
    };
    print(&report.counts);
    report.print();
    println!("{minutes} minutes in {:.1?}", started_at.elapsed());
    assert!(
        real.is_none() || report.rebuilds == 0,
        "something has panicked"
    );
}

/// A simulation that cannot fail proves nothing. `MOTET_INJECTED` names a bug, which one of
/// these seeds must find.
#[test]
#[ignore = "run by `cargo xtask simulate --injected`"]
fn the_injected_mistake_is_found() {
    let mistake = std::env::var("MOTET_INJECTED").expect("the name of a mistake");
    let kind = match mistake.as_str() {
        "turn_taken" => Kind::Saturated,
        _ => Kind::Mixed,
    };
    let found = (0..INJECTED_SEEDS_MAX).find_map(|seed| {
        let (_, panics) = run(kind, seed, false);
        Some((seed, panics.into_iter().next()?))
    });
    let (seed, why) = found.expect("one of the seeds finds it");
    println!("{mistake} is found by seed {seed}: {why}");
}
