//! Motet's cache against what ollama's tests pin down of its caches: shared prefixes,
//! slots, context shifts, layers with windows and recurrent layers, a trie of snapshots.
//!
//! The facts are in `tests/data/cache_cases.json`, and a few more with other numbers in
//! `cache_cases_other.json`. The variable `MOTET_CASES` names a file to be run instead.
//! Each case is put to Motet's own operations by its suite's rule, whatever its name, and
//! what is expected is read from the file. Where Motet differs on purpose, the case
//! stands in [`differences`], and what Motet does instead is asserted; so do the fields
//! that Motet has nothing for. A suite, a shape or a field that is not known here fails.
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
//! `suites.rs` runs them, and `suite_checks.rs` makes sure that all of them are run, and that
//! names make no difference. `harness.rs` is the cache with its device, `memory_pressure.rs` takes its
//! memory, `requests.rs` is what scenarios ask of it, `segments.rs` the device's state
//! without a cache, `reach.rs` finds out what a window reads, and `mutations.rs` makes
//! sure that every expectation is compared with something.

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
/// Names a file to be run instead of both.
const ENVIRONMENT_VARIABLE: &str = "MOTET_CASES";
/// Suites without cases of other numbers.
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
