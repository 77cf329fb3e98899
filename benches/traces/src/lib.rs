//! Reads published traces of requests, in these forms:
//!
//! | form | a line | time |
//! |---|---|---|
//! | blocks (Mooncake) | `{"timestamp", "input_length", "output_length", "hash_ids"}`: a number for each 512 tokens of the prompt; equal beginnings have equal numbers | milliseconds |
//! | texts (agents) | `{"timestamp", "input", "output"}` | microseconds |
//! | lengths (Azure) | a `.csv` file: `TIMESTAMP,ContextTokens,GeneratedTokens` | `2023-11-16 18:15:46.6805900` |
//!
//! The first two are JSON lines. A folder of `.jsonl` files is one trace. A line of blocks
//! needs only `hash_ids`. Requests without a time all come at once.

mod csv;
mod error;
mod json;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::TraceError;

/// Tokens that one number of `hash_ids` stands for.
pub const BLOCK_TOKENS: usize = 512;

/// Requests in the order of their arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The file's name without its extension.
    pub name: String,
    /// The requests; at least one.
    pub requests: Vec<Request>,
}

/// One prompt, and the answer to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Time after the first request.
    pub at: Duration,
    /// The prompt.
    pub prompt: Prompt,
    /// The answer.
    pub answer: Answer,
}

/// The known part of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A number for each block, and the tokens of all of them. Never empty.
    Blocks {
        /// The numbers.
        ids: Vec<u64>,
        /// The last block may be shorter than [`BLOCK_TOKENS`].
        tokens: usize,
    },
    /// The whole text. Never empty.
    Text(String),
    /// Only its length, in tokens.
    Length(usize),
}

/// The known part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The trace has neither text nor length.
    Unknown,
    /// The whole text.
    Text(String),
    /// Only its length, in tokens.
    Length(usize),
}

/// A request and its arrival time, by a clock with an arbitrary start.
type Dated = (Duration, Prompt, Answer);

/// Reads a file, or all files of a folder as one trace.
///
/// # Errors
///
/// Each error names the file, and the line and field where there is one.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    let mut dated = Vec::new();
    for file in files(path)? {
        let text = fs::read_to_string(&file).map_err(|source| TraceError::Read {
            path: file.clone(),
            source,
        })?;
        if file.extension().is_some_and(|extension| extension == "csv") {
            csv::read(&file, &text, &mut dated)?
        } else {
            json::read(&file, &text, &mut dated)?
        }
    }
    let name = path.file_stem().unwrap_or(path.as_os_str());
    in_order(name.to_string_lossy().into_owned(), dated).ok_or_else(|| TraceError::Empty {
        path: path.to_owned(),
    })
}

fn in_order(name: String, mut dated: Vec<Dated>) -> Option<Trace> {
    dated.sort_by_key(|(time, ..)| *time);
    let first = dated.first()?.0;
    let requests = dated.into_iter().map(|(time, prompt, answer)| Request {
        at: time - first,
        prompt,
        answer,
    });
    Some(Trace {
        name,
        requests: requests.collect(),
    })
}

fn files(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let error = |source| TraceError::Read {
        path: path.to_owned(),
        source,
    };
    if !fs::metadata(path).map_err(error)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(error)? {
        let file = entry.map_err(error)?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "jsonl")
        {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}
