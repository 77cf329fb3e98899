//! How many draft rows join a step.
//!
//! A draft row costs the step some time, and gives a token if its draft token and all draft tokens
//! before it are right. The rule takes the rows that survive with the highest probability, as many
//! as make the step's tokens a second the most. Where a step's duration is a straight line of its
//! rows, that is the marginal rule: a row pays if its probability exceeds its share of the step's
//! duration times the tokens of the step (as vLLM's adaptive verification admits draft slots). It
//! needs no length of drafts by batch size: alone nearly every likely row pays, and in a step that is
//! bound by arithmetic none does.

/// A draft row that a step may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftRow {
    /// Index of the share that it belongs to.
    pub share: usize,
    /// Probability that its draft token and all before it are right.
    pub survival: f32,
    /// Tokens that it attends to.
    pub attended: usize,
}

/// Leaves the `rows_max` rows that are the best to take, the best first. A row survives no more
/// often than the row before it in its draft, and never comes before that.
pub fn leave_best(rows: &mut Vec<DraftRow>, rows_max: usize) {
    // Each row attends to more tokens than the row before it in its draft.
    let order = |a: &DraftRow, b: &DraftRow| {
        let by_survival = b.survival.total_cmp(&a.survival);
        by_survival.then((a.share, a.attended).cmp(&(b.share, b.attended)))
    };
    if rows.len() > rows_max {
        rows.select_nth_unstable_by(rows_max, order);
        rows.truncate(rows_max);
    }
    rows.sort_unstable_by(order);
}

/// Returns how many of the sorted rows a step takes that gives `tokens` tokens without them.
/// `seconds` is how long the step takes with the first so many rows; `None` if it would take too
/// long.
#[must_use]
pub fn rows_that_pay(
    rows: &[DraftRow],
    tokens: f64,
    mut seconds: impl FnMut(usize) -> Option<f64>,
) -> usize {
    let Some(without) = seconds(0).filter(|seconds| *seconds > 0.0) else {
        return 0;
    };
    let (mut best, mut best_rate) = (0, tokens / without);
    let mut expected = tokens;
    for (index, row) in rows.iter().enumerate() {
        let Some(seconds) = seconds(index + 1) else {
            break;
        };
        expected += f64::from(row.survival);
        let rate = expected / seconds;
        if rate > best_rate {
            (best, best_rate) = (index + 1, rate);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(survivals: &[f32]) -> Vec<DraftRow> {
        let row = |(share, survival): (usize, &f32)| DraftRow {
            share,
            survival: *survival,
            attended: 0,
        };
        survivals.iter().enumerate().map(row).collect()
    }

    fn check(survivals: &[f32], tokens: f64, seconds: &[f64], expected: usize) {
        let mut rows = rows(survivals);
        leave_best(&mut rows, usize::MAX);
        let pays = rows_that_pay(&rows, tokens, |taken| seconds.get(taken).copied());
        assert_eq!(pays, expected, "{survivals:?}");
    }

    #[test]
    fn rows_pay_by_the_marginal_rule() {
        // Each row costs a tenth of the step without any.
        let line = [1.0, 1.1, 1.2, 1.3];
        check(&[0.9, 0.8, 0.7], 1.0, &line, 3);
        check(&[0.09], 1.0, &line, 0);
        check(&[0.11], 1.0, &line, 1);
        check(&[0.5], 5.1, &line, 0);
        check(&[0.5], 4.9, &line, 1);
        check(&[0.2, 0.9, 0.02], 1.0, &line, 2);
    }

    #[test]
    fn the_best_rows_are_left_in_the_order_of_their_drafts() {
        let row = |(survival, share, attended)| DraftRow {
            share,
            survival,
            attended,
        };
        let all = [
            (0.9, 0, 5),
            (0.9, 0, 6),
            (0.5, 0, 7),
            (0.9, 1, 2),
            (0.7, 1, 3),
        ];
        for rows_max in 0..=5 {
            let mut rows: Vec<DraftRow> = all.into_iter().rev().map(row).collect();
            leave_best(&mut rows, rows_max);
            let best = [all[0], all[1], all[3], all[4], all[2]];
            let best: Vec<DraftRow> = best.into_iter().map(row).collect();
            assert_eq!(rows, best[..rows_max]);
        }
    }

    #[test]
    fn rows_fill_a_stair() {
        // The fourth row begins a tile; the others up to the eighth are free.
        let stairs = [1.0, 1.5, 1.5, 1.5, 1.5, 3.0];
        check(&[0.2; 5], 1.0, &stairs, 4);
        check(&[0.1; 5], 1.0, &stairs, 0);
    }

    #[test]
    fn no_row_is_taken_past_the_bound() {
        check(&[1.0; 8], 1.0, &[1.0, 1.01, 1.02], 2);
        check(&[1.0; 8], 1.0, &[], 0);
        check(&[1.0; 8], 0.0, &[0.0; 9], 0);
    }
}
