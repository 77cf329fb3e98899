//! One set of vector operations over AVX-512, AVX2, NEON (never run) and plain Rust.
//!
//! A kernel is written once, as a [`Job`] that is generic over [`Simd`]. [`dispatch`] picks the
//! widest instruction set of the machine and runs the job compiled for it. The pattern is that of
//! the crate `pulp`, which is not used: as of 0.22 it wraps no instruction of VNNI, and integer
//! products need these. For the compiler to keep everything in registers, `Job::run` and every
//! function that it calls with a `Simd` value must be `#[inline(always)]`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(all(target_arch = "x86_64", motet_avx512))]
mod avx512;
mod fields;
mod hyperbolic;
#[cfg(target_arch = "aarch64")]
mod neon;
mod number;
mod portable;

use std::f32::consts::{LN_2, LOG2_E};
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
pub use hyperbolic::tanh;
pub use number::Number;
pub use portable::Portable;

/// Vectors of `f32` of one instruction set.
///
/// A value of the implementing type proves that the machine has the instructions, so only
/// [`dispatch_on`] makes one. Loads and stores need no alignment.
pub trait Simd: Copy {
    /// One vector.
    type Vector: Copy;
    /// A vector of 16 bytes, whatever the number of lanes.
    type Bytes: Copy;
    /// Numbers in a vector.
    const LANES: usize;
    /// Number of vector registers available to a kernel.
    const REGISTERS: usize;

    /// Whether the operations on bytes are instructions of the machine.
    const HAS_BYTES: bool = true;

    /// A vector with `x` in all lanes.
    fn splat(self, x: f32) -> Self::Vector;
    /// `[0, 1, 2, ...]`.
    fn iota(self) -> Self::Vector;
    /// # Safety
    /// `from` is readable for `LANES` numbers.
    unsafe fn load(self, from: *const f32) -> Self::Vector;
    /// # Safety
    /// `to` is writable for `LANES` numbers.
    unsafe fn store(self, to: *mut f32, v: Self::Vector);
    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b`.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / b`.
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The larger of each pair; `b` where `b` is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The smaller of each pair; `b` where `b` is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `then` where `a >= b`, `otherwise` elsewhere.
    fn select_ge(
        self,
        a: Self::Vector,
        b: Self::Vector,
        then: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector;
    /// The nearest whole number, for magnitudes below 2^22.
    fn round(self, v: Self::Vector) -> Self::Vector;
    /// `v * 2^n` for whole `n` in -126..=127.
    fn scale(self, v: Self::Vector, n: Self::Vector) -> Self::Vector;
    /// The sum of all lanes.
    fn sum(self, v: Self::Vector) -> f32;
    /// The largest lane.
    fn largest(self, v: Self::Vector) -> f32;
    /// The sum of each of `LANES` vectors.
    ///
    /// # Panics
    ///
    /// When the number of vectors is not `LANES`.
    fn sum_each(self, vectors: &[Self::Vector]) -> Self::Vector;

    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_bytes(self, from: *const u8) -> Self::Bytes;
    /// 16 times `byte`.
    fn splat_byte(self, byte: u8) -> Self::Bytes;
    /// `a & b`.
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `a | b`.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Each byte shifted right by 0 to 7. Bits of the next byte may come in from the left, so the
    /// caller keeps the others with [`Simd::and`].
    fn shift_right(self, bytes: Self::Bytes, count: u32) -> Self::Bytes;
    /// Each byte shifted left by 0 to 7. Bits of the byte before may come in from the right, so
    /// the caller keeps the others with [`Simd::and`].
    fn shift_left(self, bytes: Self::Bytes, count: u32) -> Self::Bytes;
    /// `a - b`, modulo 256.
    fn sub_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// The bytes of `table` at `indices`, which are below 16.
    fn look_up(self, table: Self::Bytes, indices: Self::Bytes) -> Self::Bytes;
    /// The numbers that the bytes from `part * LANES` are, with their signs.
    fn widen(self, bytes: Self::Bytes, part: usize) -> Self::Vector;

    /// [`Simd::widen`] for bytes below 128, which is faster on some machines.
    #[inline(always)]
    fn widen_small(self, bytes: Self::Bytes, part: usize) -> Self::Vector {
        self.widen(bytes, part)
    }

    /// 16 unsigned numbers of `BITS` bits (2, 3, 4, 5, 6 or 8), one after the other from the lowest
    /// bit up, as a byte each.
    ///
    /// # Safety
    /// `from` is readable for `2 * BITS` bytes.
    #[inline(always)]
    unsafe fn unpack<const BITS: usize>(self, from: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { fields::unpack::<Self, BITS>(self, from) }
    }

    /// The numbers of [`Simd::unpack`] from `part * LANES`.
    ///
    /// # Safety
    /// As for [`Simd::unpack`], and `part` is below `16 / LANES`.
    #[inline(always)]
    unsafe fn load_fields<const BITS: usize>(self, from: *const u8, part: usize) -> Self::Vector {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.unpack::<BITS>(from) };
        if BITS == 8 {
            let signed = self.widen(self.sub_bytes(bytes, self.splat_byte(128)), part);
            self.add(signed, self.splat(128.0))
        } else {
            self.widen_small(bytes, part)
        }
    }

    /// The IEEE 754 half with these bits.
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        number::from_f16(bits)
    }

    /// Loads numbers from their upper halves.
    ///
    /// # Safety
    /// `from` is readable for `LANES` halves.
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::Vector {
        // SAFETY: the caller's promise.
        unsafe { load_each(self, from, number::from_bf16) }
    }

    /// Stores the upper halves of the nearest representable numbers, ties to even.
    ///
    /// # Safety
    /// `to` is writable for `LANES` halves.
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, v: Self::Vector) {
        // SAFETY: the caller's promise.
        unsafe { store_each(self, to, v, number::to_bf16) }
    }

    /// Loads IEEE 754 halves.
    ///
    /// # Safety
    /// `from` is readable for `LANES` halves.
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::Vector {
        // SAFETY: the caller's promise.
        unsafe { load_each(self, from, number::from_f16) }
    }

    /// Stores the nearest IEEE 754 halves, ties to even.
    ///
    /// # Safety
    /// `to` is writable for `LANES` halves.
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, v: Self::Vector) {
        let half = |x| half::f16::from_f32_const(x).to_bits();
        // SAFETY: the caller's promise.
        unsafe { store_each(self, to, v, half) }
    }

    /// Loads whole numbers with their signs.
    ///
    /// # Safety
    /// `from` is readable for `LANES` bytes.
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::Vector {
        // SAFETY: the caller's promise.
        unsafe { load_each(self, from, f32::from) }
    }

    /// A vector with one number, given by its upper half, in all lanes.
    ///
    /// # Safety
    /// `from` is readable for four bytes; the first two are the number's.
    #[inline(always)]
    unsafe fn splat_bf16(self, from: *const u16) -> Self::Vector {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        self.splat(number::from_bf16(unsafe { from.read_unaligned() }))
    }

    /// Prefetches the cache line at `at`, which need not exist, into the second level of cache.
    /// Requests for the first level are few and block loads, so they are not used.
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        let _ = at;
    }

    /// The first numbers of `from`, at most `LANES`; zero elsewhere.
    #[inline(always)]
    fn load_part(self, from: &[f32]) -> Self::Vector {
        if from.len() >= Self::LANES {
            // SAFETY: the length was just checked.
            return unsafe { self.load(from.as_ptr()) };
        }
        let mut whole = [0.0; LANES_MAX];
        whole[..from.len()].copy_from_slice(from);
        // SAFETY: `whole` holds LANES_MAX numbers.
        unsafe { self.load(whole.as_ptr()) }
    }

    /// Stores as many lanes as fit into `to`.
    #[inline(always)]
    fn store_part(self, to: &mut [f32], v: Self::Vector) {
        if to.len() >= Self::LANES {
            // SAFETY: the length was just checked.
            return unsafe { self.store(to.as_mut_ptr(), v) };
        }
        let mut whole = [0.0; LANES_MAX];
        // SAFETY: `whole` holds LANES_MAX numbers.
        unsafe { self.store(whole.as_mut_ptr(), v) };
        to.copy_from_slice(&whole[..to.len()]);
    }

    /// `2^x` to within 2 units in the last place; 2^-126 where it would be smaller.
    #[inline(always)]
    fn exp2(self, x: Self::Vector) -> Self::Vector {
        let x = self.min(self.splat(127.0), self.max(self.splat(-126.0), x));
        let whole = self.round(x);
        self.scale(polynomial(self, &EXP2, self.sub(x, whole)), whole)
    }

    /// `e^x` to within 2 units in the last place, for results within
    /// 2^-126..=2^127 and clamped to them.
    #[inline(always)]
    fn exp(self, x: Self::Vector) -> Self::Vector {
        let lowest = self.splat(-126.0 * LN_2);
        let highest = self.splat(127.0 * LN_2);
        let x = self.min(highest, self.max(lowest, x));
        let whole = self.round(self.mul(x, self.splat(LOG2_E)));
        // ln 2 in two parts (Cody and Waite 1980), so that no bits of x are lost.
        let rest = self.mul_add(whole, self.splat(-0.693_359_4), x);
        let rest = self.mul_add(whole, self.splat(2.121_944_4e-4), rest);
        self.scale(polynomial(self, &EXP, rest), whole)
    }
}

/// Converts number after number; the compiler may vectorise it.
///
/// # Safety
///
/// `from` is readable for `LANES` numbers.
#[inline(always)]
unsafe fn load_each<S: Simd, T: Copy>(
    simd: S,
    from: *const T,
    read: impl Fn(T) -> f32,
) -> S::Vector {
    let mut whole = [0.0; LANES_MAX];
    for (lane, number) in whole[..S::LANES].iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *number = read(unsafe { from.add(lane).read_unaligned() });
    }
    // SAFETY: `whole` holds LANES_MAX numbers.
    unsafe { simd.load(whole.as_ptr()) }
}

/// Converts number after number; the compiler may vectorise it.
///
/// # Safety
///
/// `to` is writable for `LANES` halves.
#[inline(always)]
unsafe fn store_each<S: Simd>(simd: S, to: *mut u16, v: S::Vector, keep: impl Fn(f32) -> u16) {
    let mut whole = [0.0; LANES_MAX];
    // SAFETY: `whole` holds LANES_MAX numbers.
    unsafe { simd.store(whole.as_mut_ptr(), v) };
    for (lane, number) in whole[..S::LANES].iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { *to.add(lane) = keep(*number) };
    }
}

/// Maximum lanes of any implementation.
pub const LANES_MAX: usize = 16;

/// Coefficients of 2^x for |x| <= 1/2, highest power first (Cephes' `exp2f`).
const EXP2: [f32; 7] = [
    1.535_336_2e-4,
    1.339_887_4e-3,
    9.618_437e-3,
    5.550_332_6e-2,
    2.402_264_7e-1,
    6.931_472e-1,
    1.0,
];

/// Coefficients of e^x for |x| <= ln 2 / 2, highest power first (Cephes' `expf`).
const EXP: [f32; 8] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    0.5,
    1.0,
    1.0,
];

#[inline(always)]
fn polynomial<S: Simd>(simd: S, coefficients: &[f32], x: S::Vector) -> S::Vector {
    let mut value = simd.splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        value = simd.mul_add(value, x, simd.splat(*coefficient));
    }
    value
}

/// Work that is compiled once per instruction set.
pub trait Job {
    /// The result of the work.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Whether code for AVX-512 is compiled: `MOTET_INSTRUCTION_SETS=native` leaves it out where the machine
/// that builds has none.
pub const HAS_AVX512: bool = cfg!(motet_avx512);
/// [`HAS_AVX512`] of VNNI with AVX's encoding.
pub const HAS_AVX_VNNI: bool = cfg!(motet_avx_vnni);

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// x86-64 with AVX-512F: 16 lanes.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C: 8 lanes.
    Avx2,
    /// AArch64: 4 lanes.
    Neon,
    /// Plain loops, as the compiler vectorises them.
    Portable,
}

impl InstructionSet {
    /// The instruction sets of this machine that are compiled, the widest first.
    #[must_use]
    pub fn available() -> &'static [InstructionSet] {
        static AVAILABLE: OnceLock<Vec<InstructionSet>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let mut found = Vec::new();
            #[cfg(target_arch = "x86_64")]
            {
                let has_avx2 = is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c");
                if HAS_AVX512 && has_avx2 && is_x86_feature_detected!("avx512f") {
                    found.push(InstructionSet::Avx512);
                }
                if has_avx2 {
                    found.push(InstructionSet::Avx2);
                }
            }
            if cfg!(target_arch = "aarch64") {
                found.push(InstructionSet::Neon);
            }
            found.push(InstructionSet::Portable);
            found
        })
    }

    /// The widest of [`available`](Self::available).
    #[must_use]
    pub fn best() -> InstructionSet {
        InstructionSet::available()[0]
    }

    /// Numbers in one of its vectors.
    #[must_use]
    pub fn lanes(self) -> usize {
        match self {
            InstructionSet::Avx512 => 16,
            InstructionSet::Avx2 | InstructionSet::Portable => 8,
            InstructionSet::Neon => 4,
        }
    }
}

/// Runs `job` with the widest instruction set of this machine.
pub fn dispatch<J: Job>(job: J) -> J::Output {
    dispatch_on(InstructionSet::best(), job)
}

/// Runs `job` with one instruction set.
///
/// # Panics
///
/// When it is not [`available`](InstructionSet::available).
pub fn dispatch_on<J: Job>(set: InstructionSet, job: J) -> J::Output {
    assert!(
        InstructionSet::available().contains(&set),
        "this machine, or this build, does not have {set:?}"
    );
    match set {
        #[cfg(all(target_arch = "x86_64", motet_avx512))]
        // SAFETY: the machine has AVX-512F, AVX2 and FMA.
        InstructionSet::Avx512 => unsafe { avx512::run(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX2, FMA and F16C.
        InstructionSet::Avx2 => unsafe { avx2::run(job) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every AArch64 machine that Rust's standard library supports has NEON.
        InstructionSet::Neon => unsafe { neon::run(job) },
        _ => portable::run(job),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Map<'a> {
        input: &'a [f32],
        base_two: bool,
    }

    impl Job for Map<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<f32> {
            let mut output = vec![0.0; self.input.len()];
            for (from, to) in self.input.chunks(S::LANES).zip(output.chunks_mut(S::LANES)) {
                let x = simd.load_part(from);
                let y = if self.base_two {
                    simd.exp2(x)
                } else {
                    simd.exp(x)
                };
                simd.store_part(to, y);
            }
            output
        }
    }

    fn check(base_two: bool, reference: fn(f64) -> f64, range: f32) {
        let input: Vec<f32> = (0..20_003)
            .map(|i| range * (i as f32 / 10_001.0 - 1.0))
            .collect();
        for &set in InstructionSet::available() {
            let output = dispatch_on(
                set,
                Map {
                    input: &input,
                    base_two,
                },
            );
            for (x, y) in input.iter().zip(&output) {
                let expected = reference(f64::from(*x));
                let error = (f64::from(*y) / expected - 1.0).abs();
                assert!(error < 2.5e-7, "{set:?}: f({x}) = {y}, expected {expected}");
            }
        }
    }

    #[test]
    fn exponentials_are_accurate() {
        check(true, f64::exp2, 125.9);
        check(false, f64::exp, 87.0);
    }

    #[test]
    fn exponentials_of_the_extremes() {
        for &set in InstructionSet::available() {
            for base_two in [true, false] {
                let input = [f32::NEG_INFINITY, -1e30, f32::INFINITY, f32::NAN];
                let output = dispatch_on(
                    set,
                    Map {
                        input: &input,
                        base_two,
                    },
                );
                assert!(
                    output[0] <= 1.2e-38 && output[1] <= 1.2e-38,
                    "{set:?}: {output:?}"
                );
                assert!(output[2] > 1e38, "{set:?}: {output:?}");
                assert!(output[3].is_nan(), "{set:?}: {output:?}");
            }
        }
    }

    struct Reduce<'a>(&'a [f32; LANES_MAX]);

    impl Job for Reduce<'_> {
        type Output = (usize, f32, f32, Vec<f32>, Vec<f32>);
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let v = simd.load_part(self.0);
            let mut selected = vec![0.0; S::LANES];
            let chosen = simd.select_ge(v, simd.splat(2.0), simd.iota(), simd.splat(-1.0));
            simd.store_part(&mut selected, chosen);
            let mut vectors = [v; LANES_MAX];
            for (i, vector) in vectors.iter_mut().enumerate() {
                *vector = simd.mul(v, simd.splat(i as f32));
            }
            let mut products = vec![0.0; S::LANES];
            simd.store_part(&mut products, simd.sum_each(&vectors[..S::LANES]));
            (S::LANES, simd.sum(v), simd.largest(v), selected, products)
        }
    }

    #[test]
    fn reductions_see_every_lane() {
        let numbers: [f32; LANES_MAX] = std::array::from_fn(|i| ((i * 7) % 16) as f32 - 3.0);
        for &set in InstructionSet::available() {
            let (lanes, sum, largest, selected, products) = dispatch_on(set, Reduce(&numbers));
            assert_eq!(lanes, set.lanes());
            let seen = &numbers[..lanes];
            assert_eq!(sum, seen.iter().sum::<f32>(), "{set:?}");
            assert_eq!(
                largest,
                seen.iter().copied().fold(f32::MIN, f32::max),
                "{set:?}"
            );
            for (i, &number) in seen.iter().enumerate() {
                let expected = if number >= 2.0 { i as f32 } else { -1.0 };
                assert_eq!(selected[i], expected, "{set:?}");
                assert_eq!(products[i], sum * i as f32, "{set:?}");
            }
        }
    }
}
