//! Every expectation is compared with something: any changed expectation makes its case fail.

use crate::expectations::change_all;
use crate::suites::ours;

/// Inputs that stand among the expectations, by suite. If a prompt ends differently from all
/// cached ones, its exact ending does not matter.
const GIVEN: [(&str, &str); 4] = [
    ("trie.split_append", "/expect/finds/2/0/"),
    (
        "prefix_cache.scenarios_head",
        "/expect/findable_after_A/tokens/",
    ),
    ("prefix_cache.scenarios_head", "/expect/prompt/"),
    ("prefix_cache.scenarios_head", "/expect/scheduled/"),
];

#[test]
fn every_changed_expectation_is_noticed() {
    let is_given = |suite: &str, location: &str| {
        let mut given = GIVEN.iter();
        given.any(|(of, start)| *of == suite && location.starts_with(start))
    };
    let changed = change_all(&ours(), is_given);
    println!("{} expectations", changed.expectations);
    assert!(changed.without.is_empty(), "{:?}", changed.without);
    assert!(
        changed.unnoticed.is_empty(),
        "\n{}",
        changed.unnoticed.join("\n")
    );
}
