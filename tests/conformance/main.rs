//! Motet's cache against what ollama's tests pin down of its caches: shared prefixes,
//! slots, context shifts, layers with windows and recurrent layers, a trie of snapshots.
//!
//! The facts are in `tests/data/cache_cases.json`, or in the file that the variable
//! `MOTET_CASES` names. Each case is put to Motet's own operations, and what is
//! expected is read from the file. Where Motet differs on purpose, the case stands in
//! [`differences`], and what Motet does instead is asserted. A suite or a case that is
//! not known here fails, and so does one that is missing.
//!
//! | file | suites |
//! |---|---|
//! | `prefixes.rs` | `input_cache.common_prefix.*` |
//! | `slots.rs` | `input_cache.{find_slot, load_slot, shift_slot}` |
//! | `prompts.rs` | `input_cache.shift_discard*`, `prompt.*` |
//! | `visible.rs` | `kvcache.{causal, defrag_historic}` |
//! | `restore.rs` | `kvcache.recurrent_*` |
//! | `tries.rs` | `trie.{find_best_match, split_append}` |
//! | `trie_edits.rs` | `trie.{split_merge_snapshots, byte_accounting}` |
//! | `scenarios.rs`, `long_scenarios.rs` | `prefix_cache.*` |
//! | `windows.rs` | `mlx.{rotating_cache.contents, attention_masks}` |
//! | `snapshots.rs`, `states.rs` | `mlx.snapshots.*` |
//!
//! `house.rs` is the cache with its device, `requests.rs` what scenarios ask of it,
//! `pieces.rs` the device's state without a
//! cache, `reach.rs` finds out what a window reads, and `mutations.rs` makes sure that
//! every expectation in the file is compared with something.

mod cases;
mod check;
mod differences;
mod house;
mod long_scenarios;
mod mutations;
mod pieces;
mod prefixes;
mod prompts;
mod reach;
mod requests;
mod restore;
mod scenarios;
mod slots;
mod snapshots;
mod states;
mod trie_edits;
mod tries;
mod visible;
mod windows;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use cases::{Case, Fact, Suite};
use check::Check;
use differences::{DIFFERENCES, Difference};

/// How a case is put to Motet. Panics where Motet does something else.
type Run = fn(&mut Check, &Fact<'_>);

/// A suite that is known here: its name, and each of its cases.
struct Known {
    suite: &'static str,
    cases: &'static [(&'static str, Run)],
}

const KNOWN: [&[Known]; 12] = [
    prefixes::SUITES,
    slots::SUITES,
    prompts::SUITES,
    visible::SUITES,
    restore::SUITES,
    tries::SUITES,
    trie_edits::SUITES,
    scenarios::SUITES,
    long_scenarios::SUITES,
    windows::SUITES,
    snapshots::SUITES,
    states::SUITES,
];

/// What came of all cases.
#[derive(Debug, Default)]
struct Report {
    /// Suites, and how many of their cases agree and differ.
    counts: Vec<(String, usize, usize)>,
    complaints: Vec<String>,
}

#[test]
fn every_case_of_every_suite() {
    let report = run(&cases::suites());
    let (mut agree, mut differ) = (0, 0);
    println!("{:40} agree  differ", "suite");
    for (suite, agreeing, differing) in &report.counts {
        println!("{suite:40} {agreeing:5}  {differing:6}");
        agree += agreeing;
        differ += differing;
    }
    println!("{:40} {agree:5}  {differ:6}", "total");
    for difference in DIFFERENCES {
        println!("{difference}");
    }
    let complaints = report.complaints.join("\n");
    assert!(report.complaints.is_empty(), "\n{complaints}");
}

#[test]
fn every_difference_is_a_known_case() {
    for Difference { suite, case, .. } in DIFFERENCES {
        let known = known(suite).is_some_and(|known| known.runs(case).is_some());
        assert!(known, "{suite}, {case}: no such case");
        let same = |other: &&Difference| other.suite == *suite && other.case == *case;
        let times = DIFFERENCES.iter().filter(same).count();
        assert_eq!(times, 1, "{suite}, {case}: listed once");
    }
}

fn run(suites: &[Suite]) -> Report {
    let mut report = Report::default();
    for suite in suites {
        let Some(known) = known(&suite.name) else {
            report.complain(&suite.name, "is not known here");
            continue;
        };
        let (mut agree, mut differ) = (0, 0);
        for case in &suite.cases {
            let place = format!("{}, {}", suite.name, case.name);
            match known.runs(&case.name).map(|run| run_case(suite, case, run)) {
                None => report.complain(&place, "is not known here"),
                Some(Err(why)) => report.complain(&place, &why),
                Some(Ok(true)) => differ += 1,
                Some(Ok(false)) => agree += 1,
            }
        }
        report.counts.push((suite.name.clone(), agree, differ));
    }
    report.complain_of_missing(suites);
    report
}

/// Whether the case differs, or what is wrong with it.
fn run_case(suite: &Suite, case: &Case, run: Run) -> Result<bool, String> {
    let listed = |listed: &&Difference| listed.suite == suite.name && listed.case == case.name;
    let difference = DIFFERENCES.iter().find(listed);
    caught(|| {
        let mut check = Check::new(difference);
        run(&mut check, &Fact::new(&case.facts, ""));
        check.finish()
    })
}

fn known(suite: &str) -> Option<&'static Known> {
    let all = KNOWN.iter().copied().flatten();
    all.into_iter().find(|known| known.suite == suite)
}

impl Known {
    fn runs(&self, case: &str) -> Option<Run> {
        let found = self.cases.iter().find(|(name, _)| *name == case);
        found.map(|(_, run)| *run)
    }
}

impl Report {
    fn complain(&mut self, place: &str, why: &str) {
        self.complaints.push(format!("{place}: {why}"));
    }

    fn complain_of_missing(&mut self, suites: &[Suite]) {
        let mut seen = BTreeSet::new();
        for suite in suites {
            for case in &suite.cases {
                if !seen.insert((suite.name.as_str(), case.name.as_str())) {
                    self.complain(&format!("{}, {}", suite.name, case.name), "is there twice");
                }
            }
        }
        for known in KNOWN.iter().copied().flatten() {
            for (case, _) in known.cases {
                if !seen.contains(&(known.suite, *case)) {
                    self.complain(&format!("{}, {case}", known.suite), "is missing");
                }
            }
        }
    }
}

thread_local! {
    /// Where and why this thread panicked last, while it catches.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What `act` returns, or where and why it panicked, which is not printed.
fn caught<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let kept = CAUGHT.with_borrow_mut(|caught| match caught {
                Some(caught) => {
                    *caught = info.to_string();
                    true
                }
                None => false,
            });
            if !kept {
                loud(info);
            }
        }));
    });
    let outer = CAUGHT.replace(Some(String::new()));
    let done = catch_unwind(AssertUnwindSafe(act));
    let inner = CAUGHT.replace(outer);
    done.map_err(|_| inner.unwrap_or_default())
}
