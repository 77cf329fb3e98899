//! Normalisation and rotary embedding of a step's queries and keys, and the append to the tails.

use motet_formats::simd::{Job, Number, Simd, dispatch_on};

use super::super::pool::Pool;
use super::CacheMut;
use super::layer_inputs::LayerInputs;
use super::plan::AttendPlan;
use super::prepare::Prepare;
use super::shape::Heads;
use crate::scratch;

/// Rows that one thread takes at a time.
const ROWS: usize = 32;

/// Fewer numbers than this do not use another thread.
const SINGLE_THREAD_BELOW: usize = 32 << 10;

/// Rotates and scales the queries of the packed rows into `queries`
/// (`[rows, query heads, dim]`), rotates their keys into the tails and copies their
/// values there. The plan's extras come before the rotation.
pub(super) fn rotate<N: Number>(
    pool: &Pool,
    plan: &AttendPlan,
    layer: LayerInputs<'_>,
    queries: &mut [f32],
    tails: &mut [CacheMut<'_, N>],
) {
    let mut jobs = jobs(plan, queries, tails);
    let packed = layer.packed;
    let prepare = Prepare::new(&plan.attention.extras, layer);
    let dim = plan.attention.heads.dim;
    let scratch_len = prepare.scratch(dim);
    let job = |_: usize, [jobs]: [&mut [Rows<'_, N>]; 1]| {
        scratch::for_item(|memory| {
            let [scratch, rotated] = memory.take([scratch_len, dim]);
            for rows in jobs {
                let rotate = Rotate {
                    plan,
                    packed,
                    prepare,
                    rows,
                    scratch: &mut *scratch,
                    rotated: &mut *rotated,
                };
                dispatch_on(plan.set, rotate);
            }
        });
    };
    if packed.len() < SINGLE_THREAD_BELOW {
        job(0, [&mut jobs]);
    } else {
        pool.for_each_chunk([&mut jobs], [1], job);
    }
}

/// Some rows, and where their queries, or keys and values, are written.
enum Rows<'a, N> {
    Queries {
        first_row: usize,
        to: &'a mut [f32],
    },
    Keys {
        first_row: usize,
        kv_head: usize,
        keys: &'a mut [N],
        values: &'a mut [N],
    },
}

fn jobs<'a, N: Number>(
    plan: &AttendPlan,
    queries: &'a mut [f32],
    tails: &'a mut [CacheMut<'_, N>],
) -> Vec<Rows<'a, N>> {
    let Heads { query, dim, .. } = plan.attention.heads;
    let row_len = N::row_len(dim);
    let blocks = queries.chunks_mut(ROWS * query * dim).enumerate();
    let mut jobs: Vec<Rows<'a, N>> = blocks
        .map(|(block, to)| Rows::Queries {
            first_row: block * ROWS,
            to,
        })
        .collect();
    for (span, tail) in plan.spans.iter().zip(tails) {
        let new = span.tail_tokens * row_len..(span.tail_tokens + span.rows) * row_len;
        let head_len = tail.capacity * row_len;
        let heads = tail.keys.chunks_exact_mut(head_len);
        let heads = heads.zip(tail.values.chunks_exact_mut(head_len));
        for (kv_head, (keys, values)) in heads.enumerate() {
            let keys = keys[new.clone()].chunks_mut(ROWS * row_len);
            let values = values[new.clone()].chunks_mut(ROWS * row_len);
            jobs.extend(keys.zip(values).enumerate().map(|(block, (keys, values))| {
                let first_row = span.first_row + block * ROWS;
                Rows::Keys {
                    first_row,
                    kv_head,
                    keys,
                    values,
                }
            }));
        }
    }
    jobs
}

struct Rotate<'a, 'b, N> {
    plan: &'a AttendPlan,
    packed: &'a [f32],
    prepare: Prepare<'a>,
    rows: &'a mut Rows<'b, N>,
    /// For one head.
    scratch: &'a mut [f32],
    /// For a key before it is converted to the cached type.
    rotated: &'a mut [f32],
}

impl<N: Number> Job for Rotate<'_, '_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let attention = &self.plan.attention;
        let Heads { query, kv, dim } = attention.heads;
        let width = attention.row_width();
        let row_of = |row: usize| &self.packed[row * width..(row + 1) * width];
        let (prepare, scratch, rotated) = (&self.prepare, self.scratch, self.rotated);
        let pairs = attention.rotary.inverse_frequencies.len();
        let angles = |row: usize| self.plan.angles[2 * pairs * row..][..2 * pairs].split_at(pairs);
        match self.rows {
            Rows::Queries { first_row, to } => {
                for (row, to) in to.chunks_exact_mut(query * dim).enumerate() {
                    let row = *first_row + row;
                    let scale = self.plan.query_factor(row);
                    let numbers = prepare.queries(simd, &row_of(row)[..query * dim]);
                    for (head, to) in to.chunks_exact_mut(dim).enumerate() {
                        let from = prepare.head(simd, &numbers, head, dim, &mut *scratch);
                        rotate_head(simd, angles(row), scale, from, to);
                    }
                }
            }
            Rows::Keys {
                first_row,
                kv_head,
                keys,
                values,
            } => {
                let row_len = N::row_len(dim);
                let values = values.chunks_exact_mut(row_len);
                let rows = keys.chunks_exact_mut(row_len).zip(values);
                for (row, (key, value)) in rows.enumerate() {
                    let row = *first_row + row;
                    let (from, values) = row_of(row)[query * dim..].split_at(kv * dim);
                    let numbers = prepare.keys(simd, from);
                    let from = prepare.head(simd, &numbers, *kv_head, dim, &mut *scratch);
                    rotate_head(simd, angles(row), 1.0, from, rotated);
                    N::store_row(simd, key, rotated);
                    let from = &values[*kv_head * dim..][..dim];
                    N::store_row(simd, value, prepare.value(simd, from, &mut *scratch));
                }
            }
        }
    }
}

#[inline(always)]
pub(super) fn rotate_head<S: Simd>(
    simd: S,
    (cosines, sines): (&[f32], &[f32]),
    scale: f32,
    from: &[f32],
    to: &mut [f32],
) {
    let pairs = cosines.len();
    let scale = simd.splat(scale);
    let (from_first, from) = from.split_at(pairs);
    let (from_second, from_rest) = from.split_at(pairs);
    let (to_first, to) = to.split_at_mut(pairs);
    let (to_second, to_rest) = to.split_at_mut(pairs);
    let from = from_first
        .chunks(S::LANES)
        .zip(from_second.chunks(S::LANES));
    let angles = cosines.chunks(S::LANES).zip(sines.chunks(S::LANES));
    let to = to_first
        .chunks_mut(S::LANES)
        .zip(to_second.chunks_mut(S::LANES));
    for (((x, y), (cos, sin)), (to_x, to_y)) in from.zip(angles).zip(to) {
        let (x, y) = (
            simd.mul(simd.load_part(x), scale),
            simd.mul(simd.load_part(y), scale),
        );
        let (cos, sin) = (simd.load_part(cos), simd.load_part(sin));
        let minus_sin = simd.sub(simd.splat(0.0), sin);
        simd.store_part(to_x, simd.mul_add(x, cos, simd.mul(y, minus_sin)));
        simd.store_part(to_y, simd.mul_add(y, cos, simd.mul(x, sin)));
    }
    let rest = from_rest.chunks(S::LANES).zip(to_rest.chunks_mut(S::LANES));
    for (x, to) in rest {
        simd.store_part(to, simd.mul(simd.load_part(x), scale));
    }
}
