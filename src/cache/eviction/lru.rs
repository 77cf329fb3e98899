//! Least recently used first: the yardstick.

use super::{Eviction, Facts};

/// Evicts what was used least recently.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl Eviction for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn inserted(&mut self, _: &Facts, _: u64) {}

    fn used(&mut self, _: &Facts, _: u64) {}

    fn evicted(&mut self, _: &Facts, _: u64) {}

    fn rank(&self, facts: &Facts, _: u64) -> u64 {
        facts.last_use
    }
}
