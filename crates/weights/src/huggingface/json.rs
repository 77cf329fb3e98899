//! JSON files as [`Fields`].

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::super::ModelError;
use super::super::fields::Fields;
use super::super::opened::{FileAccess, OpenedFile};
use super::super::python_json;

/// One JSON object of a file.
#[derive(Debug)]
pub(crate) struct JsonObject {
    path: PathBuf,
    /// Prefix of this object's fields in errors: `rope_scaling.`
    prefix: String,
    values: Map<String, Value>,
}

impl JsonObject {
    /// Reads a file that holds one object. A file larger than `bytes_max` is rejected without
    /// being read.
    pub(crate) fn read(
        path: &Path,
        expected: &'static str,
        bytes_max: usize,
    ) -> Result<Self, ModelError> {
        let file = OpenedFile::open(path, expected, FileAccess::Map)?;
        if file.bytes().len() > bytes_max {
            return Err(file.damaged(
                format!("it has {} bytes", file.bytes().len()),
                format!("at most {bytes_max} bytes"),
            ));
        }
        let values = python_json::from_slice(file.bytes())
            .map_err(|error| file.damaged(error.to_string(), "a JSON object"))?;
        Ok(Self {
            path: path.to_owned(),
            prefix: String::new(),
            values,
        })
    }

    /// The field's value, unless it is absent or `null`.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// Whether the field exists, even if it is `null`.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The object in this field.
    pub(crate) fn object(&self, name: &str) -> Result<Option<JsonObject>, ModelError> {
        self.typed(name, "an object", |value| {
            value.as_object().map(|values| JsonObject {
                path: self.path.clone(),
                prefix: format!("{}{name}.", self.prefix),
                values: values.clone(),
            })
        })
    }

    /// Field names and values.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// The error of a field with a value of another type.
    pub(crate) fn unlike(&self, name: &str, value: &Value, expected: &str) -> ModelError {
        let mut found: String = value.to_string().chars().take(60).collect();
        found.insert_str(0, "found ");
        self.wrong(name, found, expected)
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(found) => Ok(Some(found)),
                None => Err(self.unlike(name, value, expected)),
            },
        }
    }
}

impl Fields for JsonObject {
    fn path(&self) -> &Path {
        &self.path
    }

    fn spelled(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn integer(&self, name: &str) -> Result<Option<u64>, ModelError> {
        self.typed(name, "a whole number, 0 or more", Value::as_u64)
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ModelError> {
        self.typed(name, "a number", Value::as_f64)
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ModelError> {
        self.typed(name, "a text", Value::as_str)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        self.typed(name, "true or false", Value::as_bool)
    }
}
