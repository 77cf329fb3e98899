//! The choice of a token by a race.
//!
//! Each token runs for a random time with the exponential distribution, divided by the token's
//! weight, and the first one wins. A token wins with a probability in proportion to its weight.
//! This is the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014) without its logarithms: the
//! largest `ln w - ln E` is the largest `w / E`. The times are the [`Noise`] of the position.
//!
//! Few tokens can win. A time is at least its bits, as a fraction of 2^32, so that whole numbers
//! tell which tokens of a block may beat the best one so far. Weights and exact times are
//! needed for these only, and a good one is known early, from the block of the likeliest token.

use super::{BLOCK, exp};
use crate::sampling::noise::Noise;
use motet_protocol::TokenId;

/// A race, ready to run.
#[derive(Clone, Copy, Debug)]
pub struct Race<'a> {
    /// The logits of all tokens.
    pub logits: &'a [f32],
    /// The largest logit.
    pub top: f32,
    /// The temperature: a token's weight is [`exp`] of `(logit - top) / temperature`.
    pub temperature: f32,
    /// The weight of the largest logit of each [`BLOCK`].
    pub maxima: &'a [f32],
    /// The least weight that takes part. Tokens without weight do not, whatever it is.
    pub threshold: f32,
    /// The times.
    pub noise: Noise,
}

impl Race<'_> {
    /// The token that wins, of equals the first; 0 if no token takes part.
    ///
    /// The result is defined without regard to blocks, so that every instruction set for which
    /// this is compiled gives the same.
    #[inline(always)]
    #[must_use]
    pub fn winner(&self) -> TokenId {
        const PARTS: f64 = (1_u64 << 32) as f64;
        /// More than the rounding of all steps, so that no token is left out that could win.
        const ROUNDING: f32 = 1.0 + 1e-5;
        let threshold = self.threshold.max(f32::MIN_POSITIVE);
        let mut best = Runner::NONE;
        // A token beats the best one only if its bits are at most its weight times this.
        let mut bits_max_of_weight = f64::INFINITY;
        // The likeliest token has the weight 1.
        let likeliest = self.maxima.iter().position(|maximum| *maximum >= 1.0);
        for block in likeliest.into_iter().chain(0..self.maxima.len()) {
            let maximum = self.maxima[block] * ROUNDING;
            let bits_max = f64::from(maximum) * bits_max_of_weight;
            if !(maximum >= threshold && bits_max >= 0.5) {
                continue;
            }
            let first = block * BLOCK;
            for token in self.at_most(bits_max as u32, first) {
                let weight = exp((self.logits[token] - self.top) / self.temperature);
                let token = token as TokenId;
                let bits_max = f64::from(weight) * bits_max_of_weight;
                if weight >= threshold && f64::from(self.noise.bits(token)) <= bits_max {
                    let score = f64::from(weight) / self.noise.exponential(token);
                    best = best.or(Runner { score, token });
                    bits_max_of_weight = f64::from(ROUNDING) * PARTS / best.score;
                }
            }
        }
        best.token
    }

    /// The tokens of the block from `first` on whose bits are at most `bits_max`. The loops become
    /// vector instructions. The first two are enough for most blocks, which have no such token.
    #[inline(always)]
    fn at_most(&self, bits_max: u32, first: usize) -> Members {
        let mut bits = [0; BLOCK];
        for (token, bits) in (first as TokenId..).zip(&mut bits) {
            *bits = self.noise.bits(token);
        }
        let least = bits.iter().fold(u32::MAX, |least, bits| least.min(*bits));
        let mut members = 0;
        if least <= bits_max {
            for (offset, bits) in bits.iter().enumerate() {
                members |= u64::from(*bits <= bits_max) << offset;
            }
            // The last block may be shorter.
            let tokens = self.logits.len() - first;
            members &= u64::MAX >> BLOCK.saturating_sub(tokens);
        }
        Members { first, members }
    }
}

/// Some tokens of a block, in their order.
struct Members {
    /// The block's first token.
    first: usize,
    /// A bit for each of the block's tokens.
    members: u64,
}

impl Iterator for Members {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let offset = self.members.trailing_zeros() as usize;
        // Takes away the lowest bit.
        self.members &= self.members.checked_sub(1)?;
        Some(self.first + offset)
    }
}

/// A token that takes part in a race.
struct Runner {
    /// The token's weight by its time: the reciprocal of when it arrives.
    score: f64,
    token: TokenId,
}

impl Runner {
    /// One that every other beats.
    const NONE: Self = Self {
        score: 0.0,
        token: 0,
    };

    /// The one that arrives first.
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        let is_earlier = other.score == self.score && other.token < self.token;
        if other.score > self.score || is_earlier {
            other
        } else {
            self
        }
    }
}

const _: () = assert!(
    BLOCK == u64::BITS as usize,
    "a block's tokens have a bit each"
);
