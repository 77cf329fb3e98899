//! How likely the model itself held what was drawn.

use super::rows::{exp, maximum};
use crate::TokenId;

/// Log probabilities, by the raw logits: before biases, penalties, temperature and
/// filters, as OpenAI and vLLM give them.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// The most likely tokens and theirs, the likeliest first, and of equals the one
    /// with the lower id.
    pub top: Vec<(TokenId, f32)>,
}

impl TokenLogprobs {
    /// The log probability of `token`, and the `top` most likely ones, fewer where the
    /// vocabulary has fewer. None where the row has no such token.
    #[must_use]
    pub fn from_logits(logits: &[f32], token: TokenId, top: usize) -> Option<Self> {
        let logit = *logits.get(token as usize)?;
        let highest = maximum(logits);
        let log_total = log_sum_exp(logits, highest);
        let logprob = |logit: f32| logit - highest - log_total;
        let top = likeliest(logits, top).into_iter();
        Some(Self {
            logprob: logprob(logit),
            top: top.map(|(token, logit)| (token, logprob(logit))).collect(),
        })
    }
}

/// The logarithm of the sum of `e^(logit - highest)`, which is at least 1.
fn log_sum_exp(logits: &[f32], highest: f32) -> f32 {
    const LANES: usize = 16;
    /// As many are summed in single precision.
    const RUN: usize = 1024;
    let mut total = 0.0;
    for run in logits.chunks(RUN) {
        let mut lanes = [0.0; LANES];
        let (whole, rest) = run.as_chunks::<LANES>();
        for logits in whole {
            for (lane, logit) in lanes.iter_mut().zip(logits) {
                *lane += exp(logit - highest);
            }
        }
        let rest = rest.iter().map(|logit| exp(logit - highest));
        total += f64::from(lanes.into_iter().chain(rest).sum::<f32>());
    }
    total.ln() as f32
}

/// The highest logits, descending, and of equals the lower id first.
fn likeliest(logits: &[f32], count: usize) -> Vec<(TokenId, f32)> {
    const BLOCK: usize = 64;
    let mut top: Vec<(TokenId, f32)> = Vec::with_capacity(count + 1);
    if count == 0 {
        return top;
    }
    for (block, run) in logits.chunks(BLOCK).enumerate() {
        if top.len() == count && top.last().is_some_and(|(_, least)| maximum(run) <= *least) {
            continue;
        }
        for (at, logit) in run.iter().enumerate() {
            let rank = top.partition_point(|(_, higher)| higher >= logit);
            if rank < count {
                top.insert(rank, ((block * BLOCK + at) as TokenId, *logit));
                top.truncate(count);
            }
        }
    }
    top
}
