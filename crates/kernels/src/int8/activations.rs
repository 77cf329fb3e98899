//! Rows of activations in 8 bits.

use motet_formats::simd::{InstructionSet, Job, Simd, dispatch_on};

use crate::pool::Pool;
use crate::split::Split;

/// Numbers with one scale, for formats that have one in half precision for 32 elements.
pub(super) const BLOCK: usize = 32;

/// Numbers with one scale, for formats with whole scales. Sums of a block are integers.
pub(super) const SUPERBLOCK: usize = 256;

/// Numbers that one thread rounds at a time.
const CHUNK: usize = 16 << 10;

/// Blocks whose numbers are all smaller become zero. The inverse of their scale would overflow.
const SMALLEST: f32 = 1e-30;

/// Adding it to a small number leaves the nearest whole number in the lowest bits, ties to even.
const TO_WHOLE: f32 = 12_582_912.0;

/// The bits of infinity. Those of magnitudes that are not finite are not less.
const INFINITY: u32 = 0x7F80_0000;

/// Rows of numbers of about `scale * code`, in blocks with one scale: for each kind of formats
/// that multiplies them.
#[derive(Debug)]
pub(crate) struct Activations {
    width: usize,
    rows: usize,
    blocks: Option<Blocks>,
    superblocks: Option<Superblocks>,
}

/// The kinds of blocks that weights are multiplied with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kinds {
    pub(super) blocks: bool,
    pub(super) superblocks: bool,
}

/// Blocks of 32 codes.
#[derive(Debug)]
struct Blocks {
    /// `[rows, width]`, from -127 to 127.
    codes: Vec<i8>,
    /// `[rows, width / 32]`. NaN where one of the block's numbers is not finite.
    scales: Vec<f32>,
    /// The sums of 32 numbers, as rounded: `[rows, width / 32]`.
    sums: Vec<f32>,
}

/// Blocks of 256 codes.
#[derive(Debug)]
struct Superblocks {
    /// `[rows, width]`, from -127 to 127.
    codes: Vec<i8>,
    /// `[rows, width / 256]`. NaN where one of the block's numbers is not finite.
    scales: Vec<f32>,
    /// The sums of 32 codes: `[rows, width / 32]`.
    sums: Vec<i16>,
    /// The sums of 16 codes: `[rows, width / 16]`.
    half_sums: Vec<i16>,
}

/// One row in blocks of 32.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) codes: &'a [i8],
    pub(super) scales: &'a [f32],
    /// The sums of each block.
    pub(super) sums: &'a [f32],
}

/// One row in blocks of 256.
#[derive(Clone, Copy)]
pub(super) struct SuperRow<'a> {
    pub(super) codes: &'a [i8],
    pub(super) scales: &'a [f32],
    /// The sums of the codes of each span.
    pub(super) sums: &'a [i16],
}

impl Activations {
    /// Rounds `input` (`[rows, width]`) to these kinds of blocks.
    ///
    /// # Panics
    ///
    /// When `width` is no multiple of a block, or `input` is not whole rows.
    pub(super) fn new_on(
        set: InstructionSet,
        pool: &Pool,
        input: &[f32],
        width: usize,
        kinds: Kinds,
    ) -> Activations {
        assert!(width > 0 && input.len().is_multiple_of(width));
        assert!(!kinds.blocks || width.is_multiple_of(BLOCK));
        assert!(!kinds.superblocks || width.is_multiple_of(SUPERBLOCK));
        Activations {
            width,
            rows: input.len() / width,
            blocks: kinds.blocks.then(|| Blocks::new(set, pool, input)),
            superblocks: kinds
                .superblocks
                .then(|| Superblocks::new(set, pool, input)),
        }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// A row in blocks of 32.
    ///
    /// # Panics
    ///
    /// When it was not rounded to such, as for [`super_row`](Self::super_row).
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> Row<'_> {
        let all = self.blocks.as_ref().expect("rounded to blocks of 32");
        Row {
            codes: part(&all.codes, row, self.width),
            scales: part(&all.scales, row, self.width / BLOCK),
            sums: part(&all.sums, row, self.width / BLOCK),
        }
    }

    /// A row in blocks of 256, with the sums of spans of 16 or 32.
    #[inline(always)]
    pub(super) fn super_row(&self, row: usize, span: usize) -> SuperRow<'_> {
        let all = self.superblocks.as_ref().expect("rounded to blocks of 256");
        let sums = if span == 16 {
            &all.half_sums
        } else {
            &all.sums
        };
        SuperRow {
            codes: part(&all.codes, row, self.width),
            scales: part(&all.scales, row, self.width / SUPERBLOCK),
            sums: part(sums, row, self.width / span),
        }
    }
}

/// Row `index` of `[rows, count]`.
#[inline(always)]
fn part<T>(all: &[T], index: usize, count: usize) -> &[T] {
    &all[index * count..][..count]
}

impl Blocks {
    fn new(set: InstructionSet, pool: &Pool, input: &[f32]) -> Blocks {
        let blocks = input.len() / BLOCK;
        let mut codes = vec![0; input.len()];
        let [mut scales, mut sums] = [vec![0.0; blocks], vec![0.0; blocks]];
        let codes_of = Split::new(&mut codes);
        let slices = [&mut scales[..], &mut sums];
        pool.for_each_chunk(slices, [CHUNK / BLOCK; 2], |index, [scales, sums]| {
            let range = index * CHUNK..input.len().min((index + 1) * CHUNK);
            let round = RoundBlocks {
                input: &input[range.clone()],
                // SAFETY: each chunk has codes of its own.
                codes: unsafe { codes_of.part(range) },
                scales,
                sums,
            };
            dispatch_on(set, round);
        });
        Blocks {
            codes,
            scales,
            sums,
        }
    }
}

impl Superblocks {
    fn new(set: InstructionSet, pool: &Pool, input: &[f32]) -> Superblocks {
        let mut codes = vec![0; input.len()];
        let mut scales = vec![0.0; input.len() / SUPERBLOCK];
        let mut sums = vec![0; input.len() / BLOCK];
        let mut half_sums = vec![0; 2 * input.len() / BLOCK];
        let codes_of = Split::new(&mut codes);
        let sums_of = Split::new(&mut sums);
        let half_sums_of = Split::new(&mut half_sums);
        pool.for_each_chunk(
            [&mut scales[..]],
            [CHUNK / SUPERBLOCK],
            |index, [scales]| {
                let range = index * CHUNK..input.len().min((index + 1) * CHUNK);
                let spans = |span: usize| range.start / span..range.end / span;
                // SAFETY: each chunk has codes and sums of its own.
                let round = unsafe {
                    RoundSuperblocks {
                        input: &input[range.clone()],
                        codes: codes_of.part(range.clone()),
                        scales,
                        sums: sums_of.part(spans(BLOCK)),
                        half_sums: half_sums_of.part(spans(BLOCK / 2)),
                    }
                };
                dispatch_on(set, round);
            },
        );
        Superblocks {
            codes,
            scales,
            sums,
            half_sums,
        }
    }
}

/// Rounds some blocks of 32.
struct RoundBlocks<'a> {
    input: &'a [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Job for RoundBlocks<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (inputs, _) = self.input.as_chunks::<BLOCK>();
        let (codes, _) = self.codes.as_chunks_mut::<BLOCK>();
        let sums = self.scales.iter_mut().zip(self.sums);
        for ((input, codes), (scale, sum)) in inputs.iter().zip(codes).zip(sums) {
            *scale = round(input, codes);
            *sum = total(codes) as f32 * *scale;
        }
    }
}

/// Rounds some blocks of 256.
struct RoundSuperblocks<'a> {
    input: &'a [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i16],
    half_sums: &'a mut [i16],
}

impl Job for RoundSuperblocks<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (inputs, _) = self.input.as_chunks::<SUPERBLOCK>();
        let (codes, _) = self.codes.as_chunks_mut::<SUPERBLOCK>();
        for ((input, codes), scale) in inputs.iter().zip(codes).zip(self.scales) {
            *scale = round(input, codes);
        }
        let halves = self.codes.chunks_exact(BLOCK / 2).zip(&mut *self.half_sums);
        for (codes, sum) in halves {
            *sum = total(codes) as i16;
        }
        let pairs = self.half_sums.chunks_exact(2).zip(self.sums);
        for (halves, sum) in pairs {
            *sum = halves[0] + halves[1];
        }
    }
}

#[inline(always)]
fn total(codes: &[i8]) -> i32 {
    codes.iter().map(|code| i32::from(*code)).sum()
}

/// Rounds a block and returns its scale. The compiler vectorises it; each number is computed by
/// itself, so the bits are the same on all machines.
#[inline(always)]
fn round<const N: usize>(input: &[f32; N], codes: &mut [i8; N]) -> f32 {
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
