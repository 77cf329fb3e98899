//! Results of a prompt that are not generated: scores of its tokens, and embeddings.

use super::admitted::Admitted;
use super::{BoxedFuture, Engine};
use crate::error::{EvaluateError, SubmitError, field_error};
use crate::request::{DeclaredPooling, EmbeddingVector, Pooling, Request, Score};
use motet_protocol::{ContextLimit, PromptOutput, Sampling};

impl Engine {
    /// Returns the log probabilities of a prompt's tokens, from
    /// [`prompt_logprobs_from`](Request::prompt_logprobs_from) on: usually of a
    /// [continuation](Request::score).
    ///
    /// They are computed in chunks, in the same steps as the tokens of other sequences. The tokens
    /// before come from the cache where they were computed before: many continuations of one
    /// prompt compute it once. They are those of the model's own distribution, before any
    /// sampling setting.
    ///
    /// ```
    /// # use motet::Engine;
    /// # use motet::Request;
    /// # use motet::error::EvaluateError;
    /// # async fn likelier(engine: &Engine) -> Result<bool, EvaluateError> {
    /// let (prompt, yes, no) = ([17, 4, 32], [9, 12], [8]);
    /// let yes = engine.score(Request::score(&prompt, &yes)).await?;
    /// let no = engine.score(Request::score(&prompt, &no)).await?;
    /// # let likelier =
    /// yes.sum() > no.sum()
    /// # ; Ok(likelier)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`EvaluateError`] when the request is rejected, as by [`submit`](Engine::submit), when it
    /// asks for no log probabilities of its prompt, or when its sequence fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the sequence.
    pub async fn score(&self, request: Request) -> Result<Score, EvaluateError> {
        self.score_boxed(request).await
    }

    /// Returns a prompt's embedding: its hidden states after the last norm, pooled as
    /// [`Request::embedding`](field@Request::embedding) says, or as the model's files do.
    ///
    /// The prompt is computed in chunks, in the same steps as the tokens of other sequences.
    ///
    /// # Errors
    ///
    /// [`EvaluateError`] when the request is rejected, as by [`submit`](Engine::submit), or when
    /// its sequence fails. A model without hidden states embeds nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the sequence.
    #[doc(alias = "encode")]
    pub async fn embed(&self, request: Request) -> Result<EmbeddingVector, EvaluateError> {
        self.embed_boxed(request).await
    }

    fn score_boxed(&self, request: Request) -> BoxedFuture<'_, Result<Score, EvaluateError>> {
        Box::pin(async move {
            if request.prompt_logprobs.is_none() {
                let expected = "a number of alternatives: `Request::score` sets 0";
                return Err(field_error("prompt_logprobs", "not set", expected).into());
            }
            let stream = self.submit(request).await?;
            Ok(Score::new(stream.collect().await?))
        })
    }

    fn embed_boxed(
        &self,
        request: Request,
    ) -> BoxedFuture<'_, Result<EmbeddingVector, EvaluateError>> {
        Box::pin(async move {
            let embedding = request.embedding.unwrap_or_default();
            let stream = self.submit(request.embedding(embedding)).await?;
            let completion = stream.collect().await?;
            let numbers = completion.embedding.unwrap_or_default();
            Ok(EmbeddingVector::new(numbers, completion.finish.usage))
        })
    }

    /// Checks the settings of an embedding, if the request asks for one, and returns its pooling.
    pub(super) fn checked_pooling(
        &self,
        request: &Request,
    ) -> Result<Option<Pooling>, SubmitError> {
        let Some(embedding) = &request.embedding else {
            return Ok(None);
        };
        let hidden_size = self.inner.spec.hidden_size;
        if hidden_size == 0 {
            let expected = "none: this model returns no hidden states";
            return Err(field_error("embedding", "set", expected));
        }
        if let Some(dimensions) = embedding.dimensions
            && !(1..=hidden_size).contains(&dimensions)
        {
            return Err(field_error(
                "embedding.dimensions",
                dimensions.to_string(),
                format!("a number from 1 to {hidden_size}"),
            ));
        }
        match embedding.pooling {
            Some(pooling) => Ok(Some(pooling)),
            None => self.declared_pooling().map(Some),
        }
    }

    fn declared_pooling(&self) -> Result<Pooling, SubmitError> {
        match &self.inner.pooling {
            DeclaredPooling::Declared(pooling) => Ok(*pooling),
            DeclaredPooling::Undeclared => Ok(Pooling::Last),
            DeclaredPooling::Unsupported(what) => Err(field_error(
                "embedding.pooling",
                "not set",
                format!(
                    "`Mean` or `Last`: the model's files declare {what}, which is not supported"
                ),
            )),
        }
    }
}

/// Takes the results that a request wants of its prompt into account. A token that is the last to
/// be scored need not be evaluated, if nothing is generated after it.
pub(super) fn with_prompt_output(
    request: &Request,
    pooling: Option<Pooling>,
    mut admitted: Admitted,
) -> Result<Admitted, SubmitError> {
    if let Some(pooling) = pooling {
        admitted.prompt_output = Some(PromptOutput::Hidden(pooling));
        return Ok(admitted);
    }
    let Some(top) = request.prompt_logprobs else {
        return Ok(admitted);
    };
    let tokens = admitted.tokens.len();
    let from = request.prompt_logprobs_from;
    if from > 1 && from >= tokens {
        return Err(field_error(
            "prompt_logprobs_from",
            format!("{from}, in a prompt of {tokens} tokens"),
            "the offset of a token of the prompt",
        ));
    }
    let first = from.max(1);
    let after = if request.output_tokens_max == 0 && first < tokens {
        let (last, evaluated) = admitted.tokens.split_last().expect("a prompt has tokens");
        let (last, evaluated) = (*last, evaluated.into());
        admitted.tokens = evaluated;
        admitted.restore_points.retain(|at| *at < tokens);
        admitted.turn_end = admitted.turn_end.filter(|at| *at < tokens);
        Some(last)
    } else {
        None
    };
    admitted.prompt_output = Some(PromptOutput::Logprobs { first, after, top });
    Ok(admitted)
}

/// The settings that contradict a request for results of its prompt: each with whether it is
/// set, and the accepted values.
pub(super) fn contradictions(request: &Request) -> Vec<(&'static str, bool, &'static str)> {
    let (generates, embeds) = (request.output_tokens_max > 0, request.embedding.is_some());
    let scores = request.prompt_logprobs.is_some();
    let mut all = vec![(
        "prompt_logprobs_from",
        request.prompt_logprobs_from > 0 && !scores,
        "0 without `prompt_logprobs`",
    )];
    if !scores && !embeds {
        return all;
    }
    let shifts = matches!(request.at_context_limit, ContextLimit::Shift { .. });
    let whole = "`Stop`: no token of the prompt is dropped";
    let one = "1: a prompt has one result";
    all.extend([
        ("prompt_logprobs", scores && embeds, "none with `embedding`"),
        (
            "output_tokens_max",
            embeds && generates,
            "0 with `embedding`",
        ),
        ("at_context_limit", shifts, whole),
        ("n", request.n > 1, one),
        (
            "best_of",
            request.best_of.is_some_and(|outputs| outputs > 1),
            one,
        ),
    ]);
    if !generates {
        all.extend(unused_sampling(request));
    }
    all
}

/// The sampling settings of a request that samples nothing.
fn unused_sampling(request: &Request) -> Vec<(&'static str, bool, &'static str)> {
    const NONE: &str = "none where `output_tokens_max` is 0: no token is sampled";
    let (set, default) = (&request.sampling, &Sampling::GREEDY);
    vec![
        (
            "sampling.temperature",
            set.temperature != default.temperature,
            NONE,
        ),
        ("sampling.top_k", set.top_k != default.top_k, NONE),
        ("sampling.top_p", set.top_p != default.top_p, NONE),
        ("sampling.min_p", set.min_p != default.min_p, NONE),
        (
            "sampling.repetition_penalty",
            set.repetition_penalty != default.repetition_penalty,
            NONE,
        ),
        (
            "sampling.presence_penalty",
            set.presence_penalty != default.presence_penalty,
            NONE,
        ),
        (
            "sampling.frequency_penalty",
            set.frequency_penalty != default.frequency_penalty,
            NONE,
        ),
        ("logit_bias", !request.logit_bias.is_empty(), NONE),
        ("logprobs", request.logprobs.is_some(), NONE),
        ("stop_strings", !request.stop_strings.is_empty(), NONE),
        ("stop_tokens", !request.stop_tokens.is_empty(), NONE),
        ("grammar", request.grammar.is_some(), NONE),
        ("reasoning", request.reasoning.is_some(), NONE),
        ("prediction", request.prediction.is_some(), NONE),
    ]
}
