//! Requests and their arrival times: the same in every run of a seed.

use std::time::Duration;

use motet::request::Priority;
use motet::{TokenId, UserId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The vocabulary of all prompts made here; the first ids are special.
const TOKENS: std::ops::Range<TokenId> = 300..20_000;

/// One request, and its arrival time.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) output_tokens: usize,
    pub(crate) user: UserId,
    pub(crate) priority: Priority,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) user: UserId,
    pub(crate) priority: Priority,
    pub(crate) prompt_tokens: usize,
    /// Mean; each length is between half of it and one and a half.
    pub(crate) output_tokens: usize,
}

impl Kind {
    /// `count` requests at random moments (a Poisson process), `interval` apart in the mean;
    /// all at once if that is zero. No two prompts begin alike.
    pub(crate) fn arrivals(self, count: usize, interval: Duration, seed: u64) -> Vec<Arrival> {
        let mut numbers = ChaCha8Rng::seed_from_u64(seed);
        let mut at = Duration::ZERO;
        let mut arrival = |_| {
            let uniform: f64 = numbers.random_range(f64::EPSILON..1.0);
            at += interval.mul_f64(-uniform.ln());
            let least = self.output_tokens.div_ceil(2);
            Arrival {
                at,
                prompt: prompt(&mut numbers, self.prompt_tokens),
                output_tokens: numbers.random_range(least..=least + self.output_tokens),
                user: self.user,
                priority: self.priority,
            }
        };
        (0..count).map(&mut arrival).collect()
    }

    /// Tokens that one request evaluates, in the mean.
    pub(crate) fn tokens(self) -> usize {
        self.prompt_tokens + self.output_tokens
    }
}

/// A prompt that no other request has.
pub(crate) fn prompt(numbers: &mut ChaCha8Rng, tokens: usize) -> Vec<TokenId> {
    (0..tokens).map(|_| numbers.random_range(TOKENS)).collect()
}

/// All of them, in the order of their arrival.
pub(crate) fn merged(parts: impl IntoIterator<Item = Vec<Arrival>>) -> Vec<Arrival> {
    let mut all: Vec<Arrival> = parts.into_iter().flatten().collect();
    all.sort_by_key(|arrival| arrival.at);
    all
}
