//! Labels: all that is known of a copy beside its bytes.
//!
//! A copy is the state of some tokens after others. Its label has those tokens themselves,
//! and only a digest of the others. The labels of one conversation take memory in proportion
//! to its length, however many copies it is cut into.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::TokenId;
use crate::cache::SaltDigest;
use crate::protocol::SegmentSize;

/// How a copy's numbers are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// As the model has them.
    #[default]
    Full,
    /// In eight bits each: see `tiers::precision`.
    Eight,
}

/// All that is known of a copy beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The digest of its salt.
    pub salt: SaltDigest,
    /// Stands for the tokens from the first of the sequence to where its own begin.
    pub before: PrefixDigest,
    /// How many tokens that is.
    pub start: usize,
    /// Its own tokens, of which it is the state.
    pub tokens: Arc<[TokenId]>,
    /// Tokens that followed when it was sealed, for state that depends on them.
    pub state_lag: usize,
    /// How its numbers are kept.
    pub precision: Precision,
    /// Bytes of the copy as it is kept.
    pub bytes: usize,
}

/// Stands for the first tokens of a sequence, of one salt: their SHA-256.
///
/// Two prefixes, or two salts, with one digest are a collision of SHA-256, of which none is
/// known to anybody. Equal digests are therefore taken for equal prefixes, and nothing else is
/// compared. It is not cut to fewer bits: half of them would leave a collision in the reach
/// of somebody who can spend 2^64 hashes on prompts of one salt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixDigest(pub [u8; 32]);

/// The digests of a sequence's prefixes, from short to long. Each token is hashed once.
#[derive(Clone, Debug)]
pub struct PrefixHasher(Sha256);

impl Label {
    /// Bytes that a copy takes of host memory beside its tokens and its bytes, wherever it
    /// is: its label, its entries in the pager's tables, and its place in their orders.
    /// A round number above what was counted (`tests/labels.rs`).
    pub const RECORD_BYTES: usize = 1024;

    /// The label of the state of `tokens[start..]`, where `tokens` are all from the first of
    /// the sequence on.
    ///
    /// # Panics
    ///
    /// When there are not so many tokens.
    #[must_use]
    pub fn new(
        salt: SaltDigest,
        tokens: &[TokenId],
        start: usize,
        state_lag: usize,
        precision: Precision,
        bytes: usize,
    ) -> Self {
        let (before, own) = tokens.split_at(start);
        Self {
            salt,
            before: PrefixDigest::of(salt, before),
            start,
            tokens: Arc::from(own),
            state_lag,
            precision,
            bytes,
        }
    }

    /// Where its own tokens end, from the sequence's first one.
    #[must_use]
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }

    /// The size of the segment that it was.
    #[must_use]
    pub fn segment_size(&self) -> SegmentSize {
        SegmentSize {
            tokens: self.tokens.len(),
            state_lag: self.state_lag,
        }
    }

    /// Whether a sequence of this salt that begins with `tokens` has what it is the state of.
    #[must_use]
    pub fn is_of(&self, salt: SaltDigest, tokens: &[TokenId]) -> bool {
        self.salt == salt
            && tokens.get(self.start..self.end()) == Some(&*self.tokens)
            && self.before == PrefixDigest::of(salt, &tokens[..self.start])
    }

    /// Host memory that is taken by what is known of a copy of so many tokens.
    #[must_use]
    pub fn host_bytes(tokens: usize) -> usize {
        tokens
            .saturating_mul(size_of::<TokenId>())
            .saturating_add(Self::RECORD_BYTES)
    }
}

impl PrefixDigest {
    /// That of a sequence's first tokens.
    #[must_use]
    pub fn of(salt: SaltDigest, tokens: &[TokenId]) -> Self {
        let mut hasher = PrefixHasher::new(salt);
        hasher.update(tokens);
        hasher.digest()
    }
}

/// Shows nothing of it, for what was said can be guessed.
impl fmt::Debug for PrefixDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrefixDigest(..)")
    }
}

impl PrefixHasher {
    /// Of a sequence of this salt, before its first token.
    #[must_use]
    pub fn new(salt: SaltDigest) -> Self {
        // Together a block of SHA-256, so that tokens lie as its blocks do.
        let domain: &[u8; 32] = b"motet tokens of one salt so far\0";
        Self(Sha256::new().chain_update(domain).chain_update(salt.0))
    }

    /// Takes in the tokens that come next.
    pub fn update(&mut self, tokens: &[TokenId]) {
        if cfg!(target_endian = "little") {
            self.0.update(bytemuck::cast_slice::<TokenId, u8>(tokens));
            return;
        }
        for token in tokens {
            self.0.update(token.to_le_bytes());
        }
    }

    /// The digest of all that was taken in.
    #[must_use]
    pub fn digest(&self) -> PrefixDigest {
        PrefixDigest(self.0.clone().finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: SaltDigest = SaltDigest([5; 32]);

    fn label(tokens: &[TokenId], start: usize) -> Label {
        Label::new(SALT, tokens, start, 0, Precision::Full, 100)
    }

    #[test]
    fn prefix_digest_is_stable_across_processes() {
        let mut hasher = PrefixHasher::new(SALT);
        let tokens: Vec<TokenId> = (0..100).collect();
        let mut digests = vec![hasher.digest()];
        for token in &tokens {
            hasher.update(&[*token]);
            assert!(!digests.contains(&hasher.digest()), "{token}");
            digests.push(hasher.digest());
        }
        for (end, digest) in digests.iter().enumerate() {
            assert_eq!(PrefixDigest::of(SALT, &tokens[..end]), *digest, "{end}");
        }
        assert_ne!(
            PrefixDigest::of(SaltDigest([6; 32]), &tokens[..9]),
            digests[9]
        );
        // As `(printf 'motet tokens of one salt so far\0'; head -c 32 /dev/zero | tr '\0' '\5';
        // printf '\0\0\0\0\1\0\0\0') | sha256sum` says: files outlive processes.
        assert_eq!(digests[2].0[..4], [0x23, 0xE3, 0x74, 0x0D]);
    }

    #[test]
    fn label_matches_sequences_with_all_its_tokens() {
        let one = label(&[1, 2, 3, 4, 5], 3);
        assert_eq!((one.start, one.end(), &*one.tokens), (3, 5, &[4, 5][..]));
        let check = |tokens: &[TokenId], expected: bool| {
            assert_eq!(one.is_of(SALT, tokens), expected, "{tokens:?}");
        };
        check(&[1, 2, 3, 4, 5], true);
        check(&[1, 2, 3, 4, 5, 6], true);
        check(&[1, 2, 3, 4], false);
        check(&[1, 2, 9, 4, 5], false);
        check(&[1, 2, 3, 4, 9], false);
        assert!(!one.is_of(SaltDigest([6; 32]), &[1, 2, 3, 4, 5]));
    }
}
