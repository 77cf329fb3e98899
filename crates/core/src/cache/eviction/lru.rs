//! Least recently used first: the yardstick.

use super::{Eviction, Facts};

/// Evicts what was used least recently.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl Eviction for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn worth(&self, facts: &Facts, _: u64) -> u64 {
        facts.last_use
    }
}
