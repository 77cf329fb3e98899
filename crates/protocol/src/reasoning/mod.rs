//! The reasoning in an output, and its budget.

mod mark;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;

use super::spelling::{TokenSpelling, UnfinishedCharacter};
use crate::TokenId;
use mark::Marks;

/// A bound on the reasoning of an output.
///
/// A model that reasons writes its reasoning between an opening and a closing mark, before its
/// answer. Generated tokens between the marks are counted, over all reasoning of the output.
/// When there are `tokens_max` of them, the closing mark is appended without sampling, and the
/// model goes on with its answer. Appended tokens are tokens of the output like others, but have
/// no log probabilities.
///
/// Where the tokens' bytes are known, marks are found in the output's text, however the model
/// spells them: as other tokens, or merged with the text beside them. A token that begins before
/// a closing mark counts. The closing mark does not come inside a character: it waits until the
/// character is complete, for at most [`CHARACTER_TOKENS_MAX`](Self::CHARACTER_TOKENS_MAX) tokens
/// of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningBudget {
    /// The tokens that open the reasoning; empty only if `is_open`, and reasoning cannot begin
    /// again then. At most [`MARK_TOKENS_MAX`](Self::MARK_TOKENS_MAX).
    pub open: Vec<TokenId>,
    /// The tokens that close it; at least one, at most
    /// [`MARK_TOKENS_MAX`](Self::MARK_TOKENS_MAX).
    pub close: Vec<TokenId>,
    /// Whether the prompt ends inside the reasoning: its template has opened it.
    pub is_open: bool,
    /// Whether reasoning comes first or not at all: an opening mark after other text, or after an
    /// earlier reasoning, is text. White space (ASCII) may stand before it. Without the tokens'
    /// bytes only the earlier reasoning is noticed.
    pub opens_once: bool,
    /// Most generated tokens inside the reasoning, without the marks and those that complete a
    /// character. 0 closes it at once; `usize::MAX` only counts them.
    pub tokens_max: usize,
}

/// Follows the reasoning in one output, token by token. Its state is a function of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningTracker {
    budget: Arc<ReasoningBudget>,
    marks: Arc<Marks>,
    /// `None` if the output is tokens only.
    spelling: Option<Arc<dyn TokenSpelling>>,
    is_inside: bool,
    /// Whether an opening mark counts.
    may_open: bool,
    /// Number of the last units that may be the beginning of the next mark.
    matched: usize,
    /// Tokens inside the reasoning. Those that may be the beginning of the closing mark count
    /// until the mark is complete.
    tokens: usize,
    /// Units of the output so far.
    units: u64,
    /// Offsets at which counted tokens begin within the matched units: at most as many as the mark
    /// has units.
    starts: SmallVec<[u64; 8]>,
    /// The end of the output, if it is inside a character.
    unfinished: UnfinishedCharacter,
}

impl ReasoningBudget {
    /// Most tokens of a mark.
    pub const MARK_TOKENS_MAX: usize = 64;
    /// Most tokens beyond the budget that may complete a character: it has four bytes at most, and
    /// the first is in a token within the budget.
    pub const CHARACTER_TOKENS_MAX: usize = 3;
}

impl ReasoningTracker {
    /// Follows an output from its first token on.
    #[must_use]
    pub fn new(budget: Arc<ReasoningBudget>) -> Self {
        Self {
            is_inside: budget.is_open,
            may_open: true,
            marks: Arc::new(Marks::of_tokens(&budget)),
            budget,
            spelling: None,
            matched: 0,
            tokens: 0,
            units: 0,
            starts: SmallVec::new(),
            unfinished: UnfinishedCharacter::default(),
        }
    }

    /// Finds the marks in the output's text, and makes the closing mark wait for the end of a
    /// character. Marks without bytes are found as tokens.
    #[must_use]
    pub fn with_spelling(mut self, spelling: Arc<dyn TokenSpelling>) -> Self {
        if let Some(marks) = Marks::spelled(&self.budget, &*spelling) {
            self.marks = Arc::new(marks);
        }
        self.spelling = Some(spelling);
        self
    }

    /// Adds the next token of the output.
    pub fn push(&mut self, token: TokenId) {
        self.tokens += usize::from(self.is_inside);
        let spelling = self.spelling.clone();
        let bytes = spelling.as_ref().map(|spelling| spelling.spelling(token));
        if let Some(bytes) = bytes {
            self.unfinished.push(bytes);
        }
        match bytes.filter(|_| self.marks.are_text) {
            Some(bytes) => self.push_units(bytes.iter().map(|byte| u32::from(*byte))),
            None => self.push_units([token]),
        }
    }

    /// Adds the units of one token.
    fn push_units(&mut self, units: impl IntoIterator<Item = u32>) {
        let mut begins_inside = self.is_inside;
        for unit in units {
            if std::mem::take(&mut begins_inside) {
                self.starts.push(self.units);
            }
            self.units += 1;
            if self.is_inside {
                self.look_for_close(unit);
            } else if self.may_open {
                self.look_for_open(unit);
            }
        }
    }

    fn look_for_close(&mut self, unit: u32) {
        let close = &self.marks.close;
        self.matched = close.matched_after(self.matched, unit);
        let begin = self.units - self.matched as u64;
        self.starts.retain(|start| *start >= begin);
        if self.matched == close.units.len() {
            self.tokens -= self.starts.len();
            self.starts.clear();
            self.matched = 0;
            self.is_inside = false;
            self.may_open = !self.budget.opens_once;
        }
    }

    fn look_for_open(&mut self, unit: u32) {
        let open = &self.marks.open;
        let before = self.matched;
        self.matched = open.matched_after(before, unit);
        let is_whole = !open.units.is_empty() && self.matched == open.units.len();
        if is_whole {
            self.matched = 0;
            self.is_inside = true;
        } else if self.budget.opens_once && self.marks.are_text {
            // These units belong to no mark any more.
            let written = open.units[..before].iter().chain([&unit]);
            let mut passed = written.take(before + 1 - self.matched);
            self.may_open = passed.all(|unit| is_space(*unit));
        }
    }

    /// Returns the number of tokens inside the reasoning so far, without its marks.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether tokens may be [due](Self::due) after one of the next `tokens` tokens, whichever these
    /// are.
    #[must_use]
    pub fn may_be_due_within(&self, tokens: usize) -> bool {
        (self.is_inside || self.may_open)
            && self.tokens.saturating_add(tokens) >= self.budget.tokens_max
    }

    /// Returns the tokens to append now: the rest of the closing mark if the budget is used up and
    /// no character is unfinished, none otherwise.
    #[must_use]
    pub fn due(&self) -> &[TokenId] {
        if !self.is_inside || self.tokens < self.budget.tokens_max {
            return &[];
        }
        let written = self.marks.close.tokens_written(self.matched);
        if written == 0 && self.completes_character() {
            return &[];
        }
        &self.budget.close[written..]
    }

    /// Whether more tokens may complete the character in which the reasoning ends.
    fn completes_character(&self) -> bool {
        let most = ReasoningBudget::CHARACTER_TOKENS_MAX;
        !self.unfinished.is_empty() && self.tokens < self.budget.tokens_max.saturating_add(most)
    }
}

fn is_space(unit: u32) -> bool {
    u8::try_from(unit).is_ok_and(|byte| byte.is_ascii_whitespace() || byte == 0x0B)
}
