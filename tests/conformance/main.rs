//! Motet's cache against the cases that ollama's tests pin down: shared prefixes, slots,
//! context shifts, layers with windows, recurrent layers, a trie of snapshots.
//!
//! The facts are in `tests/data/cache_cases.json`, and a few more with other numbers in
//! `cache_cases_other.json`. The variable `MOTET_CASES` names a file to run instead. The rule
//! of a case's suite runs the case with Motet's own operations, whatever the case's name is.
//! Expectations are read from the file. A case in which Motet differs on purpose is listed in
//! [`differences`], and Motet's own behavior is asserted. Unsupported fields are listed there
//! too. An unknown suite, shape or field fails.
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
//! `suites.rs` runs them. `suite_checks.rs` checks that all of them are run and that names make
//! no difference. `harness.rs` is the cache with its device, and `memory_pressure.rs` takes its
//! memory. `requests.rs` runs the requests of scenarios, `segments.rs` tests the device's state
//! without a cache, and `reach.rs` measures how far a window reads. `mutations.rs` checks that
//! every expectation is compared with something, and `shapes.rs` that a case of another shape ends in an
//! outcome or a named failure.

mod cases;
mod check;
mod differences;
mod expectations;
mod harness;
mod long_scenarios;
mod memory_pressure;
mod mutations;
mod prefixes;
mod prompts;
mod reach;
mod requests;
mod restore;
mod scenarios;
mod segments;
mod shapes;
mod slots;
mod snapshots;
mod states;
mod suite_checks;
mod suites;
mod trie_edits;
mod tries;
mod visible;
mod windows;

use suites::Known;

/// Our own file, and more cases with other numbers.
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cache_cases.json");
const OTHERS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/cache_cases_other.json"
);
/// Names a file to run instead of both.
const ENVIRONMENT_VARIABLE: &str = "MOTET_CASES";
/// Suites without cases with other numbers.
const WITHOUT_OTHERS: [&str; 0] = [];

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
