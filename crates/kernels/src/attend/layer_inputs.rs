//! The numbers of one layer that attention reads.

use super::extras::QkNorm;
use super::shape::{Attention, Heads};

/// The inputs of attention in one layer: its rows, and the weights that the plan's
/// [`Extras`](super::Extras) ask for.
#[derive(Clone, Copy, Debug)]
pub struct LayerInputs<'a> {
    /// `[rows, (query heads + 2 * kv heads) * head dim + trailing columns]`, each row
    /// queries | keys | values | trailing columns, before normalisation and rotation.
    pub packed: &'a [f32],
    /// Weights of the queries' normalisation: `[head dim]` or `[query heads * head dim]`.
    pub query_norm: Option<&'a [f32]>,
    /// Weights of the keys' normalisation: `[head dim]` or `[kv heads * head dim]`.
    pub key_norm: Option<&'a [f32]>,
    /// The logit of each query head's sink.
    pub sinks: Option<&'a [f32]>,
}

impl<'a> LayerInputs<'a> {
    /// The inputs of plain attention.
    #[must_use]
    pub fn plain(packed: &'a [f32]) -> LayerInputs<'a> {
        LayerInputs {
            packed,
            query_norm: None,
            key_norm: None,
            sinks: None,
        }
    }

    /// Panics unless the inputs are those that `attention` asks for, for so many rows.
    pub(super) fn check(&self, attention: &Attention, rows: usize) {
        let Heads { query, kv, dim } = attention.heads;
        assert_eq!(self.packed.len(), rows * attention.row_width());
        let norm_weights = match attention.extras.qk_norm {
            QkNorm::None => [None; 2],
            QkNorm::PerHead { .. } => [Some(dim); 2],
            QkNorm::WholeRow { .. } => [query * dim, kv * dim].map(Some),
        };
        let sinks = attention.extras.sinks.then_some(query);
        assert_eq!(
            [self.query_norm, self.key_norm, self.sinks].map(|of| of.map(<[f32]>::len)),
            [norm_weights[0], norm_weights[1], sinks],
            "weights of the queries' norm, of the keys' norm, and sinks"
        );
    }
}
