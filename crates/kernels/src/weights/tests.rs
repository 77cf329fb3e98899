//! Every format against formulas in double precision.

mod grouped;
mod reference;
mod timings;

use half::{bf16, f16};

use super::super::linear::{Part, linear};
use super::super::pool::Pool;
use super::super::split::Split;
use super::super::tests::numbers;
use super::*;
use reference::element;

/// Stored rows that own their bytes, aligned for any format.
pub(crate) struct Owned {
    format: Format,
    words: Vec<u32>,
    len: usize,
    width: usize,
}

impl Owned {
    fn new(format: Format, bytes: &[u8], width: usize) -> Owned {
        let mut words = vec![0; bytes.len().div_ceil(4)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Owned {
            format,
            words,
            len: bytes.len(),
            width,
        }
    }

    /// Makes all bytes of the blocks the same, except those of scales in half precision or of
    /// MXFP4.
    pub(crate) fn fill_quants(&mut self, byte: u8) {
        let (format, len) = (self.format, self.len);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        for block in bytes[..len].chunks_exact_mut(format.block().1) {
            let halves = format.halves().iter().flat_map(|at| [*at, *at + 1]);
            let exponent = (format == Format::Mxfp4).then_some(0);
            let kept: Vec<usize> = halves.chain(exponent).collect();
            let quants = block.iter_mut().enumerate();
            let quants = quants.filter(|(at, _)| !kept.contains(at));
            quants.for_each(|(_, quant)| *quant = byte);
        }
    }

    pub(crate) fn rows(&self) -> Rows<'_> {
        let bytes = &bytemuck::cast_slice(&self.words)[..self.len];
        Rows::new(self.format, bytes, self.width)
    }
}

/// Bytes without a pattern.
fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words: Vec<u64> = (0..count.div_ceil(8)).map(|_| next()).collect();
    bytemuck::cast_slice(&words)[..count].to_vec()
}

/// Random blocks; `scale` makes each number in half precision, or the exponent of MXFP4.
fn random_rows(
    format: Format,
    rows: usize,
    width: usize,
    seed: u64,
    scale: impl Fn(u16) -> u16,
) -> Owned {
    let len = rows * format.row_bytes(width);
    let mut bytes = random_bytes(len, seed);
    let (_, block_bytes) = format.block();
    for block in bytes.chunks_exact_mut(block_bytes) {
        for &at in format.halves() {
            let bits = scale(u16::from_le_bytes([block[at], block[at + 1]]));
            block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
        if format == Format::Mxfp4 {
            block[0] = 118 + block[0] % 4;
        }
    }
    Owned::new(format, &bytes, width)
}

/// Random blocks whose elements are not far from 1, as those of models.
pub(crate) fn small_rows(format: Format, rows: usize, width: usize, seed: u64) -> Owned {
    let number = |i: usize| ((i * 7919) % 1009) as f32 / 504.5 - 1.0;
    let numbers = (0..rows * width).map(number);
    let bytes: Vec<u8> = match format {
        Format::F32 => numbers.flat_map(|x| x.to_le_bytes()).collect(),
        Format::F16 => numbers
            .flat_map(|x| f16::from_f32(x).to_le_bytes())
            .collect(),
        Format::BF16 => numbers
            .flat_map(|x| bf16::from_f32(x).to_le_bytes())
            .collect(),
        // Scales with magnitudes from 2^-13 to 2^-12.
        _ => return random_rows(format, rows, width, seed, |bits| bits & 0x8BFF | 0x0800),
    };
    Owned::new(format, &bytes, width)
}

/// All elements by the reference.
fn expected(rows: &Rows<'_>) -> Vec<f32> {
    let (elements, block_bytes) = rows.format().block();
    let blocks = rows.bytes().chunks_exact(block_bytes);
    let of_block = |block| (0..elements).map(move |i| element(rows.format(), block, i));
    blocks.flat_map(of_block).collect()
}

/// All elements.
fn decoded(set: InstructionSet, rows: &Rows<'_>) -> Vec<f32> {
    let mut output = vec![f32::NAN; rows.rows() * rows.width];
    for (row, output) in output.chunks_mut(rows.width).enumerate() {
        rows.slice(row..row + 1)
            .decode_span(set, 0..rows.width, output, rows.width);
    }
    output
}

/// Equal to the last bit. Signs of zeros and kinds of NaN do not count.
fn same(a: f32, b: f32) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

/// Any finite number in half precision.
fn finite(bits: u16) -> u16 {
    if bits & 0x7C00 == 0x7C00 {
        bits & !0x4000
    } else {
        bits
    }
}

#[test]
fn elements_equal_the_formulas() {
    for &format in Format::ALL {
        for (seed, width) in [(1, 256), (2, 768)] {
            let mut owned = random_rows(format, 30, width, seed, finite);
            if format == Format::Mxfp4 {
                // Every exponent.
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut owned.words);
                let blocks = bytes.chunks_exact_mut(17).enumerate();
                blocks.for_each(|(index, block)| block[0] = index as u8);
            }
            let rows = owned.rows();
            let expected = expected(&rows);
            for &set in InstructionSet::available() {
                let pairs = decoded(set, &rows).into_iter().zip(&expected);
                for (at, (found, expected)) in pairs.enumerate() {
                    let place = || format!("{set:?}, {format:?}, element {at}");
                    assert!(
                        same(found, *expected),
                        "{}: {found}, not {expected}",
                        place()
                    );
                }
            }
        }
    }
}

/// A change of any byte changes an element, so the test above sees every byte.
#[test]
fn every_byte_counts() {
    for &format in Format::ALL {
        let width = format.block().0.max(16);
        let mut owned = small_rows(format, 1, width, 5);
        let before = expected(&owned.rows());
        for at in 0..owned.len {
            let changes = |bit: usize| {
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut owned.words);
                bytes[at] ^= 1 << bit;
                let rows = owned.rows();
                let after = decoded(InstructionSet::best(), &rows);
                let is_right = after.iter().zip(expected(&rows)).all(|(a, b)| same(*a, b));
                assert!(is_right, "{format:?}, bit {bit} of byte {at}");
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut owned.words);
                bytes[at] ^= 1 << bit;
                after.iter().zip(&before).any(|(a, b)| !same(*a, *b))
            };
            let count = (0..8).map(changes).filter(|changed| *changed).count();
            assert!(count > 0, "{format:?}, byte {at}");
        }
    }
}

/// The product with one matrix on one instruction set.
fn product(set: InstructionSet, input: &[f32], weight: Rows<'_>) -> Vec<f32> {
    let n = weight.rows();
    let mut output = vec![f32::NAN; input.len() / weight.width * n];
    let part = Part {
        input,
        weight,
        bias: None,
        output: &Split::new(&mut output),
        first: 0,
        n,
    };
    part.compute(set);
    output
}

/// The largest error of a product, relative to the sum of its terms' magnitudes.
fn largest_error(found: &[f32], input: &[f32], weight: &[f32], width: usize) -> f64 {
    let inputs = input.chunks(width);
    let pairs = inputs.flat_map(|x| weight.chunks(width).map(move |w| (x, w)));
    let error = |((x, w), found): ((&[f32], &[f32]), &f32)| {
        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        let magnitude: f64 = terms.clone().map(f64::abs).sum();
        (f64::from(*found) - terms.sum::<f64>()).abs() / (magnitude + 1e-30)
    };
    pairs.zip(found).map(error).fold(0.0, f64::max)
}

#[test]
fn products_have_the_bits_of_decoded_products() {
    for (index, format) in Format::ALL.iter().copied().enumerate() {
        for rows in (1..=12).chain([16, 23]) {
            let width = 256 * (1 + (rows + index) % 3);
            let n = 1 + (rows * 17 + index * 5) % 40;
            let owned = small_rows(format, n, width, rows as u64);
            let input = numbers(rows * width, 9);
            let weight = expected(&owned.rows());
            for &set in InstructionSet::available() {
                let found = product(set, &input, owned.rows());
                let plain = product(set, &input, Rows::from_f32(&weight, width));
                assert_eq!(found, plain, "{set:?}, {format:?}, {rows} rows of {width}");
                let error = largest_error(&found, &input, &weight, width);
                assert!(error < 2e-6, "{set:?}, {format:?}: {error}");
            }
        }
    }
}

#[test]
fn a_wrong_element_is_noticed() {
    let (width, input) = (512, numbers(512, 9));
    let owned = small_rows(Format::Q4K, 8, width, 1);
    let mut weight = expected(&owned.rows());
    let found = product(InstructionSet::best(), &input, owned.rows());
    weight[3 * width + 77] += 0.02;
    assert!(largest_error(&found, &input, &weight, width) > 1e-5);
}

#[test]
fn rows_do_not_depend_on_each_other() {
    for &format in Format::ALL {
        let (width, n, rows) = (768, 45, 40);
        let owned = small_rows(format, n, width, 4);
        let input = numbers(rows * width, 3);
        for &set in InstructionSet::available() {
            let product = |input: &[f32]| product(set, input, owned.rows());
            let alone: Vec<f32> = input.chunks(width).flat_map(product).collect();
            for count in 1..=rows {
                let found = product(&input[..count * width]);
                let place = || format!("{set:?}, {format:?}, {count} rows");
                assert!(found == alone[..count * n], "{}", place());
            }
        }
    }
}

#[test]
fn stacked_matrices_may_have_different_storage() {
    let width = 768;
    let stack = [
        small_rows(Format::Q4K, 37, width, 1),
        small_rows(Format::Q6K, 200, width, 2),
        small_rows(Format::F32, 5, width, 3),
        small_rows(Format::Q8_0, 0, width, 4),
        small_rows(Format::Q5_1, 90, width, 5),
    ];
    let rows: Vec<Rows<'_>> = stack.iter().map(Owned::rows).collect();
    let weight: Vec<f32> = rows.iter().flat_map(expected).collect();
    let n = weight.len() / width;
    let bias = numbers(n, 6);
    for (count, threads) in [(1, 3), (3, 1), (5, 2), (9, 4), (17, 3), (40, 2), (150, 3)] {
        let input = numbers(count * width, 7);
        let pool = Pool::new(threads);
        let [mut found, mut plain] = [vec![f32::NAN; count * n], vec![f32::NAN; count * n]];
        linear(&pool, &input, &rows, Some(&bias), &mut found);
        let together = [Rows::from_f32(&weight, width)];
        linear(&Pool::new(1), &input, &together, Some(&bias), &mut plain);
        assert_eq!(found, plain, "{count} rows, {threads} threads");
    }
}

#[test]
#[should_panic(expected = "35 bytes are not whole rows of 34 bytes")]
fn parts_of_rows_are_rejected() {
    let _ = Rows::new(Format::Q8_0, &[0; 35], 32);
}

#[test]
#[should_panic(expected = "288 elements are not whole blocks of Q4K")]
fn parts_of_blocks_are_rejected() {
    let _ = Rows::new(Format::Q4K, &[0; 144], 288);
}

#[test]
#[should_panic(expected = "the rows of F32 are not aligned")]
fn rows_that_are_not_aligned_are_rejected() {
    let words = [0_u32; 17];
    let _ = Rows::new(Format::F32, &bytemuck::cast_slice(&words)[1..65], 16);
}
