//! A hash of few words, for tables and fingerprints: fast, and not safe against chosen input.

/// Adds a word to a hash: the step of FxHash. The upper bits depend on all words.
#[doc(hidden)]
#[must_use]
#[inline]
pub fn hash_step(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
}
