//! Results that a request wants of its prompt, beside generated tokens or instead of them.

use std::ops::Range;

use crate::TokenId;

/// The result that a request wants of its prompt's rows. A forward pass has one row for each
/// token; it gives the hidden state of the token, and the distribution of the token after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptOutput {
    /// Log probabilities of the prompt's tokens.
    Logprobs {
        /// Offset of the first token whose log probability is wanted; at least 1, because no row
        /// comes before the first token.
        first: usize,
        /// A token after the prompt whose log probability is wanted too. It is not evaluated.
        after: Option<TokenId>,
        /// Number of most likely tokens whose log probabilities are wanted at each offset.
        top: usize,
    },
    /// Hidden states after the final norm, summed for this pooling.
    Hidden(Pooling),
}

/// How the hidden states of a prompt's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The last token's.
    Last,
}

/// The pooling that a model's files declare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeclaredPooling {
    /// They say nothing: [`Pooling::Last`], the only state that has seen the whole text.
    #[default]
    Undeclared,
    /// This pooling.
    Declared(Pooling),
    /// Something that is not supported: its name.
    Unsupported(String),
}

impl PromptOutput {
    /// Returns the rows that it needs of a prompt of `prompt_tokens` tokens, as offsets of
    /// tokens; empty if there is nothing to compute.
    #[must_use]
    pub fn rows(&self, prompt_tokens: usize) -> Range<usize> {
        match self {
            Self::Logprobs { first, after, .. } => {
                let targets_end = prompt_tokens + usize::from(after.is_some());
                let first_row = first.saturating_sub(1);
                first_row..targets_end.saturating_sub(1).max(first_row)
            }
            Self::Hidden(Pooling::Mean) => 0..prompt_tokens,
            Self::Hidden(Pooling::Last) => prompt_tokens - 1..prompt_tokens,
        }
    }

    /// Returns the number of tokens that are scored after the prompt.
    #[must_use]
    pub fn unevaluated_tokens(&self) -> usize {
        match self {
            Self::Logprobs { after, .. } => usize::from(after.is_some()),
            Self::Hidden(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_before_the_targets() {
        let check = |first, after, prompt_tokens, expected: Range<usize>| {
            let output = PromptOutput::Logprobs {
                first,
                after,
                top: 0,
            };
            assert_eq!(output.rows(prompt_tokens), expected, "{output:?}");
        };
        check(1, None, 5, 0..4);
        check(4, None, 5, 3..4);
        check(5, None, 5, 4..4);
        check(5, Some(9), 5, 4..5);
        check(1, Some(9), 1, 0..1);
        check(1, None, 1, 0..0);
        assert_eq!(PromptOutput::Hidden(Pooling::Mean).rows(5), 0..5);
        assert_eq!(PromptOutput::Hidden(Pooling::Last).rows(5), 4..5);
    }
}
