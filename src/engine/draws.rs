//! What a request wants of its draws, and its grammar compiled.

use std::sync::{Arc, OnceLock};

use super::Engine;
use crate::error::SubmitError;
use crate::grammar::{Grammar, GrammarError, GrammarSource, GrammarVocabulary, MaskPool};
use crate::model::sampling::DrawSpec;
use crate::request::Request;
use crate::text::TextCodec;

/// Threads that compute masks. One mask takes less than a step on most models, and each
/// sequence wants one a step.
const MASK_THREADS: usize = 2;
/// Masks that may wait for them; more are computed by who wants them.
const MASKS_WAITING_MAX: usize = 1024;

/// What compiling grammars needs, made when the first request brings one.
#[derive(Debug, Default)]
pub(super) struct Grammars {
    vocabulary: OnceLock<Result<GrammarVocabulary, GrammarError>>,
    pool: OnceLock<Result<Arc<MaskPool>, String>>,
}

impl Grammars {
    /// Takes up to tens of milliseconds, and as long again for the first.
    fn compile(&self, source: &GrammarSource, text: &TextCodec) -> Result<Grammar, String> {
        let vocabulary = self
            .vocabulary
            .get_or_init(|| GrammarVocabulary::new(text.tokenizer()))
            .as_ref()
            .map_err(ToString::to_string)?;
        let pool = self
            .pool
            .get_or_init(|| {
                let pool = MaskPool::start(MASK_THREADS, MASKS_WAITING_MAX);
                pool.map_err(|error| format!("no thread for its masks: {error}"))
            })
            .as_ref()
            .map_err(Clone::clone)?;
        Grammar::compile(source, vocabulary, pool).map_err(|error| error.to_string())
    }
}

impl Engine {
    /// What the request's draws want beyond what its sampling says of each alone; none
    /// if that is nothing.
    pub(super) async fn draw_spec(
        &self,
        request: &Request,
    ) -> Result<Option<Arc<DrawSpec>>, SubmitError> {
        let spec = DrawSpec {
            bias: request.logit_bias.clone().into_iter().collect(),
            output_tokens_min: request.output_tokens_min,
            end_tokens: self.end_tokens(request).to_vec(),
            logprobs: request.logprobs,
            grammar: self.grammar(request).await?,
        };
        let wants_more = !spec.is_empty() || request.sampling.has_penalties();
        Ok(wants_more.then(|| Arc::new(spec)))
    }

    /// Compiles the request's grammar, off the threads that others wait for.
    async fn grammar(&self, request: &Request) -> Result<Option<Grammar>, SubmitError> {
        let Some(source) = request.grammar.clone() else {
            return Ok(None);
        };
        let text = self.text.clone();
        let text = text.ok_or(SubmitError::NoTokenizer { field: "grammar" })?;
        let grammars = Arc::clone(&self.grammars);
        let compiled = tokio::task::spawn_blocking(move || grammars.compile(&source, &text));
        let compiled = compiled
            .await
            .unwrap_or_else(|error| Err(error.to_string()));
        compiled
            .map(Some)
            .map_err(|why| SubmitError::Grammar { why: why.into() })
    }
}
