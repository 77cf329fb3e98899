//! Salts: which sequences may share state.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::{SequenceId, hash_step};

/// Sequences share state only with sequences of the same salt. Requests that name no salt have
/// the default salt.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(Kind);

/// A digest that stands for a [`Salt`] where its name must not appear. It distinguishes salts
/// without revealing their names. A guessed name can be checked against it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaltDigest(pub [u8; 32]);

#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    #[default]
    Unnamed,
    Named(Arc<str>),
    /// The salt of one sequence and its forks.
    Private(SequenceId),
}

impl Salt {
    /// The salt with this name, often the name of a tenant.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(Kind::Named(name.into()))
    }

    /// The private salt of a sequence and its forks, which reuse and publish nothing. No other
    /// sequence has this salt. State cached under it is evicted when the last of these
    /// sequences has ended.
    #[must_use]
    pub fn private(sequence: SequenceId) -> Self {
        Self(Kind::Private(sequence))
    }

    /// The salt's name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            Kind::Named(name) => Some(name),
            Kind::Unnamed | Kind::Private(_) => None,
        }
    }

    /// Whether the salt is private to a sequence and its forks.
    #[must_use]
    pub fn is_private(&self) -> bool {
        matches!(self.0, Kind::Private(_))
    }

    /// SHA-256 of the name, the same in every process. For a private salt it is a hash of the
    /// sequence's id.
    #[must_use]
    #[doc(hidden)]
    pub fn digest(&self) -> SaltDigest {
        let digest = Sha256::new().chain_update("motet salt");
        // The default salt differs from the salt with an empty name.
        let digest = match &self.0 {
            Kind::Unnamed => digest.chain_update([0]),
            Kind::Named(name) => digest.chain_update([1]).chain_update(name.as_bytes()),
            Kind::Private(sequence) => digest
                .chain_update([2])
                .chain_update(sequence.0.to_le_bytes()),
        };
        SaltDigest(digest.finalize().into())
    }

    /// A 64-bit fingerprint of the salt. Two salts may collide.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let (name, named) = match &self.0 {
            Kind::Unnamed => ("", 0),
            Kind::Named(name) => (&**name, 1),
            Kind::Private(sequence) => ("", sequence.0.wrapping_add(2)),
        };
        name.bytes().map(u64::from).fold(named, hash_step)
    }
}

/// Shows whether there is a name, but not the name: it may be a secret.
impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Unnamed => "Salt(default)",
            Kind::Named(_) => "Salt(named)",
            Kind::Private(_) => "Salt(private)",
        })
    }
}

/// Shows nothing of the digest, since names can be guessed.
impl fmt::Debug for SaltDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SaltDigest(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_distinguish_salts_in_every_process() {
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
        // Equals `printf 'motet salt\1a' | sha256sum`, since files outlive processes.
        assert_eq!(Salt::new("a").digest().0[..4], [0x0B, 0x75, 0xE9, 0x70]);
    }
}
