//! Every expectation is compared with something: whichever is changed, its case fails.

use crate::expectations::change_all;
use crate::suites::ours;

/// What stands with an expectation and is given, by its suite. Where a prompt ends
/// otherwise than all that is cached, it does not matter how.
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
