//! MLX's formats, whose scales and offsets lie in arrays of their own.
//!
//! Codes lie one after the other from the lowest bit up, without gaps: eight of them are as many
//! bytes as one has bits. An affine element is `scale * code + offset` in single precision, each
//! operation rounded, as `mlx.core.dequantize` computes it with scales and offsets in single
//! precision. Elements and exponents of MXFP4 are those of [`Format::Mxfp4`].

use super::blocks::BLOCK;
use super::codebooks::mxfp4;
use super::mxfp4_pair::mxfp4_block;
use super::{Affine, Format, ScaleFormat, plain, threads_of};

/// Scales or offsets that are converted at a time.
const SPANS: usize = 64;

/// Converts whole groups, on several threads where there are many. `scales` and `offsets` have one
/// number for each group.
///
/// # Panics
///
/// When the lengths do not fit, or for another format.
pub(crate) fn grouped_to_f32(
    format: Format,
    codes: &[u8],
    [scales, offsets]: [&[u8]; 2],
    out: &mut [f32],
) {
    let (elements, stride) = format.block();
    let (scale, offset) = format.span_bytes();
    let groups = out.len() / elements;
    let found = [codes.len(), scales.len(), offsets.len()];
    assert_eq!(found, [groups * stride, groups * scale, groups * offset]);
    assert_eq!(out.len(), groups * elements, "whole groups");
    let chunk = groups.div_ceil(threads_of(out.len())).max(1);
    std::thread::scope(|scope| {
        for (index, out) in out.chunks_mut(chunk * elements).enumerate() {
            let part = |all: &'_ [u8], bytes: usize| -> std::ops::Range<usize> {
                let start = index * chunk * bytes;
                start..all.len().min(start + chunk * bytes)
            };
            let codes = &codes[part(codes, stride)];
            let spans = [
                &scales[part(scales, scale)],
                &offsets[part(offsets, offset)],
            ];
            if chunk == groups {
                convert(format, codes, spans, out);
            } else {
                scope.spawn(move || convert(format, codes, spans, out));
            }
        }
    });
}

fn convert(format: Format, codes: &[u8], [scales, offsets]: [&[u8]; 2], out: &mut [f32]) {
    let Format::Affine(affine) = format else {
        let blocks = codes.as_chunks().0.iter().zip(scales);
        for ((codes, scale), out) in blocks.zip(out.chunks_exact_mut(BLOCK)) {
            mxfp4(&mxfp4_block(codes, *scale), out);
        }
        return;
    };
    match affine.bits {
        2 => affine_to_f32::<2>(affine, codes, [scales, offsets], out),
        3 => affine_to_f32::<3>(affine, codes, [scales, offsets], out),
        4 => affine_to_f32::<4>(affine, codes, [scales, offsets], out),
        5 => affine_to_f32::<5>(affine, codes, [scales, offsets], out),
        6 => affine_to_f32::<6>(affine, codes, [scales, offsets], out),
        8 => affine_to_f32::<8>(affine, codes, [scales, offsets], out),
        bits => unreachable!("{bits} bits: checked when the file was opened"),
    }
}

fn affine_to_f32<const BITS: usize>(
    affine: Affine,
    codes: &[u8],
    spans: [&[u8]; 2],
    out: &mut [f32],
) {
    let group = usize::from(affine.group);
    let bytes = affine.scales.bytes();
    let [scales, offsets] = spans.map(|spans| spans.chunks(SPANS * bytes));
    let codes = codes.chunks(SPANS * group / 8 * BITS);
    let out = out.chunks_mut(SPANS * group);
    for (((codes, out), scales), offsets) in codes.zip(out).zip(scales).zip(offsets) {
        let numbers = |bytes: &[u8]| {
            let mut numbers = [0.0; SPANS];
            let numbers_of = match affine.scales {
                ScaleFormat::F32 => plain::f32,
                ScaleFormat::F16 => plain::f16,
                ScaleFormat::BF16 => plain::bf16,
            };
            numbers_of(bytes, &mut numbers[..bytes.len() / affine.scales.bytes()]);
            numbers
        };
        let spans = numbers(scales).into_iter().zip(numbers(offsets));
        let groups = codes
            .chunks_exact(group / 8 * BITS)
            .zip(out.chunks_exact_mut(group));
        for ((codes, out), (scale, offset)) in groups.zip(spans) {
            let eights = codes.as_chunks::<BITS>().0.iter();
            for (codes, out) in eights.zip(out.as_chunks_mut::<8>().0) {
                let mut word = [0; 8];
                word[..BITS].copy_from_slice(codes);
                let word = u64::from_le_bytes(word);
                for (at, out) in out.iter_mut().enumerate() {
                    let code = word >> (at * BITS) & ((1 << BITS) - 1);
                    *out = scale * code as f32 + offset;
                }
            }
        }
    }
}
