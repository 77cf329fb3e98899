//! How likely a proposed token is right, learned by salt.
//!
//! A token's chance is conditional: that it is right, given that all proposed tokens before it
//! were. It depends on the source, the number of tokens that matched, and the position in the
//! proposal. Each such cell counts hits and misses (a Beta distribution) onto a prior that is the
//! same for all salts and never learned: the text of one salt must not show in another's speed.

use motet_protocol::Salt;

use super::DraftSource;
use super::by_salt::BySalt;

/// Positions of a proposal that are told apart. After these, the tokens so far count as matched.
pub(super) const POSITIONS: usize = 8;
/// Maximum number of salts that are learned. Others have the prior.
const SALTS_MAX: usize = 1024;
/// Counts of a cell are halved at this sum, so that old ones fade.
const COUNTS_MAX: u8 = 64;
/// Least numbers of matched tokens that are told apart.
const MATCHES: [usize; 7] = [0, 2, 3, 4, 6, 9, 16];
/// The prior for repeated text by the number of matched tokens, for the first, the second and all
/// other positions. It is about that of recorded agents.
const PRIORS: [[f32; 3]; MATCHES.len()] = [
    [0.40, 0.70, 0.80],
    [0.38, 0.60, 0.72],
    [0.50, 0.68, 0.72],
    [0.57, 0.66, 0.76],
    [0.62, 0.76, 0.85],
    [0.78, 0.85, 0.88],
    [0.90, 0.93, 0.95],
];
/// The prior for tokens that followed the same prompt. It is about the chance that two samples of
/// one distribution are equal.
const PATH_PRIOR: f32 = 0.6;
/// The prior for the tokens of a draft model.
const MODEL_PRIOR: f32 = 0.7;
/// Tokens without a proposal of the draft model after which its counts are halved, so that a draft
/// model that was wrong is asked again.
const UNASKED_TOKENS_MAX: u16 = 1024;
/// Observations that the prior stands for.
const PRIOR_WEIGHT: f32 = 4.0;

/// Learned chances, by salt.
#[derive(Debug)]
pub struct Chances {
    salts: BySalt<SaltChances>,
}

/// The learned chances of one salt.
#[derive(Clone, Debug)]
pub struct SaltChances {
    cells: [[[Cell; POSITIONS]; MATCHES.len()]; DraftSource::COUNT],
    /// Tokens since the draft model's last proposal.
    unasked_tokens: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    hits: u8,
    misses: u8,
}

impl Chances {
    /// Chances of no salt yet.
    #[must_use]
    pub fn new() -> Self {
        let salts = BySalt::new(SALTS_MAX);
        Self { salts }
    }

    /// The chances of a salt, which is used thereby. A new one has the prior.
    pub fn of(&mut self, salt: &Salt) -> &mut SaltChances {
        self.salts.get_or_insert(salt, SaltChances::new)
    }
}

impl Default for Chances {
    fn default() -> Self {
        Self::new()
    }
}

impl SaltChances {
    /// The prior.
    #[must_use]
    pub fn new() -> Self {
        Self {
            cells: Default::default(),
            unasked_tokens: 0,
        }
    }

    /// The chance that the token at `position` is right if those before it are, in a proposal
    /// found after `match_tokens` matching tokens.
    #[must_use]
    pub fn chance(&self, source: DraftSource, match_tokens: usize, position: usize) -> f32 {
        let (bucket, position) = place(match_tokens, position);
        let cell = self.cells[source as usize][bucket][position];
        let prior = prior(source, bucket, position);
        let (hits, misses) = (f32::from(cell.hits), f32::from(cell.misses));
        (hits + PRIOR_WEIGHT * prior) / (hits + misses + PRIOR_WEIGHT)
    }

    /// Records whether such a token was right.
    pub fn observe(
        &mut self,
        source: DraftSource,
        match_tokens: usize,
        position: usize,
        is_hit: bool,
    ) {
        let (bucket, position) = place(match_tokens, position);
        if source == DraftSource::Model {
            self.unasked_tokens = 0;
        } else {
            self.observe_unasked();
        }
        let cell = &mut self.cells[source as usize][bucket][position];
        let count = if is_hit {
            &mut cell.hits
        } else {
            &mut cell.misses
        };
        *count += 1;
        if cell.hits + cell.misses >= COUNTS_MAX {
            cell.halve();
        }
    }

    /// Records a token of the output that is no token of the draft model's proposal.
    pub fn observe_unasked(&mut self) {
        self.unasked_tokens += 1;
        if self.unasked_tokens == UNASKED_TOKENS_MAX {
            self.unasked_tokens = 0;
            let cells = &mut self.cells[DraftSource::Model as usize];
            cells.iter_mut().flatten().for_each(Cell::halve);
        }
    }

    /// All hits and misses that have not faded.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let cells = self.cells.iter().flatten().flatten();
        cells.fold((0, 0), |(hits, misses), cell| {
            (
                hits + usize::from(cell.hits),
                misses + usize::from(cell.misses),
            )
        })
    }
}

impl Cell {
    fn halve(&mut self) {
        self.hits /= 2;
        self.misses /= 2;
    }
}

impl Default for SaltChances {
    fn default() -> Self {
        Self::new()
    }
}

/// The bucket and the position of a cell.
fn place(match_tokens: usize, position: usize) -> (usize, usize) {
    let matched = match_tokens + position / POSITIONS * POSITIONS;
    let bucket = MATCHES.partition_point(|least| *least <= matched) - 1;
    (bucket, position % POSITIONS)
}

/// The chance without observations.
fn prior(source: DraftSource, bucket: usize, position: usize) -> f32 {
    let column = position.min(PRIORS[bucket].len() - 1);
    let repeated = PRIORS[bucket][column];
    match source {
        DraftSource::OwnText | DraftSource::Answers => repeated,
        // The caller knows more than the text does.
        DraftSource::Prediction => 1.0 - (1.0 - repeated) / 2.0,
        DraftSource::Path => PATH_PRIOR,
        DraftSource::Model => MODEL_PRIOR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_cases::check_cases;

    #[test]
    fn chances_approach_the_share_of_hits() {
        check_cases(500, 4_096, |random| {
            let percent = random.int_in_range(0..=100)?;
            let mut chances = SaltChances::new();
            let mut hits = 0;
            for _ in 0..COUNTS_MAX - 1 {
                let is_hit = random.int_in_range(1..=100)? <= percent;
                hits += u8::from(is_hit);
                chances.observe(DraftSource::OwnText, 5, 1, is_hit);
            }
            let share = f32::from(hits) / f32::from(COUNTS_MAX - 1);
            let chance = chances.chance(DraftSource::OwnText, 5, 1);
            assert!((chance - share).abs() < 0.1, "{chance} after {share}");
            assert!(chance > 0.0 && chance < 1.0, "no token is certain");
            Ok(())
        });
    }

    #[test]
    fn old_counts_fade() {
        let mut chances = SaltChances::new();
        let mut observe = |is_hit| {
            (0..4 * u32::from(COUNTS_MAX))
                .for_each(|_| chances.observe(DraftSource::Answers, 3, 0, is_hit));
            chances.chance(DraftSource::Answers, 3, 0)
        };
        assert!(observe(true) > 0.9);
        assert!(observe(false) < 0.1);
    }

    #[test]
    fn positions_after_the_last_count_as_matched() {
        let mut chances = SaltChances::new();
        (0..20).for_each(|_| chances.observe(DraftSource::OwnText, 9, 1, false));
        let chance = |matched, position| chances.chance(DraftSource::OwnText, matched, position);
        assert_eq!(chance(9, 1), chance(9 - POSITIONS, 1 + POSITIONS));
        assert_ne!(chance(9, 1), chance(9 + POSITIONS, 1));
        assert_ne!(chance(9, 1), chance(9, 2));
    }

    #[test]
    fn salts_learn_nothing_from_each_other() {
        let mut chances = Chances::new();
        let (one, other) = (Salt::new("one"), Salt::new("other"));
        for _ in 0..50 {
            let learned = chances.of(&one);
            learned.observe(DraftSource::Path, 24, 0, false);
        }
        let of = |chances: &mut Chances, salt| chances.of(salt).chance(DraftSource::Path, 24, 0);
        assert!(of(&mut chances, &one) < 0.1);
        assert_eq!(of(&mut chances, &other), PATH_PRIOR);
        for salt in 0..SALTS_MAX {
            chances.of(&Salt::new(salt.to_string()));
        }
        assert_eq!(of(&mut chances, &one), PATH_PRIOR, "the salts are bounded");
    }
}
