//! The arrays of one layer's attention.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use motet_kernels::attend::{AttendPlan, Heads, QkNorm};

/// The inputs of attention in one layer: [`LayerInputs`](motet_kernels::LayerInputs) as
/// arrays.
#[derive(Clone, Copy, Debug)]
pub struct LayerArrays<'a> {
    /// `[rows, row width]`, each row queries | keys | values | trailing columns, as a fused
    /// projection leaves them.
    pub packed: &'a Array,
    /// Weights of the queries' normalisation: `[head dim]` or `[query heads * head dim]`.
    pub query_norm: Option<&'a Array>,
    /// Weights of the keys' normalisation: `[head dim]` or `[kv heads * head dim]`.
    pub key_norm: Option<&'a Array>,
    /// The logit of each query head's sink: `[query heads]`.
    pub sinks: Option<&'a Array>,
}

impl<'a> LayerArrays<'a> {
    /// The arrays that the plan's extras ask for: norms of queries and keys, then sinks.
    pub(super) fn weights(&self, plan: &AttendPlan) -> Result<Vec<&'a Array>, Exception> {
        let Heads { query, kv, dim } = plan.attention().heads;
        let extras = &plan.attention().extras;
        let [of_queries, of_keys] = match extras.qk_norm {
            QkNorm::None => [None; 2],
            QkNorm::PerHead { .. } => [Some(dim); 2],
            QkNorm::WholeRow { .. } => [query * dim, kv * dim].map(Some),
        };
        let all = [
            ("the norm of queries", self.query_norm, of_queries),
            ("the norm of keys", self.key_norm, of_keys),
            ("sinks", self.sinks, extras.sinks.then_some(query)),
        ];
        for (what, found, expected) in all {
            let found = found.map(Array::shape);
            let expected = expected.map(|length| [length as i32]);
            if found != expected.as_ref().map(|shape| &shape[..]) {
                let why = format!("attend: {what} is {found:?}, expected {expected:?}");
                return Err(Exception::custom(why));
            }
        }
        Ok(all.into_iter().filter_map(|(_, array, _)| array).collect())
    }
}
