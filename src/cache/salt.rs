//! Salts: who may share with whom.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// Sequences share state only with those of the same salt. The default salt is that
/// of all who name none.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(Option<Arc<str>>);

/// What stands for a [`Salt`] where its name may not be: it tells salts apart and does
/// not say which they are. Whoever guesses a name can check the guess.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaltDigest(pub [u8; 32]);

impl Salt {
    /// The salt of this name, which is often a tenant's.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(Some(name.into()))
    }

    /// SHA-256 of the name: the same in every process.
    #[must_use]
    pub fn digest(&self) -> SaltDigest {
        let name = self.0.as_deref();
        let digest = Sha256::new()
            .chain_update("motet salt")
            // No name is another salt than the empty one.
            .chain_update([u8::from(name.is_some())])
            .chain_update(name.unwrap_or_default());
        SaltDigest(digest.finalize().into())
    }

    /// A number that differs between salts, as far as 64 bits can.
    pub(super) fn fingerprint(&self) -> u64 {
        let name = self.0.as_deref().unwrap_or_default();
        let named = u64::from(self.0.is_some());
        // As FxHash does.
        name.bytes().fold(named, |hash, byte| {
            (hash.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x517c_c1b7_2722_0a95)
        })
    }
}

/// Says whether there is a name, and not which: it may be a secret.
impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "Salt(default)",
            Some(_) => "Salt(named)",
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
