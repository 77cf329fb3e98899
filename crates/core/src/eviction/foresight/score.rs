//! The score of keeping a token of a class and age for one more tick.

use super::super::Class;
use super::hazards::{BINS, Chances, Estimate, bin_of, width_of};
use super::history::SIZES;

/// Scores within one such step count as equal, since estimates are no better.
const STEPS_PER_OCTAVE: f32 = 4.0;
/// Added to logarithms of scores to keep them positive. Chances below 2^-64 per token and tick
/// do not occur in practice.
const OCTAVES_BELOW_ONE: f32 = 64.0;

/// Logarithms of Gittins' index by age, base 2.
type Octaves = [f32; BINS];

/// Gittins' index by class and age. Empty before the first lesson.
#[derive(Debug, Default)]
pub(super) struct ScoreTable {
    /// By class; `None` for classes without events.
    own: Vec<Option<Box<Octaves>>>,
    /// By number of turns, for the other classes.
    kinds: Vec<Octaves>,
}

impl ScoreTable {
    /// Builds the table from chances of reuse that were learned up to `tick`. Nothing is known
    /// of greater ages.
    pub(super) fn new(estimate: &Estimate, tick: u64) -> Self {
        let bins = bin_of(tick) + 1;
        let octaves = |chances: &Chances| {
            let mut octaves = [f32::NEG_INFINITY; BINS];
            for (age, octave) in octaves[..bins].iter_mut().enumerate() {
                *octave = index(&chances[..bins], age).log2();
            }
            octaves
        };
        let own = estimate.own.iter();
        let own = own.map(|own| own.as_ref().map(|own| Box::new(octaves(own))));
        Self {
            own: own.collect(),
            kinds: estimate.kinds.iter().map(octaves).collect(),
        }
    }

    /// The score of a byte that saves `cost` of computing, in steps.
    pub(super) fn of(&self, class: Class, age: u64, cost: f32) -> u64 {
        let class = usize::from(class);
        let Some(own) = self.own.get(class) else {
            return 0;
        };
        let octaves = own.as_deref().unwrap_or(&self.kinds[class / SIZES]);
        let octave = octaves[bin_of(age)] + cost.log2();
        // The cast saturates at 0 if the chance of reuse is 0.
        ((octave + OCTAVES_BELOW_ONE) * STEPS_PER_OCTAVE) as u64
    }
}

/// The best ratio of reuse to waiting time from this bin on, over all times at which the
/// waiting may stop.
fn index(chances: &[f32], from: usize) -> f32 {
    let (mut waiting, mut time, mut best) = (1.0, 0.0_f32, 0.0_f32);
    for (bin, chance) in chances.iter().enumerate().skip(from) {
        let reused = waiting * chance;
        time += (waiting - reused / 2.0) * width_of(bin);
        waiting -= reused;
        best = best.max((1.0 - waiting) / time);
    }
    best
}
