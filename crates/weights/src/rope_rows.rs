//! The row order of query and key projections.
//!
//! Rotary embeddings rotate pairs of a head's dimensions. Hugging Face pairs dimension `i` with
//! `i + head_dim / 2` (half-split). llama.cpp pairs `2 i` with `2 i + 1` (interleaved, as in Su
//! et al. 2021), and its converter permutes the rows of both projections to match. Quantisation
//! blocks run along rows, so the inverse moves rows as whole runs of bytes, in any format.

/// Reorders `bytes`, which holds `rows` rows of `heads` heads, from llama.cpp's interleaved
/// order to Hugging Face's half-split order.
///
/// # Panics
///
/// When heads do not all have the same even number of rows, or rows do not all have the same
/// number of bytes.
pub(super) fn to_half_split(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let half = rows / heads / 2;
    assert_eq!(heads * 2 * half, rows, "heads have an even number of rows");
    assert_eq!(bytes.len() % rows, 0, "rows are whole blocks");
    let row_bytes = bytes.len() / rows;
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(2 * half * row_bytes) {
        for which in 0..2 {
            for pair in head.chunks_exact(2 * row_bytes) {
                out.extend_from_slice(&pair[which * row_bytes..][..row_bytes]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::to_half_split;

    fn check(rows: &[u8], heads: usize, expected: &[u8]) {
        assert_eq!(to_half_split(rows, rows.len(), heads), expected);
        let wide: Vec<u8> = rows.iter().flat_map(|row| [*row; 3]).collect();
        let expected: Vec<u8> = expected.iter().flat_map(|row| [*row; 3]).collect();
        assert_eq!(to_half_split(&wide, rows.len(), heads), expected);
    }

    #[test]
    fn interleaved_rows_are_split_into_halves() {
        check(&[0, 1], 1, &[0, 1]);
        check(&[0, 4, 1, 5, 2, 6, 3, 7], 1, &[0, 1, 2, 3, 4, 5, 6, 7]);
        check(&[0, 2, 1, 3, 4, 6, 5, 7], 2, &[0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
