//! Merging of a row's partial results by log-sum-exp.

use motet_formats::simd::{Job, Simd, dispatch_on};

use super::super::pool::Pool;
use super::plan::{AttendPlan, Span};
use super::softmax::{LOWEST, with_sink};

/// Fewer numbers than this do not use another thread.
const SINGLE_THREAD_BELOW: usize = 64 << 10;

/// Merges the partial results of every row that has any into `output`. A sink joins after the
/// last part.
pub(super) fn merge(
    pool: &Pool,
    plan: &AttendPlan,
    sinks: Option<&[f32]>,
    partials: &[f32],
    output: &mut [f32],
) {
    if partials.is_empty() {
        return;
    }
    let row_len = plan.attention.heads.query * plan.attention.heads.dim;
    let mut rows: Vec<Row<'_>> = Vec::with_capacity(plan.rows);
    let mut output_rows = output.chunks_exact_mut(row_len);
    for span in &plan.spans {
        let of_span = output_rows.by_ref().take(span.rows).enumerate();
        let [(group, _), ..] = span.groups[..] else {
            unreachable!("a span has a group")
        };
        if plan.groups[group].direct {
            of_span.for_each(drop);
        } else {
            rows.extend(of_span.map(|(row, output)| Row { span, row, output }));
        }
    }
    let each = |_: usize, [rows]: [&mut [Row<'_>]; 1]| {
        for row in rows {
            dispatch_on(
                plan.set,
                Merge {
                    plan,
                    sinks,
                    partials,
                    row,
                },
            );
        }
    };
    if partials.len() < SINGLE_THREAD_BELOW {
        each(0, [&mut rows]);
    } else {
        pool.for_each_chunk([&mut rows], [8], each);
    }
}

/// A row whose result is to be merged.
struct Row<'a> {
    span: &'a Span,
    /// Counted within the span.
    row: usize,
    output: &'a mut [f32],
}

struct Merge<'a, 'b> {
    plan: &'a AttendPlan,
    sinks: Option<&'a [f32]>,
    partials: &'a [f32],
    row: &'a mut Row<'b>,
}

impl Job for Merge<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let dim = self.plan.attention.heads.dim;
        let per_kv = self.plan.attention.heads.per_kv();
        let (span, row) = (self.row.span, self.row.row);
        for (head, output) in self.row.output.chunks_exact_mut(dim).enumerate() {
            let (kv_head, of_kv) = (head / per_kv, head % per_kv);
            let mut merged = Merged {
                largest: LOWEST,
                total: 0.0,
            };
            output.fill(0.0);
            for &(group, first) in &span.groups {
                let group = &self.plan.groups[group];
                let query = (first + row) * per_kv + of_kv;
                for chunk in 0..group.chunks.len() {
                    let index = self.plan.partial(group, kv_head, chunk, query);
                    let len = self.plan.partial_len();
                    merged.add(simd, &self.partials[index * len..][..len], output);
                }
            }
            let sink = self.sinks.map(|sinks| sinks[head]);
            let factor = simd.splat(1.0 / with_sink(merged.largest, merged.total, sink));
            for output in output.chunks_mut(S::LANES) {
                simd.store_part(output, simd.mul(simd.load_part(output), factor));
            }
        }
    }
}

/// The softmax of the parts merged up to now.
struct Merged {
    largest: f32,
    total: f32,
}

impl Merged {
    #[inline(always)]
    fn add<S: Simd>(&mut self, simd: S, partial: &[f32], values: &mut [f32]) {
        let [largest, total, ref weighed @ ..] = *partial else {
            unreachable!("a partial result begins with two numbers")
        };
        let peak = self.largest.max(largest);
        let [old, new] = [(self.largest - peak).exp2(), (largest - peak).exp2()];
        self.largest = peak;
        self.total = self.total * old + total * new;
        let [old, new] = [simd.splat(old), simd.splat(new)];
        for (values, weighed) in values.chunks_mut(S::LANES).zip(weighed.chunks(S::LANES)) {
            let added = simd.mul(simd.load_part(weighed), new);
            simd.store_part(values, simd.mul_add(simd.load_part(values), old, added));
        }
    }
}
