//! Drafts: the tokens that a sequence may generate next.
//!
//! A drafter proposes tokens that followed the same text before, or those that a draft model would
//! write. Speculative decoding evaluates them in one step with the sequence's last token, and
//! accepts those that the model samples anyway. A draft therefore changes how fast a text comes,
//! never the text. This is prompt lookup decoding (Saxena, 2023), SuffixDecoding (Oliaro et al.,
//! 2024), and speculative sampling with a draft model (Leviathan et al., 2023).
//!
//! | file | contents |
//! |---|---|
//! | `sequence.rs` | the drafts of one sequence: its outstanding proposal, and how the sources compete |
//! | `own_text.rs` | tokens that followed the same n-gram in the sequence's own text |
//! | `path.rs` | tokens that followed the prompt in the trie |
//! | `prediction.rs` | the answer that the caller predicts |
//! | `answers.rs` | finished answers, by salt |
//! | `chances.rs` | how likely a proposed token is right, learned by salt |
//! | `ngram_index.rs` | where an n-gram occurred in a text |
//! | `by_salt.rs` | values of a bounded number of salts |
//!
//! Every token that joins an output scores the outstanding proposal, whether the proposal was
//! evaluated or not. The chances thus stay fresh at no cost.
//!
//! A salt's drafts depend on nothing that other salts wrote. The speed of one salt's answers
//! would otherwise reveal the text of another.
//!
//! All work is bounded: an n-gram's lookup compares at most eight places, whatever the
//! text. A caller cannot make lookups slow, only its own drafts worse.

mod answers;
mod by_salt;
mod chances;
mod ngram_index;
mod own_text;
mod path;
mod prediction;
mod sequence;

pub use answers::{Answers, SaltAnswers};
pub use chances::{Chances, SaltChances};
pub use sequence::SequenceDrafts;

use std::fmt;

use motet_protocol::TokenId;

/// Maximum number of tokens in a proposal. Steps have fewer draft rows for a sequence; a proposal
/// that is right lasts for several steps.
pub const PROPOSAL_TOKENS_MAX: usize = 64;
/// Maximum length of a match that is told from a longer one. Longer matches are hardly more often
/// right.
pub const MATCH_TOKENS_MAX: usize = 24;
/// Maximum number of places with the same n-gram that a lookup compares.
const CANDIDATES_MAX: usize = 8;

/// The origin of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DraftSource {
    /// The tokens that followed the prompt in the trie.
    Path,
    /// The sequence's own prompt and output.
    OwnText,
    /// Finished answers of the same salt.
    Answers,
    /// The answer that the caller predicts.
    Prediction,
    /// The draft model. It is asked beforehand, for it is no [`Drafter`] that answers at once.
    Model,
}

/// Tokens that may come next.
#[derive(Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Where they come from.
    pub source: DraftSource,
    /// Number of tokens before them that matched, at most [`MATCH_TOKENS_MAX`].
    pub match_tokens: usize,
    /// The tokens, at most [`PROPOSAL_TOKENS_MAX`]. Empty if there is no proposal.
    pub tokens: Vec<TokenId>,
}

/// Proposes the next tokens of a text.
pub trait Drafter {
    /// Writes into `proposal` what may follow a text that ends with `recent`, at most the last
    /// [`MATCH_TOKENS_MAX`] tokens of it. The proposal is left empty if nothing is found. No
    /// memory is allocated if the proposal has the capacity of [`Proposal::new`].
    fn propose(&mut self, recent: &[TokenId], proposal: &mut Proposal);
}

impl DraftSource {
    /// Number of sources.
    pub const COUNT: usize = 5;
    /// Number of sources that find tokens, all but the draft model.
    const FOUND: usize = Self::COUNT - 1;
}

impl Proposal {
    /// An empty proposal with the capacity for any other.
    #[must_use]
    pub fn new() -> Self {
        Self {
            source: DraftSource::OwnText,
            match_tokens: 0,
            tokens: Vec::with_capacity(PROPOSAL_TOKENS_MAX),
        }
    }

    /// Replaces the proposal by the first [`PROPOSAL_TOKENS_MAX`] of these tokens.
    fn set(
        &mut self,
        source: DraftSource,
        match_tokens: usize,
        tokens: impl Iterator<Item = TokenId>,
    ) {
        self.source = source;
        self.match_tokens = match_tokens.min(MATCH_TOKENS_MAX);
        self.tokens.clear();
        self.tokens.extend(tokens.take(PROPOSAL_TOKENS_MAX));
    }
}

impl Default for Proposal {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows how many tokens there are, not which.
impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, tokens) = (self.source, self.tokens.len());
        let match_tokens = self.match_tokens;
        write!(
            f,
            "Proposal({source:?}, {match_tokens} matched, {tokens} tokens)"
        )
    }
}
