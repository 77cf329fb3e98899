//! A role's tensor, located in the files, and its conversion to canonical form.

use std::borrow::Cow;
use std::ops::Range;

use motet_formats::Format;

use super::formats::to_f32;
use super::mlx::Spans;
use super::mxfp4;
use super::names::Values;
use super::stored::Stored;
use super::tensor::{Bytes, Part, Tensor};

/// The place and the stored form of a role's tensor. All sizes were checked against the files'.
#[derive(Debug)]
pub(super) struct Located {
    /// Name of the first of the files' tensors.
    pub(super) name: String,
    /// The canonical shape.
    pub(super) shape: Vec<usize>,
    /// Elements of a row as the layout counts them: 1 where the elements of a vector are its
    /// rows.
    pub(super) width: usize,
    /// The files' tensors: several for experts of which each has its own, or for blocks with
    /// their scales.
    pub(super) stored: Vec<(Stored, Format)>,
    /// Scales and offsets of each of them, for formats that have arrays of these. Such tensors are
    /// runs of rows.
    pub(super) spans: Vec<Spans>,
    pub(super) layout: Layout,
    pub(super) values: Values,
}

/// The place of the canonical rows in the stored ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `count` runs of `rows` rows, each `stride` rows after the one before.
    Runs(Runs),
    /// Each matrix is stored transposed: the runs count its columns.
    Columns { runs: Runs, matrices: usize },
    /// The same in a pair of tensors with MXFP4's blocks and scales.
    Mxfp4(Runs),
    /// Heads whose rows are interleaved pairs.
    InterleavedHeads { heads: usize },
    /// Value heads of `unit` rows after `fixed` rows, tiled.
    TiledRows { fixed: usize, tiles: Tiles },
    /// Value heads of `unit` columns, tiled.
    TiledColumns(Tiles),
}

/// Regular runs of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) start: usize,
    pub(super) rows: usize,
    pub(super) stride: usize,
    pub(super) count: usize,
}

impl Runs {
    /// The bytes of a run, where a row of the stored tensor has `row_bytes`.
    fn range(&self, stored: &Stored, row_bytes: usize, index: usize) -> Range<usize> {
        let start = stored.range.start + (self.start + index * self.stride) * row_bytes;
        start..start + self.rows * row_bytes
    }

    /// A copy of all runs.
    fn gathered(&self, stored: &Stored, row_bytes: usize) -> Bytes {
        let file = stored.file.bytes();
        let rows = (0..self.count).flat_map(|index| &file[self.range(stored, row_bytes, index)]);
        Bytes::owned(rows.copied().collect())
    }
}

/// The order of a delta net's value heads: canonical head `k * per_key + j` is stored as head
/// `j * keys + k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    /// Rows or columns of a head.
    pub(super) unit: usize,
    /// Key heads.
    pub(super) keys: usize,
    /// Value heads for each key head.
    pub(super) per_key: usize,
}

impl Tiles {
    /// The stored place of a canonical row or column.
    fn stored(self, at: usize) -> usize {
        let (head, within) = (at / self.unit, at % self.unit);
        let (key, turn) = (head / self.per_key, head % self.per_key);
        (turn * self.keys + key) * self.unit + within
    }
}

impl Located {
    /// Bytes in the files.
    pub(super) fn bytes(&self) -> usize {
        self.all_stored().map(|stored| stored.range.len()).sum()
    }

    /// All of the files' tensors, scales and offsets included.
    pub(super) fn all_stored(&self) -> impl Iterator<Item = &Stored> {
        let stored = self.stored.iter().map(|(stored, _)| stored);
        let spans = self.spans.iter().flat_map(Spans::tensors);
        stored.chain(spans.map(|(_, stored)| stored))
    }

    /// The tensor in canonical form.
    pub(super) fn tensor(&self) -> Tensor<'_> {
        let mut parts = match self.layout {
            Layout::Runs(runs) => self.runs(runs),
            Layout::Columns { runs, matrices } => vec![self.columns(runs, matrices)],
            Layout::Mxfp4(runs) => vec![self.mxfp4(runs)],
            Layout::InterleavedHeads { heads } => {
                let half = self.rows() / heads / 2;
                vec![self.gathered(|row| {
                    let (head, within) = (row / (2 * half), row % (2 * half));
                    head * 2 * half + 2 * (within % half) + within / half
                })]
            }
            Layout::TiledRows { fixed, tiles } => vec![self.gathered(|row| {
                row.checked_sub(fixed)
                    .map_or(row, |row| fixed + tiles.stored(row))
            })],
            Layout::TiledColumns(tiles) => vec![self.tiled_columns(tiles)],
        };
        if self.values != Values::AsStored {
            parts = vec![self.converted(&parts)];
        }
        let width = self.shape.last().copied().unwrap_or(1);
        for part in &mut parts {
            part.rows = part.rows * self.width / width;
        }
        Tensor::new(&self.name, self.shape.clone(), parts)
    }

    fn rows(&self) -> usize {
        self.shape.iter().product::<usize>() / self.width
    }

    /// Bytes of a row in this format.
    fn row_bytes(&self, format: Format) -> usize {
        let (elements, stride) = format.block();
        self.width / elements * stride
    }

    /// Runs of rows: parts of the file, unless they are as small as a row.
    fn runs(&self, runs: Runs) -> Vec<Part> {
        let mut parts = Vec::new();
        for (index, (stored, format)) in self.stored.iter().enumerate() {
            let spans = self.spans.get(index);
            let of_all = |bytes: &dyn Fn(&Stored, usize) -> Bytes, rows: usize| {
                let blocks = self.width / format.block().0;
                let (scale, offset) = format.span_bytes();
                let scales = spans.map(|spans| bytes(&spans.scales.1, blocks * scale));
                let offsets = spans.and_then(|spans| spans.offsets.as_ref());
                let offsets = offsets.map(|(_, stored)| bytes(stored, blocks * offset));
                let elements = bytes(stored, self.row_bytes(*format));
                Part::new(*format, rows, elements, [scales, offsets])
            };
            if runs.rows == 1 && runs.count > 1 {
                parts.push(of_all(
                    &|stored, row| runs.gathered(stored, row),
                    runs.count,
                ));
                continue;
            }
            let part = |index| {
                let mapped = |stored: &Stored, row| {
                    Bytes::File(stored.file.clone(), runs.range(stored, row, index))
                };
                of_all(&mapped, runs.rows)
            };
            parts.extend((0..runs.count).map(part));
        }
        parts
    }

    /// The rows of the one tensor in another order.
    fn gathered(&self, stored_row: impl Fn(usize) -> usize) -> Part {
        let (stored, format) = &self.stored[0];
        let row_bytes = self.row_bytes(*format);
        let bytes = stored.bytes();
        let mut out = Vec::with_capacity(bytes.len());
        for row in 0..self.rows() {
            out.extend_from_slice(&bytes[stored_row(row) * row_bytes..][..row_bytes]);
        }
        Part::owned(*format, self.rows(), out)
    }

    /// Columns of the one tensor, as rows.
    fn columns(&self, runs: Runs, matrices: usize) -> Part {
        let (stored, format) = &self.stored[0];
        let (_, element) = format.block();
        let bytes = stored.bytes();
        let stored_width = runs.stride * runs.count;
        let mut out = Vec::with_capacity(self.rows() * self.width * element);
        for matrix in 0..matrices {
            for row in 0..runs.count * runs.rows {
                let column = runs.start + row / runs.rows * runs.stride + row % runs.rows;
                for at in 0..self.width {
                    let place = (matrix * self.width + at) * stored_width + column;
                    out.extend_from_slice(&bytes[place * element..][..element]);
                }
            }
        }
        Part::owned(*format, self.rows(), out)
    }

    /// The columns of value heads in another order. Blocks of a quantised format move whole if
    /// a head has whole ones; numbers are converted where it has not.
    fn tiled_columns(&self, tiles: Tiles) -> Part {
        let (stored, format) = &self.stored[0];
        let (elements, stride) = format.block();
        let (bytes, format, unit_bytes) = if tiles.unit.is_multiple_of(elements) {
            let bytes = Cow::Borrowed(stored.bytes());
            (bytes, *format, tiles.unit / elements * stride)
        } else {
            let numbers = to_f32(*format, stored.bytes());
            (to_bytes(&numbers).into(), Format::F32, 4 * tiles.unit)
        };
        let heads = tiles.keys * tiles.per_key;
        let mut out = Vec::with_capacity(bytes.len());
        for row in bytes.chunks_exact(heads * unit_bytes) {
            for head in 0..heads {
                let place = tiles.stored(head * tiles.unit) / tiles.unit;
                out.extend_from_slice(&row[place * unit_bytes..][..unit_bytes]);
            }
        }
        Part::owned(format, self.rows(), out)
    }

    /// Blocks of 16 bytes and their scales as 17 bytes, as in ggml.
    fn mxfp4(&self, runs: Runs) -> Part {
        let [(blocks, _), (scales, _)] = self.stored.as_slice() else {
            unreachable!("blocks and scales were located together");
        };
        let row_blocks = self.width / mxfp4::ELEMENTS;
        let mut out = Vec::with_capacity(self.rows() * self.row_bytes(Format::Mxfp4));
        for row in 0..self.rows() {
            let row = runs.start + row / runs.rows * runs.stride + row % runs.rows;
            let scales = &scales.bytes()[row * row_blocks..][..row_blocks];
            let bytes = row_blocks * mxfp4::BYTES;
            let blocks = blocks.bytes()[row * bytes..][..bytes].as_chunks().0;
            for (block, scale) in blocks.iter().zip(scales) {
                out.extend_from_slice(&mxfp4::block(block, *scale));
            }
        }
        Part::owned(Format::Mxfp4, self.rows(), out)
    }

    /// The numbers that the stored ones stand for, as `f32`.
    fn converted(&self, parts: &[Part]) -> Part {
        let mut numbers = Vec::new();
        for part in parts {
            let start = numbers.len();
            numbers.resize(start + part.rows * self.width, 0.0);
            part.write_f32(&mut numbers[start..]);
        }
        for number in &mut numbers {
            *number = match self.values {
                Values::AsStored => *number,
                Values::PlusOne => *number + 1.0,
                Values::NegExp => -number.exp(),
            };
        }
        Part::owned(Format::F32, self.rows(), to_bytes(&numbers))
    }
}

fn to_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|one| one.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::Tiles;

    #[test]
    fn tiled_heads_are_found() {
        // Value heads `KeyTurn`: stored 00, 10, 20, 01, 11, 21.
        let tiles = Tiles {
            unit: 1,
            keys: 3,
            per_key: 2,
        };
        let stored: Vec<usize> = (0..6).map(|head| tiles.stored(head)).collect();
        assert_eq!(stored, [0, 3, 1, 4, 2, 5]);
        let wide = Tiles { unit: 2, ..tiles };
        let stored: Vec<usize> = (0..12).map(|row| wide.stored(row)).collect();
        assert_eq!(stored, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
    }
}
