//! How much of all prompts was in the cache.

use super::Salt;

/// Totals of the prompts that opened a slot or took one over, private salts excluded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PrefixHits {
    asked_tokens: u64,
    hit_tokens: u64,
}

impl PrefixHits {
    /// Adds a prompt of `asked` tokens, of which `hit` have their state.
    pub(super) fn add(&mut self, salt: &Salt, asked: usize, hit: usize) {
        if !salt.is_private() {
            self.asked_tokens += asked as u64;
            self.hit_tokens += hit as u64;
        }
    }

    pub(super) fn asked_tokens(&self) -> u64 {
        self.asked_tokens
    }

    pub(super) fn hit_tokens(&self) -> u64 {
        self.hit_tokens
    }

    /// Panics unless prompts hit at most what they asked for.
    pub(super) fn check_integrity(&self) {
        assert!(self.hit_tokens <= self.asked_tokens, "hits were asked for");
    }
}
