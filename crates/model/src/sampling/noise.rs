//! Random numbers for every token of the vocabulary at every position of a text.

use motet_protocol::{TokenId, TokenSampling};

/// The random numbers of one position: a function of the seed, the position and the token.
///
/// A sampler that scales the probability of each token by its number, and takes the token with
/// the largest result, samples from the distribution (the Gumbel-max trick; see
/// [`Race`](super::rows::Race)). Two models whose distributions are close to each other sample the same
/// token most of the time, since they use the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// The keys that [`Noise::bits`] mixes with the token.
    pub keys: [u32; 2],
}

impl Noise {
    /// The factors of [`Noise::bits`], those of Wellons's `hash-prospector`.
    pub const FACTORS: [u32; 2] = [0x21F0_AAAD, 0xD35A_2D97];
    /// The shifts of [`Noise::bits`].
    pub const SHIFTS: [u32; 3] = [16, 15, 15];

    /// The noise of the token that is sampled at this position with this seed.
    #[must_use]
    pub fn of(token_sampling: &TokenSampling) -> Self {
        // Mixing the seed first keeps the positions of one seed apart from those of another.
        let seed = split_mix(token_sampling.sampling.seed, 0);
        let key = split_mix(seed, token_sampling.position);
        Self {
            keys: [key as u32, (key >> 32) as u32],
        }
    }

    /// 32 random bits of a token. No two tokens have the same, so that races have no ties for
    /// want of bits. Each step has vector instructions.
    #[inline(always)]
    #[must_use]
    pub fn bits(self, token: TokenId) -> u32 {
        let mut x = token ^ self.keys[0];
        x ^= x >> Self::SHIFTS[0];
        x = x.wrapping_mul(Self::FACTORS[0]);
        x ^= x >> Self::SHIFTS[1];
        x = x.wrapping_add(self.keys[1]);
        x = x.wrapping_mul(Self::FACTORS[1]);
        x ^ (x >> Self::SHIFTS[2])
    }

    /// A token's random time with the exponential distribution of mean 1: `-ln(1 - v)`, where `v`
    /// lies in the middle of one of 2^32 parts of `(0, 1)`, the one that the bits number. It is at
    /// least `v`, has full precision where it is small, and is the same on every machine.
    #[must_use]
    pub fn exponential(self, token: TokenId) -> f64 {
        const PART: f64 = 1.0 / (1_u64 << 32) as f64;
        let v = (f64::from(self.bits(token)) + 0.5) * PART;
        -ln(1.0 - v)
    }
}

/// SplitMix64 (Steele et al. 2014): the random number with this index after a seed.
fn split_mix(seed: u64, index: u64) -> u64 {
    let step = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut z = seed.wrapping_add(step);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The natural logarithm of a positive, normal number, to a few units in the last place. The
/// standard library's has other last bits on other systems.
fn ln(x: f64) -> f64 {
    const MANTISSA_BITS: u32 = 52;
    // x = 2^n * m, with m between the roots of 1/2 and 2.
    let above_root = x.to_bits() + (1.0_f64.to_bits() - std::f64::consts::FRAC_1_SQRT_2.to_bits());
    let n = (above_root >> MANTISSA_BITS) as i64 - 1023;
    let m = f64::from_bits(x.to_bits().wrapping_sub((n as u64) << MANTISSA_BITS));
    // ln(m) = 2 artanh(s), by its series in s.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let coefficient = |power: u32| 1.0 / f64::from(2 * power + 1);
    let series = (0..12).rev().map(coefficient);
    let series = series.fold(0.0, |sum, coefficient| sum * square + coefficient);
    n as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_to_rounding() {
        let check = |x: f64| {
            let (found, expected) = (ln(x), x.ln());
            let error = (found - expected).abs();
            assert!(
                error <= 1e-15 * expected.abs(),
                "ln({x}) = {found}, not {expected}"
            );
        };
        for step in 1..=100_000_u32 {
            check(f64::from(step) / 100_000.0);
            check(1.0 - f64::from(step) / f64::from(u32::MAX));
            check(f64::from(step) * 2.0_f64.powi(-33));
        }
    }

    /// The bound by which a race leaves out most tokens.
    #[test]
    fn exponentials_are_at_least_their_bits() {
        for token in 0..100_000 {
            let noise = Noise { keys: [7, 8] };
            let v = f64::from(noise.bits(token)) * 2.0_f64.powi(-32);
            assert!(noise.exponential(token) > v, "{token}");
        }
    }

    /// These numbers are part of what a seed promises.
    #[test]
    fn numbers_stay_as_they_are() {
        use motet_protocol::Sampling;
        let noise = |seed, position| {
            let sampling = Sampling {
                seed,
                ..Sampling::GREEDY
            };
            Noise::of(&TokenSampling { sampling, position })
        };
        let bits = |seed, position| [0, 1, 151_935].map(|token| noise(seed, position).bits(token));
        assert_eq!(bits(0, 0), [0x40D6_141E, 0x763B_2970, 0x78B2_0276]);
        assert_eq!(bits(1, 1 << 40), [0x61BF_F810, 0xA94B_D22F, 0x58BD_2888]);
        assert_eq!(noise(7, 9).exponential(42), 0.267_618_644_000_669_87);
    }
}
