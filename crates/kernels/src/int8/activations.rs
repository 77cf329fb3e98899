//! Rows of activations in 8 bits.

use motet_formats::simd::{InstructionSet, Job, Simd, dispatch_on};

use crate::pool::Pool;
use crate::split::Split;

/// Numbers with one scale.
pub(super) const BLOCK: usize = 32;

/// Numbers that one thread rounds at a time.
const CHUNK: usize = 16 << 10;

/// Blocks whose numbers are all smaller become zero. The inverse of their scale would overflow.
const SMALLEST: f32 = 1e-30;

/// Adding it to a small number leaves the nearest whole number in the lowest bits, ties to even.
const TO_WHOLE: f32 = 12_582_912.0;

/// The bits of infinity. Those of magnitudes that are not finite are not less.
const INFINITY: u32 = 0x7F80_0000;

/// Rows in blocks of 32 codes with a scale: a number is about `scale * code`.
#[derive(Debug)]
pub(crate) struct Activations {
    width: usize,
    /// `[rows, width]`, from -127 to 127.
    codes: Vec<i8>,
    /// `[rows, width / 32]`. NaN where one of the block's numbers is not finite.
    scales: Vec<f32>,
    /// The sums of 32 numbers, as rounded: `[rows, width / 32]`.
    sums: Vec<f32>,
    /// The sums of 16 numbers, as rounded: `[rows, width / 16]`.
    half_sums: Vec<f32>,
}

/// One row of [`Activations`].
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) codes: &'a [i8],
    pub(super) scales: &'a [f32],
    /// The sums of each span.
    pub(super) sums: &'a [f32],
}

impl Activations {
    /// Rounds `input` (`[rows, width]`).
    ///
    /// # Panics
    ///
    /// When `width` is no multiple of 32, or `input` is not whole rows.
    pub(super) fn new_on(
        set: InstructionSet,
        pool: &Pool,
        input: &[f32],
        width: usize,
    ) -> Activations {
        assert!(width > 0 && width.is_multiple_of(BLOCK));
        assert!(input.len().is_multiple_of(width));
        let blocks = input.len() / BLOCK;
        let mut codes = vec![0; input.len()];
        let [mut scales, mut sums] = [vec![0.0; blocks], vec![0.0; blocks]];
        let mut half_sums = vec![0.0; 2 * blocks];
        let codes_of = Split::new(&mut codes);
        let slices = [&mut scales[..], &mut sums, &mut half_sums];
        let lengths = [CHUNK / BLOCK, CHUNK / BLOCK, 2 * CHUNK / BLOCK];
        pool.for_each_chunk(slices, lengths, |index, numbers| {
            let from = index * CHUNK;
            let to = input.len().min(from + CHUNK);
            let [scales, sums, half_sums] = numbers;
            let round = Round {
                input: &input[from..to],
                // SAFETY: each chunk has codes of its own.
                codes: unsafe { codes_of.part(from..to) },
                scales,
                sums,
                half_sums,
            };
            dispatch_on(set, round);
        });
        Activations {
            width,
            codes,
            scales,
            sums,
            half_sums,
        }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn rows(&self) -> usize {
        self.codes.len() / self.width
    }

    /// A row, with the sums of spans of 16 or 32.
    #[inline(always)]
    pub(super) fn row(&self, row: usize, span: usize) -> Row<'_> {
        let blocks = self.width / BLOCK;
        let sums = match span {
            16 => &self.half_sums[row * 2 * blocks..][..2 * blocks],
            _ => &self.sums[row * blocks..][..blocks],
        };
        Row {
            codes: &self.codes[row * self.width..][..self.width],
            scales: &self.scales[row * blocks..][..blocks],
            sums,
        }
    }
}

/// Rounds some blocks.
struct Round<'a> {
    input: &'a [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    half_sums: &'a mut [f32],
}

impl Job for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (inputs, _) = self.input.as_chunks::<BLOCK>();
        let (codes, _) = self.codes.as_chunks_mut::<BLOCK>();
        let (halves, _) = self.half_sums.as_chunks_mut::<2>();
        let sums = self.scales.iter_mut().zip(self.sums).zip(halves);
        for ((input, codes), ((scale, sum), half_sums)) in inputs.iter().zip(codes).zip(sums) {
            *scale = round(input, codes);
            let half = |codes: &[i8]| codes.iter().map(|code| i32::from(*code)).sum::<i32>();
            let (first, second) = codes.split_at(BLOCK / 2);
            let [first, second] = [half(first), half(second)];
            *half_sums = [first, second].map(|sum| sum as f32 * *scale);
            *sum = (first + second) as f32 * *scale;
        }
    }
}

/// Rounds a block and returns its scale. The compiler vectorises it; each number is computed by
/// itself, so the bits are the same on all machines.
#[inline(always)]
fn round(input: &[f32; BLOCK], codes: &mut [i8; BLOCK]) -> f32 {
    let bits = |x: f32| x.to_bits() & 0x7FFF_FFFF;
    let largest = input.iter().fold(0, |most, x| bits(*x).max(most));
    if largest >= INFINITY {
        codes.fill(0);
        return f32::NAN;
    }
    let largest = f32::from_bits(largest);
    if largest < SMALLEST {
        codes.fill(0);
        return 0.0;
    }
    let inverse = 127.0 / largest;
    for (code, x) in codes.iter_mut().zip(input) {
        *code = (x * inverse + TO_WHOLE).to_bits() as i8;
    }
    largest / 127.0
}
