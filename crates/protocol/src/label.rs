//! Labels: the description of a copy beside its bytes.
//!
//! A copy is the state of some tokens after others. Its label holds those tokens themselves,
//! and only a digest of the ones before. The labels of one conversation take memory in
//! proportion to its length, however many copies it is cut into.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{KeyDigest, SegmentSize};
use crate::{AdapterKey, TokenId};

/// Precision of the numbers of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// The model's own precision.
    #[default]
    Full,
    /// Eight bits for each number: see `tiers::precision`.
    Eight,
}

/// The description of a copy beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Key of its own tokens.
    pub key: KeyDigest,
    /// Digest of its key, and of the tokens before its own from the first of the sequence on.
    pub before: PrefixDigest,
    /// Number of the tokens before its own.
    pub start: usize,
    /// Its own tokens, whose state the copy holds.
    pub tokens: Arc<[TokenId]>,
    /// Tokens that followed when the segment was sealed, for state that depends on them.
    pub state_lag: usize,
    /// Precision of its numbers.
    pub precision: Precision,
    /// Bytes of the copy at this precision.
    pub bytes: usize,
}

/// SHA-256 of the first tokens of a sequence, with its key.
///
/// Two prefixes, or two keys, with equal digests would be a collision of SHA-256. No collision
/// is known. Equal digests are therefore taken for equal prefixes, and nothing else is
/// compared. The digest is not truncated: with half of the bits, an attacker who can spend 2^64
/// hashes on prompts of one key could find a collision.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixDigest(pub [u8; 32]);

/// Computes the digests of a sequence's prefixes, from short to long. Each token is hashed
/// once.
///
/// Where the key's adapter begins, the hash begins anew: with the adapter, and the digest so far.
#[derive(Clone, Debug)]
pub struct PrefixHasher {
    hasher: Sha256,
    /// The adapter, and the tokens before it that are still to come.
    coming: Option<(AdapterKey, usize)>,
}

impl Label {
    /// Bytes of host memory that a copy takes beside its tokens and its payload, in whatever
    /// tier it is: its label, its entries in the pager's tables, and its entries in their
    /// orders. A round number above the measured size (`crates/testkit/tests/labels.rs`).
    pub const RECORD_BYTES: usize = 1024;

    /// Creates the label of the state of `tokens[start..]`, which one adapter or the base model has
    /// computed. `tokens` are all tokens from the first of the sequence on.
    ///
    /// # Panics
    ///
    /// If `start` is greater than the number of tokens, or an adapter begins after it.
    #[must_use]
    pub fn new(
        key: KeyDigest,
        tokens: &[TokenId],
        start: usize,
        state_lag: usize,
        precision: Precision,
        bytes: usize,
    ) -> Self {
        let (before, own) = tokens.split_at(start);
        assert!(
            own.len() <= key.tokens_alike(start),
            "a copy is of one adapter, or of the base model"
        );
        let key = key.at(tokens.len());
        Self {
            key,
            before: PrefixDigest::of(key, before),
            start,
            tokens: Arc::from(own),
            state_lag,
            precision,
            bytes,
        }
    }

    /// Returns the offset in the sequence at which its own tokens end.
    #[must_use]
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }

    /// Returns the size of the segment that was copied.
    #[must_use]
    pub fn segment_size(&self) -> SegmentSize {
        SegmentSize {
            tokens: self.tokens.len(),
            state_lag: self.state_lag,
        }
    }

    /// Whether a sequence with this key and these first tokens contains the tokens that the
    /// copy is the state of.
    #[must_use]
    pub fn is_of(&self, key: KeyDigest, tokens: &[TokenId]) -> bool {
        self.key == key.at(self.end())
            && self.tokens.len() <= key.tokens_alike(self.start)
            && tokens.get(self.start..self.end()) == Some(&*self.tokens)
            && self.before == PrefixDigest::of(key, &tokens[..self.start])
    }

    /// Returns the bytes of host memory that the label of a copy of so many tokens takes, with
    /// its entries.
    #[must_use]
    pub fn host_bytes(tokens: usize) -> usize {
        tokens
            .saturating_mul(size_of::<TokenId>())
            .saturating_add(Self::RECORD_BYTES)
    }
}

impl PrefixDigest {
    /// Returns the digest of a sequence's first tokens.
    #[must_use]
    pub fn of(key: KeyDigest, tokens: &[TokenId]) -> Self {
        let mut hasher = PrefixHasher::new(key);
        hasher.update(tokens);
        hasher.digest()
    }
}

/// Does not show the digest: guessed prompts could be confirmed by it.
impl fmt::Debug for PrefixDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrefixDigest(..)")
    }
}

impl PrefixHasher {
    /// Creates a hasher for a sequence with this key, before its first token.
    #[must_use]
    pub fn new(key: KeyDigest) -> Self {
        // Domain and salt fill one block of SHA-256, so that tokens are aligned with its
        // blocks.
        let domain: &[u8; 32] = b"motet tokens of one salt so far\0";
        let mut hasher = Self {
            hasher: Sha256::new().chain_update(domain).chain_update(key.salt.0),
            coming: key.adapter.map(|adapter| (adapter.key, adapter.from)),
        };
        hasher.begin_adapter();
        hasher
    }

    /// Adds the tokens that come next.
    pub fn update(&mut self, tokens: &[TokenId]) {
        let before = self.coming.map_or(0, |(_, before)| before);
        let (before, under) = tokens.split_at(before.min(tokens.len()));
        self.add(before);
        if let Some((_, left)) = &mut self.coming {
            *left -= before.len();
            self.begin_adapter();
        }
        self.add(under);
    }

    /// Returns the digest of all tokens added so far: with the adapter, if it computes the next one.
    #[must_use]
    pub fn digest(&self) -> PrefixDigest {
        PrefixDigest(self.hasher.clone().finalize().into())
    }

    fn add(&mut self, tokens: &[TokenId]) {
        if cfg!(target_endian = "little") {
            let bytes = bytemuck::cast_slice::<TokenId, u8>(tokens);
            self.hasher.update(bytes);
            return;
        }
        for token in tokens {
            self.hasher.update(token.to_le_bytes());
        }
    }

    /// Begins anew if the adapter computes the next token.
    fn begin_adapter(&mut self) {
        if let Some((adapter, _)) = self.coming.take_if(|(_, left)| *left == 0) {
            let so_far = self.digest();
            self.hasher = adapter.chain(Sha256::new()).chain_update(so_far.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SaltDigest;

    const KEY: KeyDigest = KeyDigest::of(SaltDigest([5; 32]));

    fn label(tokens: &[TokenId], start: usize) -> Label {
        Label::new(KEY, tokens, start, 0, Precision::Full, 100)
    }

    #[test]
    fn prefix_digest_is_stable_across_processes() {
        let mut hasher = PrefixHasher::new(KEY);
        let tokens: Vec<TokenId> = (0..100).collect();
        let mut digests = vec![hasher.digest()];
        for token in &tokens {
            hasher.update(&[*token]);
            assert!(!digests.contains(&hasher.digest()), "{token}");
            digests.push(hasher.digest());
        }
        for (end, digest) in digests.iter().enumerate() {
            assert_eq!(PrefixDigest::of(KEY, &tokens[..end]), *digest, "{end}");
        }
        assert_ne!(
            PrefixDigest::of(KeyDigest::of(SaltDigest([6; 32])), &tokens[..9]),
            digests[9]
        );
        // The value is that of `(printf 'motet tokens of one salt so far\0'; head -c 32 /dev/zero |
        // tr '\0' '\5'; printf '\0\0\0\0\1\0\0\0') | sha256sum`. It must be stable, since files
        // outlive processes.
        assert_eq!(digests[2].0[..4], [0x23, 0xE3, 0x74, 0x0D]);
    }

    #[test]
    fn label_matches_sequences_with_all_its_tokens() {
        let one = label(&[1, 2, 3, 4, 5], 3);
        assert_eq!((one.start, one.end(), &*one.tokens), (3, 5, &[4, 5][..]));
        let check = |tokens: &[TokenId], expected: bool| {
            assert_eq!(one.is_of(KEY, tokens), expected, "{tokens:?}");
        };
        check(&[1, 2, 3, 4, 5], true);
        check(&[1, 2, 3, 4, 5, 6], true);
        check(&[1, 2, 3, 4], false);
        check(&[1, 2, 9, 4, 5], false);
        check(&[1, 2, 3, 4, 9], false);
        assert!(!one.is_of(KeyDigest::of(SaltDigest([6; 32])), &[1, 2, 3, 4, 5]));
    }
}
