//! How llama.cpp's converter stores a folder's tensors, by the names that `generate.py` gives.

use std::ops::Range;

/// A tensor of a folder: its sizes, outermost first, and its numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Numbers {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// Value heads of the fixtures' delta nets: two key heads with two value heads each, of this width.
const KEY_HEADS: usize = 2;
const HEADS_PER_KEY: usize = 2;
const HEAD_WIDTH: usize = 16;
const TILED: [usize; KEY_HEADS * HEADS_PER_KEY] = [0, 2, 1, 3];

/// The numbers as the converter stores them.
pub(crate) fn apply(transformation: &str, numbers: &Numbers) -> Vec<f32> {
    let rows = numbers.shape[0];
    let of_rows = |order: Vec<usize>| numbers.rows(&order);
    if let Some(heads) = transformation.strip_prefix("rope_rows_of_") {
        return of_rows(rope_rows(rows, heads.parse().expect("a count of heads")));
    }
    let each = |change: fn(f32) -> f32| numbers.values.iter().map(|x| change(*x)).collect();
    match transformation {
        "itself" | "stack" => numbers.values.clone(),
        "plus_one" => each(|x| x + 1.0),
        "negated_exponential" => each(|x| -x.exp()),
        "tiled_heads" => of_rows(TILED.to_vec()),
        "tiled_heads_negated_exponential" => {
            let heads = of_rows(TILED.to_vec());
            heads.iter().map(|x| -x.exp()).collect()
        }
        "tiled_rows" => of_rows(tiled(0)),
        "tiled_rows_behind_keys" => {
            let keys = 2 * KEY_HEADS * HEAD_WIDTH;
            of_rows((0..keys).chain(tiled(keys)).collect())
        }
        "tiled_columns" => numbers.columns(&tiled(0)),
        "first_rows" => numbers.middle(0..numbers.inner_rows() / 2),
        "last_rows" => numbers.middle(numbers.inner_rows() / 2..numbers.inner_rows()),
        "transposed" => numbers.transposed(0, 1),
        "even_columns_transposed" => numbers.transposed(0, 2),
        "odd_columns_transposed" => numbers.transposed(1, 2),
        "even_columns" => numbers.columns(&every_second(0, numbers.width())),
        "odd_columns" => numbers.columns(&every_second(1, numbers.width())),
        other => panic!("{other} is no transformation"),
    }
}

fn every_second(first: usize, width: usize) -> Vec<usize> {
    (first..width).step_by(2).collect()
}

/// Elements of value heads, in the order 0, 2, 1, 3.
fn tiled(first: usize) -> Vec<usize> {
    let head = |head: usize| first + head * HEAD_WIDTH..first + (head + 1) * HEAD_WIDTH;
    TILED.into_iter().flat_map(head).collect()
}

/// Rows of each head: of the first half and of the second half by turns.
fn rope_rows(rows: usize, heads: usize) -> Vec<usize> {
    let (head, half) = (rows / heads, rows / heads / 2);
    let row = |at: usize| at / head * head + at % 2 * half + at % head / 2;
    (0..rows).map(row).collect()
}

impl Numbers {
    /// Size of the innermost dimension.
    fn width(&self) -> usize {
        *self.shape.last().expect("a tensor has a dimension")
    }

    /// Size of the dimension before the innermost one.
    fn inner_rows(&self) -> usize {
        self.shape[self.shape.len() - 2]
    }

    /// These entries of the outermost dimension.
    fn rows(&self, order: &[usize]) -> Vec<f32> {
        let size = self.values.len() / self.shape[0];
        let row = |row: &usize| self.values[row * size..][..size].iter().copied();
        order.iter().flat_map(row).collect()
    }

    /// These entries of the innermost dimension.
    fn columns(&self, order: &[usize]) -> Vec<f32> {
        let rows = self.values.chunks(self.width());
        rows.flat_map(|row| order.iter().map(|column| row[*column]))
            .collect()
    }

    /// A range of the dimension before the innermost one.
    fn middle(&self, range: Range<usize>) -> Vec<f32> {
        let width = self.width();
        let matrices = self.values.chunks(width * self.inner_rows());
        matrices
            .flat_map(|matrix| &matrix[range.start * width..range.end * width])
            .copied()
            .collect()
    }

    /// Every `step`-th column from `first` on as a row, of each matrix.
    fn transposed(&self, first: usize, step: usize) -> Vec<f32> {
        let width = self.width();
        let mut out = Vec::new();
        for matrix in self.values.chunks(width * self.inner_rows()) {
            for column in (first..width).step_by(step) {
                out.extend(matrix.iter().skip(column).step_by(width));
            }
        }
        out
    }
}

/// Blocks of 32 four-bit floats as ggml stores them: the scale, then the numbers 0 to 15 in the low
/// halves of 16 bytes and the others in the high halves. A folder has neighbours in one byte.
/// `rows` chooses rows among those of each expert, which are `per_expert` many.
pub(crate) fn four_bit_floats(
    blocks: &[u8],
    scales: &[u8],
    per_expert: usize,
    blocks_per_row: usize,
    rows: impl Fn(usize) -> bool,
) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, (block, scale)) in blocks.chunks(16).zip(scales).enumerate() {
        if !rows(index / blocks_per_row % per_expert) {
            continue;
        }
        let number = |at: usize| block[at / 2] >> (4 * (at % 2)) & 15;
        out.push(*scale);
        out.extend((0..16).map(|at| number(at) | number(at + 16) << 4));
    }
    out
}

#[test]
fn rows_and_columns_are_chosen() {
    let numbers = Numbers {
        shape: vec![1, 4, 2],
        values: (0..8_u8).map(f32::from).collect(),
    };
    assert_eq!(
        apply("transposed", &numbers),
        [0., 2., 4., 6., 1., 3., 5., 7.]
    );
    assert_eq!(apply("odd_columns_transposed", &numbers), [1., 3., 5., 7.]);
    assert_eq!(apply("last_rows", &numbers), [4., 5., 6., 7.]);
    assert_eq!(apply("even_columns", &numbers), [0., 2., 4., 6.]);
    assert_eq!(rope_rows(8, 2), [0, 2, 1, 3, 4, 6, 5, 7]);
}
