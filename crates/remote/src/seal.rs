//! Sealed bytes: encrypted, and bound to the name that they are stored under.
//!
//! ```text
//! magic, 8 bytes | nonce, 12 bytes | encrypted bytes | tag, 16 bytes
//! ```

use aes_gcm_siv::aead::AeadInOut;
use aes_gcm_siv::{Aes256GcmSiv, KeyInit, Nonce, Tag};
use hkdf::Hkdf;
use motet_protocol::SaltDigest;
use motet_protocol::remote::{RemoteError, RemoteModel};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::error::{damaged, failed};
use crate::secret::Secret;

/// The first bytes of all that is stored.
const MAGIC: [u8; 8] = *b"motet r1";
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const HEADER_BYTES: usize = MAGIC.len() + NONCE_BYTES;

/// Seals and opens the state of one model under one salt.
pub(crate) struct Sealer(Aes256GcmSiv);

/// Distinguishes two copies of one name: machines may round differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version(pub(crate) [u8; 8]);

impl Version {
    pub(crate) fn random() -> Result<Self, RemoteError> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(failed)?;
        Ok(Self(bytes))
    }
}

impl Sealer {
    pub(crate) fn new(secret: &Secret, model: &RemoteModel, salt: SaltDigest) -> Self {
        let mut key = Zeroizing::new([0; 32]);
        let info = [b"seal", &model.identity.to_le_bytes()[..], &salt.0];
        let derived = Hkdf::<Sha256>::new(Some(b"motet remote 1"), secret.bytes());
        derived
            .expand_multi_info(&info, &mut *key)
            .expect("a key is shorter than HKDF's bound");
        Self(Aes256GcmSiv::new((&*key).into()))
    }

    /// The number of bytes that so many take when they are sealed.
    pub(crate) fn sealed_bytes(bytes: usize) -> usize {
        HEADER_BYTES + bytes + TAG_BYTES
    }

    /// Seals bytes that are stored under this name.
    pub(crate) fn seal(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, RemoteError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(failed)?;
        let mut sealed = Vec::with_capacity(Self::sealed_bytes(bytes.len()));
        sealed.extend(MAGIC);
        sealed.extend(nonce);
        sealed.extend(bytes);
        let encrypted = &mut sealed[HEADER_BYTES..];
        let tag =
            self.0
                .encrypt_inout_detached(&Nonce::from(nonce), name.as_bytes(), encrypted.into());
        sealed.extend(tag.map_err(failed)?);
        Ok(sealed)
    }

    /// Opens bytes that were stored under this name.
    pub(crate) fn open(
        &self,
        name: &str,
        sealed: &opendal::Buffer,
    ) -> Result<Vec<u8>, RemoteError> {
        let bytes = sealed.len().checked_sub(HEADER_BYTES + TAG_BYTES);
        let mut opened = vec![0; bytes.ok_or_else(|| damaged("it is too short"))?];
        self.open_into(name, sealed, &mut opened)?;
        Ok(opened)
    }

    /// Opens bytes that were stored under this name, and have this length.
    pub(crate) fn open_into(
        &self,
        name: &str,
        sealed: &opendal::Buffer,
        into: &mut [u8],
    ) -> Result<(), RemoteError> {
        if sealed.len() != Self::sealed_bytes(into.len()) {
            return Err(damaged("its length differs"));
        }
        let mut header = [0; HEADER_BYTES];
        copy(sealed, 0, &mut header);
        let (magic, nonce) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(damaged(
                "it does not begin as sealed bytes of this version do",
            ));
        }
        copy(sealed, HEADER_BYTES, into);
        let mut tag = [0; TAG_BYTES];
        copy(sealed, HEADER_BYTES + into.len(), &mut tag);
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().expect("the header ends with the nonce");
        let opened = self.0.decrypt_inout_detached(
            &Nonce::from(nonce),
            name.as_bytes(),
            into.into(),
            &Tag::from(tag),
        );
        opened.map_err(|_| damaged("the fleet's key does not open it"))
    }
}

/// Copies the stored bytes from offset `at` on.
fn copy(stored: &opendal::Buffer, at: usize, into: &mut [u8]) {
    let part = stored.slice(at..at + into.len());
    let mut at = 0;
    for chunk in part {
        into[at..at + chunk.len()].copy_from_slice(&chunk);
        at += chunk.len();
    }
}
