//! Dot products of rows with rows: the inner loops of attention and projections.

use motet_formats::simd::{Number, Simd};

/// Elements in a cache line.
pub(super) const fn line<N>() -> usize {
    64 / size_of::<N>()
}

/// Maximum sums that [`along`] keeps in registers.
pub(super) const SUMS_MAX: usize = 16;

/// Sums that [`along`] keeps in registers: its `R * M`.
pub(super) const fn sums<S: Simd>() -> usize {
    if S::LANES == 8 { 8 } else { SUMS_MAX }
}

/// Dot products of `R` rows with `M` others, by vectors that run along the rows. The product of
/// row `r` with the other row `m` goes to `r * M + m`. Nothing is rearranged, so this is best
/// where one side has only a few rows.
///
/// Meanwhile the numbers in `ahead`, which will be needed next, are prefetched into the second
/// level of cache, in memory order and a few lines at a time: at most as many as the rows. A core that
/// waits for memory with its own loads was measured to get half of the bandwidth that it can reach.
///
/// # Panics
///
/// When there are fewer rows, `dim` is not a multiple of 16, or `R * M` is not
/// [`sums`].
#[inline(always)]
pub(super) fn along<S: Simd, N: Number, const R: usize, const M: usize>(
    simd: S,
    rows: &[N],
    others: &[f32],
    dim: usize,
    ahead: &[N],
) -> [f32; SUMS_MAX] {
    assert!(R * M == sums::<S>() && dim.is_multiple_of(16));
    let row_len = N::row_len(dim);
    assert!(rows.len() >= R * row_len && others.len() >= M * dim);
    let mut sums = [simd.splat(0.0); SUMS_MAX];
    let lines = ahead.len().div_ceil(line::<N>());
    let lines_each = lines.div_ceil(dim / S::LANES);
    let mut ahead = ahead.as_ptr();
    for at in (0..dim).step_by(S::LANES) {
        let mut numbers = [simd.splat(0.0); M];
        for (m, numbers) in numbers.iter_mut().enumerate() {
            // SAFETY: `at + LANES <= dim`, and there are `M` rows of `dim`.
            *numbers = unsafe { simd.load(others.as_ptr().add(m * dim + at)) };
        }
        for r in 0..R {
            // SAFETY: `at + LANES <= dim`, and there are `R` rows of `dim`.
            let row = unsafe { N::load_at(simd, rows.as_ptr().add(r * row_len), at) };
            if r < lines_each {
                simd.prefetch(ahead.cast());
                ahead = ahead.wrapping_add(line::<N>());
            }
            for m in 0..M {
                sums[r * M + m] = simd.mul_add(row, numbers[m], sums[r * M + m]);
            }
        }
    }
    summed(simd, &sums[..R * M])
}

/// [`along`] for less than a tile of rows and one other row. Results are the same to the last
/// bit.
///
/// # Panics
///
/// When there are more than [`SUMS_MAX`], `other` is not one row, or `dim` is not a multiple
/// of 16.
#[inline(always)]
pub(super) fn along_fewer<S: Simd, N: Number>(
    simd: S,
    rows: &[N],
    other: &[f32],
    dim: usize,
) -> [f32; SUMS_MAX] {
    let row_len = N::row_len(dim);
    assert!(dim.is_multiple_of(16) && other.len() == dim && rows.len() <= SUMS_MAX * row_len);
    let mut sums = [simd.splat(0.0); SUMS_MAX];
    for (row, sum) in rows.chunks_exact(row_len).zip(&mut sums) {
        for (index, other) in other.chunks_exact(S::LANES).enumerate() {
            // SAFETY: the row has as many numbers as `other`.
            let row = unsafe { N::load_at(simd, row.as_ptr(), index * S::LANES) };
            *sum = simd.mul_add(row, simd.load_part(other), *sum);
        }
    }
    summed(simd, &sums)
}

/// Sums the lanes of each vector.
#[inline(always)]
pub(super) fn summed<S: Simd>(simd: S, sums: &[S::Vector]) -> [f32; SUMS_MAX] {
    let mut products = [0.0; SUMS_MAX];
    let sums = sums.chunks_exact(S::LANES);
    for (sums, products) in sums.zip(products.chunks_exact_mut(S::LANES)) {
        simd.store_part(products, simd.sum_each(sums));
    }
    products
}

/// Dot products of rows with `NQ * LANES` others, which lie side by side in columns: `columns`
/// is `[dim, 2 * LANES]`, `rows` is `[n, dim]`, `products` becomes `[n, 2 * LANES]`. Best where
/// there are many rows on both sides, because nothing is summed across a vector.
///
/// # Panics
///
/// When a length does not fit.
#[inline(always)]
pub(super) fn across<S: Simd, const NQ: usize>(
    simd: S,
    columns: &[f32],
    rows: &[f32],
    dim: usize,
    products: &mut [f32],
) {
    let width = 2 * S::LANES;
    let count = rows.len() / dim;
    assert!(NQ <= 2 && columns.len() >= dim * width && products.len() >= count * width);
    let mut row = 0;
    while row < count {
        let rows = rows[row * dim..].as_ptr();
        let products = products[row * width..].as_mut_ptr();
        let columns = columns.as_ptr();
        // SAFETY: `NR` rows are left, so the checks above cover all reads and writes.
        row += unsafe {
            match (count - row, S::REGISTERS) {
                (8.., 32) => across_tile::<S, NQ, 8>(simd, columns, rows, dim, products),
                (4.., _) => across_tile::<S, NQ, 4>(simd, columns, rows, dim, products),
                (2.., _) => across_tile::<S, NQ, 2>(simd, columns, rows, dim, products),
                _ => across_tile::<S, NQ, 1>(simd, columns, rows, dim, products),
            }
        };
    }
}

/// [`across`] for `NR` rows. Returns `NR`.
///
/// # Safety
///
/// `columns` is readable as `[dim, 2 * LANES]`, `rows` as `[NR, dim]`, `products`
/// writable as `[NR, 2 * LANES]`.
#[inline(always)]
unsafe fn across_tile<S: Simd, const NQ: usize, const NR: usize>(
    simd: S,
    columns: *const f32,
    rows: *const f32,
    dim: usize,
    products: *mut f32,
) -> usize {
    let width = 2 * S::LANES;
    let mut sums = [[simd.splat(0.0); NQ]; NR];
    // SAFETY: the caller's promise, for all reads and writes below.
    unsafe {
        for number in 0..dim {
            let mut lanes = [simd.splat(0.0); NQ];
            for (vector, lanes) in lanes.iter_mut().enumerate() {
                *lanes = simd.load(columns.add(number * width + vector * S::LANES));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let number = simd.splat(*rows.add(row * dim + number));
                for (sum, lanes) in sums.iter_mut().zip(&lanes) {
                    *sum = simd.mul_add(number, *lanes, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (vector, sum) in sums.iter().enumerate() {
                simd.store(products.add(row * width + vector * S::LANES), *sum);
            }
        }
    }
    NR
}
