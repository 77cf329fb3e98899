//! A trace as tokens.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use motet::TokenId;
use motet_traces::{Answer, Prompt};

/// Stands for the rest of a prompt after its blocks. One token of a prompt is always
/// computed; this one, so that all blocks can count as hits.
const REST_OF_PROMPT: TokenId = TokenId::MAX;

/// Requests in the order of their arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) requests: Vec<Request>,
}

/// One prompt, and the answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The prompt.
    pub(crate) tokens: Arc<[TokenId]>,
    /// The number of these tokens that count.
    pub(crate) asked: usize,
    /// The answer.
    pub(crate) generated: Vec<TokenId>,
}

/// Numbers distinct values in the order of their first use.
#[derive(Debug)]
struct Numbers<T>(HashMap<T, TokenId>);

impl Request {
    /// One token for each block.
    pub(crate) fn from_blocks(mut blocks: Vec<TokenId>) -> Self {
        let asked = blocks.len();
        blocks.push(REST_OF_PROMPT);
        Self {
            tokens: blocks.into(),
            asked,
            generated: Vec::new(),
        }
    }

    /// All tokens that are published when the request has finished.
    pub(crate) fn published(&self) -> impl Iterator<Item = TokenId> + '_ {
        let generated = self.generated.iter();
        self.tokens[..self.asked].iter().chain(generated).copied()
    }
}

/// Reads a file, or all files of a folder as one trace.
pub(crate) fn read(path: &Path) -> Result<Trace> {
    let trace = motet_traces::read(path)?;
    let (mut blocks, mut words) = (Numbers::default(), Numbers::default());
    let mut requests = Vec::new();
    for request in trace.requests {
        requests.push(match (request.prompt, request.answer) {
            (Prompt::Blocks { ids, .. }, _) => {
                Request::from_blocks(ids.into_iter().map(|id| blocks.of(id)).collect())
            }
            (Prompt::Text(input), answer) => {
                let input = word_tokens(&input, &mut words);
                Request {
                    asked: input.len(),
                    tokens: input.into(),
                    generated: match answer {
                        Answer::Text(output) => word_tokens(&output, &mut words),
                        Answer::Length(_) | Answer::Unknown => Vec::new(),
                    },
                }
            }
            (Prompt::Length(_), _) => bail!(
                "{} has lengths only: there is nothing in it that a cache could find again",
                trace.name
            ),
        });
    }
    Ok(Trace {
        name: trace.name,
        requests,
    })
}

/// One token for each word, and for each whitespace between.
fn word_tokens(text: &str, words: &mut Numbers<String>) -> Vec<TokenId> {
    let parts = text.split_inclusive(char::is_whitespace);
    parts.map(|part| words.of(part.to_owned())).collect()
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
