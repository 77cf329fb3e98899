//! The rows of a step, and the recurrent states that its spans own.

use std::ops::Range;

use motet_formats::simd::LANES_MAX;

pub use super::gated::Columns;
use super::pool::Pool;
use super::split::Split;

/// Loops with a lower cost than this, in multiply-adds, do not use another thread.
const SINGLE_THREAD_BELOW: usize = 32 << 10;

impl<'a> Columns<'a> {
    /// All columns of a matrix with rows of `width` numbers.
    #[must_use]
    pub fn all(rows: &'a [f32], width: usize) -> Self {
        Self {
            rows,
            stride: width,
            first: 0,
        }
    }

    /// The numbers of a row, from the first of the columns on.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        &self.rows[row * self.stride + self.first..(row + 1) * self.stride]
    }

    /// # Panics
    ///
    /// When the matrix does not have this many rows, or this many columns from the first on.
    pub(crate) fn check(&self, rows: usize, width: usize, what: &str) {
        let Columns { stride, first, .. } = *self;
        assert!(
            first + width <= stride && self.rows.len() == rows * stride,
            "{what}: {rows} rows with columns {first}..{} expected, found {} numbers in rows of \
             {stride}",
            first + width,
            self.rows.len()
        );
    }
}

/// One sequence's part of a step. The rows of a span follow those of the span before it.
#[derive(Debug)]
pub struct SpanState<'a> {
    /// Rows of the span.
    pub rows: usize,
    /// The sequence's recurrent state in this layer, which a kernel changes in place. All zeros
    /// before the first token.
    pub state: &'a mut [f32],
}

/// A span whose state several threads change at once.
#[derive(Debug)]
pub(crate) struct SpanPart<'a> {
    /// Its rows among all of the step.
    pub(crate) rows: Range<usize>,
    pub(crate) state: Split<'a, f32>,
}

/// The spans with their ranges of rows, the longest first: a thread that begins with the longest
/// one is not the last to end.
///
/// # Panics
///
/// When a state does not have `state_len` numbers.
pub(crate) fn split_spans<'a>(
    spans: &'a mut [SpanState<'_>],
    state_len: usize,
) -> (usize, Vec<SpanPart<'a>>) {
    let mut rows = 0;
    let part = |span: &'a mut SpanState<'_>| {
        let found = span.state.len();
        assert_eq!(found, state_len, "numbers in a span's recurrent state");
        let from = rows;
        rows += span.rows;
        SpanPart {
            rows: from..rows,
            state: Split::new(span.state),
        }
    };
    let mut parts: Vec<SpanPart<'a>> = spans.iter_mut().map(part).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.rows.len()));
    (rows, parts)
}

/// Calls `body` with each of `0..count`, on all threads if the whole loop is worth it.
pub(crate) fn spread(pool: &Pool, count: usize, cost: usize, body: impl Fn(usize) + Sync) {
    if cost < SINGLE_THREAD_BELOW {
        (0..count).for_each(body);
    } else {
        pool.run(count, body);
    }
}

/// Calls `body` with each head of each span, and with a range of the head's `numbers`, which do not
/// depend on each other. They are shared out only where there are more threads than heads.
pub(crate) fn spread_heads<'a>(
    pool: &Pool,
    spans: &'a [SpanPart<'a>],
    heads: usize,
    numbers: usize,
    cost: usize,
    body: impl Fn(&'a SpanPart<'a>, usize, Range<usize>) + Sync,
) {
    let items = spans.len() * heads;
    let parts = (2 * pool.threads()).div_ceil(items.max(1));
    let part = numbers.div_ceil(parts).next_multiple_of(LANES_MAX);
    let parts = numbers.div_ceil(part);
    spread(pool, items * parts, cost, |index| {
        let (item, first) = (index / parts, index % parts * part);
        let range = first..numbers.min(first + part);
        body(&spans[item / heads], item % heads, range);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_where_they_lie() {
        let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let columns = Columns {
            rows: &data,
            stride: 4,
            first: 1,
        };
        columns.check(3, 3, "test");
        assert_eq!(columns.row(2), [9.0, 10.0, 11.0]);
        assert_eq!(Columns::all(&data, 6).row(1).len(), 6);
    }

    #[test]
    #[should_panic(expected = "3 rows with columns 2..5")]
    fn too_few_columns_are_rejected() {
        let data = [0.0; 12];
        let columns = Columns {
            rows: &data,
            stride: 4,
            first: 2,
        };
        columns.check(3, 3, "test");
    }

    #[test]
    fn spans_follow_each_other_and_the_longest_is_first() {
        let mut states = [[1.0; 2], [2.0; 2], [3.0; 2]];
        let rows = [1, 0, 5];
        let mut spans: Vec<SpanState<'_>> = states
            .iter_mut()
            .zip(rows)
            .map(|(state, rows)| SpanState { rows, state })
            .collect();
        let (total, parts) = split_spans(&mut spans, 2);
        let rows: Vec<_> = parts.iter().map(|part| part.rows.clone()).collect();
        assert_eq!((total, rows), (6, vec![1..6, 0..1, 1..1]));
        // SAFETY: no other part of this state is in use.
        assert_eq!(unsafe { parts[0].state.part(0..2) }, [3.0; 2]);
    }
}
