//! Metadata values: the kind and the range of each. Values are decoded on request, so a
//! vocabulary costs nothing until then.

use std::ops::Range;

use super::super::ModelError;
use super::super::opened::OpenedFile;
use super::cursor::Cursor;

/// GGUF's numbers for its types.
const TYPE_TEXT: u32 = 8;
const TYPE_ARRAY: u32 = 9;

/// Arrays may hold arrays; no real file nests them deeper than one level.
const NESTING_MAX: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) kind: Kind,
    /// For arrays, the range of the elements; for strings, of the length and the bytes.
    pub(super) range: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Scalar(Scalar),
    Text,
    Numbers(Scalar),
    Texts {
        count: usize,
    },
    /// An array of arrays, which is skipped and never decoded.
    Nested,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
    Bool,
}

/// A scalar's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Integer(i128),
    Float(f64),
    Flag(bool),
}

impl Value {
    /// Finds the end of a value of `kind` and moves the cursor there.
    pub(super) fn parse(
        file: &OpenedFile,
        cursor: &mut Cursor<'_>,
        key: &str,
        kind: u32,
    ) -> Result<Self, ModelError> {
        let start = cursor.at();
        let (kind, start) = match kind {
            TYPE_TEXT => {
                cursor.string(key)?;
                (Kind::Text, start)
            }
            TYPE_ARRAY => skip_array(file, cursor, key, 1)?,
            _ => {
                let scalar = Scalar::of(file, key, kind)?;
                cursor.bytes(scalar.bytes() as u64, key)?;
                (Kind::Scalar(scalar), start)
            }
        };
        let range = start..cursor.at();
        Ok(Self { kind, range })
    }

    /// Describes the value in an error.
    pub(super) fn describe(&self, file: &OpenedFile) -> String {
        match self.kind {
            Kind::Scalar(scalar) => match scalar.decode(&file.bytes()[self.range.clone()]) {
                Some(number) => format!("found {number:?}"),
                None => format!("found no proper {scalar:?}"),
            },
            Kind::Text => "found a string".to_owned(),
            Kind::Numbers(scalar) => format!("found an array of {scalar:?}"),
            Kind::Texts { count } => format!("found an array of {count} strings"),
            Kind::Nested => "found an array of arrays".to_owned(),
        }
    }
}

/// Skips an array and returns its kind and the start of its elements.
fn skip_array(
    file: &OpenedFile,
    cursor: &mut Cursor<'_>,
    key: &str,
    depth: u32,
) -> Result<(Kind, usize), ModelError> {
    let kind = cursor.u32(key)?;
    let count = cursor.u64(key)?;
    let start = cursor.at();
    let kind = match kind {
        TYPE_TEXT => {
            // Eight bytes of length each.
            cursor.expect_remaining(count, 8, key)?;
            for _ in 0..count {
                cursor.string(key)?;
            }
            Kind::Texts {
                count: count as usize,
            }
        }
        TYPE_ARRAY if depth < NESTING_MAX => {
            for _ in 0..count {
                skip_array(file, cursor, key, depth + 1)?;
            }
            Kind::Nested
        }
        TYPE_ARRAY => {
            return Err(file.damaged(
                format!("metadata key `{key}` nests arrays"),
                format!("at most {NESTING_MAX} levels"),
            ));
        }
        _ => {
            let scalar = Scalar::of(file, key, kind)?;
            let bytes = scalar.bytes() as u64;
            cursor.expect_remaining(count, bytes, key)?;
            cursor.bytes(count * bytes, key)?;
            Kind::Numbers(scalar)
        }
    };
    Ok((kind, start))
}

impl Number {
    pub(super) fn integer(self) -> Option<i128> {
        match self {
            Number::Integer(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn float(self) -> Option<f64> {
        match self {
            Number::Float(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn flag(self) -> Option<bool> {
        match self {
            Number::Flag(flag) => Some(flag),
            _ => None,
        }
    }
}

impl Scalar {
    fn of(file: &OpenedFile, key: &str, kind: u32) -> Result<Self, ModelError> {
        Ok(match kind {
            0 => Scalar::U8,
            1 => Scalar::I8,
            2 => Scalar::U16,
            3 => Scalar::I16,
            4 => Scalar::U32,
            5 => Scalar::I32,
            6 => Scalar::F32,
            7 => Scalar::Bool,
            10 => Scalar::U64,
            11 => Scalar::I64,
            12 => Scalar::F64,
            _ => {
                return Err(file.damaged(
                    format!("metadata key `{key}` is of type {kind}"),
                    "a type from 0 to 12",
                ));
            }
        })
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Scalar::U8 | Scalar::I8 | Scalar::Bool => 1,
            Scalar::U16 | Scalar::I16 => 2,
            Scalar::U32 | Scalar::I32 | Scalar::F32 => 4,
            Scalar::U64 | Scalar::I64 | Scalar::F64 => 8,
        }
    }

    /// `None` for a boolean that is neither 0 nor 1.
    pub(super) fn decode(self, bytes: &[u8]) -> Option<Number> {
        fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.try_into().expect("a scalar has its own width")
        }
        let integer = match self {
            Scalar::U8 => bytes[0].into(),
            Scalar::I8 => (bytes[0] as i8).into(),
            Scalar::U16 => u16::from_le_bytes(array(bytes)).into(),
            Scalar::I16 => i16::from_le_bytes(array(bytes)).into(),
            Scalar::U32 => u32::from_le_bytes(array(bytes)).into(),
            Scalar::I32 => i32::from_le_bytes(array(bytes)).into(),
            Scalar::U64 => u64::from_le_bytes(array(bytes)).into(),
            Scalar::I64 => i64::from_le_bytes(array(bytes)).into(),
            Scalar::F32 => return Some(Number::Float(f32::from_le_bytes(array(bytes)).into())),
            Scalar::F64 => return Some(Number::Float(f64::from_le_bytes(array(bytes)))),
            Scalar::Bool => {
                return match bytes[0] {
                    0 => Some(Number::Flag(false)),
                    1 => Some(Number::Flag(true)),
                    _ => None,
                };
            }
        };
        Some(Number::Integer(integer))
    }
}
