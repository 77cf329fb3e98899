//! Conversion of numbers of each kind from and to bytes, a tile at a time.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Channels that are processed side by side.
pub(super) const TILE: usize = 64;

pub(super) type Tile = [f32; TILE];

/// A number type. Bytes are at most those of a tile and need not be aligned. Reading fewer
/// leaves the rest of the tile unchanged.
pub(super) trait Number {
    const BYTES: usize;
    fn read(from: &[u8], into: &mut Tile);
    /// Writes as many numbers as fit.
    fn write(from: &Tile, into: &mut [u8]);
}

impl Number for f32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn read(from: &[u8], into: &mut Tile) {
        for (number, bytes) in into.iter_mut().zip(from.as_chunks().0) {
            *number = f32::from_ne_bytes(*bytes);
        }
    }

    #[inline(always)]
    fn write(from: &Tile, into: &mut [u8]) {
        for (bytes, number) in into.as_chunks_mut().0.iter_mut().zip(from) {
            *bytes = number.to_ne_bytes();
        }
    }
}

impl Number for f16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn read(from: &[u8], into: &mut Tile) {
        let mut halves = [f16::ZERO; TILE];
        for (half, bytes) in halves.iter_mut().zip(from.as_chunks().0) {
            *half = f16::from_ne_bytes(*bytes);
        }
        let lanes = from.len() / Self::BYTES;
        halves[..lanes].convert_to_f32_slice(&mut into[..lanes]);
    }

    #[inline(always)]
    fn write(from: &Tile, into: &mut [u8]) {
        let mut halves = [f16::ZERO; TILE];
        halves.convert_from_f32_slice(from);
        for (bytes, half) in into.as_chunks_mut().0.iter_mut().zip(halves) {
            *bytes = half.to_ne_bytes();
        }
    }
}

impl Number for bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn read(from: &[u8], into: &mut Tile) {
        for (number, bytes) in into.iter_mut().zip(from.as_chunks().0) {
            *number = f32::from_bits(u32::from(u16::from_ne_bytes(*bytes)) << 16);
        }
    }

    #[inline(always)]
    fn write(from: &Tile, into: &mut [u8]) {
        for (bytes, number) in into.as_chunks_mut().0.iter_mut().zip(from) {
            // Rounds to nearest, ties to even. All numbers are finite.
            let bits = number.to_bits();
            let rounded = bits + 0x7FFF + ((bits >> 16) & 1);
            *bytes = ((rounded >> 16) as u16).to_ne_bytes();
        }
    }
}
