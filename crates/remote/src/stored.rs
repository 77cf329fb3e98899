//! Values beside the bytes of copies: their heads, and the marks that lead to them.

use std::sync::Arc;

use motet_protocol::remote::RemoteError;
use motet_protocol::{Label, Precision, PrefixDigest, TokenId};
use serde::{Deserialize, Serialize};

use crate::error::failed;
use crate::names::Name;
use crate::seal::Version;

/// The head of a copy.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The version whose parts are all there.
    pub(crate) version: Version,
    /// The copy's own tokens.
    pub(crate) tokens: Tokens,
}

/// Tokens in four bytes each: the length of sealed bytes tells no more than their number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tokens(Vec<u8>);

impl Tokens {
    pub(crate) fn of(tokens: &[TokenId]) -> Self {
        Self(
            tokens
                .iter()
                .flat_map(|token| token.to_le_bytes())
                .collect(),
        )
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = TokenId> + '_ {
        let tokens = self.0.as_chunks().0.iter();
        tokens.map(|bytes| TokenId::from_le_bytes(*bytes))
    }
}

/// Leads from a prefix to copies that hold its state. Several copies may: they differ in what follows.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Newest first.
    entries: Vec<MarkEntry>,
}

/// The copies that together hold the state of a prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MarkEntry {
    /// In order; the first starts at the first token.
    pub(crate) links: Vec<Link>,
    /// The tokens that follow the prefix in the last copy, as far as the next mark.
    pub(crate) next_tokens: Tokens,
}

/// A copy of a path: its label without the tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) name: Name,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) state_lag: usize,
    is_eight: bool,
    pub(crate) bytes: usize,
}

impl Mark {
    /// Most copies of one path. A longer path is not found as a whole.
    pub(crate) const LINKS_MAX: usize = 512;
    /// Most paths of one mark.
    const ENTRIES_MAX: usize = 4;

    /// Its paths, newest first.
    pub(crate) fn into_entries(self) -> impl DoubleEndedIterator<Item = MarkEntry> {
        self.entries.into_iter()
    }

    /// Adds a path, in place of the oldest if there are too many. Returns false if it is there.
    pub(crate) fn insert(&mut self, entry: MarkEntry) -> bool {
        if self.entries.contains(&entry) {
            return false;
        }
        self.entries.insert(0, entry);
        self.entries.truncate(Self::ENTRIES_MAX);
        true
    }
}

impl Link {
    pub(crate) fn new(label: &Label, name: Name) -> Self {
        Self {
            name,
            start: label.start,
            end: label.end(),
            state_lag: label.state_lag,
            is_eight: label.precision == Precision::Eight,
            bytes: label.bytes,
        }
    }

    /// The precision of its numbers.
    pub(crate) fn precision(&self) -> Precision {
        if self.is_eight {
            Precision::Eight
        } else {
            Precision::Full
        }
    }
}

/// Returns the tokens from the first of a sequence to the last of this copy, which follows the others.
pub(crate) fn path_tokens(path: &[Arc<Label>], last: &Label) -> Result<Vec<TokenId>, RemoteError> {
    let mut tokens: Vec<TokenId> = Vec::new();
    for label in path.iter().map(|label| &**label).chain([last]) {
        if label.start > tokens.len() {
            return Err(failed("a copy does not follow the one before it"));
        }
        tokens.truncate(label.start);
        tokens.extend(&*label.tokens);
    }
    let before = PrefixDigest::of(last.key, &tokens[..last.start]);
    if before != last.before {
        return Err(failed("a copy does not follow the one before it"));
    }
    Ok(tokens)
}
