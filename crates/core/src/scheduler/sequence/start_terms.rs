//! The terms on which a sequence starts next.

use super::grant::{GRANT_AHEAD_TOKENS, GRANT_TOKENS};

/// The results of earlier starts that its next start takes into account.
#[derive(Debug, Default)]
pub(super) struct StartTerms {
    /// Number of its tokens in the cache, as the cache reported last; `None` before.
    resident_tokens: Option<usize>,
    /// Times that another sequence started first because more of its prompt was cached.
    overtaken: u32,
    /// Whether the cache had no memory for it with headroom, so that it starts with a minimal
    /// grant.
    minimal_grant: bool,
    /// Whether it did not fit on the device beside its cached prefix, even alone, so that it
    /// starts without the cache.
    ignore_cache: bool,
}

impl StartTerms {
    /// Records the number of its tokens in the cache.
    pub(super) fn note_resident(&mut self, tokens: usize) {
        self.resident_tokens = Some(tokens);
    }

    /// Returns how many of `tokens` tokens the cache will not have, and how many it will. At most
    /// `unknown` are taken for cached before the cache has reported. The last one never is.
    pub(super) fn uncached(&self, tokens: usize, unknown: usize) -> (usize, usize) {
        let resident = self.resident_tokens.unwrap_or(unknown).min(tokens - 1);
        (tokens - resident, resident)
    }

    pub(super) fn overtaken(&self) -> u32 {
        self.overtaken
    }

    /// Counts a sequence that starts before it since more of that one's prompt is cached.
    pub(super) fn overtake(&mut self) {
        self.overtaken += 1;
    }

    /// Returns the tokens beyond the known ones for which it gets memory.
    pub(super) fn headroom(&self, headroom: usize) -> usize {
        if self.minimal_grant {
            GRANT_AHEAD_TOKENS
        } else {
            headroom.max(GRANT_TOKENS)
        }
    }

    /// Whether it asks for a minimal grant, since it was denied memory.
    pub(super) fn is_minimal(&self) -> bool {
        self.minimal_grant
    }

    /// Records that the cache had no memory. It asks for a minimal grant from now on. Returns
    /// whether it did so before.
    pub(super) fn deny(&mut self) -> bool {
        std::mem::replace(&mut self.minimal_grant, true)
    }

    /// Records that the cache had memory.
    pub(super) fn allow(&mut self) {
        self.minimal_grant = false;
    }

    /// From now on the sequence ignores the cache. Returns the previous setting.
    pub(super) fn ignore_cache(&mut self) -> bool {
        std::mem::replace(&mut self.ignore_cache, true)
    }

    pub(super) fn ignores_cache(&self) -> bool {
        self.ignore_cache
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_token_of_a_cached_prompt_is_computed() {
        let mut terms = StartTerms::default();
        assert_eq!(terms.uncached(10, 0), (10, 0));
        assert_eq!(terms.uncached(10, usize::MAX), (1, 9));
        terms.note_resident(4);
        assert_eq!(terms.uncached(10, usize::MAX), (6, 4));
        terms.note_resident(10);
        assert_eq!(terms.uncached(10, 0), (1, 9));
    }

    #[test]
    fn grant_is_minimal_while_memory_is_denied() {
        let mut terms = StartTerms::default();
        assert_eq!(terms.headroom(500), 500);
        assert_eq!(terms.headroom(0), GRANT_TOKENS);
        assert!(!terms.deny() && terms.deny());
        assert_eq!(terms.headroom(500), GRANT_AHEAD_TOKENS);
        terms.allow();
        assert_eq!(terms.headroom(500), 500);
    }
}
