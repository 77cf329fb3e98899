//! The header of a file.
//!
//! ```text
//!   0  magic                       8 bytes
//!   8  format, precision           u32 each, little-endian, as all numbers
//!  16  the model's identity        u64
//!  24  the file's number           u64, as in its name
//!  32  digest of the salt          32 bytes
//!  64  digest of key and tokens before  32 bytes
//!  96  digest of the adapter       32 bytes, zero without one
//! 128  has an adapter, its scale   u32 each; 0 or 1, and the bits of an f32
//! 136  the adapter's first token   u64
//! 144  start, tokens, state_lag    u64 each
//! 168  bytes of payload            u64
//! 176  checksum of the payload     u64, as `checksum.rs` computes it
//! 184  checksum of the header      u64: all fields before it, and the tokens
//! 192  the copy's own tokens       u32 each
//!      the payload, to the end of the file
//! ```

use std::path::Path;
use std::sync::Arc;

use motet_core::pager::footprint::header_bytes;

use crate::tiers::TierError;
use crate::tiers::checksum::Checksum;
use motet_core::cache::SaltDigest;
use motet_core::pager::{Label, Precision, PrefixDigest};
use motet_protocol::{ActiveAdapter, AdapterKey, KeyDigest, TokenId};

pub(super) const MAGIC: [u8; 8] = *b"motetseg";
/// Increases with every change of the format or of the payload.
const FORMAT: u32 = 6;
/// Bytes before the tokens.
pub(super) use motet_core::pager::footprint::FILE_HEADER_BYTES as FIXED_BYTES;
const CHECKSUM_AT: usize = 184;
const TOKEN_BYTES: usize = size_of::<TokenId>();

/// The header of a file: all but its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) identity: u64,
    pub(super) number: u64,
    pub(super) label: Label,
    pub(super) payload_checksum: u64,
}

/// The fixed-size part of a header of this format.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    bytes: [u8; FIXED_BYTES],
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let label = &self.label;
        let precision: u32 = match label.precision {
            Precision::Full => 0,
            Precision::Eight => 1,
        };
        let mut bytes = Vec::with_capacity(header_bytes(label.tokens.len()));
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(precision.to_le_bytes());
        bytes.extend(self.identity.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(label.key.salt.0);
        bytes.extend(label.before.0);
        let adapter = label.key.adapter;
        bytes.extend(adapter.map_or([0; 32], |adapter| adapter.key.digest));
        bytes.extend(u32::from(adapter.is_some()).to_le_bytes());
        bytes.extend(adapter.map_or(0, |adapter| adapter.key.scale).to_le_bytes());
        let from = adapter.map_or(0, |adapter| adapter.from);
        bytes.extend((from as u64).to_le_bytes());
        for number in [
            label.start,
            label.tokens.len(),
            label.state_lag,
            label.bytes,
        ] {
            bytes.extend((number as u64).to_le_bytes());
        }
        bytes.extend(self.payload_checksum.to_le_bytes());
        bytes.extend([0; size_of::<u64>()]);
        for token in &*label.tokens {
            bytes.extend(token.to_le_bytes());
        }
        // The checksum's own field is still zero.
        let checksum = Checksum::of(&bytes);
        bytes[CHECKSUM_AT..FIXED_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

impl Fixed {
    /// Checks the first bytes of a file of `file_bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`TierError::OtherFormat`], or [`TierError::Damaged`] unless the sizes in the header
    /// match the size of the file.
    pub(super) fn new(
        path: &Path,
        bytes: [u8; FIXED_BYTES],
        file_bytes: u64,
    ) -> Result<Self, TierError> {
        if bytes[..8] != MAGIC {
            let what = format!("it begins with {:02x?}", &bytes[..8]);
            return Err(TierError::damaged(path, what, "the magic `motetseg`"));
        }
        let found = u32::from_le_bytes(field(&bytes, 8));
        if found != FORMAT {
            return Err(TierError::OtherFormat {
                path: path.to_owned(),
                found,
                expected: FORMAT,
            });
        }
        let fixed = Self { bytes };
        // Only sizes that match the file are accepted, so no larger buffer is allocated.
        let claimed = fixed
            .number(152)
            .checked_mul(TOKEN_BYTES as u64)
            .and_then(|tokens| tokens.checked_add(fixed.number(168)))
            .and_then(|rest| rest.checked_add(FIXED_BYTES as u64));
        if claimed != Some(file_bytes) {
            let expected = match claimed {
                Some(claimed) => format!("the {claimed} bytes that its header names"),
                None => "sizes that do not overflow".to_owned(),
            };
            return Err(TierError::damaged(
                path,
                format!("{file_bytes} bytes"),
                expected,
            ));
        }
        Ok(fixed)
    }

    /// Returns the number of tokens that follow: fewer than the bytes of the file.
    pub(super) fn tokens(&self) -> usize {
        self.number(152) as usize
    }

    /// Returns the bytes of the tokens that follow.
    pub(super) fn tokens_bytes(&self) -> usize {
        self.tokens() * TOKEN_BYTES
    }

    /// Returns the whole header, with the tokens that followed. `name` is the number in the
    /// file's name.
    ///
    /// # Errors
    ///
    /// [`TierError::Damaged`], or [`TierError::OtherModel`].
    pub(super) fn with(
        &self,
        path: &Path,
        tokens: &[u8],
        identity: u64,
        name: u64,
    ) -> Result<Header, TierError> {
        let mut whole = self.bytes.to_vec();
        whole[CHECKSUM_AT..].fill(0);
        whole.extend_from_slice(tokens);
        if Checksum::of(&whole) != self.number(CHECKSUM_AT) {
            let what = "the header's checksum does not match";
            return Err(TierError::damaged(
                path,
                what,
                "the checksum of its content",
            ));
        }
        let found = self.number(16);
        if found != identity {
            return Err(TierError::OtherModel {
                path: path.to_owned(),
                found,
                expected: identity,
            });
        }
        if self.number(24) != name {
            let expected = format!("file number {:016x} by its header", self.number(24));
            return Err(TierError::damaged(path, "it was renamed", expected));
        }
        let label = self.label(tokens).ok_or_else(|| {
            TierError::damaged(
                path,
                "its label is invalid",
                "at least one token and a known precision",
            )
        })?;
        Ok(Header {
            identity,
            number: name,
            label,
            payload_checksum: self.number(176),
        })
    }

    fn label(&self, tokens: &[u8]) -> Option<Label> {
        let precision = match u32::from_le_bytes(field(&self.bytes, 12)) {
            0 => Precision::Full,
            1 => Precision::Eight,
            _ => return None,
        };
        let size = |at| usize::try_from(self.number(at)).ok();
        let salt = SaltDigest(field(&self.bytes, 32));
        let adapter = match u32::from_le_bytes(field(&self.bytes, 128)) {
            0 => None,
            1 => Some(ActiveAdapter {
                key: AdapterKey {
                    digest: field(&self.bytes, 96),
                    scale: u32::from_le_bytes(field(&self.bytes, 132)),
                },
                from: size(136)?,
            }),
            _ => return None,
        };
        let tokens: Arc<[TokenId]> = tokens
            .as_chunks()
            .0
            .iter()
            .map(|token| TokenId::from_le_bytes(*token))
            .collect();
        Some(Label {
            key: KeyDigest { salt, adapter },
            before: PrefixDigest(field(&self.bytes, 64)),
            start: size(144).filter(|start| start.checked_add(tokens.len()).is_some())?,
            tokens: Some(tokens).filter(|tokens| !tokens.is_empty())?,
            state_lag: size(160)?,
            precision,
            bytes: size(168)?,
        })
    }

    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(field(&self.bytes, at))
    }
}

fn field<const N: usize>(bytes: &[u8; FIXED_BYTES], at: usize) -> [u8; N] {
    let field = bytes[at..].first_chunk();
    *field.expect("all fields are in the fixed part")
}
