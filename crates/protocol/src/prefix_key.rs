//! Keys of prefixes: everything beside its tokens that a prefix's state depends on, and who may share it.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::hash_step;
use crate::salt::{Salt, SaltDigest};

/// The key of a sequence's prefixes. Sequences of equal keys and equal tokens have equal state, and
/// share it; no others do.
///
/// The parts are typed: a salt with the name of an adapter is another key than the adapter. The base model
/// is not among them: a cache is of one model, and whatever outlives it names the model's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixKey {
    /// The requests that share the state.
    pub salt: Salt,
    /// The adapter that computes a part of it.
    pub adapter: Option<ActiveAdapter>,
}

/// A key without the salt's name.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyDigest {
    /// Digest of the salt.
    pub salt: SaltDigest,
    /// The adapter that computes a part of the state.
    pub adapter: Option<ActiveAdapter>,
}

/// An adapter, and the tokens that it computes. Those before have the base model's state, which they
/// share with sequences without an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActiveAdapter {
    /// The adapter's key.
    pub key: AdapterKey,
    /// The first token that it computes: 0, unless the adapter is activated by a marker.
    pub from: usize,
}

/// Identifies the weights that an adapter adds to its base: by their content, whatever their name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterKey {
    /// A digest of the adapter's matrices and of the places where they belong.
    pub digest: [u8; 32],
    /// The bits of the factor by which their product is scaled.
    pub scale: u32,
}

impl PrefixKey {
    /// The key of this salt's sequences without an adapter.
    #[must_use]
    pub fn of(salt: Salt) -> Self {
        Self {
            salt,
            adapter: None,
        }
    }

    /// Whether its salt is private to a sequence and its forks.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.salt.is_private()
    }

    /// The adapter that computes the token at this offset.
    #[must_use]
    pub fn adapter_at(&self, at: usize) -> Option<&AdapterKey> {
        let adapter = self.adapter.as_ref()?;
        adapter.computes(at).then_some(&adapter.key)
    }

    /// The number of tokens from this offset on that the same adapter, or the base model, computes.
    #[must_use]
    pub fn tokens_alike(&self, at: usize) -> usize {
        tokens_alike(self.adapter, at)
    }

    /// The key of the prefix of so many tokens: without the adapter, if that computes none of them.
    #[must_use]
    pub fn at(&self, tokens: usize) -> Self {
        Self {
            salt: self.salt.clone(),
            adapter: adapter_within(self.adapter, tokens),
        }
    }

    /// The key without the salt's name.
    #[doc(hidden)]
    #[must_use]
    pub fn digest(&self) -> KeyDigest {
        KeyDigest {
            salt: self.salt.digest(),
            adapter: self.adapter,
        }
    }

    /// A 64-bit fingerprint of the key. Two keys may collide.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let salt = self.salt.fingerprint();
        let Some(adapter) = self.adapter else {
            return salt;
        };
        let first = adapter.key.digest.first_chunk();
        let digest = u64::from_le_bytes(*first.expect("a digest has 32 bytes"));
        let words = [digest, u64::from(adapter.key.scale), adapter.from as u64];
        words.into_iter().fold(salt, hash_step)
    }
}

impl KeyDigest {
    /// The key of the prefix of so many tokens: without the adapter, if that computes none of them.
    #[must_use]
    pub fn at(&self, tokens: usize) -> Self {
        Self {
            salt: self.salt,
            adapter: adapter_within(self.adapter, tokens),
        }
    }

    /// The key of this salt's sequences without an adapter.
    #[must_use]
    pub const fn of(salt: SaltDigest) -> Self {
        Self {
            salt,
            adapter: None,
        }
    }

    /// The number of tokens from this offset on that the same adapter, or the base model, computes.
    #[must_use]
    pub fn tokens_alike(&self, at: usize) -> usize {
        tokens_alike(self.adapter, at)
    }
}

/// The adapter, if it computes any of the first so many tokens.
fn adapter_within(adapter: Option<ActiveAdapter>, tokens: usize) -> Option<ActiveAdapter> {
    adapter.filter(|adapter| adapter.from < tokens)
}

fn tokens_alike(adapter: Option<ActiveAdapter>, at: usize) -> usize {
    let begins = adapter.map_or(usize::MAX, |adapter| adapter.from);
    match begins.saturating_sub(at) {
        0 => usize::MAX,
        left => left,
    }
}

impl ActiveAdapter {
    /// An adapter that computes all tokens.
    #[must_use]
    pub fn whole(key: AdapterKey) -> Self {
        Self { key, from: 0 }
    }

    /// Whether the adapter computes the token at this offset.
    #[must_use]
    pub fn computes(&self, at: usize) -> bool {
        at >= self.from
    }
}

impl AdapterKey {
    /// Adds the key to a hash: a label, then parts of fixed lengths.
    #[doc(hidden)]
    #[must_use]
    pub fn chain(&self, hasher: Sha256) -> Sha256 {
        let label: &[u8; 28] = b"motet tokens of one adapter\0";
        let hasher = hasher.chain_update(label);
        let hasher = hasher.chain_update(self.scale.to_le_bytes());
        hasher.chain_update(self.digest)
    }
}

/// Shows the beginning of the digest.
impl fmt::Debug for AdapterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.digest;
        let scale = f32::from_bits(self.scale);
        write!(f, "AdapterKey({a:02x}{b:02x}{c:02x}{d:02x}.. x {scale})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{PrefixDigest, PrefixHasher};

    const TOKENS: [u32; 6] = [1, 2, 3, 4, 5, 6];

    fn adapter(content: u8, scale: f32, from: usize) -> ActiveAdapter {
        let key = AdapterKey {
            digest: [content; 32],
            scale: scale.to_bits(),
        };
        ActiveAdapter { key, from }
    }

    fn key(salt: &str, adapter: Option<ActiveAdapter>) -> PrefixKey {
        PrefixKey {
            salt: Salt::new(salt),
            adapter,
        }
    }

    #[test]
    fn kinds_of_parts_never_collide() {
        // A salt that spells an adapter, the same adapter with another scale or beginning, and so on.
        let spelled = "a".repeat(32);
        let keys = [
            key("", None),
            key(&spelled, None),
            key("", Some(adapter(b'a', 1.0, 0))),
            key("", Some(adapter(b'a', 2.0, 0))),
            key("", Some(adapter(b'b', 1.0, 0))),
            key("", Some(adapter(b'a', 1.0, 3))),
            key(&spelled, Some(adapter(b'a', 1.0, 0))),
            PrefixKey {
                salt: Salt::default(),
                adapter: Some(adapter(b'a', 1.0, 0)),
            },
        ];
        let digests = |tokens: usize| -> BTreeSet<PrefixDigest> {
            let of = |key: &PrefixKey| PrefixDigest::of(key.digest(), &TOKENS[..tokens]);
            keys.iter().map(of).collect()
        };
        assert_eq!(digests(6).len(), keys.len());
        let fingerprints: BTreeSet<u64> = keys.iter().map(PrefixKey::fingerprint).collect();
        assert_eq!(fingerprints.len(), keys.len());
        // An adapter that begins later shares what is before it with its base.
        assert_eq!(digests(2).len(), keys.len() - 1);
        assert_eq!(keys[5].at(3), keys[0]);
        assert_eq!(keys[5].at(4), keys[5]);
    }

    #[test]
    fn digests_do_not_depend_on_how_tokens_come() {
        for from in 0..=TOKENS.len() {
            let key = key("a", Some(adapter(1, 1.0, from))).digest();
            for cut in 0..=TOKENS.len() {
                let mut hasher = PrefixHasher::new(key);
                hasher.update(&TOKENS[..cut]);
                assert!(hasher.digest() == PrefixDigest::of(key, &TOKENS[..cut]));
                hasher.update(&TOKENS[cut..]);
                assert!(hasher.digest() == PrefixDigest::of(key, &TOKENS));
            }
        }
    }
}
