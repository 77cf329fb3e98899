//! MLX's formats against their formulas, one element at a time.

use half::{bf16, f16};
use motet_formats::simd::InstructionSet;
use motet_formats::{Affine, Format, ScaleFormat};

use super::{Owned, decoded, largest_error, product, random_bytes, same, small_rows};
use crate::linear::linear;
use crate::pool::Pool;
use crate::tests::numbers;
use crate::weights::Rows;

const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];
const GROUPS: [u8; 3] = [32, 64, 128];
const SCALES: [ScaleFormat; 3] = [ScaleFormat::F32, ScaleFormat::F16, ScaleFormat::BF16];

/// Every grouped format.
pub(super) fn all() -> impl Iterator<Item = Format> {
    let scales = SCALES.into_iter();
    let affine = scales.flat_map(|scales| {
        let groups = GROUPS.into_iter();
        groups.flat_map(move |group| {
            let bits = BITS.into_iter();
            bits.map(move |bits| {
                Format::Affine(Affine {
                    bits,
                    group,
                    scales,
                })
            })
        })
    });
    affine.chain([Format::GroupedMxfp4])
}

/// Rows with random codes that own their arrays.
pub(super) struct Arrays {
    format: Format,
    codes: Vec<u8>,
    scales: Vec<u8>,
    offsets: Vec<u8>,
    width: usize,
}

impl Arrays {
    /// Elements are not far from 1.
    pub(super) fn new(format: Format, rows: usize, width: usize, seed: u64) -> Arrays {
        let groups = rows * width / format.block().0;
        let small = numbers(2 * groups, seed);
        let (scales, offsets) = small.split_at(groups);
        let all = |numbers: &[f32], factor: f32| -> Vec<u8> {
            let numbers = numbers.iter().map(|x| x * factor);
            match format {
                Format::Affine(Affine {
                    scales: ScaleFormat::F32,
                    ..
                }) => numbers.flat_map(f32::to_le_bytes).collect(),
                Format::Affine(Affine {
                    scales: ScaleFormat::F16,
                    ..
                }) => numbers
                    .flat_map(|x| f16::from_f32(x).to_le_bytes())
                    .collect(),
                Format::Affine(Affine {
                    scales: ScaleFormat::BF16,
                    ..
                }) => numbers
                    .flat_map(|x| bf16::from_f32(x).to_le_bytes())
                    .collect(),
                _ => numbers.map(|x| 120 + (x.to_bits() % 6) as u8).collect(),
            }
        };
        let levels = match format {
            Format::Affine(Affine { bits, .. }) => (1 << bits) as f32,
            _ => 1.0,
        };
        let has_offsets = format.span_bytes().1 > 0;
        Arrays {
            format,
            codes: random_bytes(rows * format.row_bytes(width), seed + 1),
            scales: all(scales, 1.0 / levels),
            offsets: if has_offsets {
                all(offsets, 1.0)
            } else {
                Vec::new()
            },
            width,
        }
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        let arrays = [&self.scales[..], &self.offsets[..]];
        Rows::grouped(self.format, &self.codes, arrays, self.width)
    }

    /// All elements by the formulas.
    fn expected(&self) -> Vec<f32> {
        let (group, _) = self.format.block();
        let bits = match self.format {
            Format::Affine(Affine { bits, .. }) => usize::from(bits),
            _ => 4,
        };
        let bit = |at: usize| usize::from(self.codes[at / 8] >> (at % 8) & 1);
        let code = |i: usize| (0..bits).map(|at| bit(i * bits + at) << at).sum::<usize>();
        let count = self.codes.len() * 8 / bits;
        let elements = (0..count).map(|i| self.element(code(i), i / group));
        elements.collect()
    }

    fn element(&self, code: usize, group: usize) -> f32 {
        let Format::Affine(Affine { scales, .. }) = self.format else {
            let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let power = 2_f64.powi(i32::from(self.scales[group]) - 127);
            return (sign * magnitudes[code % 8] * power) as f32;
        };
        let number = |all: &[u8]| match scales {
            ScaleFormat::F32 => f32::from_le_bytes(all.as_chunks().0[group]),
            ScaleFormat::F16 => f16::from_le_bytes(all.as_chunks().0[group]).to_f32(),
            ScaleFormat::BF16 => bf16::from_le_bytes(all.as_chunks().0[group]).to_f32(),
        };
        // Two roundings, as MLX has them.
        number(&self.scales) * code as f32 + number(&self.offsets)
    }
}

#[test]
fn elements_equal_the_formulas() {
    for format in all() {
        let arrays = Arrays::new(format, 7, 384, 11);
        let expected = arrays.expected();
        for &set in InstructionSet::available() {
            let pairs = decoded(set, &arrays.rows()).into_iter().zip(&expected);
            for (at, (found, expected)) in pairs.enumerate() {
                assert!(
                    same(found, *expected),
                    "{set:?}, {format:?}, element {at}: {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn products_have_the_bits_of_decoded_products() {
    for (index, format) in all().enumerate() {
        for rows in 1..9 {
            let width = 128 * (1 + (rows + index) % 3);
            let n = 1 + (rows * 17 + index * 5) % 40;
            let arrays = Arrays::new(format, n, width, rows as u64);
            let input = numbers(rows * width, 9);
            let weight = arrays.expected();
            for &set in InstructionSet::available() {
                let found = product(set, &input, arrays.rows());
                let plain = product(set, &input, Rows::from_f32(&weight, width));
                assert_eq!(found, plain, "{set:?}, {format:?}, {rows} rows of {width}");
                let error = largest_error(&found, &input, &weight, width);
                assert!(error < 2e-6, "{set:?}, {format:?}: {error}");
            }
        }
    }
}

/// Slices take their own scales with them, and blocks may be stacked with groups.
#[test]
fn stacked_matrices_may_have_different_storage() {
    let width = 512;
    let affine = |bits, group, scales| {
        Format::Affine(Affine {
            bits,
            group,
            scales,
        })
    };
    let grouped = [
        (affine(4, 64, ScaleFormat::BF16), 137),
        (affine(6, 128, ScaleFormat::F16), 90),
        (affine(8, 32, ScaleFormat::F32), 0),
        (Format::GroupedMxfp4, 65),
    ];
    let arrays: Vec<Arrays> = grouped
        .iter()
        .map(|(format, rows)| Arrays::new(*format, *rows, width, 3))
        .collect();
    let block: Owned = small_rows(Format::Q4K, 48, width, 5);
    let mut rows: Vec<Rows<'_>> = arrays.iter().map(Arrays::rows).collect();
    rows.insert(2, block.rows());
    let weight: Vec<f32> = rows
        .iter()
        .flat_map(|rows| decoded(InstructionSet::best(), rows))
        .collect();
    let n = weight.len() / width;
    for (count, threads) in [(1, 3), (3, 1), (9, 2)] {
        let input = numbers(count * width, 7);
        let [mut found, mut plain] = [vec![f32::NAN; count * n], vec![f32::NAN; count * n]];
        linear(&Pool::new(threads), &input, &rows, None, &mut found);
        let together = [Rows::from_f32(&weight, width)];
        linear(&Pool::new(1), &input, &together, None, &mut plain);
        assert_eq!(found, plain, "{count} rows, {threads} threads");
    }
}

#[test]
#[should_panic(expected = "bytes of the scales and offsets")]
fn missing_offsets_are_rejected() {
    let format = Format::Affine(Affine {
        bits: 4,
        group: 64,
        scales: ScaleFormat::F16,
    });
    let _ = Rows::grouped(format, &[0; 32], [&[0; 2], &[]], 64);
}

#[test]
#[should_panic(expected = "96 elements are not whole blocks")]
fn parts_of_groups_are_rejected() {
    let format = Format::Affine(Affine {
        bits: 4,
        group: 64,
        scales: ScaleFormat::F16,
    });
    let _ = Rows::grouped(format, &[0; 48], [&[0; 2]; 2], 96);
}

#[test]
#[should_panic(expected = "elements of 7 bits")]
fn unknown_bits_are_rejected() {
    let format = Format::Affine(Affine {
        bits: 7,
        group: 32,
        scales: ScaleFormat::F16,
    });
    let _ = Rows::grouped(format, &[0; 28], [&[0; 2]; 2], 32);
}
