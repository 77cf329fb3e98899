//! One token from one row of logits: filters, and a race.
//!
//! The filters apply in the field's usual order: top-k on the logits, then temperature and
//! softmax, then top-p (nucleus sampling, Holtzman et al. 2020), then min-p. Each comes down to a
//! least weight, so that the result does not depend on an order among equals: tokens as likely as
//! the last one that passes a filter pass as well. Then the remaining tokens [race](super::rows::Race),
//! which needs the weights of few of them if no filter needs more.

use super::filters::{likeliest, nucleus, nucleus_of_all, sum};
use super::noise::Noise;
use super::rows::{BLOCK, RowOperations, RowReader, ScalarOperations};
use motet_protocol::TokenId;
use motet_protocol::{Sampling, TokenSampling};

/// Samples from one row of logits, on the host. Device samplers are tested against this.
/// Penalties need the sequence's history; [`SampleInputs`](super::SampleInputs) applies them.
///
/// # Panics
///
/// When `logits` is empty.
#[must_use]
pub fn sample_row(token_sampling: &TokenSampling, logits: &[f32]) -> TokenId {
    sample_row_with(
        token_sampling,
        &mut RowReader::new(ScalarOperations),
        logits,
    )
}

/// [`sample_row`], with the passes of these row operations.
pub(super) fn sample_row_with<P: RowOperations>(
    token_sampling: &TokenSampling,
    reader: &mut RowReader<P>,
    logits: &[f32],
) -> TokenId {
    assert!(!logits.is_empty(), "a row of logits has at least one token");
    let (maxima, top) = reader.maxima(logits);
    if token_sampling.sampling.is_greedy() {
        return first(logits, maxima, top);
    }
    let threshold = threshold(token_sampling, reader, logits, top);
    let temperature = token_sampling.sampling.temperature;
    let noise = Noise::of(token_sampling);
    reader.race(logits, top, temperature, threshold, noise)
}

/// The probability of every token, after all filters, in the order of their ids.
///
/// # Panics
///
/// When `logits` is empty.
#[must_use]
pub fn probabilities(token_sampling: &TokenSampling, logits: &[f32]) -> Vec<f32> {
    if token_sampling.sampling.is_greedy() {
        let mut probabilities = vec![0.0; logits.len()];
        probabilities[sample_row(token_sampling, logits) as usize] = 1.0;
        return probabilities;
    }
    let (mut weights, threshold) = weights(token_sampling, logits);
    for weight in &mut weights {
        *weight = if *weight >= threshold { *weight } else { 0.0 };
    }
    let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let probability = |weight: f32| (f64::from(weight) / total) as f32;
    weights.into_iter().map(probability).collect()
}

/// A number that each token's probability is proportional to before any filter, with 1 for the
/// likeliest, and the least of them that passes the filters.
///
/// # Panics
///
/// When `logits` is empty.
pub fn weights(token_sampling: &TokenSampling, logits: &[f32]) -> (Vec<f32>, f32) {
    assert!(!logits.is_empty(), "a row of logits has at least one token");
    let mut reader = RowReader::new(ScalarOperations);
    let (_, top) = reader.maxima(logits);
    let threshold = threshold(token_sampling, &mut reader, logits, top);
    reader.weigh(logits, top, token_sampling.sampling.temperature);
    (reader.weights().to_vec(), threshold)
}

/// The least weight that passes the filters.
fn threshold<P: RowOperations>(
    token_sampling: &TokenSampling,
    reader: &mut RowReader<P>,
    logits: &[f32],
    top: f32,
) -> f32 {
    let Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        ..
    } = token_sampling.sampling;
    let top_k = top_k as usize;
    let passed = if top_k > 0 && top_k < logits.len() {
        reader.weigh(logits, top, temperature);
        let (weights, maxima) = reader.weights_and_maxima();
        let likeliest = likeliest(weights, maxima, top_k);
        let least = likeliest[top_k - 1];
        let enough = f64::from(top_p) * sum(&likeliest);
        let in_nucleus = if top_p < 1.0 {
            nucleus(likeliest, enough)
        } else {
            0.0
        };
        in_nucleus.max(least)
    } else if top_p < 1.0 {
        reader.weigh(logits, top, temperature);
        let total = reader.sums().iter().sum();
        let (weights, maxima) = reader.weights_and_maxima();
        nucleus_of_all(weights, maxima, top_p, total)
    } else {
        0.0
    };
    passed.max(min_p)
}

/// The first token that has the `top` logit.
fn first(logits: &[f32], maxima: &[f32], top: f32) -> TokenId {
    let block = maxima.iter().position(|largest| *largest == top);
    let start = block.unwrap_or(0) * BLOCK;
    let first = logits[start..].iter().position(|logit| *logit == top);
    first.map_or(0, |first| (start + first) as TokenId)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_sampling(sampling: Sampling, position: u64) -> TokenSampling {
        TokenSampling { sampling, position }
    }

    fn counts(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for index in 0..20_000 {
            counts[sample_row(&token_sampling(sampling, index), logits) as usize] += 1;
        }
        counts
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        let sampling = Sampling {
            temperature: 1.0,
            seed: 7,
            ..Sampling::GREEDY
        };
        for (count, p) in counts(sampling, &logits).iter().zip([0.5, 0.3, 0.15, 0.05]) {
            assert!(
                (*count as f64 / 20_000.0 - p).abs() < 0.02,
                "{count} draws at p = {p}"
            );
        }
    }

    #[test]
    fn filters_drop_unlikely_tokens() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        let open = Sampling {
            temperature: 1.0,
            seed: 7,
            ..Sampling::GREEDY
        };
        let possible = |sampling| counts(sampling, &logits).iter().filter(|c| **c > 0).count();
        assert_eq!(possible(open), 4);
        assert_eq!(possible(Sampling { top_k: 2, ..open }), 2);
        assert_eq!(
            possible(Sampling {
                top_p: 0.75,
                ..open
            }),
            2
        );
        assert_eq!(
            possible(Sampling {
                min_p: 0.25,
                ..open
            }),
            3
        );
        assert_eq!(possible(Sampling { top_k: 1, ..open }), 1);
        assert_eq!(
            possible(Sampling {
                top_p: 0.01,
                ..open
            }),
            1
        );
    }

    /// Compares with a plain implementation of the filters, on enough tokens for all short cuts.
    #[test]
    fn filters_match_a_full_sort() {
        let logit = |id: u32| (id.wrapping_mul(0x9E37_79B9) >> 8) as f32 / 1e6;
        let logits: Vec<f32> = (0..20_000).map(logit).collect();
        for (top_k, top_p) in [
            (0, 0.9),
            (0, 0.1),
            (1, 1.0),
            (7, 1.0),
            (50, 0.5),
            (500, 0.99),
        ] {
            let sampling = Sampling {
                temperature: 1.5,
                top_k,
                top_p,
                ..Sampling::GREEDY
            };
            let (weights, found) = weights(&token_sampling(sampling, 0), &logits);
            let mut sorted = weights;
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted.truncate(if top_k == 0 {
                sorted.len()
            } else {
                top_k as usize
            });
            let total: f64 = sorted.iter().map(|weight| f64::from(*weight)).sum();
            let mut reached = 0.0;
            let mut last = 0;
            while last + 1 < sorted.len() {
                reached += f64::from(sorted[last]);
                if reached >= f64::from(top_p) * total {
                    break;
                }
                last += 1;
            }
            let near = sorted[last.saturating_sub(1)..sorted.len().min(last + 2)].contains(&found);
            assert!(
                near,
                "top-k {top_k}, top-p {top_p}: {found}, not {}",
                sorted[last]
            );
        }
    }

    #[test]
    fn sampled_token_is_a_function_of_seed_and_position() {
        let logits = [0.0; 64];
        let sampling = Sampling {
            temperature: 1.0,
            seed: 1,
            ..Sampling::GREEDY
        };
        let tokens = |s| {
            (0..32)
                .map(|i| sample_row(&token_sampling(s, i), &logits))
                .collect::<Vec<_>>()
        };
        assert_eq!(tokens(sampling), tokens(sampling));
        assert_ne!(
            tokens(sampling),
            tokens(Sampling {
                seed: 2,
                ..sampling
            })
        );
    }
}
