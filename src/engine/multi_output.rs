//! Several outputs of one request.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::admission::Admitted;
use super::{BoxedFuture, Engine};
use crate::actors::scheduler::SubmitMany;
use crate::error::field_error;
use crate::error::{BestOfError, SubmitError};
use crate::request::{Completion, Request};
use crate::stream::TokenStream;
use motet_core::protocol::GenerateError;

impl Engine {
    /// Submits a request for several outputs: [`Request::n`], or [`Request::best_of`] of them.
    /// The prompt is computed once; its state is shared, not copied. The outputs use the
    /// request's seed and the seeds that follow it. The first output therefore equals that of
    /// [`submit`](Engine::submit); greedy outputs are all equal.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Engine::submit); either all outputs are accepted or none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready cancels the request.
    pub async fn submit_many(&self, request: Request) -> Result<Vec<TokenStream>, SubmitError> {
        let submitted = self.submit_outputs_boxed(request).await;
        submitted.inspect_err(|error| self.inner.telemetry.rejected(error))
    }

    /// Computes [`Request::best_of`] outputs and returns the [`Request::n`] whose tokens have
    /// the highest mean log probability, the best first.
    ///
    /// # Errors
    ///
    /// [`BestOfError`] when the request is rejected, or any of its sequences fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels all sequences.
    pub async fn best_of(&self, request: Request) -> Result<Vec<Completion>, BestOfError> {
        let (n, requested_logprobs) = (request.n, request.logprobs);
        let request = Request {
            logprobs: Some(requested_logprobs.unwrap_or(0)),
            ..request
        };
        let streams = self.submit_many(request).await?;
        let completions = collect_all(streams).await?;
        let mut best = best(completions, n);
        if requested_logprobs.is_none() {
            for completion in &mut best {
                completion.logprobs.clear();
            }
        }
        Ok(best)
    }

    fn submit_outputs_boxed(
        &self,
        request: Request,
    ) -> BoxedFuture<'_, Result<Vec<TokenStream>, SubmitError>> {
        Box::pin(self.submit_outputs(request))
    }

    async fn submit_outputs(&self, mut request: Request) -> Result<Vec<TokenStream>, SubmitError> {
        self.check_not_broken()?;
        // The number of outputs must be valid before admission.
        self.check_request(&request)?;
        let outputs = request.outputs();
        let scheduler = &self.inner.config.scheduler;
        let user_max = scheduler.admission.user_requests_max.unwrap_or(usize::MAX);
        let inside_max = scheduler.inside_max().min(user_max);
        if outputs > inside_max {
            let field = if request.best_of.is_some() {
                "best_of"
            } else {
                "n"
            };
            let expected = format!(
                "at most {inside_max}: `scheduler.sequences_max` and \
                 `scheduler.admission.queue_max`, or `scheduler.admission.user_requests_max`"
            );
            return Err(field_error(field, outputs.to_string(), expected));
        }
        let mut admission_guards = match self.admission_guards(&request) {
            Ok(admission_guards) => admission_guards.into_iter(),
            Err(error) => return Err(self.admission_error(error, request)),
        };
        let admitted = self.admit(&mut request).await?;
        let mut first = admission_guards
            .next()
            .expect("at least one output is wanted");
        // The other outputs have no prompt of their own to wait for.
        if let Err(error) = first.claim(admitted.tokens.len()) {
            return Err(self.admission_error(error, request));
        }
        let output_tokens_max = admitted.output_tokens_max;
        let (prompt_tokens, truncated_tokens) =
            (admitted.prompt_tokens(), admitted.truncated_tokens);
        let sampling_spec = self.sampling_spec(&mut request).await?;
        let first = self.sequence_setup(&request, admitted, sampling_spec.clone(), first)?;
        let (first, stream) = first.into_parts();
        let mut streams = vec![stream];
        let mut forks = Vec::with_capacity(outputs - 1);
        for admission_guard in admission_guards {
            request.sampling.seed = request.sampling.seed.wrapping_add(1);
            let empty_prompt = Admitted {
                tokens: Arc::default(),
                output_tokens_max,
                restore_points: Vec::new(),
                turn_end: None,
                truncated_tokens,
                prompt_output: None,
            };
            let mut sequence_setup = self.sequence_setup(
                &request,
                empty_prompt,
                sampling_spec.clone(),
                admission_guard,
            )?;
            sequence_setup.stream.prompt_tokens = prompt_tokens;
            let (fork, stream) = sequence_setup.into_parts();
            forks.push(fork);
            streams.push(stream);
        }
        match self
            .inner
            .scheduler
            .tell(SubmitMany { first, forks })
            .send()
            .await
        {
            Ok(()) => Ok(streams),
            Err(_) => Err(SubmitError::Draining),
        }
    }
}

/// Reads all streams at once, so that none pauses while another is read. The remaining streams
/// are dropped with the future, and when one fails.
async fn collect_all(streams: Vec<TokenStream>) -> Result<Vec<Completion>, GenerateError> {
    let mut readers = JoinSet::new();
    for (index, stream) in streams.into_iter().enumerate() {
        readers.spawn(async move { (index, stream.collect().await) });
    }
    let mut completions = BTreeMap::new();
    while let Some(read) = readers.join_next().await {
        let (index, completion) = read.map_err(|_| GenerateError::Lost)?;
        completions.insert(index, completion?);
    }
    Ok(completions.into_values().collect())
}

/// Returns the `n` best, the best first; equal ones in their order. An output without log
/// probabilities ranks last.
fn best(mut completions: Vec<Completion>, n: usize) -> Vec<Completion> {
    let score = |completion: &Completion| completion.mean_logprob().unwrap_or(f64::NEG_INFINITY);
    completions.sort_by(|a, b| score(b).total_cmp(&score(a)));
    completions.truncate(n);
    completions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::TokenLogprobs;
    use motet_core::protocol::{Finish, FinishReason, Usage};

    fn completion(name: &str, logprobs: &[f32]) -> Completion {
        let logprobs = logprobs.iter().map(|logprob| TokenLogprobs {
            logprob: *logprob,
            top: Vec::new(),
        });
        Completion {
            tokens: Vec::new(),
            text: name.into(),
            logprobs: logprobs.collect(),
            prompt_logprobs: Vec::new(),
            embedding: None,
            finish: Finish::new(FinishReason::Length, Usage::default()),
        }
    }

    #[test]
    fn best_outputs_have_the_highest_mean_logprob() {
        let all = vec![
            completion("short", &[-1.0]),
            completion("none", &[]),
            completion("long", &[-0.5, -0.5, -0.5, -0.5]),
            completion("equal", &[-1.0, -1.0]),
        ];
        let names = |n| {
            let best = best(all.clone(), n).into_iter();
            best.map(|completion| completion.text).collect::<Vec<_>>()
        };
        assert_eq!(names(2), ["long", "short"]);
        assert_eq!(names(4), ["long", "short", "equal", "none"]);
    }
}
