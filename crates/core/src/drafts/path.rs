//! Drafts from the trie: what followed the prompt in a sequence that had the same one.

use std::fmt;
use std::sync::Arc;

use motet_protocol::TokenId;

use super::{DraftSource, Drafter, MATCH_TOKENS_MAX, Proposal};

/// The tokens that followed the prompt. They are proposed until one of them is wrong.
#[derive(Clone)]
pub(super) struct Path {
    tokens: Arc<[TokenId]>,
    /// Number of tokens that the output had as well. `None` after another token.
    hits: Option<usize>,
}

impl Path {
    /// The path of these tokens.
    pub(super) fn new(tokens: Arc<[TokenId]>) -> Self {
        let hits = Some(0);
        Self { tokens, hits }
    }

    /// Follows a token that joined the output.
    pub(super) fn push(&mut self, token: TokenId) {
        let next = |hits: &usize| self.tokens.get(*hits) == Some(&token);
        self.hits = self.hits.filter(next).map(|hits| hits + 1);
    }
}

impl Drafter for Path {
    fn propose(&mut self, _: &[TokenId], proposal: &mut Proposal) {
        let rest = self.hits.map_or(&[][..], |hits| &self.tokens[hits..]);
        // The whole prompt matched.
        let tokens = rest.iter().copied();
        proposal.set(DraftSource::Path, MATCH_TOKENS_MAX, tokens);
    }
}

/// Shows how long the path is, not its tokens.
impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Path({} tokens, {:?} hits)",
            self.tokens.len(),
            self.hits
        )
    }
}
