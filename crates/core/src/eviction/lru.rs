//! Least recently used first: the baseline.

use super::{Eviction, Facts};

/// Evicts the least recently used node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl Eviction for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn score(&self, facts: &Facts, _: u64) -> u64 {
        facts.last_use
    }
}
