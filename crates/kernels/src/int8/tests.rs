//! Every format against the same sums in double precision.

mod timings;

use super::*;
use crate::split::Split;
use crate::tests::numbers;
use crate::weights::tests::{Owned, small_rows};

/// The formats with integer products.
fn quantised() -> impl Iterator<Item = Format> {
    let formats = Format::ALL.iter().copied();
    formats.filter(|format| product_with(*format).is_some())
}

/// The input, rounded for products with this format.
fn rounded_rows(input: &[f32], width: usize, format: Format) -> Activations {
    let has_whole_scales = product_with(format).is_some_and(|product| product.has_whole_scales);
    let kinds = Kinds {
        blocks: !has_whole_scales,
        superblocks: has_whole_scales,
    };
    Activations::new_on(InstructionSet::best(), &Pool::new(1), input, width, kinds)
}

/// The input as the codes and scales for this format stand for it.
fn rounded(activations: &Activations, format: Format) -> Vec<f64> {
    let has_whole_scales = product_with(format).is_some_and(|product| product.has_whole_scales);
    let row = |row| {
        let (codes, scales, block) = if has_whole_scales {
            let row = activations.super_row(row, 32);
            (row.codes, row.scales, 256)
        } else {
            let row = activations.row(row);
            (row.codes, row.scales, 32)
        };
        let scale = move |at: usize| f64::from(scales[at / block]);
        let codes = codes.iter().enumerate();
        codes.map(move |(at, code)| scale(at) * f64::from(*code))
    };
    (0..activations.rows()).flat_map(row).collect()
}

fn decoded(rows: &Rows<'_>) -> Vec<f64> {
    let mut row = vec![0.0; rows.width()];
    let mut all = Vec::new();
    for index in 0..rows.rows() {
        rows.decode(index, &mut row);
        all.extend(row.iter().map(|x| f64::from(*x)));
    }
    all
}

/// The product of one matrix with one kind of instructions.
fn product(unit: Unit, input: &[f32], weight: Rows<'_>) -> Vec<f32> {
    let n = weight.rows();
    let mut output = vec![f32::NAN; input.len() / weight.width() * n];
    let part = Part {
        input,
        weight,
        bias: None,
        output: &Split::new(&mut output),
        first: 0,
        n,
    };
    let activations = rounded_rows(input, weight.width(), weight.format());
    let integer = product_with(weight.format()).expect("a format with codes");
    let product = Product {
        part: &part,
        activations: &activations,
        first: 0,
        rows: activations.rows(),
    };
    (integer.compute)(&product, unit);
    output
}

fn units() -> Vec<Unit> {
    let mut units = Vec::new();
    for &set in InstructionSet::available() {
        let more = Unit::available(set);
        units.extend(
            more.into_iter()
                .filter(|unit| !units.contains(unit))
                .collect::<Vec<_>>(),
        );
    }
    units
}

/// The largest error of a product, relative to the sum of its terms' magnitudes.
fn largest_error(found: &[f32], input: &[f64], weight: &[f64], width: usize) -> f64 {
    let inputs = input.chunks(width);
    let pairs = inputs.flat_map(|x| weight.chunks(width).map(move |w| (x, w)));
    let error = |((x, w), found): ((&[f64], &[f64]), &f32)| {
        let terms = x.iter().zip(w).map(|(x, w)| x * w);
        let magnitude: f64 = terms.clone().map(f64::abs).sum();
        (f64::from(*found) - terms.sum::<f64>()).abs() / (magnitude + 1e-30)
    };
    let largest = pairs.zip(found).map(error);
    largest.fold(0.0, |most, error| if error <= most { most } else { error })
}

#[test]
fn products_are_those_of_the_rounded_input() {
    for (index, format) in quantised().enumerate() {
        for rows in 1..12 {
            let width = 256 * (1 + (rows + index) % 2);
            let n = 1 + (rows * 17 + index * 5) % 40;
            let owned = small_rows(format, n, width, rows as u64);
            let input = numbers(rows * width, 9);
            let weight = decoded(&owned.rows());
            let activations = rounded_rows(&input, width, format);
            let found = product(Unit::Portable, &input, owned.rows());
            let error = largest_error(&found, &rounded(&activations, format), &weight, width);
            assert!(error < 5e-6, "{format:?}, {rows} rows of {width}: {error}");
            let exact: Vec<f64> = input.iter().map(|x| f64::from(*x)).collect();
            let error = largest_error(&found, &exact, &weight, width);
            assert!((1e-6..1e-2).contains(&error), "{format:?}: {error}");
            for unit in units() {
                let same = product(unit, &input, owned.rows());
                assert_eq!(same, found, "{unit:?}, {format:?}, {rows} rows of {width}");
            }
        }
    }
}

/// Blocks of 32 need no rows of 256.
#[test]
fn rows_may_have_an_odd_number_of_blocks() {
    for format in quantised().filter(|format| format.block().0 == 32) {
        for (rows, width) in [(1, 32), (2, 96), (5, 32), (7, 160)] {
            let owned = small_rows(format, 11, width, 5);
            let input = numbers(rows * width, 2);
            let activations = rounded_rows(&input, width, format);
            for unit in units() {
                let found = product(unit, &input, owned.rows());
                let weight = decoded(&owned.rows());
                let error = largest_error(&found, &rounded(&activations, format), &weight, width);
                assert!(error < 5e-6, "{unit:?}, {format:?}: {error}");
            }
        }
    }
}

/// Blocks whose codes are the largest or the smallest meet the largest codes of the input.
#[test]
fn the_largest_integers_do_not_overflow() {
    for format in quantised() {
        let width = 256;
        for byte in [0x00, 0x7F, 0x80, 0xFF, 0x88] {
            for sign in [1.0, -1.0] {
                let mut owned = small_rows(format, 9, width, 3);
                owned.fill_quants(byte);
                let weight = decoded(&owned.rows());
                for rows in [1, 6] {
                    let input = vec![sign; rows * width];
                    for unit in units() {
                        let found = product(unit, &input, owned.rows());
                        let rows = weight.chunks(width).cycle();
                        for (found, weight) in found.iter().zip(rows) {
                            let exact = f64::from(sign) * weight.iter().sum::<f64>();
                            let magnitude: f64 = weight.iter().map(|w| w.abs()).sum();
                            let error = (f64::from(*found) - exact).abs();
                            let place = || format!("{unit:?}, {format:?}, {byte:#x}");
                            assert!(error < 5e-6 * magnitude + 1e-3, "{}: {error}", place());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_wrong_number_of_the_input_is_noticed() {
    let width = 512;
    let input = numbers(width, 9);
    for format in quantised() {
        let owned = small_rows(format, 8, width, 1);
        let found = product(Unit::best(InstructionSet::best()), &input, owned.rows());
        let activations = rounded_rows(&input, width, format);
        let mut other = rounded(&activations, format);
        other[77] += 0.03;
        let error = largest_error(&found, &other, &decoded(&owned.rows()), width);
        assert!(error > 2e-5, "{format:?}: {error}");
    }
}

#[test]
fn rows_do_not_depend_on_each_other() {
    for format in quantised() {
        let (width, n, rows) = (256, 45, 11);
        let owned = small_rows(format, n, width, 4);
        let input = numbers(rows * width, 3);
        for unit in units() {
            let together = product(unit, &input, owned.rows());
            for (row, expected) in input.chunks(width).zip(together.chunks(n)) {
                let alone = product(unit, row, owned.rows());
                assert_eq!(alone, expected, "{unit:?}, {format:?}");
            }
        }
    }
}

/// As many that the input does not stay in the cache: slices of a row are multiplied by turns.
#[test]
fn rows_in_slices_do_not_depend_on_each_other() {
    for format in [Format::Q8_0, Format::Q4_1, Format::Q4K, Format::Q6K] {
        let (width, n, rows) = (2304, 13, 121);
        assert!(rows * width > many::INPUT && !width.is_multiple_of(many::SLICE));
        let owned = small_rows(format, n, width, 4);
        let input = numbers(rows * width, 3);
        for unit in units() {
            let together = product(unit, &input, owned.rows());
            for row in [0, 1, 63, 119, 120] {
                let alone = product(unit, &input[row * width..][..width], owned.rows());
                assert_eq!(alone, together[row * n..][..n], "{unit:?}, {format:?}");
            }
        }
    }
}

#[test]
fn stacked_matrices_may_have_different_storage() {
    let width = 512;
    let stack = [
        small_rows(Format::Q4K, 37, width, 1),
        small_rows(Format::Q6K, 200, width, 2),
        small_rows(Format::F32, 5, width, 3),
        small_rows(Format::Q8_0, 0, width, 4),
        small_rows(Format::Q5_1, 90, width, 5),
    ];
    let parts: Vec<Rows<'_>> = stack.iter().map(Owned::rows).collect();
    let n: usize = parts.iter().map(Rows::rows).sum();
    let bias = numbers(n, 6);
    for (count, threads) in [(1, 3), (3, 1), (5, 2), (9, 4)] {
        let input = numbers(count * width, 7);
        let mut found = vec![f32::NAN; count * n];
        linear(&Pool::new(threads), &input, &parts, Some(&bias), &mut found);
        let mut first = 0;
        for part in &parts {
            let mut own = vec![f32::NAN; count * part.rows()];
            let bias = &bias[first..first + part.rows()];
            match part.format() {
                Format::F32 => {
                    crate::linear::linear(&Pool::new(1), &input, &[*part], Some(bias), &mut own);
                }
                _ => linear(&Pool::new(1), &input, &[*part], Some(bias), &mut own),
            }
            for (row, own) in own.chunks(part.rows().max(1)).enumerate() {
                let all = &found[row * n + first..][..part.rows()];
                assert_eq!(all, own, "{count} rows, {threads} threads");
            }
            first += part.rows();
        }
    }
}

#[test]
fn numbers_are_rounded_to_the_nearest_code() {
    let width = 512;
    let mut input = numbers(3 * width, 4);
    input[5] = -300.0;
    input[300] = 3e38;
    input[512..768].fill(0.0);
    input[544..548].fill(1e-36);
    input[768..1024].fill(-0.0);
    for &set in InstructionSet::available() {
        let kinds = Kinds {
            blocks: true,
            superblocks: true,
        };
        let activations = Activations::new_on(set, &Pool::new(2), &input, width, kinds);
        for row in 0..3 {
            let input = &input[row * width..][..width];
            let of_32 = activations.row(row);
            nearest(input, of_32.codes, of_32.scales, 32);
            for (at, sum) in of_32.sums.iter().enumerate() {
                let exact = total(&of_32.codes[32 * at..][..32]);
                assert_eq!(*sum, exact as f32 * of_32.scales[at]);
            }
            for span in [16, 32] {
                let of_256 = activations.super_row(row, span);
                nearest(input, of_256.codes, of_256.scales, 256);
                for (at, sum) in of_256.sums.iter().enumerate() {
                    let exact = total(&of_256.codes[span * at..][..span]);
                    assert_eq!(i32::from(*sum), exact);
                }
            }
        }
    }
}

fn total(codes: &[i8]) -> i32 {
    codes.iter().map(|code| i32::from(*code)).sum()
}

/// Each number is at most half a step from its code's.
fn nearest(input: &[f32], codes: &[i8], scales: &[f32], block: usize) {
    for (at, (x, code)) in input.iter().zip(codes).enumerate() {
        let scale = f64::from(scales[at / block]);
        let error = (f64::from(*x) - scale * f64::from(*code)).abs();
        assert!(error <= 0.50005 * scale + 1e-30, "{at}: {x}, {code}");
    }
}

#[test]
fn extremes_of_the_input() {
    let width = 256;
    for format in quantised() {
        let owned = small_rows(format, 9, width, 8);
        for rows in [1, 5] {
            let results = |change: fn(&mut [f32])| {
                let mut input = numbers(rows * width, 1);
                change(&mut input[..width]);
                product(Unit::best(InstructionSet::best()), &input, owned.rows())
            };
            let finite = |numbers: &[f32]| numbers.iter().all(|x| x.is_finite());
            let usual = results(|_| ());
            assert!(finite(&usual));
            assert!(results(|row| row.fill(0.0))[..9].iter().all(|y| *y == 0.0));
            assert!(finite(&results(|row| row[40] = 1e30)));
            assert!(finite(&results(|row| row.fill(1e-42))));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let changes: [fn(&mut [f32]); 3] = [
                    |row| row[40] = f32::NAN,
                    |row| row[40] = f32::INFINITY,
                    |row| row[255] = f32::NEG_INFINITY,
                ];
                for change in changes {
                    let found = results(change);
                    assert!(found[..9].iter().all(|y| y.is_nan()), "{format:?}, {bad}");
                    assert_eq!(found[9..], usual[9..], "other rows stay as they are");
                }
            }
        }
    }
}
