//! Names of what is stored: HMACs under the fleet's secret, which reveal nothing of what they name.

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use motet_protocol::remote::RemoteModel;
use motet_protocol::{Label, Precision, PrefixDigest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::seal::Version;
use crate::secret::Secret;

/// The key of all names of a fleet.
#[derive(Clone)]
pub(crate) struct Names(Hmac<Sha256>);

/// The name of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Name([u8; 32]);

impl Names {
    pub(crate) fn of(secret: &Secret) -> Self {
        let mut key = [0; 32];
        let derived = Hkdf::<Sha256>::new(Some(b"motet remote 1"), secret.bytes());
        derived
            .expand(b"names", &mut key)
            .expect("a key is shorter than HKDF's bound");
        Self(Hmac::new_from_slice(&key).expect("HMAC takes keys of any length"))
    }

    /// The name of a copy with this label.
    pub(crate) fn copy(&self, model: &RemoteModel, label: &Label) -> Name {
        let mut tokens = Sha256::new();
        for token in &*label.tokens {
            tokens.update(token.to_le_bytes());
        }
        let precision = match label.precision {
            Precision::Full => 0,
            Precision::Eight => 1,
        };
        let numbers = [
            model.identity,
            label.start as u64,
            label.tokens.len() as u64,
            label.state_lag as u64,
            precision,
            label.bytes as u64,
        ];
        let texts = [&label.key.salt.0, &label.before.0, &*tokens.finalize()];
        Name(self.name(b"copy", &numbers, &texts))
    }

    /// The name of the mark of a prefix of so many tokens.
    pub(crate) fn mark(&self, model: &RemoteModel, prefix: &PrefixDigest, tokens: usize) -> String {
        let numbers = [model.identity, tokens as u64, u64::from(model.whole)];
        format!("mark-{}", hex(&self.name(b"mark", &numbers, &[&prefix.0])))
    }

    /// Each kind has texts of 32 bytes, and always as many.
    fn name(&self, kind: &[u8; 4], numbers: &[u64], texts: &[&[u8]]) -> [u8; 32] {
        let mut name = self.0.clone();
        name.update(kind);
        for number in numbers {
            name.update(&number.to_le_bytes());
        }
        for text in texts {
            name.update(text);
        }
        name.finalize().into_bytes().into()
    }
}

impl Name {
    /// The name of the copy's head.
    pub(crate) fn head(&self) -> String {
        format!("copy-{}", hex(&self.0))
    }

    /// The name of a part of this version of the copy.
    pub(crate) fn part(&self, version: Version, number: usize) -> String {
        format!("copy-{}-{}-{number}", hex(&self.0), hex(&version.0))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
