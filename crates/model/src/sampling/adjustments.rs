//! The changes that a [`SampleInputs`](super::SampleInputs) makes to its row, as vectors, for
//! devices.

/// The changes that a [`SampleInputs`](super::SampleInputs) makes to its row of logits before it
/// samples, for backends that compose them of operations on whole rows:
///
/// ```text
/// biased = logits + bias
/// logits = where(biased > 0, biased / repetition, biased * repetition) + shift
/// ```
///
/// In single precision that gives exactly the numbers that
/// [`SampleInputs::from_logits`](super::SampleInputs::from_logits) samples from.
/// [`sample_row`](super::sample_row) of them is therefore the same token, for rows that have a
/// finite logit left. All three vectors are as long as the row.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjustments {
    /// 0, or the token's bias.
    pub bias: Vec<f32>,
    /// 1, or the repetition penalty for tokens in the history.
    pub repetition: Vec<f32>,
    /// 0, or minus the presence and frequency penalties; minus infinity for tokens that cannot be
    /// sampled.
    pub shift: Vec<f32>,
}

impl Adjustments {
    /// Applies the vectors on the host.
    ///
    /// # Panics
    ///
    /// When the row is not as long as the vectors.
    pub fn apply(&self, logits: &mut [f32]) {
        assert_eq!(logits.len(), self.bias.len(), "tokens in the row");
        let more = self.bias.iter().zip(&self.repetition).zip(&self.shift);
        for (logit, ((bias, repetition), shift)) in logits.iter_mut().zip(more) {
            *logit = penalized(*logit + bias, *repetition) + shift;
        }
    }
}

/// CTRL's penalty: lowers a logit, whatever its sign.
pub(super) fn penalized(logit: f32, repetition: f32) -> f32 {
    if logit > 0.0 {
        logit / repetition
    } else {
        logit * repetition
    }
}
