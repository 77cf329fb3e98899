//! Motet's text and sampling against facts that ollama's tests fix about ollama: stop strings,
//! torn characters, penalties, filters, log probabilities, a pipelined decode.
//!
//! The facts are in `tests/data/text_and_sampling_cases.json`, and a few more with other numbers
//! in `text_and_sampling_cases_other.json`. The variable `MOTET_TEXT_CASES` names a file to run
//! instead. The rules are those of `tests/conformance`: each case runs on Motet's own code by its
//! suite's rule, whatever its name. If Motet differs on purpose, the case stands in
//! [`differences`], and the test asserts Motet's own behaviour.
//!
//! | file | suites |
//! |---|---|
//! | `texts.rs` | `text.*` |
//! | `samples.rs` | `sample.{single_slot, batched_equals_single, transforms}` |
//! | `histories.rs` | `sample.history` |
//! | `logprobs.rs` | `sample.logprobs`, `logprobs.from_logits` |
//! | `decode.rs` | `decode.pipelined` |
//!
//! `mutations.rs` makes sure that every expectation is compared with something, and `shapes.rs` that a case of
//! another shape ends in an outcome or a named failure.

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
#[path = "../conformance/expectations.rs"]
mod expectations;
mod histories;
mod logprobs;
mod mutations;
mod samples;
#[path = "../conformance/shapes.rs"]
mod shapes;
#[path = "../conformance/suite_checks.rs"]
mod suite_checks;
#[path = "../conformance/suites.rs"]
#[allow(
    dead_code,
    reason = "shared with the cache's cases, which need more of it"
)]
mod suites;
mod texts;

use cases::Fact;
use check::Check;
use suites::Known;

/// Our own file, and more cases with other numbers.
const OWN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/text_and_sampling_cases.json"
);
const OTHERS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/text_and_sampling_cases_other.json"
);
/// Names a file to run instead of both.
const ENVIRONMENT_VARIABLE: &str = "MOTET_TEXT_CASES";
/// Suites without cases of other numbers: these differ by listed names only.
const WITHOUT_OTHERS: [&str; 0] = [];

const KNOWN: [&[Known]; 5] = [
    texts::SUITES,
    samples::SUITES,
    histories::SUITES,
    logprobs::SUITES,
    decode::SUITES,
];

/// A number that is expected up to `tolerance`.
fn close(check: &Check, what: &str, motet: f64, expected: &Fact<'_>, tolerance: f64) {
    let number = float(expected);
    let is_close = (motet - number).abs() <= tolerance;
    check.same(what, if is_close { number } else { motet }, number);
}

fn float(fact: &Fact<'_>) -> f64 {
    let number = fact.value().as_f64();
    number.unwrap_or_else(|| fact.is_no("number"))
}

/// A list of numbers.
fn floats(fact: &Fact<'_>) -> Vec<f32> {
    let numbers = fact.items();
    numbers.iter().map(|number| float(number) as f32).collect()
}
