//! The chance of reuse by class and age, learned from events.

use super::super::Class;
use super::history::{CLASSES, SIZES};

/// Number of bins for ages; a bin is a quarter octave.
pub(super) const BINS: usize = 112;

/// Weight, in events, of the kin's rate in the average with a class's own rate. If it is too
/// small, chance events count too much; if it is too large, a class learns late.
const KIN_EVENTS: f32 = 4.0;
/// The same weight for the rate at one age, against the rates at ages near it.
const NEAR_EVENTS: f32 = 100.0;
/// Number of bins to either side in which a class differs from its kin by the same factor.
const NEAR_BINS: usize = 6;
/// Weights of bins by distance, for the rate that all classes share.
const KERNEL: [f32; 4] = [1.0, 0.6, 0.3, 0.1];
/// Number of sequences after which all earlier counts are halved.
const FADE_SEQUENCES: f32 = 20_000.0;

/// An event in the life of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It was entered.
    Entered,
    /// It was continued.
    Reused,
    /// It was forgotten or replaced before it was continued.
    Lost,
}

/// Counts of events by class; `None` for classes without events.
#[derive(Debug)]
pub(super) struct Hazards {
    classes: Vec<Option<Box<Counts>>>,
}

/// The counts of one class, by age.
#[derive(Debug)]
struct Counts {
    entered: f32,
    reused: [f32; BINS],
    lost: [f32; BINS],
}

/// Chances by bin: that an entry which has reached the bin is reused within it.
pub(super) type Chances = [f32; BINS];

/// The estimated chances of all classes.
#[derive(Debug)]
pub(super) struct Estimate {
    /// By class; `None` for classes without events.
    pub(super) own: Vec<Option<Chances>>,
    /// By number of turns, for the other classes.
    pub(super) kinds: Vec<Chances>,
}

/// Events and numbers at risk, by bin.
#[derive(Clone)]
struct Observed {
    reused: [f32; BINS],
    at_risk: [f32; BINS],
}

/// Returns the bin of an age in ticks.
pub(super) fn bin_of(age: u64) -> usize {
    match age {
        0..4 => age as usize,
        _ => {
            let octave = age.ilog2() as usize;
            let quarter = (age >> (octave - 2)) as usize & 3;
            ((octave - 1) * 4 + quarter).min(BINS - 1)
        }
    }
}

/// Returns the number of ticks in a bin.
pub(super) fn width_of(bin: usize) -> f32 {
    match bin {
        0..4 => 1.0,
        _ => (1_u64 << (bin / 4 - 1)) as f32,
    }
}

impl Default for Hazards {
    fn default() -> Self {
        Self {
            classes: (0..CLASSES).map(|_| None).collect(),
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            entered: 0.0,
            reused: [0.0; BINS],
            lost: [0.0; BINS],
        }
    }
}

impl Hazards {
    pub(super) fn note(&mut self, class: Class, event: Event, age: u64) {
        let counts = self.classes[usize::from(class)].get_or_insert_default();
        match event {
            Event::Entered => counts.entered += 1.0,
            Event::Reused => counts.reused[bin_of(age)] += 1.0,
            Event::Lost => counts.lost[bin_of(age)] += 1.0,
        }
    }

    /// Halves all counts after enough sequences.
    pub(super) fn fade(&mut self) {
        let all = || self.classes.iter().flatten();
        if all().map(|counts| counts.entered).sum::<f32>() < FADE_SEQUENCES {
            return;
        }
        for counts in self.classes.iter_mut().flatten() {
            counts.entered /= 2.0;
            let by_age = counts.reused.iter_mut().chain(&mut counts.lost);
            by_age.for_each(|count| *count /= 2.0);
        }
    }

    /// Estimates the chances of each class, given the classes and ages of the waiting entries.
    /// Classes with the same number of turns are kin, and so are all numbers of turns.
    pub(super) fn estimate(&self, waiting: impl Iterator<Item = (Class, u64)>) -> Estimate {
        let lost = self.classes.iter();
        let lost = lost.map(|counts| counts.as_ref().map(|counts| counts.lost));
        let mut still: Vec<Option<[f32; BINS]>> = lost.collect();
        for (class, age) in waiting {
            still[usize::from(class)].get_or_insert([0.0; BINS])[bin_of(age)] += 1.0;
        }
        let none = Counts::default();
        let classes: Vec<Option<Observed>> = (self.classes.iter().zip(&still))
            .map(|(counts, still)| {
                let reused = &counts.as_deref().unwrap_or(&none).reused;
                still.as_ref().map(|still| Observed::new(reused, still))
            })
            .collect();
        let kinds: Vec<Observed> = classes
            .chunks_exact(SIZES)
            .map(|kind| Observed::sum(kind.iter().flatten()))
            .collect();
        let all = Observed::sum(kinds.iter()).smoothed();
        let kinds: Vec<Chances> = kinds.iter().map(|kind| kind.relative_to(&all)).collect();
        let own = classes.iter().enumerate().map(|(class, observed)| {
            let seen = observed.as_ref().filter(|seen| seen.at_risk[0] > 0.0);
            seen.map(|observed| observed.relative_to(&kinds[class / SIZES]))
        });
        Estimate {
            own: own.collect(),
            kinds,
        }
    }
}

impl Observed {
    /// Entries at risk in a bin are those that reached it; entries that left in it without
    /// reuse count half.
    fn new(reused: &[f32; BINS], still: &[f32; BINS]) -> Self {
        let mut at_risk = [0.0; BINS];
        let mut later = 0.0;
        for bin in (0..BINS).rev() {
            later += reused[bin] + still[bin] / 2.0;
            at_risk[bin] = later;
            later += still[bin] / 2.0;
        }
        Self {
            reused: *reused,
            at_risk,
        }
    }

    fn sum<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self {
            reused: [0.0; BINS],
            at_risk: [0.0; BINS],
        };
        for part in parts {
            for bin in 0..BINS {
                sum.reused[bin] += part.reused[bin];
                sum.at_risk[bin] += part.at_risk[bin];
            }
        }
        sum
    }

    /// The chances, smoothed from bin to bin.
    fn smoothed(&self) -> Chances {
        let mut chances = [0.0; BINS];
        for bin in (0..BINS).filter(|bin| self.at_risk[*bin] >= 0.5) {
            let (mut events, mut time) = (0.0, 0.0);
            for near in bin.saturating_sub(KERNEL.len() - 1)..(bin + KERNEL.len()).min(BINS) {
                let weight = KERNEL[near.abs_diff(bin)];
                events += weight * self.reused[near];
                time += weight * self.at_risk[near] * width_of(near);
            }
            let near = events / time.max(f32::MIN_POSITIVE) * width_of(bin);
            if near > 0.0 {
                let own = self.reused[bin] + NEAR_EVENTS;
                chances[bin] = (own / (self.at_risk[bin] + NEAR_EVENTS / near)).min(1.0);
            }
        }
        chances
    }

    /// The chances of the kin, corrected as far as this class's events differ.
    fn relative_to(&self, kin: &Chances) -> Chances {
        let mut chances = *kin;
        for (bin, chance) in chances.iter_mut().enumerate() {
            let near = bin.saturating_sub(NEAR_BINS)..(bin + NEAR_BINS + 1).min(BINS);
            let events: f32 = self.reused[near.clone()].iter().sum();
            let expected: f32 = near.map(|near| self.at_risk[near] * kin[near]).sum();
            *chance = (*chance * (events + KIN_EVENTS) / (expected + KIN_EVENTS)).min(1.0);
        }
        chances
    }
}
