//! Salts: who may share with whom.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::SequenceId;

/// Sequences share state only with those of the same salt. The default salt is that
/// of all who name none.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(Kind);

/// What stands for a [`Salt`] where its name may not be: it tells salts apart and does
/// not say which they are. Whoever guesses a name can check the guess.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaltDigest(pub [u8; 32]);

#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    #[default]
    Unnamed,
    Named(Arc<str>),
    /// One sequence's, and that of its forks.
    Private(SequenceId),
}

impl Salt {
    /// The salt of this name, which is often a tenant's.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(Kind::Named(name.into()))
    }

    /// The salt of a sequence that reuses and publishes nothing, and of its forks. No other
    /// sequence has it, and what is cached under it goes when the last of these is over.
    #[must_use]
    pub fn private(sequence: SequenceId) -> Self {
        Self(Kind::Private(sequence))
    }

    /// Whether it is a sequence's own.
    #[must_use]
    pub fn is_private(&self) -> bool {
        matches!(self.0, Kind::Private(_))
    }

    /// SHA-256 of the name: the same in every process, but for a private salt.
    #[must_use]
    pub fn digest(&self) -> SaltDigest {
        let digest = Sha256::new().chain_update("motet salt");
        // No name is another salt than the empty one.
        let digest = match &self.0 {
            Kind::Unnamed => digest.chain_update([0]),
            Kind::Named(name) => digest.chain_update([1]).chain_update(name.as_bytes()),
            Kind::Private(sequence) => digest
                .chain_update([2])
                .chain_update(sequence.0.to_le_bytes()),
        };
        SaltDigest(digest.finalize().into())
    }

    /// A number that differs between salts, as far as 64 bits can.
    pub(super) fn fingerprint(&self) -> u64 {
        let (name, named) = match &self.0 {
            Kind::Unnamed => ("", 0),
            Kind::Named(name) => (&**name, 1),
            Kind::Private(sequence) => ("", sequence.0.wrapping_add(2)),
        };
        // As FxHash does.
        name.bytes().fold(named, |hash, byte| {
            (hash.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x517c_c1b7_2722_0a95)
        })
    }
}

/// Says whether there is a name, and not which: it may be a secret.
impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Unnamed => "Salt(default)",
            Kind::Named(_) => "Salt(named)",
            Kind::Private(_) => "Salt(private)",
        })
    }
}

/// Shows nothing of it, for names can be guessed.
impl fmt::Debug for SaltDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SaltDigest(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_salts_apart_in_every_process() {
        let salts = [
            Salt::default(),
            Salt::new(""),
            Salt::new("a"),
            Salt::new("b"),
            Salt::private(SequenceId(0)),
            Salt::private(SequenceId(1)),
        ];
        for (i, salt) in salts.iter().enumerate() {
            for (j, other) in salts.iter().enumerate() {
                assert_eq!(salt.digest() == other.digest(), i == j, "{i} {j}");
            }
        }
        // As `printf 'motet salt\1a' | sha256sum` says: files outlive processes.
        assert_eq!(Salt::new("a").digest().0[..4], [0x0B, 0x75, 0xE9, 0x70]);
    }
}
