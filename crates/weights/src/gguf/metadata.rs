//! The table of metadata and its typed accessors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::super::ModelError;
use super::super::fields::Fields;
use super::super::opened::OpenedFile;
use super::cursor::Cursor;
use super::value::{Kind, Number, Value};

/// The metadata of a GGUF file.
///
/// Every accessor returns `None` for a key that the file lacks, and [`ModelError::Field`] for a
/// value of another type. The file's size bounds all their allocations.
#[derive(Debug)]
pub struct GgufMetadata {
    file: Arc<OpenedFile>,
    values: BTreeMap<String, Value>,
}

impl GgufMetadata {
    /// The file that contains this metadata.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// All keys, in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Whether the file has a value for `key`.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// A string.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not a string, or not UTF-8.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.read(key, "a UTF-8 string", |value| match value.kind {
            Kind::Text => {
                let mut cursor = Cursor::new(&self.file, value.range.start);
                cursor.name(key).ok()
            }
            _ => None,
        })
    }

    /// A whole number of any width that fits into 32 bits.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not a whole number in 0..2^32.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>, ModelError> {
        self.read(key, "a whole number of 32 bits", |value| {
            u32::try_from(self.scalar(value)?.integer()?).ok()
        })
    }

    /// A whole number of any width, 0 or more.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not a whole number, or negative.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.read(key, "a whole number, 0 or more", |value| {
            u64::try_from(self.scalar(value)?.integer()?).ok()
        })
    }

    /// A floating-point number.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not a floating-point number.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.read(key, "a floating-point number", |value| {
            Some(self.scalar(value)?.float()? as f32)
        })
    }

    /// True or false.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not a boolean.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.read(key, "true or false", |value| self.scalar(value)?.flag())
    }

    /// An array of strings, in the file's order.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not an array of strings, or one of them is not
    /// UTF-8.
    pub fn get_strings(&self, key: &str) -> Result<Option<Vec<&str>>, ModelError> {
        self.read(key, "an array of UTF-8 strings", |value| match value.kind {
            Kind::Texts { count } => {
                let mut cursor = Cursor::new(&self.file, value.range.start);
                // Collecting options loses the length hint, so that a vocabulary would be
                // reallocated a dozen times.
                let mut texts = Vec::with_capacity(count);
                for _ in 0..count {
                    texts.push(cursor.name(key).ok()?);
                }
                Some(texts)
            }
            _ => None,
        })
    }

    /// An array of floating-point numbers.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not such an array.
    pub fn get_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        self.read(key, "an array of floating-point numbers", |value| {
            self.scalars(value)?
                .map(|number| Some(number?.float()? as f32))
                .collect()
        })
    }

    /// An array of whole numbers of any width that fit.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not an array of whole numbers in -2^31..2^31.
    pub fn get_i32s(&self, key: &str) -> Result<Option<Vec<i32>>, ModelError> {
        self.read(key, "an array of whole numbers of 32 bits", |value| {
            self.scalars(value)?
                .map(|number| i32::try_from(number?.integer()?).ok())
                .collect()
        })
    }

    /// An array of whole numbers of any width that fit.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] when the value is not an array of whole numbers in 0..2^32.
    pub fn get_u32s(&self, key: &str) -> Result<Option<Vec<u32>>, ModelError> {
        self.read(key, "an array of whole numbers, 0 or more", |value| {
            self.scalars(value)?
                .map(|number| u32::try_from(number?.integer()?).ok())
                .collect()
        })
    }

    /// An array of whole numbers, 0 or more, or of flags, as 0 and 1. None for a single value.
    pub(crate) fn whole_numbers(&self, key: &str) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(Kind::Numbers(_)) = self.values.get(key).map(|value| value.kind) else {
            return Ok(None);
        };
        self.read(key, "an array of whole numbers, 0 or more", |value| {
            self.scalars(value)?
                .map(|number| match number? {
                    Number::Flag(flag) => Some(usize::from(flag)),
                    number => usize::try_from(number.integer()?).ok(),
                })
                .collect()
        })
    }

    /// Number of elements of an array of strings.
    pub(crate) fn strings_count(&self, key: &str) -> Option<usize> {
        match self.values.get(key)?.kind {
            Kind::Texts { count } => Some(count),
            _ => None,
        }
    }

    /// Reads the table of values at the cursor, and leaves the cursor after it.
    pub(super) fn parse(
        file: &Arc<OpenedFile>,
        cursor: &mut Cursor<'_>,
        fields: u64,
    ) -> Result<Self, ModelError> {
        let mut values = BTreeMap::new();
        for _ in 0..fields {
            let key = cursor.name("a metadata key")?;
            let kind = cursor.u32(key)?;
            let value = Value::parse(file, cursor, key, kind)?;
            if values.insert(key.to_owned(), value).is_some() {
                return Err(file.damaged(
                    format!("metadata key `{key}` is there twice"),
                    "every key once",
                ));
            }
        }
        Ok(Self {
            file: Arc::clone(file),
            values,
        })
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        decode: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(value) => match decode(value) {
                Some(found) => Ok(Some(found)),
                None => Err(self.wrong(key, value.describe(&self.file), expected)),
            },
        }
    }

    fn scalar(&self, value: &Value) -> Option<Number> {
        match value.kind {
            Kind::Scalar(scalar) => scalar.decode(&self.file.bytes()[value.range.clone()]),
            _ => None,
        }
    }

    fn scalars(&self, value: &Value) -> Option<impl Iterator<Item = Option<Number>>> {
        let Kind::Numbers(scalar) = value.kind else {
            return None;
        };
        let bytes = self.file.bytes()[value.range.clone()].chunks_exact(scalar.bytes());
        Some(bytes.map(move |bytes| scalar.decode(bytes)))
    }
}

impl Fields for GgufMetadata {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn integer(&self, name: &str) -> Result<Option<u64>, ModelError> {
        self.get_u64(name)
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.get_f32(name)?.map(f64::from))
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ModelError> {
        self.get_str(name)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        self.get_bool(name)
    }
}
