//! Two measurements that take turns.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::measured::median;

/// A BLAS' threads spin for about 30 ms after a product. The next turn starts when they sleep.
const REST: Duration = Duration::from_millis(60);

/// The side whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    First,
    Second,
}

impl Turn {
    pub(crate) fn pick<T>(self, first: T, second: T) -> T {
        match self {
            Turn::First => first,
            Turn::Second => second,
        }
    }
}

/// Seconds of each turn, pair by pair.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pairs(Vec<(f64, f64)>);

/// Lets both sides take turns: first, second, first, second …, in `rounds` pairs after a warm-up
/// pair that does not count.
///
/// # Errors
///
/// The first error of `measure`, which returns the seconds of a turn.
pub(crate) fn take_turns(
    rounds: usize,
    mut measure: impl FnMut(Turn) -> Result<f64>,
) -> Result<Pairs> {
    let mut turn = |turn| {
        thread::sleep(REST);
        measure(turn)
    };
    let mut pair = || Ok((turn(Turn::First)?, turn(Turn::Second)?));
    pair()?;
    (0..rounds)
        .map(|_| pair())
        .collect::<Result<_>>()
        .map(Pairs)
}

impl Pairs {
    /// The second side's time ÷ the first's, for each pair. The two halves of a pair follow each
    /// other closely, so a slow machine slows both.
    pub(crate) fn second_by_first(&self) -> Vec<f64> {
        self.0
            .iter()
            .map(|(first, second)| second / first)
            .collect()
    }

    /// Median seconds of the first side's turns and of the second's.
    pub(crate) fn medians(&self) -> (f64, f64) {
        let (first, second): (Vec<f64>, Vec<f64>) = self.0.iter().copied().unzip();
        (median(&first), median(&second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_alternate_and_the_first_pair_does_not_count() {
        let mut seen = Vec::new();
        let pairs = take_turns(2, |turn| {
            seen.push(turn);
            let seconds = [100.0, 900.0, 1.0, 2.0, 2.0, 6.0];
            Ok(seconds[seen.len() - 1])
        })
        .unwrap();
        assert_eq!(seen, [Turn::First, Turn::Second].repeat(3));
        assert_eq!(pairs.second_by_first(), [2.0, 3.0]);
        assert_eq!(pairs.medians(), (1.5, 4.0));
    }
}
