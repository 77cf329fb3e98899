//! Every expectation is compared with something: if any one is changed, its case fails.

use crate::expectations::change_all;
use crate::suites::ours;

/// A suite whose expectation is its name, without values.
const WITHOUT_VALUES: &str = "sample.batched_equals_single";

#[test]
fn every_changed_expectation_is_noticed() {
    // The tolerance stands beside an expectation, and is an input.
    let changed = change_all(&ours(), |_, place| place.ends_with("/tolerance"));
    println!("{} expectations", changed.expectations);
    let all_of_it = changed.without.iter().all(|suite| suite == WITHOUT_VALUES);
    assert!(all_of_it, "{:?}", changed.without);
    assert!(
        changed.unnoticed.is_empty(),
        "\n{}",
        changed.unnoticed.join("\n")
    );
}
