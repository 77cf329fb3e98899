//! What can be wrong with a trace.

use std::io;
use std::path::{Path, PathBuf};

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file system refuses.
    #[error("cannot read {}", path.display())]
    Read {
        /// Of the file or folder.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("{} holds no requests; expected JSON lines, a folder of .jsonl files, or a .csv file", path.display())]
    Empty {
        /// Of the file or folder.
        path: PathBuf,
    },
    /// A line cannot be parsed.
    #[error("line {line} of {} is not JSON", path.display())]
    NotJson {
        /// Of the file.
        path: PathBuf,
        /// The first is 1.
        line: usize,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A line says too little.
    #[error("line {line} of {}: field `{field}` is missing", path.display())]
    Missing {
        /// Of the file.
        path: PathBuf,
        /// The first is 1.
        line: usize,
        /// What is missing.
        field: &'static str,
    },
    /// A line says what makes no sense.
    #[error("line {line} of {}: field `{field}` is {found}; expected {expected}", path.display())]
    Unexpected {
        /// Of the file.
        path: PathBuf,
        /// The first is 1.
        line: usize,
        /// Where it says so.
        field: &'static str,
        /// What it says, shortened.
        found: String,
        /// What would make sense.
        expected: &'static str,
    },
}

/// Where a line stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    pub(crate) line: usize,
}

/// Characters of a line that an error repeats.
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
