//! The forms in which keys and values are cached.

use super::FloatKind;

/// Types in which keys and values are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Whole numbers from -127 to 127, with a [`Bf16`](FloatKind::Bf16) scale for each
    /// [`INT8_GROUP`] of them.
    Int8,
}

/// Numbers of a head that share a scale where they are cached in [`Int8`](CacheKind::Int8).
pub const INT8_GROUP: usize = 32;

/// Bytes of a scale.
const SCALE_BYTES: usize = 2;

/// Cached heads are whole words of this many bytes where several numbers share one.
const WORD_BYTES: usize = 4;

impl CacheKind {
    /// Every kind, the widest first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Int8];

    /// The type of each cached number, if it stands for itself. None where numbers share a scale.
    #[must_use]
    pub fn float(self) -> Option<FloatKind> {
        match self {
            Self::F32 => Some(FloatKind::F32),
            Self::F16 => Some(FloatKind::F16),
            Self::Bf16 => Some(FloatKind::Bf16),
            Self::Int8 => None,
        }
    }

    /// Bytes that the keys, or the values, of one head of one token take, which are `dim` numbers.
    ///
    /// In [`Int8`](Self::Int8), groups of numbers lie one after another, each followed by its
    /// scale. The last group may be shorter. The row is padded to whole words.
    #[must_use]
    pub fn row_bytes(self, dim: usize) -> usize {
        match self.float() {
            Some(float) => dim * float.bytes(),
            None => {
                let scales = dim.div_ceil(INT8_GROUP) * SCALE_BYTES;
                (dim + scales).next_multiple_of(WORD_BYTES)
            }
        }
    }
}

impl From<FloatKind> for CacheKind {
    fn from(kind: FloatKind) -> Self {
        match kind {
            FloatKind::F32 => Self::F32,
            FloatKind::F16 => Self::F16,
            FloatKind::Bf16 => Self::Bf16,
        }
    }
}

impl std::fmt::Display for CacheKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.float() {
            Some(float) => float.fmt(f),
            None => f.write_str("int8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_bytes_of_their_numbers_and_scales() {
        let check = |dim, expected: [usize; 4]| {
            assert_eq!(CacheKind::ALL.map(|kind| kind.row_bytes(dim)), expected);
        };
        check(16, [64, 32, 32, 20]);
        check(32, [128, 64, 64, 36]);
        check(48, [192, 96, 96, 52]);
        check(64, [256, 128, 128, 68]);
        check(80, [320, 160, 160, 88]);
        check(128, [512, 256, 256, 136]);
    }

    #[test]
    fn a_float_is_cached_as_itself() {
        for float in [FloatKind::F32, FloatKind::F16, FloatKind::Bf16] {
            let kind = CacheKind::from(float);
            assert_eq!(kind.float(), Some(float));
            assert_eq!(kind.to_string(), float.to_string());
        }
    }
}
