//! The results of a prompt, collected from the chunks in which it is computed.

use std::ops::Range;

use crate::request::{Embedding, Piece, TokenLogprobs};
use motet_protocol::PromptOutput;

/// The results that a request wants of its prompt, as far as they have come.
///
/// A scheduler that was rebuilt computes the prompt again: results that begin again replace the
/// earlier ones. The caller gets them once.
#[derive(Debug, Default)]
pub(crate) struct PromptResults {
    /// The rows that are needed, as offsets of tokens.
    rows: Range<usize>,
    /// Tokens of the prompt that are scored, and not evaluated.
    unevaluated_tokens: usize,
    embedding: Embedding,
    logprobs: Vec<TokenLogprobs>,
    sum: Vec<f64>,
    is_complete: bool,
}

impl PromptResults {
    /// Creates the results of a prompt of so many evaluated tokens.
    pub(crate) fn new(
        output: Option<&PromptOutput>,
        embedding: Option<Embedding>,
        prompt_tokens: usize,
    ) -> Self {
        let Some(output) = output else {
            return Self::default();
        };
        Self {
            rows: output.rows(prompt_tokens),
            unevaluated_tokens: output.unevaluated_tokens(),
            embedding: embedding.unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Returns the tokens of the prompt that are scored, and not evaluated.
    pub(super) fn unevaluated_tokens(&self) -> usize {
        self.unevaluated_tokens
    }

    /// Adds the log probabilities of the tokens from this offset on. Returns a piece with all of
    /// them when they are complete.
    pub(super) fn push_logprobs(
        &mut self,
        first: usize,
        logprobs: Vec<TokenLogprobs>,
    ) -> Option<Piece> {
        let row = first - 1;
        if self.is_complete {
            return None;
        }
        if row == self.rows.start {
            // As many bytes as were reserved, and not what a growing list would take.
            self.logprobs = Vec::with_capacity(self.rows.len());
        }
        assert_eq!(
            row,
            self.rows.start + self.logprobs.len(),
            "log probabilities come in order"
        );
        self.logprobs.extend(logprobs);
        self.is_complete = self.logprobs.len() == self.rows.len();
        self.is_complete.then(|| Piece {
            prompt_logprobs: std::mem::take(&mut self.logprobs),
            ..Piece::default()
        })
    }

    /// Adds the sum of these rows' hidden states. Returns a piece with the embedding when all
    /// have come.
    pub(super) fn push_hidden_sum(&mut self, rows: &Range<usize>, sum: &[f64]) -> Option<Piece> {
        if self.is_complete {
            return None;
        }
        if rows.start == self.rows.start {
            self.sum = vec![0.0; sum.len()];
        }
        for (total, number) in self.sum.iter_mut().zip(sum) {
            *total += number;
        }
        self.is_complete = rows.end == self.rows.end;
        self.is_complete.then(|| Piece {
            embedding: Some(vector(&self.embedding, &self.sum, self.rows.len())),
            ..Piece::default()
        })
    }
}

/// Returns the mean of so many hidden states, cut and scaled.
fn vector(embedding: &Embedding, sum: &[f64], rows: usize) -> Vec<f32> {
    let dimensions = embedding.dimensions.unwrap_or(sum.len());
    let mean = sum.iter().take(dimensions);
    let mean: Vec<f64> = mean.map(|number| number / rows as f64).collect();
    let length = mean
        .iter()
        .map(|number| number * number)
        .sum::<f64>()
        .sqrt();
    let divisor = if embedding.is_normalized && length > 0.0 {
        length
    } else {
        1.0
    };
    mean.iter()
        .map(|number| (number / divisor) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_protocol::Pooling;

    fn logprob(logprob: f32) -> TokenLogprobs {
        TokenLogprobs {
            logprob,
            top: Vec::new(),
        }
    }

    fn found(piece: Option<Piece>) -> Option<Vec<f32>> {
        let logprobs = piece?.prompt_logprobs.into_iter();
        Some(logprobs.map(|token| token.logprob).collect())
    }

    #[test]
    fn logprobs_come_once_and_whole() {
        let output = PromptOutput::Logprobs {
            first: 2,
            after: Some(9),
            top: 0,
        };
        let mut results = PromptResults::new(Some(&output), None, 4);
        assert_eq!(results.unevaluated_tokens(), 1);
        let [two, three, four] = [2.0, 3.0, 4.0].map(logprob);
        let first = vec![two.clone(), three.clone()];
        assert_eq!(found(results.push_logprobs(2, first)), None);
        // A rebuilt scheduler begins again, in other chunks.
        assert_eq!(found(results.push_logprobs(2, vec![two.clone()])), None);
        let rest = vec![three, four];
        let whole = found(results.push_logprobs(3, rest));
        assert_eq!(whole, Some(vec![2.0, 3.0, 4.0]));
        assert_eq!(found(results.push_logprobs(2, vec![two])), None, "again");
    }

    #[test]
    fn embeddings_are_pooled_cut_and_scaled() {
        let check = |embedding, expected: &[f32]| {
            let output = PromptOutput::Hidden(Pooling::Mean);
            let mut results = PromptResults::new(Some(&output), Some(embedding), 4);
            assert_eq!(results.push_hidden_sum(&(0..3), &[1.0, 2.0, 3.0]), None);
            assert_eq!(results.push_hidden_sum(&(0..1), &[9.0, 8.0, 20.0]), None);
            let piece = results.push_hidden_sum(&(1..4), &[3.0, 8.0, 20.0]);
            let found = piece.and_then(|piece| piece.embedding);
            assert_eq!(found.as_deref(), Some(expected));
        };
        let raw = Embedding {
            is_normalized: false,
            ..Embedding::default()
        };
        check(raw, &[3.0, 4.0, 10.0]);
        let cut = Embedding {
            dimensions: Some(2),
            ..Embedding::default()
        };
        check(cut, &[0.6, 0.8]);
        assert_eq!(vector(&cut, &[0.0; 3], 1), [0.0, 0.0], "nothing to scale");
    }
}
