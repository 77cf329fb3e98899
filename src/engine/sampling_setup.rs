//! Sampling setup of a request.

use std::sync::Arc;

use super::Engine;
use crate::error::SubmitError;
use crate::request::Request;
use motet_protocol::SamplingSpec;

impl Engine {
    /// Returns the settings that the request's `Sampling` alone does not cover (bias, minimum
    /// length, log probabilities, grammar) or that need a history (penalties); `None` if there
    /// are none.
    pub(super) async fn sampling_spec(
        &self,
        request: &mut Request,
    ) -> Result<Option<Arc<SamplingSpec>>, SubmitError> {
        let spec = SamplingSpec {
            bias: request.logit_bias.clone().into_iter().collect(),
            output_tokens_min: request.output_tokens_min,
            end_tokens: self.end_tokens(request).to_vec(),
            logprobs: request.logprobs,
            grammar: self.grammar(request).await?,
            known_tokens: self.inner.known_tokens.clone(),
        };
        let is_needed = !spec.is_empty() || request.sampling.has_penalties();
        Ok(is_needed.then(|| Arc::new(spec)))
    }
}
