//! The token and the logits of a row, from its hash.

use super::hash::mix;
use crate::sampling::{SampleInputs, Sampled};
use motet_protocol::TokenId;

/// The logit of the most likely token; the others lie in `[0, LOGIT_TOP)`.
const LOGIT_TOP: f32 = 4.0;
/// The logit of a token that must not be sampled. Finite, so that differences stay numbers.
const LOGIT_NEVER: f32 = f32::MIN;
const END_LOT: u64 = 0x656e_6473;

/// The tokens that the oracle can produce, and how often it ends a sequence.
#[derive(Clone, Debug)]
pub(super) struct Vocabulary {
    size: usize,
    /// Sorted, without repeats, fewer than `size`.
    end_tokens: Vec<TokenId>,
    /// One row in so many ends the sequence; 0 means never.
    end_one_in: u64,
}

impl Vocabulary {
    pub(super) fn new(size: usize, end_tokens: &[TokenId], end_one_in: u64) -> Vocabulary {
        let mut end_tokens = end_tokens.to_vec();
        end_tokens.sort_unstable();
        end_tokens.dedup();
        Vocabulary {
            size,
            end_tokens,
            end_one_in,
        }
    }

    /// The most likely token, in constant time.
    pub(super) fn greedy(&self, row: u64) -> TokenId {
        if let Some(end) = self.end(row) {
            return end;
        }
        let mut token = (row % (self.size - self.end_tokens.len()) as u64) as TokenId;
        for end in &self.end_tokens {
            token += TokenId::from(token >= *end);
        }
        token
    }

    /// Samples from this row's logits with `sample_inputs`.
    pub(super) fn sample(&self, row: u64, sample_inputs: &SampleInputs) -> Sampled {
        if sample_inputs.is_plain() && sample_inputs.token_sampling().sampling.is_greedy() {
            return Sampled {
                token: self.greedy(row),
                logprobs: None,
            };
        }
        let mut logits = Vec::with_capacity(self.size);
        self.push_logits(row, &mut logits);
        sample_inputs.from_logits(&logits)
    }

    /// Appends the row's logits, one for each token of the vocabulary.
    ///
    /// A row that ends the sequence leaves no other choice, and any other row never ends it.
    /// Sampled sequences therefore end as often as greedy ones.
    pub(super) fn push_logits(&self, row: u64, logits: &mut Vec<f32>) {
        let top = self.greedy(row);
        let ends = self.is_end(top);
        logits.extend((0..self.size as TokenId).map(|token| {
            if token == top {
                LOGIT_TOP
            } else if ends || self.is_end(token) {
                LOGIT_NEVER
            } else {
                let bits = mix(&[row, u64::from(token)]) >> 40;
                bits as f32 / (1u64 << 24) as f32 * LOGIT_TOP
            }
        }));
    }

    fn end(&self, row: u64) -> Option<TokenId> {
        if self.end_one_in == 0 || self.end_tokens.is_empty() {
            return None;
        }
        let lot = mix(&[row, END_LOT]);
        let which = (lot / self.end_one_in) as usize % self.end_tokens.len();
        lot.is_multiple_of(self.end_one_in)
            .then(|| self.end_tokens[which])
    }

    fn is_end(&self, token: TokenId) -> bool {
        self.end_tokens.binary_search(&token).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::sample_row;
    use motet_protocol::{Sampling, TokenSampling};

    const ROWS: u64 = 4_000;

    fn rows() -> impl Iterator<Item = u64> {
        (0..ROWS).map(|row| mix(&[row]))
    }

    #[test]
    fn greedy_is_the_argmax_and_samples_follow_the_logits() {
        for (size, ends, one_in) in [(2, vec![], 0), (2, vec![1], 3), (9, vec![8, 0, 4], 5)] {
            let vocabulary = Vocabulary::new(size, &ends, one_in);
            for (position, row) in rows().take(200).enumerate() {
                let mut logits = Vec::new();
                vocabulary.push_logits(row, &mut logits);
                assert_eq!(logits.len(), size);
                for temperature in [0.0, 0.7] {
                    let sampling = Sampling {
                        temperature,
                        seed: row,
                        ..Sampling::GREEDY
                    };
                    let token_sampling = TokenSampling {
                        sampling,
                        position: position as u64,
                    };
                    let sampled = vocabulary.sample(row, &SampleInputs::plain(token_sampling));
                    assert_eq!(
                        sampled,
                        Sampled {
                            token: sample_row(&token_sampling, &logits),
                            logprobs: None,
                        }
                    );
                }
            }
        }
    }

    #[test]
    fn sequences_end_as_often_as_configured() {
        for (one_in, ends_expected) in [(0, 0..=0), (1, ROWS..=ROWS), (10, 320..=480)] {
            let vocabulary = Vocabulary::new(5, &[4, 2], one_in);
            for temperature in [0.0, 1.0] {
                let sampling = Sampling {
                    temperature,
                    ..Sampling::GREEDY
                };
                let ends = rows()
                    .zip(0..)
                    .map(|(row, position)| {
                        (
                            row,
                            SampleInputs::plain(TokenSampling { sampling, position }),
                        )
                    })
                    .map(|(row, sample_inputs)| vocabulary.sample(row, &sample_inputs).token)
                    .filter(|token| [2, 4].contains(token))
                    .count() as u64;
                assert!(ends_expected.contains(&ends), "1 in {one_in}: {ends}");
            }
        }
    }
}
