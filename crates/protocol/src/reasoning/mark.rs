//! Finds the marks of reasoning in an output.

use super::ReasoningBudget;
use crate::TokenId;
use crate::TokenSpelling;

/// The two marks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) open: Mark,
    pub(super) close: Mark,
    /// Whether they are compared as text: units are bytes then, and tokens otherwise.
    pub(super) are_text: bool,
}

/// A mark, as the units that an output is compared with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) units: Vec<u32>,
    /// The number of units up to the end of each of the mark's tokens.
    ends: Vec<usize>,
}

impl Marks {
    pub(super) fn of_tokens(budget: &ReasoningBudget) -> Self {
        Self {
            open: Mark::of_tokens(&budget.open),
            close: Mark::of_tokens(&budget.close),
            are_text: false,
        }
    }

    /// The marks as text. `None` if a mark has no bytes, since no text would show it.
    pub(super) fn spelled(budget: &ReasoningBudget, spelling: &dyn TokenSpelling) -> Option<Self> {
        let open = Mark::spelled(&budget.open, spelling);
        let close = Mark::spelled(&budget.close, spelling);
        let is_text = |mark: &Mark| mark.ends.is_empty() || !mark.units.is_empty();
        (is_text(&open) && is_text(&close)).then_some(Self {
            open,
            close,
            are_text: true,
        })
    }
}

impl Mark {
    fn of_tokens(tokens: &[TokenId]) -> Self {
        Self {
            units: tokens.to_vec(),
            ends: (1..=tokens.len()).collect(),
        }
    }

    fn spelled(tokens: &[TokenId], spelling: &dyn TokenSpelling) -> Self {
        let mut units = Vec::new();
        let ends = tokens.iter().map(|token| {
            units.extend(
                spelling
                    .spelling(*token)
                    .iter()
                    .map(|byte| u32::from(*byte)),
            );
            units.len()
        });
        let ends = ends.collect();
        Self { units, ends }
    }

    /// Returns the length of the longest beginning of the mark with which the output ends, if it
    /// ended with `matched` units of it before this one.
    pub(super) fn matched_after(&self, matched: usize, unit: u32) -> usize {
        if self.units.get(matched) == Some(&unit) {
            return matched + 1;
        }
        let before = &self.units[..matched];
        let ends_with = |length: &usize| {
            self.units[*length - 1] == unit && before.ends_with(&self.units[..*length - 1])
        };
        (1..=matched).rev().find(ends_with).unwrap_or(0)
    }

    /// Returns the number of the mark's first tokens with which an output ends, if it ends with
    /// `matched` units of the mark. A token that the output begins in its own way does not count.
    pub(super) fn tokens_written(&self, matched: usize) -> usize {
        let written = &self.units[..matched];
        let is_written = |end: &usize| written.ends_with(&self.units[..*end]);
        let tokens = self.ends.partition_point(|end| *end <= matched);
        let whole = (1..=tokens)
            .rev()
            .find(|token| is_written(&self.ends[*token - 1]));
        whole.unwrap_or(0)
    }
}
