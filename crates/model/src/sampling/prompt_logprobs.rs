//! Log probabilities of tokens that are known already: those of a prompt.

use super::logprobs::logprobs_with;
use super::rows::{RowReader, ScalarOperations};
use motet_protocol::{LogprobRows, TokenLogprobs};

/// The log probability of each target under its row, and of the likeliest tokens. `logits` are
/// those of the rows from `rows.first` on, row-major `[targets or more, vocabulary]`. A model that
/// has them on the host needs nothing else for
/// [`OutputKind::PromptLogprobs`](motet_protocol::OutputKind::PromptLogprobs).
///
/// # Panics
///
/// When there are fewer rows than targets, or a target is outside the vocabulary.
#[must_use]
pub fn prompt_logprobs(
    logits: &[f32],
    vocab_size: usize,
    rows: &LogprobRows,
) -> Vec<TokenLogprobs> {
    let mut reader = RowReader::new(ScalarOperations);
    let targets = rows.targets.iter().enumerate();
    targets
        .map(|(row, target)| {
            let row = &logits[row * vocab_size..][..vocab_size];
            let logprobs = logprobs_with(&mut reader, row, *target, rows.top);
            logprobs.expect("a target is a token of the vocabulary")
        })
        .collect()
}
