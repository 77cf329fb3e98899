//! Every expectation is compared with something: whichever is changed, its case fails.

use crate::expectations::change_all;
use crate::suites::ours;

/// A suite that expects what its name says, and no value.
const WITHOUT_VALUES: &str = "sample.batched_equals_single";

#[test]
fn every_changed_expectation_is_noticed() {
    // How close is close enough stands with an expectation, and is given.
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
