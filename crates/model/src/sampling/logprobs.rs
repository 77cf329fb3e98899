//! Log probabilities of sampled tokens under the model itself.

use super::filters::largest;
use super::rows::{BLOCK, RowOperations, RowReader, ScalarOperations};
use motet_protocol::TokenId;
use motet_protocol::TokenLogprobs;

/// The log probability of `token`, and the `top` most likely tokens; fewer if the vocabulary has
/// fewer. `None` if the row has no such token.
#[must_use]
pub fn logprobs_of(logits: &[f32], token: TokenId, top: usize) -> Option<TokenLogprobs> {
    logprobs_with(&mut RowReader::new(ScalarOperations), logits, token, top)
}

/// [`logprobs_of`], with the passes of these row operations.
#[must_use]
pub fn logprobs_with<P: RowOperations>(
    reader: &mut RowReader<P>,
    logits: &[f32],
    token: TokenId,
    top: usize,
) -> Option<TokenLogprobs> {
    let logit = *logits.get(token as usize)?;
    let (maxima, highest) = reader.maxima(logits);
    let top = likeliest(logits, maxima, top).into_iter();
    reader.weigh(logits, highest, 1.0);
    let total: f64 = reader.sums().iter().map(|sum| f64::from(*sum)).sum();
    let log_total = total.ln() as f32;
    let logprob = |logit: f32| logit - highest - log_total;
    Some(TokenLogprobs {
        logprob: logprob(logit),
        top: top.map(|(token, logit)| (token, logprob(logit))).collect(),
    })
}

/// The highest logits, descending; equal ones by the lower id first. `maxima` are those of each
/// [`BLOCK`].
fn likeliest(logits: &[f32], maxima: &[f32], count: usize) -> Vec<(TokenId, f32)> {
    if count == 0 {
        return Vec::new();
    }
    let enough = if count <= maxima.len() {
        // At least `count` blocks have a logit that is no less than this.
        largest(maxima, count)
    } else {
        f32::NEG_INFINITY
    };
    let mut top = Vec::new();
    for ((block, run), largest) in logits.chunks(BLOCK).enumerate().zip(maxima) {
        if *largest >= enough {
            let ids = block * BLOCK..;
            let logits = ids.zip(run).filter(|(_, logit)| **logit >= enough);
            top.extend(logits.map(|(id, logit)| (id as TokenId, *logit)));
        }
    }
    let descending = |a: f32, b: f32| b.partial_cmp(&a).expect("NaN was left out");
    top.sort_unstable_by(|a, b| descending(a.1, b.1).then(a.0.cmp(&b.0)));
    top.truncate(count);
    // Callers keep the list, and there may be many more candidates.
    top.shrink_to_fit();
    top
}
