//! The tokens that penalties look at, counted as they enter and leave the window.

use std::collections::{BTreeMap, VecDeque};

use motet_protocol::Sampling;
use motet_protocol::TokenId;

/// The last tokens of one sequence, and how often each is among them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct History {
    /// Most tokens in the history; `usize::MAX` means all.
    window: usize,
    /// Oldest first; empty if no token ever leaves.
    tokens: VecDeque<TokenId>,
    /// Sorted, so that equal histories look equal.
    counts: BTreeMap<TokenId, u32>,
}

impl History {
    /// The history after these tokens, if the settings need one.
    pub(super) fn new(sampling: &Sampling, prompt: &[TokenId], output: &[TokenId]) -> Option<Self> {
        if !sampling.has_penalties() {
            return None;
        }
        let window = match sampling.penalty_window {
            u32::MAX => usize::MAX,
            tokens => tokens as usize,
        };
        let mut history = Self {
            window,
            tokens: VecDeque::new(),
            counts: BTreeMap::new(),
        };
        let prompt = if sampling.penalize_prompt {
            prompt
        } else {
            &[]
        };
        let dropped = (prompt.len() + output.len()).saturating_sub(window);
        let tokens = prompt.iter().chain(output);
        tokens.skip(dropped).for_each(|token| history.push(*token));
        Some(history)
    }

    /// Adds the next token, and drops the oldest if there are too many.
    pub(super) fn push(&mut self, token: TokenId) {
        *self.counts.entry(token).or_insert(0) += 1;
        if self.window == usize::MAX {
            return;
        }
        self.tokens.push_back(token);
        if self.tokens.len() > self.window {
            let oldest = self.tokens.pop_front().expect("there is one too many");
            let count = self.counts.get_mut(&oldest).expect("it was counted");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
    }

    /// Every token in the history, ascending, and how often it is there.
    pub(super) fn counts(&self) -> Vec<(TokenId, u32)> {
        self.counts
            .iter()
            .map(|(token, count)| (*token, *count))
            .collect()
    }
}
