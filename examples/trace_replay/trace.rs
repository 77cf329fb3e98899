//! Traces from JSON lines, and what can be wrong with them.

use std::collections::HashMap;
use std::fs;
use std::hash::Hash;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use motet::TokenId;
use serde_json::Value;

/// Stands for what follows the blocks of a prompt: one token is always computed, and
/// a block that is known is to count in full.
const REST_OF_PROMPT: TokenId = TokenId::MAX;

/// Requests in the order in which they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) requests: Vec<Request>,
}

/// One prompt, and what was said to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The prompt.
    pub(crate) tokens: Arc<[TokenId]>,
    /// Of these, how many count.
    pub(crate) asked: usize,
    /// The answer.
    pub(crate) generated: Vec<TokenId>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} holds no requests; expected JSON lines, or a folder of .jsonl files", path.display())]
    Empty { path: PathBuf },
    #[error("line {line} of {} is not JSON", path.display())]
    NotJson {
        path: PathBuf,
        line: usize,
        source: serde_json::Error,
    },
    #[error("line {line} of {}: field `{field}` is missing", path.display())]
    Missing {
        path: PathBuf,
        line: usize,
        field: &'static str,
    },
    #[error("line {line} of {}: field `{field}` is {found}; expected {expected}", path.display())]
    Unexpected {
        path: PathBuf,
        line: usize,
        field: &'static str,
        found: String,
        expected: &'static str,
    },
}

/// Gives each thing a number, in the order in which they are met.
#[derive(Debug)]
struct Numbers<T>(HashMap<T, TokenId>);

/// Where a line stands.
struct Line<'a> {
    path: &'a Path,
    line: usize,
    value: Value,
}

#[derive(Debug, Default)]
struct Reader {
    blocks: Numbers<u64>,
    words: Numbers<String>,
    /// Timestamps and requests.
    requests: Vec<(f64, Request)>,
}

impl Request {
    /// One token for each block.
    pub(crate) fn of_blocks(mut blocks: Vec<TokenId>) -> Self {
        let asked = blocks.len();
        blocks.push(REST_OF_PROMPT);
        Self {
            tokens: blocks.into(),
            asked,
            generated: Vec::new(),
        }
    }

    /// All tokens that are published when it is over.
    pub(crate) fn published(&self) -> impl Iterator<Item = TokenId> + '_ {
        let generated = self.generated.iter();
        self.tokens[..self.asked].iter().chain(generated).copied()
    }
}

/// Reads a file, or all files of a folder as one trace.
pub(crate) fn read(path: &Path) -> Result<Trace, TraceError> {
    let mut reader = Reader::default();
    for file in files(path)? {
        let text = fs::read_to_string(&file).map_err(|source| TraceError::Read {
            path: file.clone(),
            source,
        })?;
        reader.read(&file, &text)?;
    }
    let name = path.file_stem().unwrap_or(path.as_os_str());
    reader
        .finish(name.to_string_lossy().into_owned())
        .ok_or_else(|| TraceError::Empty {
            path: path.to_owned(),
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

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Hash + Eq> Numbers<T> {
    fn of(&mut self, thing: T) -> TokenId {
        let next = self.0.len() as TokenId;
        *self.0.entry(thing).or_insert(next)
    }
}

impl Reader {
    fn read(&mut self, path: &Path, text: &str) -> Result<(), TraceError> {
        let lines = text.lines().enumerate();
        for (index, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
            let line = index + 1;
            let value = serde_json::from_str(text).map_err(|source| TraceError::NotJson {
                path: path.to_owned(),
                line,
                source,
            })?;
            let line = Line { path, line, value };
            let request = match line.value.get("input") {
                None => Request::of_blocks(self.blocks(&line)?),
                Some(_) => self.turn(&line)?,
            };
            let timestamp = match line.value.get("timestamp") {
                None => 0.0,
                Some(found) => found
                    .as_f64()
                    .ok_or_else(|| line.unexpected("timestamp", found, "a number"))?,
            };
            self.requests.push((timestamp, request));
        }
        Ok(())
    }

    /// A line of `hash_ids`.
    fn blocks(&mut self, line: &Line<'_>) -> Result<Vec<TokenId>, TraceError> {
        const EXPECTED: &str = "an array of whole numbers that is not empty";
        let found = line.field("hash_ids")?;
        let ids = found.as_array().filter(|ids| !ids.is_empty());
        let ids = ids.ok_or_else(|| line.unexpected("hash_ids", found, EXPECTED))?;
        ids.iter()
            .map(|id| match id.as_u64() {
                Some(id) => Ok(self.blocks.of(id)),
                None => Err(line.unexpected("hash_ids", id, EXPECTED)),
            })
            .collect()
    }

    /// A line of `input` and `output`: one token for each word, and for each
    /// whitespace between.
    fn turn(&mut self, line: &Line<'_>) -> Result<Request, TraceError> {
        let mut tokens = |field| -> Result<Vec<TokenId>, TraceError> {
            let found = line.field(field)?;
            let text = found
                .as_str()
                .ok_or_else(|| line.unexpected(field, found, "a text"))?;
            let words = text.split_inclusive(char::is_whitespace);
            Ok(words.map(|word| self.words.of(word.to_owned())).collect())
        };
        let (input, generated) = (tokens("input")?, tokens("output")?);
        if input.is_empty() {
            return Err(line.unexpected("input", &line.value["input"], "a text that is not empty"));
        }
        Ok(Request {
            asked: input.len(),
            tokens: input.into(),
            generated,
        })
    }

    fn finish(mut self, name: String) -> Option<Trace> {
        self.requests.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let requests: Vec<Request> = self.requests.into_iter().map(|(_, r)| r).collect();
        (!requests.is_empty()).then_some(Trace { name, requests })
    }
}

impl Line<'_> {
    fn field(&self, field: &'static str) -> Result<&Value, TraceError> {
        self.value.get(field).ok_or_else(|| TraceError::Missing {
            path: self.path.to_owned(),
            line: self.line,
            field,
        })
    }

    fn unexpected(&self, field: &'static str, found: &Value, expected: &'static str) -> TraceError {
        let mut found = found.to_string();
        if found.chars().count() > 40 {
            found = found.chars().take(40).chain("…".chars()).collect();
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
