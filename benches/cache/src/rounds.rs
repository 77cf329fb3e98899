//! Interleaved measurements.

use std::time::Instant;

/// A timed subject: it carries out so many operations and returns the seconds of one.
pub(crate) type Turn<'a> = Box<dyn FnMut(usize) -> f64 + 'a>;

/// Runs all subjects in turn, `rounds` times after a warm-up round that does not count. Returns
/// the seconds of one operation for each, round by round.
pub(crate) fn take_turns(
    turns: &mut [Turn<'_>],
    rounds: usize,
    operations: usize,
) -> Vec<Vec<f64>> {
    let mut seconds = vec![Vec::with_capacity(rounds); turns.len()];
    for round in 0..=rounds {
        for (turn, seconds) in turns.iter_mut().zip(&mut seconds) {
            let taken = turn(operations);
            if round > 0 {
                seconds.push(taken);
            }
        }
    }
    seconds
}

/// Seconds of one of `operations` calls.
pub(crate) fn time(operations: usize, mut operation: impl FnMut()) -> f64 {
    let started_at = Instant::now();
    for _ in 0..operations {
        operation();
    }
    started_at.elapsed().as_secs_f64() / operations as f64
}

/// Each round's first ÷ second.
pub(crate) fn ratios(first: &[f64], second: &[f64]) -> Vec<f64> {
    first.iter().zip(second).map(|(a, b)| a / b).collect()
}
