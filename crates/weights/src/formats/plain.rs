//! Formats that store every element by itself.

use half::slice::HalfFloatSliceExt;

pub(super) fn f32(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn bf16(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Uses an aligned buffer, because `half` converts whole slices with the CPU's own
/// instructions, and single numbers by a call each.
pub(super) fn f16(bytes: &[u8], out: &mut [f32]) {
    let mut aligned = [half::f16::ZERO; 512];
    for (bytes, out) in bytes
        .chunks(2 * aligned.len())
        .zip(out.chunks_mut(aligned.len()))
    {
        for (bytes, number) in bytes.as_chunks().0.iter().zip(&mut aligned) {
            *number = half::f16::from_le_bytes(*bytes);
        }
        aligned[..out.len()].convert_to_f32_slice(out);
    }
}

/// The bytes as numbers from 0 to 255.
pub(super) fn u8(bytes: &[u8], out: &mut [f32]) {
    for (byte, out) in bytes.iter().zip(out) {
        *out = f32::from(*byte);
    }
}
