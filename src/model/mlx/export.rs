//! Segments as plain bytes.
//!
//! ```text
//! header, 64 bytes, little-endian          payload
//!  0  magic                8 bytes          layer 0: keys, then values,
//!  8  version, dtype       u32 each         each [kv_heads, kept, head_dim];
//! 16  model's identity     u64              layer 1: ..
//! 24  tokens, kept         u64 each
//! 40  layers, kv_heads, head_dim, beyond   u32 each
//! 56  checksum of extent and payload       u64
//! ```

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, transforms};

use super::segment::MlxSegment;
use super::shape::Shape;
use super::state::State;
use crate::model::{Extent, ModelError, Segment};

const MAGIC: [u8; 8] = *b"motetseg";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 64;

/// Which model's segments are meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner<'a> {
    pub(super) shape: &'a Shape,
    pub(super) dtype: Dtype,
    pub(super) identity: u64,
}

impl Owner<'_> {
    /// Header and payload of `segment`.
    pub(super) fn export(&self, segment: &MlxSegment) -> Result<Vec<u8>, ModelError> {
        let arrays = segment
            .arrays()
            .map(|array| array.view_dtype(Dtype::Uint8))
            .collect::<Result<Vec<_>, _>>()?;
        transforms::eval(&arrays)?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + segment.bytes());
        bytes.resize(HEADER_BYTES, 0);
        for array in &arrays {
            bytes.extend_from_slice(array.try_as_slice()?);
        }
        let (header, payload) = bytes.split_at_mut(HEADER_BYTES);
        let extent = segment.extent();
        header.copy_from_slice(&self.header(extent, checksum(extent, payload)));
        Ok(bytes)
    }

    /// The segment in `bytes`, evaluated.
    pub(super) fn import(&self, bytes: &[u8]) -> Result<MlxSegment, ModelError> {
        let Some((header, payload)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(ModelError::Import(format!(
                "{} bytes; expected a header of {HEADER_BYTES}",
                bytes.len()
            )));
        };
        // What a header of this model would be, but for the checksum: comparing
        // them compares every field.
        let extent = Extent {
            tokens: usize::try_from(word(header, 24)).unwrap_or(usize::MAX),
            beyond: (word(header, 48) >> 32) as usize,
        };
        let expected = self.header(extent, word(header, 56));
        if let Some(at) = (0..HEADER_BYTES).find(|at| header[*at] != expected[*at]) {
            return Err(ModelError::Import(format!(
                "header field `{}` is that of another format, version or model",
                field_name(at)
            )));
        }
        let (tokens, kept) = (extent.tokens, self.shape.kept(extent));
        let layer_bytes = self.layer_bytes(kept);
        if i32::try_from(tokens).is_err()
            || tokens == 0
            || i32::try_from(layer_bytes).is_err()
            || layer_bytes.checked_mul(self.shape.layers) != Some(payload.len())
        {
            return Err(ModelError::Import(format!(
                "{} bytes after the header; expected the state of {tokens} tokens",
                payload.len()
            )));
        }
        if header[56..] != checksum(extent, payload).to_le_bytes() {
            return Err(ModelError::Import("the payload is damaged".to_owned()));
        }
        // No bytes are no layers.
        let layers = payload
            .chunks_exact(layer_bytes.max(1))
            .map(|layer| self.layer(layer, kept))
            .collect::<Result<_, _>>()?;
        let segment = MlxSegment::new(self.shape, extent, layers);
        transforms::eval(segment.arrays())?;
        Ok(segment)
    }

    fn layer(&self, bytes: &[u8], kept: usize) -> Result<State, Exception> {
        let heads = self.shape.kv_heads;
        let (keys, values) = bytes.split_at(bytes.len() / 2);
        let array = |bytes: &[u8]| {
            let row = (bytes.len() / (heads as usize * kept)) as i32;
            Array::from_slice(bytes, &[heads, kept as i32, row]).view_dtype(self.dtype)
        };
        Ok(State {
            keys: array(keys)?,
            values: array(values)?,
        })
    }

    /// Saturates, so that no claim of a header overflows.
    fn layer_bytes(&self, kept: usize) -> usize {
        let bytes_per_token = self.shape.bytes_per_token(self.dtype) / self.shape.layers;
        kept.saturating_mul(bytes_per_token)
    }

    fn header(&self, extent: Extent, checksum: u64) -> [u8; HEADER_BYTES] {
        let kept = self.shape.kept(extent);
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        for (at, number) in [
            (8, VERSION),
            (12, self.dtype as u32),
            (40, self.shape.layers as u32),
            (44, self.shape.kv_heads as u32),
            (48, self.shape.head_dim as u32),
            (52, u32::try_from(extent.beyond).unwrap_or(u32::MAX)),
        ] {
            header[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        for (at, number) in [
            (16, self.identity),
            (24, extent.tokens as u64),
            (32, kept as u64),
            (56, checksum),
        ] {
            header[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        header
    }
}

fn word(header: &[u8], at: usize) -> u64 {
    let bytes = header[at..].first_chunk();
    u64::from_le_bytes(*bytes.expect("a header is longer than its fields' places"))
}

fn field_name(at: usize) -> &'static str {
    match at {
        0..8 => "magic",
        8..12 => "version",
        12..16 => "dtype",
        16..24 => "identity",
        24..32 => "tokens",
        32..40 => "kept",
        _ => "layers, kv_heads, head_dim or beyond",
    }
}

/// Notices damage at memory's speed: four lanes of multiply and rotate, so that
/// any single changed word changes the sum. No defence against intent.
fn checksum(extent: Extent, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let step = |lane: u64, word: u64| (lane.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let Extent { tokens, beyond } = extent;
    let mut lanes = [1, tokens as u64, beyond as u64, bytes.len() as u64];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    }
    let rest = rest.iter().map(|byte| u64::from(*byte));
    lanes.into_iter().chain(rest).fold(0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_changes_the_checksum() {
        let bytes: Vec<u8> = (0..200).map(|i| i as u8).collect();
        let extent = Extent {
            tokens: 5,
            beyond: 2,
        };
        let whole = checksum(extent, &bytes);
        let (upper, lower) = extent.cut(3);
        for other in [upper, lower, Extent::whole(5)] {
            assert_ne!(checksum(other, &bytes), whole, "{other:?}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert_ne!(checksum(extent, &damaged), whole, "byte {at}");
        }
        assert_ne!(checksum(extent, &bytes[..199]), whole);
    }
}
