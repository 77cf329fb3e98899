//! Whether the draft model drafts before the next step, for which sequences, and how far.
//!
//! A round delays the step by one forward pass of the draft model for each token, all sequences
//! beside each other, and gives the step draft rows. The rule is that of
//! [`draft_rows`](super::draft_rows): a round is made if the step then gives more tokens a second. A
//! draft model that is slow or often wrong is thus not used.

/// Most tokens that the draft model writes for a sequence in a round.
pub const ROUND_TOKENS_MAX: usize = 8;
/// Most sequences in a round.
const ROUND_SEQUENCES_MAX: usize = 16;

/// A sequence that the draft model may draft.
#[derive(Clone, Debug, PartialEq)]
pub struct Draftable {
    /// Index of its share in the step.
    pub share: usize,
    /// For each token that the draft model may write, the chance that it and all before it are
    /// right; at most [`ROUND_TOKENS_MAX`].
    pub survival: Vec<f32>,
    /// Draft rows that it has in the step without the draft model.
    pub own_rows: usize,
    /// Tokens that these are expected to give.
    pub own_tokens: f64,
}

/// A round of the draft model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Number of sequences that it drafts, of those that gain most.
    pub sequences: usize,
    /// Tokens for each of them, but no more than its survival has.
    pub tokens: usize,
    /// Time that it saves: how much longer the step without it takes for as many tokens.
    pub saved_seconds: f64,
}

/// The costs of a round, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct RoundCosts<S, P> {
    /// Duration of the step with so many more rows.
    pub step: S,
    /// Duration of one pass of the draft model with so many sequences.
    pub pass: P,
    /// The longest that round and step may take.
    pub bound: f64,
}

/// Sorts the sequences by their gain. Returns the round that makes the most tokens a second of a
/// step that is expected to give `tokens` tokens without it; `None` if no round makes more.
pub fn round_that_pays<S, P>(
    draftable: &mut [Draftable],
    tokens: f64,
    costs: &RoundCosts<S, P>,
) -> Option<Round>
where
    S: Fn(i64) -> f64,
    P: Fn(usize) -> f64,
{
    draftable.sort_by(|a, b| gain(b, ROUND_TOKENS_MAX).total_cmp(&gain(a, ROUND_TOKENS_MAX)));
    let without = (costs.step)(0);
    if without <= 0.0 || tokens <= 0.0 {
        return None;
    }
    let (mut best, mut best_rate) = (None, tokens / without);
    for round_tokens in 1..=ROUND_TOKENS_MAX {
        let (mut expected, mut rows) = (tokens, 0);
        for (index, sequence) in draftable.iter().take(ROUND_SEQUENCES_MAX).enumerate() {
            expected += gain(sequence, round_tokens);
            rows += sequence.survival.len().min(round_tokens) as i64 - sequence.own_rows as i64;
            let sequences = index + 1;
            let seconds = (costs.pass)(sequences) * round_tokens as f64 + (costs.step)(rows);
            if seconds <= costs.bound && expected / seconds > best_rate {
                best_rate = expected / seconds;
                best = Some(Round {
                    sequences,
                    tokens: round_tokens,
                    saved_seconds: expected * without / tokens - seconds,
                });
            }
        }
    }
    best
}

/// The tokens that a sequence gains by a draft of so many tokens.
fn gain(sequence: &Draftable, round_tokens: usize) -> f64 {
    let survival = sequence.survival.iter().take(round_tokens);
    let drafted: f64 = survival.map(|chance| f64::from(*chance)).sum();
    drafted - sequence.own_tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draftable(chance: f32, own_tokens: f64) -> Draftable {
        let survival = (1..=ROUND_TOKENS_MAX as i32).map(|token| chance.powi(token));
        Draftable {
            share: 0,
            survival: survival.collect(),
            own_rows: own_tokens.ceil() as usize,
            own_tokens,
        }
    }

    /// The round of sequences with these chances, in a step that takes 1 and `row` more for each
    /// row.
    fn round(chances: &[f32], row: f64, pass: f64, bound: f64) -> Option<(usize, usize)> {
        let sequences = chances.iter().map(|chance| draftable(*chance, 0.0));
        let mut sequences: Vec<Draftable> = sequences.collect();
        let costs = RoundCosts {
            step: |rows| 1.0 + row * rows as f64,
            pass: |_| pass,
            bound,
        };
        let round = round_that_pays(&mut sequences, chances.len() as f64, &costs);
        round.map(|round| (round.sequences, round.tokens))
    }

    #[test]
    fn round_is_made_if_it_pays() {
        assert_eq!(round(&[0.8], 0.05, 0.3, 9.0), Some((1, 3)));
        assert_eq!(
            round(&[0.8], 0.05, 0.9, 9.0),
            None,
            "the draft model is slow"
        );
        assert_eq!(round(&[0.3], 0.05, 0.3, 9.0), None, "it is mostly wrong");
        assert_eq!(
            round(&[0.8], 0.9, 0.3, 9.0),
            None,
            "rows cost as much as steps"
        );
        assert_eq!(round(&[1.0], 0.0, 0.0, 9.0), Some((1, ROUND_TOKENS_MAX)));
    }

    #[test]
    fn sequences_that_gain_most_are_drafted() {
        assert_eq!(
            round(&[0.1, 0.9, 0.9], 0.1, 0.2, 9.0).map(|round| round.0),
            Some(2)
        );
        assert_eq!(
            round(&[0.9; 20], 0.0, 0.1, 9.0).map(|round| round.0),
            Some(16)
        );
    }

    #[test]
    fn round_and_step_stay_within_the_bound() {
        assert_eq!(round(&[1.0], 0.05, 0.3, 1.4), Some((1, 1)));
        assert_eq!(round(&[1.0], 0.05, 0.3, 1.3), None);
    }

    #[test]
    fn own_drafts_that_are_as_good_need_no_round() {
        let costs = RoundCosts {
            step: |rows: i64| 1.0 + 0.05 * rows as f64,
            pass: |_| 0.1,
            bound: 9.0,
        };
        let mut own = [draftable(0.8, 3.0)];
        assert_eq!(round_that_pays(&mut own, 4.0, &costs), None);
        let mut none = [draftable(0.8, 0.0)];
        let round = round_that_pays(&mut none, 1.0, &costs).expect("it pays");
        assert!(round.saved_seconds > 1.0, "{round:?}");
    }
}
