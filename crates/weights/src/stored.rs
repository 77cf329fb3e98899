//! Tensors as listed by a file, before any is read.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use motet_formats::Format;

use super::ModelError;
use super::formats::Formats;
use super::opened::OpenedFile;

/// Tensors by the names that the files give them.
pub(super) type Directory = HashMap<String, Stored>;

/// One tensor in a file.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) file: Arc<OpenedFile>,
    /// Row-major, outermost first.
    pub(super) shape: Vec<usize>,
    /// The format, or the file's name for an unsupported one.
    pub(super) format: Result<Format, String>,
    /// Range within the file, which was checked to reach that far. It has exactly the bytes
    /// that `shape` takes in `format`. It may be empty where the format is not supported.
    pub(super) range: Range<usize>,
}

impl Stored {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// Checks that the tensor, called `name` in its file, has that shape and is stored in one
    /// of those formats.
    pub(super) fn check(
        &self,
        name: &str,
        shape: &[usize],
        formats: &Formats,
    ) -> Result<Format, ModelError> {
        if self.shape != shape {
            return Err(ModelError::TensorShape {
                path: self.file.path().to_owned(),
                tensor: name.to_owned(),
                found: self.shape.clone(),
                expected: shape.to_owned(),
            });
        }
        let found = match &self.format {
            Ok(format) if formats.allowed.contains(format) => return Ok(*format),
            Ok(format) => format.name().to_owned(),
            Err(unknown) => unknown.clone(),
        };
        Err(ModelError::Quantisation {
            path: self.file.path().to_owned(),
            tensor: name.to_owned(),
            found,
            known: formats.names,
        })
    }
}
