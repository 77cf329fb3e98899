//! Logits that tests compare, by hundreds of rows of a vocabulary: optimised with this crate, as
//! tests are not.

use motet_protocol::TokenId;

/// How rows of logits differ from expected ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// The largest difference; NaN if any is.
    pub largest: f32,
    /// The sum of all differences.
    pub sum: f64,
    /// Logits that were compared.
    pub count: usize,
}

/// The best token.
///
/// # Panics
///
/// If there are no logits.
#[must_use]
pub fn argmax(logits: &[f32]) -> TokenId {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    best.expect("the vocabulary is not empty") as TokenId
}

/// The lead of the best logit over the next.
#[must_use]
pub fn margin(logits: &[f32]) -> f32 {
    let (mut best, mut next) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for logit in logits {
        if *logit > best {
            (best, next) = (*logit, best);
        } else {
            next = next.max(*logit);
        }
    }
    best - next
}

/// The negative log-likelihood of `token`, in nats.
#[must_use]
pub fn negative_log(logits: &[f32], token: TokenId) -> f64 {
    let at = |x: f32| f64::from(x) - f64::from(logits[token as usize]);
    logits.iter().map(|x| at(*x).exp()).sum::<f64>().ln()
}

/// The differences of two rows.
///
/// # Panics
///
/// If the rows have different lengths.
#[must_use]
pub fn difference(found: &[f32], expected: &[f32]) -> Difference {
    assert_eq!(found.len(), expected.len(), "logits of a row");
    let mut all = Difference::default();
    for (found, expected) in found.iter().zip(expected) {
        all.add(
            (found - expected).abs(),
            f64::from((found - expected).abs()),
            1,
        );
    }
    all
}

/// The differences of two lists of rows.
///
/// # Panics
///
/// If the lists or their rows have different lengths.
#[must_use]
pub fn difference_of_rows(found: &[Vec<f32>], expected: &[Vec<f32>]) -> Difference {
    assert_eq!(found.len(), expected.len(), "rows");
    let mut all = Difference::default();
    for (found, expected) in found.iter().zip(expected) {
        all += difference(found, expected);
    }
    all
}

impl Difference {
    /// The mean difference.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    fn add(&mut self, largest: f32, sum: f64, count: usize) {
        // A NaN stays: nothing is greater.
        if largest > self.largest || largest.is_nan() {
            self.largest = largest;
        }
        self.sum += sum;
        self.count += count;
    }
}

impl std::ops::AddAssign for Difference {
    fn add_assign(&mut self, other: Self) {
        self.add(other.largest, other.sum, other.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_token_and_its_lead() {
        let logits = [-1.0, 3.0, 2.5, -7.0];
        assert_eq!((argmax(&logits), margin(&logits)), (1, 0.5));
        assert_eq!(margin(&[2.0, 2.0]), 0.0);
    }

    #[test]
    fn the_likelihood_is_that_of_a_softmax() {
        assert!((negative_log(&[0.0; 8], 3) - 8_f64.ln()).abs() < 1e-12);
        assert!(negative_log(&[0.0, 100.0], 1) < 1e-12);
    }

    #[test]
    fn the_largest_difference_counts_and_nan_is_the_largest() {
        let expected = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        let mut found = expected.clone();
        found[1][0] = 3.5;
        let all = difference_of_rows(&found, &expected);
        assert_eq!((all.largest, all.sum, all.count), (0.5, 0.5, 4));
        assert_eq!(all.mean(), 0.125);
        found[0][1] = f32::NAN;
        assert!(difference_of_rows(&found, &expected).largest.is_nan());
    }
}
