//! Rotary position embeddings (Su et al. 2021) and their scalings to longer contexts.

use std::f64::consts::{PI, TAU};

/// Rotary embeddings of one layer kind, in half-split order: dimension `i` is paired with
/// dimension `i + rotated / 2`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f32,
    /// Rotated dimensions of a head, its first ones; an even number.
    pub rotated: usize,
    /// The change for a longer context.
    pub scaling: RopeScaling,
}

/// A change to the frequencies of rotary embeddings.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// Positions are divided by `factor` (Chen et al. 2023, position interpolation).
    Linear {
        /// At least 1 in practice; above 0.
        factor: f32,
    },
    /// Llama 3.1's scaling: low frequencies are divided by `factor`, high ones kept, and
    /// frequencies in between are blended (the Llama 3 herd of models, 2024).
    Llama3 {
        /// Divides frequencies whose wavelength is above
        /// `original_context_tokens / low_freq_factor`.
        factor: f32,
        /// See `factor`; below `high_freq_factor`.
        low_freq_factor: f32,
        /// Frequencies whose wavelength is below
        /// `original_context_tokens / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context of the training before the change, in tokens.
        original_context_tokens: usize,
    },
    /// YaRN (Peng et al. 2023): frequencies that turn less than `beta_slow` times in the original
    /// context are divided by `factor`, those that turn more than `beta_fast` times are kept.
    Yarn {
        /// Divides the low frequencies.
        factor: f32,
        /// Turns above which a frequency is kept.
        beta_fast: f32,
        /// Turns below which a frequency is divided.
        beta_slow: f32,
        /// Whether the bounds between the ranges are rounded to whole pairs.
        truncate: bool,
        /// Factor of sine and cosine.
        magnitude: f32,
        /// Context of the training before the change, in tokens.
        original_context_tokens: usize,
    },
    /// LongRoPE (Ding et al. 2024): each pair's frequency has a divisor of its own.
    Long {
        /// One divisor for each pair.
        divisors: Vec<f32>,
        /// Factor of sine and cosine.
        magnitude: f32,
    },
    /// The first pairs turn as if all did, the others not at all (Gemma 4). `rotated` counts the
    /// dimensions of both.
    Proportional {
        /// Pairs that turn.
        pairs: usize,
        /// Divides all frequencies; usually 1.
        factor: f32,
    },
}

/// The rotation of each pair of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Radians from one token to the next, of each pair.
    pub radians_per_token: Vec<f64>,
    /// Factor of sine and cosine.
    pub magnitude: f32,
}

impl Rope {
    /// The frequencies after the scaling.
    #[must_use]
    pub fn frequencies(&self) -> Frequencies {
        let pairs = self.rotated / 2;
        let theta = f64::from(self.theta);
        let plain = (0..pairs).map(|pair| theta.powf(-2.0 * pair as f64 / self.rotated as f64));
        let plain: Vec<f64> = plain.collect();
        let magnitude = match self.scaling {
            RopeScaling::Yarn { magnitude, .. } | RopeScaling::Long { magnitude, .. } => magnitude,
            _ => 1.0,
        };
        Frequencies {
            radians_per_token: self.scaled(plain),
            magnitude,
        }
    }

    fn scaled(&self, plain: Vec<f64>) -> Vec<f64> {
        let each = |scale: &dyn Fn(usize, f64) -> f64| {
            let pairs = plain.iter().enumerate();
            pairs.map(|(pair, plain)| scale(pair, *plain)).collect()
        };
        match &self.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => each(&|_, plain| plain / f64::from(*factor)),
            RopeScaling::Proportional { pairs, factor } => each(&|pair, plain| {
                if pair < *pairs {
                    plain / f64::from(*factor)
                } else {
                    0.0
                }
            }),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context_tokens,
            } => {
                let (low, high) = (f64::from(*low_freq_factor), f64::from(*high_freq_factor));
                each(&|_, plain| {
                    let turns = *original_context_tokens as f64 * plain / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    blended(plain, kept, *factor)
                })
            }
            RopeScaling::Yarn { factor, .. } => {
                let (first, last) = self.yarn_pairs();
                each(&|pair, plain| {
                    let divided = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                    blended(plain, 1.0 - divided, *factor)
                })
            }
            RopeScaling::Long { divisors, .. } => {
                each(&|pair, plain| plain / f64::from(divisors[pair]))
            }
        }
    }

    /// The pairs between which YaRN blends: the last one that is kept, and the first one that is
    /// divided.
    fn yarn_pairs(&self) -> (f64, f64) {
        let RopeScaling::Yarn {
            beta_fast,
            beta_slow,
            truncate,
            original_context_tokens,
            ..
        } = self.scaling
        else {
            unreachable!("only YaRN blends between pairs");
        };
        let theta = f64::from(self.theta);
        let pair_of = |turns: f32| {
            let length = original_context_tokens as f64 / (f64::from(turns) * 2.0 * PI);
            self.rotated as f64 * length.ln() / (2.0 * theta.ln())
        };
        let (mut first, mut last) = (pair_of(beta_fast), pair_of(beta_slow));
        if truncate {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, mut last) = (first.max(0.0), last.min(self.rotated as f64 - 1.0));
        if first >= last {
            last = first + 0.001; // as the models' own code does against a division by 0
        }
        (first, last)
    }
}

/// A frequency of which the share `kept` is not divided.
fn blended(plain: f64, kept: f64, factor: f32) -> f64 {
    plain * (kept + (1.0 - kept) / f64::from(factor))
}

#[cfg(test)]
mod tests {
    use super::{Rope, RopeScaling};

    #[test]
    fn proportional_frequencies_turn_the_first_pairs_alone() {
        for (pairs, factor, expected) in [
            (4, 1.0, [1.0, 0.1, 0.01, 0.001]),
            (2, 1.0, [1.0, 0.1, 0.0, 0.0]),
            (1, 4.0, [0.25, 0.0, 0.0, 0.0]),
            (0, 1.0, [0.0; 4]),
        ] {
            let rope = Rope {
                theta: 10_000.0,
                rotated: 8,
                scaling: RopeScaling::Proportional { pairs, factor },
            };
            let found = rope.frequencies();
            assert_eq!(found.magnitude, 1.0);
            assert_eq!(found.radians_per_token.len(), expected.len());
            for (found, expected) in found.radians_per_token.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-12, "{found} {expected}");
            }
        }
    }
}
