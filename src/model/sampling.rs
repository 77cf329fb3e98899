//! How a token is drawn from logits.
//!
//! Randomness is a pure function of a request's seed and the index of the token
//! within its output, so that a sequence draws the same tokens whoever shares
//! its batch, however often it was preempted, and on every backend.
//!
//! The filters apply in the field's usual order: top-k on the logits, then
//! temperature and softmax, then top-p (nucleus sampling, Holtzman et al. 2020),
//! then min-p. Each comes down to a least weight, so that what takes part does not
//! depend on an order among equals: tokens as likely as the last one that a filter
//! lets through get through as well. Then one uniform number is looked up in the
//! cumulative distribution of what is left, in the vocabulary's order. That order
//! is as good as any, and needs no sorting where no filter does.

use crate::TokenId;

/// How a request wants its tokens drawn. [`Sampling::GREEDY`] is the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token (greedy). Finite, >= 0.
    pub temperature: f32,
    /// Only tokens at least as likely as the `top_k`-th most likely take part; 0
    /// is no limit.
    pub top_k: u32,
    /// Only tokens at least as likely as the least likely one of the smallest set
    /// whose probability reaches `top_p` take part; in (0, 1], 1 is no limit.
    pub top_p: f32,
    /// Only tokens at least `min_p` times as likely as the likeliest take part;
    /// in [0, 1], 0 is no limit.
    pub min_p: f32,
    /// Seed of this request's random numbers.
    pub seed: u64,
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
    };

    /// Whether this always takes the most likely token.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

/// One draw: how, and which of the sequence's output tokens it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// How to draw.
    pub sampling: Sampling,
    /// Index of the token within the sequence's output, from 0.
    pub index: u64,
}

impl Draw {
    /// The uniform number in `[0, 1)` that decides this draw: 24 bits of
    /// SplitMix64 (Steele et al. 2014) over seed and index.
    #[must_use]
    pub fn uniform(&self) -> f32 {
        let mut z = self.sampling.seed.wrapping_add(
            self.index
                .wrapping_add(1)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15),
        );
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Draws from one row of logits, on the host. Device samplers are tested
    /// against this.
    ///
    /// # Panics
    ///
    /// When `logits` is empty.
    #[must_use]
    pub fn from_logits(&self, logits: &[f32]) -> TokenId {
        assert!(!logits.is_empty(), "a row of logits has at least one token");
        if self.sampling.is_greedy() {
            return greedy(logits);
        }
        let weights = self.weights(logits);
        let threshold = self.threshold(&weights);
        invert(&weights, threshold, self.uniform())
    }

    /// What each token's probability is proportional to before any filter; the
    /// likeliest has 1.
    pub(super) fn weights(&self, logits: &[f32]) -> Vec<f32> {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights = logits
            .iter()
            .map(|logit| ((logit - top) / self.sampling.temperature).exp());
        weights.collect()
    }

    /// The least weight that takes part.
    pub(super) fn threshold(&self, weights: &[f32]) -> f32 {
        let Sampling {
            top_k,
            top_p,
            min_p,
            ..
        } = self.sampling;
        let top_k = match top_k {
            0 => weights.len(),
            k => weights.len().min(k as usize),
        };
        if top_k == weights.len() && top_p >= 1.0 {
            return min_p;
        }
        let mut ranked = weights.to_vec();
        if top_k < ranked.len() {
            ranked.select_nth_unstable_by(top_k - 1, descending);
            ranked.truncate(top_k);
        }
        let last_of_top_k = ranked.iter().copied().fold(f32::INFINITY, f32::min);
        nucleus(&mut ranked, top_p).max(last_of_top_k).max(min_p)
    }
}

/// The least weight of the smallest set that holds `top_p` of all `weights`. Sorts
/// no more of them than that set and a little.
fn nucleus(weights: &mut [f32], top_p: f32) -> f32 {
    if top_p >= 1.0 {
        return 0.0;
    }
    let enough = top_p * weights.iter().sum::<f32>();
    let mut reached = 0.0;
    let mut rest = weights;
    let mut next = 64;
    while !rest.is_empty() {
        if next < rest.len() {
            rest.select_nth_unstable_by(next, descending);
        }
        let (likeliest, less) = rest.split_at_mut(next.min(rest.len()));
        likeliest.sort_unstable_by(descending);
        for weight in likeliest {
            reached += *weight;
            if reached >= enough {
                return *weight;
            }
        }
        rest = less;
        next *= 8;
    }
    0.0
}

fn descending(a: &f32, b: &f32) -> std::cmp::Ordering {
    b.total_cmp(a)
}

fn greedy(logits: &[f32]) -> TokenId {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as TokenId
}

/// The first token at which the sum of the weights that reach `threshold` passes
/// `uniform` of their total.
fn invert(weights: &[f32], threshold: f32, uniform: f32) -> TokenId {
    let taking_part = || {
        (0..)
            .zip(weights)
            .filter(|(_, weight)| **weight >= threshold)
    };
    let total: f32 = taking_part().map(|(_, weight)| weight).sum();
    let mut reached = 0.0;
    let mut last = 0;
    for (id, weight) in taking_part() {
        reached += weight;
        last = id;
        if uniform * total < reached {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(sampling: Sampling, index: u64) -> Draw {
        Draw { sampling, index }
    }

    fn counts(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for index in 0..20_000 {
            counts[draw(sampling, index).from_logits(logits) as usize] += 1;
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
    fn filters_drop_the_unlikely() {
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

    #[test]
    fn a_draw_is_a_function_of_seed_and_index() {
        let logits = [0.0; 64];
        let sampling = Sampling {
            temperature: 1.0,
            seed: 1,
            ..Sampling::GREEDY
        };
        let tokens = |s| {
            (0..32)
                .map(|i| draw(s, i).from_logits(&logits))
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
