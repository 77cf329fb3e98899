//! What it is worth to keep a token of a class and age for one more tick.

use super::super::Class;
use super::hazards::{BINS, Chances, Estimate, bin_of, width_of};
use super::history::SIZES;

/// Worths within one such step are taken for equal: estimates are no better.
const STEPS_PER_OCTAVE: f32 = 4.0;
/// Keeps logarithms of worths positive: chances for a token and tick of less than
/// 2^-64 do not occur in a life of the universe.
const OCTAVES_BELOW_ONE: f32 = 64.0;

/// Logarithms of Gittins' index by age, base 2.
type Octaves = [f32; BINS];

/// Gittins' index by class and age. Empty before the first lesson.
#[derive(Debug, Default)]
pub(super) struct WorthTable {
    /// Of the classes that somebody has seen.
    own: Vec<Option<Box<Octaves>>>,
    /// By number of turns: of the others.
    kinds: Vec<Octaves>,
}

impl WorthTable {
    /// The table that follows from chances of reuse that were learned up to `tick`:
    /// of greater ages nothing is known.
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

    /// The worth of a byte that saves `cost` of computing, in steps.
    pub(super) fn of(&self, class: Class, age: u64, cost: f32) -> u64 {
        let class = usize::from(class);
        let Some(own) = self.own.get(class) else {
            return 0;
        };
        let octaves = own.as_deref().unwrap_or(&self.kinds[class / SIZES]);
        let octave = octaves[bin_of(age)] + cost.log2();
        // Saturates at 0 for what will never be reused.
        ((octave + OCTAVES_BELOW_ONE) * STEPS_PER_OCTAVE) as u64
    }
}

/// The most reuse for the time spent waiting that one can have from this bin on, if
/// one stops waiting at the best time.
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
