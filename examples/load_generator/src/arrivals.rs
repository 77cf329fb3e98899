//! Arrival times of requests.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::{Rng, RngExt};

/// Arrival times of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arrivals {
    /// Each user asks again once its last answer is complete.
    Closed,
    /// Requests come at random times, independent of each other and of the answers.
    Poisson {
        /// Mean requests a second, of all users together.
        per_second: f64,
    },
}

impl Arrivals {
    /// Returns the due times of `requests` requests after the start, in order.
    pub(crate) fn times(self, requests: usize, random: &mut impl Rng) -> Vec<Duration> {
        let mut due = 0.0;
        let next = || match self {
            Arrivals::Closed => Duration::ZERO,
            Arrivals::Poisson { per_second } => {
                // Gaps of a Poisson process are exponential: invert their
                // distribution. 1 - u is never 0.
                let uniform: f64 = random.random();
                due -= (1.0 - uniform).ln() / per_second;
                Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX)
            }
        };
        std::iter::repeat_with(next).take(requests).collect()
    }
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "closed" {
            return Ok(Arrivals::Closed);
        }
        text.strip_prefix("poisson:")
            .and_then(|rate| rate.parse().ok())
            .filter(|per_second: &f64| per_second.is_finite() && *per_second > 0.0)
            .map(|per_second| Arrivals::Poisson { per_second })
            .ok_or_else(|| {
                "expected `closed`, or `poisson:RATE` with requests a second, for example \
                 poisson:2.5"
                    .to_owned()
            })
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrivals::Closed => f.write_str("closed"),
            Arrivals::Poisson { per_second } => write!(f, "poisson:{per_second}"),
        }
    }
}

impl serde::Serialize for Arrivals {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn arrivals_are_read() {
        let check = |text: &str, arrivals: Option<Arrivals>| {
            assert_eq!(text.parse().ok(), arrivals, "{text}");
        };
        check("closed", Some(Arrivals::Closed));
        check("poisson:4", Some(Arrivals::Poisson { per_second: 4.0 }));
        check("poisson:0.5", Some(Arrivals::Poisson { per_second: 0.5 }));
        for text in [
            "",
            "open",
            "poisson",
            "poisson:",
            "poisson:0",
            "poisson:-1",
            "poisson:nan",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn poisson_arrivals_keep_the_rate() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let times = Arrivals::Poisson { per_second: 50.0 }.times(10_000, &mut random);
        assert!(times.is_sorted());
        let seconds = times.last().expect("10,000 times").as_secs_f64();
        // The sum of 10,000 gaps of 20 ms: 200 s, with a deviation of 2 s.
        assert!((190.0..210.0).contains(&seconds), "{seconds}");
        let mean = seconds / 10_000.0;
        let gaps = times
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_secs_f64());
        let variance = gaps.map(|gap| (gap - mean).powi(2)).sum::<f64>() / 9_999.0;
        // An exponential distribution's deviation is its mean.
        assert!((0.9..1.1).contains(&(variance.sqrt() / mean)));
    }
}
