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

use std::sync::Arc;

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
        let top = maximum(logits);
        let temperature = self.sampling.temperature;
        let weights = logits.iter().map(|logit| exp((logit - top) / temperature));
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
        let top_k = top_k as usize;
        let (least, total, mut ranked) = if top_k > 0 && top_k < weights.len() {
            let likeliest = likeliest(weights, top_k);
            (likeliest[top_k - 1], sum_from(&likeliest, 0.0), likeliest)
        } else if top_p < 1.0 {
            let total = sum_from(weights, 0.0);
            (0.0, total, candidates(weights, (1.0 - top_p) * total))
        } else {
            return min_p;
        };
        let in_nucleus = match top_p < 1.0 {
            true => nucleus(&mut ranked, top_p * total),
            false => 0.0,
        };
        in_nucleus.max(least).max(min_p)
    }
}

/// Everything that one draw needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing(Draw);

/// A drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: TokenId,
    /// How likely it and others were, where that is wanted.
    pub logprobs: Option<TokenLogprobs>,
}

/// How likely tokens were.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the drawn token.
    pub logprob: f32,
    /// Of the likeliest, in falling order.
    pub top: Vec<(TokenId, f32)>,
}

/// What a drawing does to its row.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjustments {
    /// Added to each logit.
    pub bias: Vec<f32>,
    /// What a positive sum is divided by and another multiplied with.
    pub repetition: Vec<f32>,
    /// Added to what comes of that.
    pub shift: Vec<f32>,
}

impl TokenLogprobs {
    /// Of `token` and the `top` likeliest of these logits.
    #[must_use]
    pub fn from_logits(_: &[f32], _token: TokenId, _top: usize) -> Option<Self> {
        None
    }
}

/// What a request wants of its draws beyond [`Sampling`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrawSpec {}

/// The drawing state of one live sequence.
#[derive(Debug)]
pub struct Drawer {}

/// Why a drawer cannot say what is to be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the drawer failed")]
pub struct DrawerError {}

impl Drawing {
    /// A draw as its parameters say, and nothing else.
    #[must_use]
    pub fn plain(draw: Draw) -> Drawing {
        Drawing(draw)
    }

    /// The parameters.
    #[must_use]
    pub fn draw(&self) -> &Draw {
        &self.0
    }

    /// Whether there is nothing else.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        true
    }

    /// How many alternatives' probabilities are wanted, if any are.
    #[must_use]
    pub fn logprobs(&self) -> Option<usize> {
        None
    }

    /// What it does to a row of logits.
    #[must_use]
    pub fn adjustments(&self, _vocab_size: usize) -> Option<Adjustments> {
        None
    }

    /// Draws from one row of logits.
    #[must_use]
    pub fn from_logits(&self, logits: &[f32]) -> Drawn {
        Drawn {
            token: self.0.from_logits(logits),
            logprobs: None,
        }
    }
}

impl Drawer {
    /// The state of a sequence with these tokens.
    #[must_use]
    pub fn new(_: Arc<DrawSpec>, _: Sampling, _prompt: &[TokenId], _output: &[TokenId]) -> Self {
        Drawer {}
    }

    /// The next draw.
    ///
    /// # Errors
    ///
    /// When it cannot be said.
    pub fn drawing(&mut self, draw: Draw) -> Result<Drawing, DrawerError> {
        Ok(Drawing::plain(draw))
    }

    /// The sequence goes on with this token.
    pub fn accept(&mut self, _token: TokenId) {}
}

/// The `count` largest weights; the least of them comes last.
fn likeliest(weights: &[f32], count: usize) -> Vec<f32> {
    const BLOCK: usize = 256;
    let mut maxima: Vec<f32> = weights.chunks(BLOCK).map(maximum).collect();
    let mut likeliest: Vec<f32> = if count <= maxima.len() {
        // As many blocks have a weight that is no less than this.
        let (_, enough, _) = maxima.select_nth_unstable_by(count - 1, descending);
        let weights = weights.iter().copied();
        weights.filter(|weight| weight >= enough).collect()
    } else {
        weights.to_vec()
    };
    likeliest.select_nth_unstable_by(count - 1, descending);
    likeliest.truncate(count);
    likeliest
}

/// Weights among which a nucleus that may leave out `spare` is sure to be: all the
/// others weigh less than that together.
fn candidates(weights: &[f32], spare: f32) -> Vec<f32> {
    // Half of each one's share, to be safe from rounding.
    let negligible = 0.5 * spare / weights.len() as f32;
    let weights = weights.iter().copied();
    weights.filter(|weight| *weight >= negligible).collect()
}

/// The least of the largest weights that together reach `enough`. Sorts no more
/// of them than those and a little.
fn nucleus(weights: &mut [f32], enough: f32) -> f32 {
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
    let top = maximum(logits);
    let first = logits.iter().position(|logit| *logit == top);
    first.unwrap_or(0) as TokenId
}

/// The first token at which the sum of the weights that reach `threshold` passes
/// `uniform` of their total.
fn invert(weights: &[f32], threshold: f32, uniform: f32) -> TokenId {
    const RUN: usize = 1024;
    let runs = weights.chunks(RUN).map(|run| sum_from(run, threshold));
    let runs: Vec<f32> = runs.collect();
    let target = uniform * runs.iter().sum::<f32>();
    let mut reached = 0.0;
    let mut start = 0;
    for sum in &runs[..runs.len() - 1] {
        if reached + sum > target {
            break;
        }
        reached += sum;
        start += RUN;
    }
    for (id, weight) in weights.iter().enumerate().skip(start) {
        if *weight >= threshold {
            reached += weight;
            if target < reached {
                return id as TokenId;
            }
        }
    }
    // The sums were rounded in another order.
    let possible = |weight: &f32| *weight >= threshold && *weight > 0.0;
    let last = weights.iter().rposition(possible);
    last.unwrap_or(0) as TokenId
}

/// Independent sums or maxima, for the compiler to keep in vectors.
const LANES: usize = 16;

fn maximum(numbers: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (runs, rest) = numbers.as_chunks::<LANES>();
    for run in runs {
        for (lane, number) in lanes.iter_mut().zip(run) {
            *lane = larger(*lane, *number);
        }
    }
    lanes.iter().chain(rest).copied().fold(lanes[0], larger)
}

/// The sum of the weights that reach `threshold`.
fn sum_from(weights: &[f32], threshold: f32) -> f32 {
    let counted = |weight: f32| if weight >= threshold { weight } else { 0.0 };
    let mut lanes = [0.0; LANES];
    let (runs, rest) = weights.as_chunks::<LANES>();
    for run in runs {
        for (lane, weight) in lanes.iter_mut().zip(run) {
            *lane += counted(*weight);
        }
    }
    let rest = rest.iter().map(|weight| counted(*weight));
    lanes.into_iter().chain(rest).sum()
}

/// The exponential of a number up to 0, to a few units in the last place, in
/// operations that the compiler can do on vectors: Cody and Waite's reduction to
/// `2^n * e^r` with `|r| <= ln(2) / 2`, and Taylor's polynomial for the latter.
fn exp(x: f32) -> f32 {
    /// Adding it rounds to a whole number, which stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let mut power = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = power * r + coefficient;
    }
    // Multiplies by 2^n: adds n to the exponent.
    let scaled = f32::from_bits(power.to_bits().wrapping_add(shifted.to_bits() << 23));
    // What is near underflow is nothing; so is the weight of a token ruled out.
    if x > -87.0 { scaled } else { 0.0 }
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
    fn exponentials_are_exact_to_rounding() {
        for step in 0..=87_000 {
            let x = -step as f32 / 1000.0;
            let error = f64::from(exp(x)) / f64::from(x).exp() - 1.0;
            assert!(
                step == 87_000 || error.abs() < 3e-7,
                "exp({x}) is off by {error}"
            );
        }
        assert_eq!(
            [exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)],
            [1.0, 0.0, 0.0]
        );
    }

    /// A plain implementation of the filters, on enough tokens for all short cuts.
    #[test]
    fn filters_are_those_of_a_full_sort() {
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
            let weights = draw(sampling, 0).weights(&logits);
            let mut sorted = weights.clone();
            sorted.sort_by(descending);
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
            let found = draw(sampling, 0).threshold(&weights);
            let near = sorted[last.saturating_sub(1)..sorted.len().min(last + 2)].contains(&found);
            assert!(
                near,
                "top-k {top_k}, top-p {top_p}: {found}, not {}",
                sorted[last]
            );
        }
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
