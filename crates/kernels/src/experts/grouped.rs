//! Rows in the order of their experts.

use std::ops::Range;

use super::choose::Choice;

/// The pairs of a row and an expert, sorted by the expert.
#[derive(Debug)]
pub(super) struct Grouped {
    /// The row of each pair; those of an expert are neighbours, in the order of the rows.
    pub(super) rows: Vec<usize>,
    /// Where the pair of a row's `n`-th expert lies: `[rows, per_row]`.
    pub(super) places: Vec<usize>,
    /// The experts that have rows, each with its pairs.
    pub(super) used: Vec<Used>,
}

/// An expert that has rows.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) expert: usize,
    pub(super) pairs: Range<usize>,
}

impl Grouped {
    /// # Panics
    ///
    /// When a row has chosen an expert that there is not.
    pub(super) fn new(choice: &Choice, experts: usize) -> Grouped {
        let mut ends = vec![0; experts];
        for expert in &choice.experts {
            ends[*expert as usize] += 1;
        }
        let mut used = Vec::new();
        let mut end = 0;
        for (expert, count) in ends.iter_mut().enumerate() {
            let pairs = end..end + *count;
            end = pairs.end;
            // From now on, where the expert's next pair goes.
            *count = pairs.start;
            if !pairs.is_empty() {
                used.push(Used { expert, pairs });
            }
        }
        let mut rows = vec![0; choice.experts.len()];
        let place = |(pair, expert): (usize, &u32)| {
            let place = ends[*expert as usize];
            ends[*expert as usize] += 1;
            rows[place] = pair / choice.per_row;
            place
        };
        let places = choice.experts.iter().enumerate().map(place).collect();
        Grouped { rows, places, used }
    }

    /// Cuts the columns of all used experts into parts, one for each call of a thread. There are
    /// about `count` parts, and at least one for each expert. A part has at least `least` columns,
    /// or else at most what `most` allows for its rows, in multiples of 16.
    pub(super) fn parts(
        &self,
        columns: usize,
        count: usize,
        least: usize,
        most: impl Fn(usize) -> usize,
    ) -> Vec<(Used, Range<usize>)> {
        let even = (self.used.len() * columns).div_ceil(count);
        let mut parts = Vec::new();
        for used in &self.used {
            let chunk = even.min(most(used.pairs.len())).max(least.max(1));
            let chunk = chunk.next_multiple_of(16);
            for first in (0..columns).step_by(chunk) {
                parts.push((used.clone(), first..columns.min(first + chunk)));
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_sorted_by_expert() {
        let choice = Choice {
            per_row: 2,
            experts: vec![3, 1, 1, 0, 3, 1],
            shares: vec![0.5; 6],
        };
        let grouped = Grouped::new(&choice, 5);
        assert_eq!(grouped.rows, [1, 0, 1, 2, 0, 2]);
        assert_eq!(grouped.places, [4, 1, 2, 0, 5, 3]);
        let used: Vec<_> = grouped
            .used
            .iter()
            .map(|used| (used.expert, used.pairs.clone()))
            .collect();
        assert_eq!(used, [(0, 0..1), (1, 1..4), (3, 4..6)]);
        let parts = grouped.parts(100, 6, 16, |_| usize::MAX);
        let columns: Vec<_> = parts.iter().map(|(_, columns)| columns.clone()).collect();
        assert_eq!(columns, [0..64, 64..100, 0..64, 64..100, 0..64, 64..100]);
        // The expert with three rows gets smaller parts.
        let parts = grouped.parts(100, 1, 16, |rows| 120 / rows);
        let of_expert = |expert| parts.iter().filter(|part| part.0.expert == expert).count();
        assert_eq!([0, 1, 3].map(of_expert), [1, 3, 2]);
        // Neither bound allows a column.
        let parts = grouped.parts(32, 1, 0, |_| 0);
        assert_eq!(parts.len(), 3 * 2);
    }
}
