//! Errors of reading a trace.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// The file system's error.
        source: io::Error,
    },
    /// The file or folder holds no requests.
    #[error("{} holds no requests; expected JSON lines, a folder of .jsonl files, or a .csv file", path.display())]
    Empty {
        /// Path of the file or folder.
        path: PathBuf,
    },
    /// A line cannot be parsed.
    #[error("line {line} of {} is not JSON", path.display())]
    NotJson {
        /// Path of the file.
        path: PathBuf,
        /// Line number; the first is 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A field of a line is missing.
    #[error("line {line} of {}: field `{field}` is missing", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
        /// Line number; the first is 1.
        line: usize,
        /// Name of the missing field.
        field: &'static str,
    },
    /// A field of a line has an invalid value.
    #[error("line {line} of {}: field `{field}` is {found}; expected {expected}", path.display())]
    Unexpected {
        /// Path of the file.
        path: PathBuf,
        /// Line number; the first is 1.
        line: usize,
        /// Name of the field.
        field: &'static str,
        /// The value, shortened.
        found: String,
        /// A description of valid values.
        expected: &'static str,
    },
}

/// The place of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    pub(crate) line: usize,
}

/// Characters of a value that an error quotes.
const FOUND_CHARACTERS_MAX: usize = 40;

impl Place<'_> {
    pub(crate) fn missing(self, field: &'static str) -> TraceError {
        TraceError::Missing {
            path: self.path.to_owned(),
            line: self.line,
            field,
        }
    }

    pub(crate) fn unexpected(
        self,
        field: &'static str,
        mut found: String,
        expected: &'static str,
    ) -> TraceError {
        if found.chars().count() > FOUND_CHARACTERS_MAX {
            let start = found.chars().take(FOUND_CHARACTERS_MAX);
            found = start.chain("…".chars()).collect();
        }
        TraceError::Unexpected {
            path: self.path.to_owned(),
            line: self.line,
            field,
            found,
            expected,
        }
    }
}
