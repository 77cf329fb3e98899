//! Drafts from the sequence's own text: what followed the same tokens before.

use std::fmt;
use std::sync::Arc;

use motet_protocol::TokenId;

use super::ngram_index::{NgramIndex, Text};
use super::{DraftSource, Drafter, MATCH_TOKENS_MAX, Proposal};

/// Length of the indexed n-grams, and thus of the shortest match. Chances are learned by length of
/// match: short matches that predict little are drafted little.
const NGRAM_TOKENS: usize = 2;
/// Maximum number of tokens that are indexed: positions have 32 bits.
const INDEXED_MAX: usize = 1 << 31;

/// A prompt and its output, with an index of the part that was indexed so far.
#[derive(Clone)]
pub(super) struct OwnText {
    prompt: Arc<[TokenId]>,
    /// The output, led by the last tokens of the prompt. The end of the text is thus one slice.
    output: Vec<TokenId>,
    /// Number of tokens in `output` that are the prompt's.
    led_by: usize,
    index: NgramIndex,
}

impl OwnText {
    /// The text of a prompt, none of it indexed.
    pub(super) fn new(prompt: Arc<[TokenId]>) -> Self {
        let led_by = prompt.len().min(MATCH_TOKENS_MAX);
        let output = prompt[prompt.len() - led_by..].to_vec();
        let index = NgramIndex::new(NGRAM_TOKENS, prompt.len(), INDEXED_MAX);
        Self {
            prompt,
            output,
            led_by,
            index,
        }
    }

    /// Number of tokens in the prompt and the output.
    pub(super) fn len(&self) -> usize {
        self.prompt.len() + self.output.len() - self.led_by
    }

    /// Copies the last tokens to the start of `recent`, and returns that part of it.
    pub(super) fn copy_recent<'a>(
        &self,
        recent: &'a mut [TokenId; MATCH_TOKENS_MAX],
    ) -> &'a [TokenId] {
        let last = self.output.len().saturating_sub(MATCH_TOKENS_MAX);
        let last = &self.output[last..];
        recent[..last.len()].copy_from_slice(last);
        &recent[..last.len()]
    }

    /// The output, led by the last tokens of the prompt.
    pub(super) fn led_output(&self) -> &[TokenId] {
        &self.output
    }

    /// Appends a token of the output. It is indexed later.
    pub(super) fn push(&mut self, token: TokenId) {
        self.output.push(token);
    }

    /// Number of tokens that are not indexed yet.
    fn unindexed(&self) -> usize {
        self.len().min(INDEXED_MAX) - self.index.end()
    }

    /// Indexes the next `tokens_max` tokens of the text, in order. Returns how many there were.
    pub(super) fn index(&mut self, tokens_max: usize) -> usize {
        // Each indexed position has a token after it: the end of the text proposes nothing.
        let indexed = self.unindexed().min(tokens_max);
        for _ in 0..indexed {
            match self.index.end().checked_sub(NGRAM_TOKENS) {
                None => self.index.insert(&[]),
                Some(begin) => {
                    let token = |at| self.token(begin + at).expect("the text has it");
                    let before: [TokenId; NGRAM_TOKENS] = std::array::from_fn(token);
                    self.index.insert(&before);
                }
            }
        }
        indexed
    }

    /// Bytes that the index and the output occupy. The prompt is shared with the sequence.
    pub(super) fn bytes(&self) -> usize {
        self.index.bytes() + self.output.capacity() * size_of::<TokenId>()
    }
}

impl Text for OwnText {
    fn token(&self, position: usize) -> Option<TokenId> {
        match position.checked_sub(self.prompt.len()) {
            None => Some(self.prompt[position]),
            Some(position) => self.output.get(position + self.led_by).copied(),
        }
    }
}

impl Drafter for OwnText {
    /// A match that overlaps the end of the text is continued with the period between both: of
    /// `abab`, the next tokens are `abab…`.
    fn propose(&mut self, recent: &[TokenId], proposal: &mut Proposal) {
        proposal.tokens.clear();
        let Some(found) = self.index.longest(self, recent) else {
            return;
        };
        let period = self.len() - found.position;
        let offsets = (0..period).cycle();
        let tokens = offsets.filter_map(|offset| self.token(found.position + offset));
        proposal.set(DraftSource::OwnText, found.tokens, tokens);
    }
}

/// Shows how long the text is, not the text.
impl fmt::Debug for OwnText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnText({} tokens)", self.len())
    }
}
