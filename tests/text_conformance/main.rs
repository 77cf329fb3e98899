//! Motet's text and sampling against what ollama's tests pin down of theirs: stop
//! strings, torn characters, penalties, filters, log probabilities, a pipelined decode.
//!
//! The facts are in `tests/data/text_and_sampling_cases.json`, or in the file that the
//! variable `MOTET_TEXT_CASES` names. The rules are those of `tests/conformance`: each
//! case is put to Motet's own code, what is expected is read from the file, where Motet
//! differs on purpose the case stands in [`differences`] and what Motet does instead is
//! asserted, and a suite, a case or a field that is not known here fails, as does one
//! that is missing.
//!
//! | file | suites |
//! |---|---|
//! | `texts.rs` | `text.*` |
//! | `draws.rs` | `sample.{single_slot, batched_equals_single, transforms}` |
//! | `histories.rs` | `sample.history` |
//! | `logprobs.rs` | `sample.logprobs`, `logprobs.from_logits` |
//! | `decode.rs` | `decode.pipelined` |
//!
//! `mutations.rs` makes sure that every expectation is compared with something.

#[path = "../conformance/cases.rs"]
#[allow(
    dead_code,
    reason = "shared with the cache's cases, which need more of it"
)]
mod cases;
#[path = "../conformance/check.rs"]
#[allow(
    dead_code,
    reason = "shared with the cache's cases, which need more of it"
)]
mod check;
mod decode;
mod differences;
mod draws;
mod histories;
mod logprobs;
mod mutations;
mod texts;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use cases::{Case, Fact, Suite};
use check::Check;
use differences::{DIFFERENCES, Difference};

/// How a case is put to Motet. Panics where Motet does something else.
type Run = fn(&mut Check, &Fact<'_>);

/// A suite that is known here: its name, the fields that its cases and what they expect
/// may have, and each of its cases.
struct Known {
    suite: &'static str,
    fields: &'static [&'static str],
    cases: &'static [(&'static str, Run)],
}

const KNOWN: [&[Known]; 5] = [
    texts::SUITES,
    draws::SUITES,
    histories::SUITES,
    logprobs::SUITES,
    decode::SUITES,
];

/// Our own file.
const OWN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/text_and_sampling_cases.json"
);

#[test]
fn every_case_of_every_suite() {
    let path = std::env::var_os("MOTET_TEXT_CASES");
    let suites = suites(&path.map_or_else(|| OWN.into(), PathBuf::from));
    let (counts, complaints) = run(&suites);
    println!("{:32} agree  differ", "suite");
    for (suite, agree, differ) in counts {
        println!("{suite:32} {agree:5}  {differ:6}");
    }
    for difference in DIFFERENCES {
        println!("{difference}");
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
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

/// The suites of a file. Cases that share a name are told apart by their number.
fn suites(path: &Path) -> Vec<Suite> {
    let mut suites = cases::read(path);
    for suite in &mut suites {
        let names: Vec<String> = suite.cases.iter().map(|case| case.name.clone()).collect();
        for (at, case) in suite.cases.iter_mut().enumerate() {
            let before = names[..at].iter().filter(|name| **name == case.name);
            let before = before.count();
            if before > 0 {
                case.name = format!("{} ({})", case.name, before + 1);
            }
        }
    }
    suites
}

/// Each suite with how many of its cases agree and differ, and what is wrong.
fn run(suites: &[Suite]) -> (Vec<(String, usize, usize)>, Vec<String>) {
    let (mut counts, mut complaints) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for suite in suites {
        let Some(known) = known(&suite.name) else {
            complaints.push(format!("{}: is not known here", suite.name));
            continue;
        };
        let (mut agree, mut differ) = (0, 0);
        for case in &suite.cases {
            let place = format!("{}, {}", suite.name, case.name);
            if !seen.insert(place.clone()) {
                complaints.push(format!("{place}: is there twice"));
            }
            match known.runs(&case.name).map(|run| run_case(known, case, run)) {
                None => complaints.push(format!("{place}: is not known here")),
                Some(Err(why)) => complaints.push(format!("{place}: {why}")),
                Some(Ok(true)) => differ += 1,
                Some(Ok(false)) => agree += 1,
            }
        }
        counts.push((suite.name.clone(), agree, differ));
    }
    for known in KNOWN.iter().copied().flatten() {
        let places = known.cases.iter();
        let places = places.map(|(case, _)| format!("{}, {case}", known.suite));
        let missing = places.filter(|place| !seen.contains(place));
        complaints.extend(missing.map(|place| format!("{place}: is missing")));
    }
    (counts, complaints)
}

/// Whether the case differs, or what is wrong with it.
fn run_case(known: &Known, case: &Case, run: Run) -> Result<bool, String> {
    let listed = |listed: &&Difference| listed.suite == known.suite && listed.case == case.name;
    let difference = DIFFERENCES.iter().find(listed);
    caught(|| {
        let fact = Fact::new(&case.facts, "");
        known.check_fields(&fact);
        let mut check = Check::new(difference);
        run(&mut check, &fact);
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

    fn check_fields(&self, fact: &Fact<'_>) {
        for (field, value) in fact.fields() {
            let is_known = field == "name" || self.fields.contains(&field);
            assert!(is_known, "the field `{field}` is not known here");
            if field == "expect" && value.value().is_object() {
                self.check_fields(&value);
            }
        }
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// What `act` returns, or why it panicked, which is not printed.
fn caught<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !CATCHING.get() {
                loud(info);
            }
        }));
    });
    CATCHING.set(true);
    let done = catch_unwind(AssertUnwindSafe(act));
    CATCHING.set(false);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_else(|| "panicked".to_owned())
    })
}

/// A number that is expected up to `tolerance`.
fn close(check: &Check, what: &str, motet: f64, expected: &Fact<'_>, tolerance: f64) {
    let number = expected.value().as_f64().expect("a number");
    let is_close = (motet - number).abs() <= tolerance;
    check.same(what, if is_close { number } else { motet }, number);
}

/// A list of numbers.
fn floats(fact: &Fact<'_>) -> Vec<f32> {
    let number = |item: &Fact<'_>| item.value().as_f64().expect("a number") as f32;
    fact.items().iter().map(number).collect()
}
