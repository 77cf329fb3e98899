//! Totals of restore points, for models that cannot resume after any token.

use super::trie::Snapshots;

/// Totals of restore points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreStats {
    /// Restore points taken so far, ends of sequences not included.
    pub taken: u64,
    /// Restore points given up so far, because a later turn had passed them.
    pub given_up: u64,
    /// Segments that hold state of window or recurrent layers.
    pub snapshots: usize,
    /// Device bytes of that state: a part of [`CacheStats::sealed_bytes`](super::CacheStats).
    pub snapshot_bytes: usize,
    /// Sequences that have opened a slot so far, private salts excluded.
    pub prompts: u64,
    /// Part of `prompts` that resumed from cached state.
    pub resumed: u64,
    /// Prompt tokens so far that the trie held but that were computed again, because no state
    /// lay at their end.
    pub recomputed_tokens: u64,
}

/// Counts restore points. The cache itself counts what it holds now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restores(RestoreStats);

impl Restores {
    pub(super) fn count_taken(&mut self) {
        self.0.taken += 1;
    }

    pub(super) fn count_given_up(&mut self) {
        self.0.given_up += 1;
    }

    /// Counts a prompt that starts with `path_tokens` cached tokens, of `seen_tokens` that the
    /// trie holds.
    pub(super) fn count_prompt(&mut self, path_tokens: usize, seen_tokens: usize) {
        self.0.prompts += 1;
        self.0.resumed += u64::from(path_tokens > 0);
        self.0.recomputed_tokens += seen_tokens.saturating_sub(path_tokens) as u64;
    }

    pub(super) fn stats(&self, snapshots: &Snapshots) -> RestoreStats {
        RestoreStats {
            snapshots: snapshots.nodes(),
            snapshot_bytes: snapshots.bytes(),
            ..self.0
        }
    }
}
