//! Several outputs of one request, and several requests that are admitted together.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::admitted::Admitted;
use super::results::KeptOutputs;
use super::{BoxedFuture, Engine};
use crate::actors::scheduler::{Submit, SubmitMany};
use crate::actors::sequence::AdmissionGuard;
use crate::error::field_error;
use crate::error::{BestOfError, SubmitError};
use crate::request::{Completion, MeanLogprob, Request};
use crate::results::ResultsReservation;
use crate::stream::TokenStream;
use motet_protocol::GenerateError;

/// A request with its tokens, its places in the engine and the bytes of its results.
struct AdmittedRequest {
    request: Request,
    admitted: Admitted,
    guards: Vec<AdmissionGuard>,
}

/// The messages to the scheduler of a request, and the streams of its outputs.
struct Submission {
    first: Submit,
    forks: Vec<Submit>,
    streams: Vec<TokenStream>,
}

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
        let mut submitted = self.submit_all(vec![request]).await?;
        Ok(submitted.pop().expect("one request was submitted"))
    }

    /// Submits several requests, each for one output or for [several](Engine::submit_many): all of
    /// them or none. Returns the streams of each request's outputs.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Engine::submit), before any of them has cost a step. Requests that can never
    /// be inside together, by their number or by the tokens of their prompts, are an error of the field
    /// `requests`. [`SubmitError::QueueFull`] gives back the one that did not fit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready cancels the requests.
    pub async fn submit_all(
        &self,
        requests: Vec<Request>,
    ) -> Result<Vec<Vec<TokenStream>>, SubmitError> {
        let user = requests.first().and_then(|first| first.user.as_deref());
        let mut results = self.no_results(user);
        let kept = KeptOutputs::default();
        self.submit_all_keeping(requests, kept, &mut results).await
    }

    /// Submits several requests of one user as [`submit_all`](Engine::submit_all) does, and reserves
    /// the bytes that the caller keeps of each request's outputs: they are added to `results`, of that
    /// user. That reservation, these bytes and those of the engine are one sum, admitted together once
    /// the lengths of the prompts are known.
    ///
    /// # Errors
    ///
    /// As for [`submit_all`](Engine::submit_all), and [`SubmitError::ResultsTooLarge`] where the sum can
    /// never fit. The reservation may be larger afterwards.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready cancels the requests.
    pub async fn submit_all_keeping(
        &self,
        requests: Vec<Request>,
        kept: KeptOutputs,
        results: &mut ResultsReservation,
    ) -> Result<Vec<Vec<TokenStream>>, SubmitError> {
        let submitted = self.submit_all_boxed(requests, kept, results).await;
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
        let keeps_logprobs = requested_logprobs.is_some();
        // All outputs are kept until the best are known.
        let kept = KeptOutputs {
            logprobs_tokens_max: if keeps_logprobs { usize::MAX } else { 0 },
            ..KeptOutputs::default()
        };
        let mut results = self.no_results(request.user.as_deref());
        let submitted = self.submit_all_keeping(vec![request], kept, &mut results);
        let streams = submitted.await?.into_iter().flatten().collect();
        let completions = collect_all(streams, keeps_logprobs).await?;
        Ok(best(completions, n))
    }

    fn submit_all_boxed<'a>(
        &'a self,
        requests: Vec<Request>,
        kept: KeptOutputs,
        results: &'a mut ResultsReservation,
    ) -> BoxedFuture<'a, Result<Vec<Vec<TokenStream>>, SubmitError>> {
        Box::pin(async move {
            self.check_not_broken()?;
            // The number of outputs must be valid before admission.
            for request in &requests {
                self.check_request(request)?;
            }
            self.submit_outputs(requests, kept, results).await
        })
    }

    /// Submits requests whose fields are valid.
    pub(super) async fn submit_outputs(
        &self,
        requests: Vec<Request>,
        kept: KeptOutputs,
        results: &mut ResultsReservation,
    ) -> Result<Vec<Vec<TokenStream>>, SubmitError> {
        self.check_outputs(&requests)?;
        let mut all = self.admit_all(requests).await?;
        self.claim_all(&mut all)?;
        self.admit_all_results(&all, kept, results)?;
        let mut submissions = Vec::with_capacity(all.len());
        for request in all {
            let of_engine = results.split(request.admitted.prompt_logprobs_bytes());
            submissions.push(self.set_up(request, Arc::new(of_engine)).await?);
        }
        let mut streams = Vec::with_capacity(submissions.len());
        for submission in submissions {
            streams.push(self.send(submission).await?);
        }
        Ok(streams)
    }

    /// Checks that so many outputs can ever be inside, of all users and of each.
    fn check_outputs(&self, requests: &[Request]) -> Result<(), SubmitError> {
        let scheduler = &self.inner.config.scheduler;
        let user_max = scheduler.admission.user_requests_max.unwrap_or(usize::MAX);
        let mut of_users = BTreeMap::<Option<&str>, usize>::new();
        for request in requests {
            *of_users.entry(request.user.as_deref()).or_default() += request.outputs();
        }
        let all: usize = of_users.values().sum();
        let of_one = of_users.into_values().max().unwrap_or_default();
        let inside_max = scheduler.inside_max();
        if all <= inside_max && of_one <= user_max {
            return Ok(());
        }
        let field = match requests {
            [only] if only.best_of.is_some() => "best_of",
            [_] => "n",
            _ => "requests",
        };
        let expected = format!(
            "at most {}: `scheduler.sequences_max` and `scheduler.admission.queue_max`, or \
             `scheduler.admission.user_requests_max`",
            inside_max.min(user_max)
        );
        Err(field_error(field, all.to_string(), expected))
    }

    /// Gives each request its places in the engine and its tokens.
    async fn admit_all(&self, requests: Vec<Request>) -> Result<Vec<AdmittedRequest>, SubmitError> {
        let mut entered = Vec::with_capacity(requests.len());
        for request in requests {
            match self.admission_guards(&request) {
                Ok(guards) => entered.push((request, guards)),
                Err(error) => return Err(self.admission_error(error, request)),
            }
        }
        let mut all = Vec::with_capacity(entered.len());
        for (mut request, guards) in entered {
            let admitted = self.admit(&mut request).await?;
            all.push(AdmittedRequest {
                request,
                admitted,
                guards,
            });
        }
        Ok(all)
    }

    /// Claims the tokens of the prompts.
    fn claim_all(&self, all: &mut [AdmittedRequest]) -> Result<(), SubmitError> {
        self.check_prompt_tokens(all)?;
        for request in &mut *all {
            // The other outputs have no prompt of their own to wait for.
            let first = request.guards.first_mut();
            let first = first.expect("at least one output is wanted");
            if let Err(error) = first.claim(request.admitted.waiting_tokens()) {
                let request = std::mem::take(&mut request.request);
                return Err(self.admission_error(error, request));
            }
        }
        Ok(())
    }

    /// Checks that so many tokens of prompts can ever wait, of all users and of each.
    fn check_prompt_tokens(&self, all: &[AdmittedRequest]) -> Result<(), SubmitError> {
        let admission = &self.inner.config.scheduler.admission;
        let mut of_users = BTreeMap::<Option<&str>, (usize, usize)>::new();
        for admitted in all {
            let user = admitted.request.user.as_deref();
            let (prompts, tokens) = of_users.entry(user).or_default();
            *prompts += 1;
            *tokens += admitted.admitted.waiting_tokens();
        }
        let tokens = of_users.values().map(|(_, tokens)| tokens).sum();
        let of_all = (all.len(), tokens);
        let queue_max = admission.queue_tokens_max;
        let user_max = admission.user_queue_tokens_max.unwrap_or(usize::MAX);
        let users = of_users.into_values();
        let users = users.map(|of_one| (of_one, user_max, "user_queue_tokens_max"));
        for ((prompts, tokens), tokens_max, setting) in
            users.chain([(of_all, queue_max, "queue_tokens_max")])
        {
            // A single prompt is admitted whatever its length.
            if prompts > 1 && tokens > tokens_max {
                let found = format!("{tokens} tokens long");
                let expected = format!(
                    "at most {tokens_max}, `scheduler.admission.{setting}`: fewer at a time"
                );
                return Err(field_error("requests", found, expected));
            }
        }
        Ok(())
    }

    /// Reserves the bytes of all results: those that the engine keeps, and those that the caller does.
    fn admit_all_results(
        &self,
        all: &[AdmittedRequest],
        kept: KeptOutputs,
        results: &mut ResultsReservation,
    ) -> Result<(), SubmitError> {
        let Some(first) = all.first() else {
            return Ok(());
        };
        let bytes = all.iter().map(|one| {
            let of_caller = self.kept_bytes(&one.request, &one.admitted, kept);
            of_caller.saturating_add(one.admitted.prompt_logprobs_bytes())
        });
        let bytes = bytes.fold(0, usize::saturating_add);
        self.admit_results(results, bytes, &first.request)
    }

    /// Creates the actors and the streams of a request.
    async fn set_up(
        &self,
        one: AdmittedRequest,
        results: Arc<ResultsReservation>,
    ) -> Result<Submission, SubmitError> {
        let AdmittedRequest {
            mut request,
            admitted,
            guards,
        } = one;
        let mut guards = guards.into_iter();
        let first = guards.next().expect("at least one output is wanted");
        let output_tokens_max = admitted.output_tokens_max;
        let prediction = Arc::clone(&admitted.prediction);
        let (prompt_tokens, truncated_tokens) =
            (admitted.prompt_tokens(), admitted.truncated_tokens);
        let sampling_spec = self.sampling_spec(&mut request).await?;
        let (first, stream) = self
            .sequence_setup(
                &request,
                admitted,
                sampling_spec.clone(),
                first,
                Arc::clone(&results),
            )?
            .into_parts();
        let mut submission = Submission {
            first,
            forks: Vec::with_capacity(guards.len()),
            streams: vec![stream],
        };
        for guard in guards {
            request.sampling.seed = request.sampling.seed.wrapping_add(1);
            let empty_prompt = Admitted {
                tokens: Arc::default(),
                prediction: Arc::clone(&prediction),
                output_so_far: Arc::default(),
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
                guard,
                Arc::clone(&results),
            )?;
            sequence_setup.stream.prompt_tokens = prompt_tokens;
            let (fork, stream) = sequence_setup.into_parts();
            submission.forks.push(fork);
            submission.streams.push(stream);
        }
        Ok(submission)
    }

    async fn send(&self, submission: Submission) -> Result<Vec<TokenStream>, SubmitError> {
        let Submission {
            first,
            forks,
            streams,
        } = submission;
        let scheduler = &self.inner.scheduler;
        let is_sent = if forks.is_empty() {
            scheduler.tell(first).send().await.is_ok()
        } else {
            scheduler
                .tell(SubmitMany { first, forks })
                .send()
                .await
                .is_ok()
        };
        if is_sent {
            Ok(streams)
        } else {
            Err(SubmitError::Draining)
        }
    }
}

/// Reads all streams at once, so that none pauses while another is read. The remaining streams
/// are dropped with the future, and when one fails.
async fn collect_all(
    streams: Vec<TokenStream>,
    keeps_logprobs: bool,
) -> Result<Vec<(Completion, MeanLogprob)>, GenerateError> {
    let mut readers = JoinSet::new();
    for (index, stream) in streams.into_iter().enumerate() {
        readers.spawn(async move { (index, stream.read_whole(keeps_logprobs).await) });
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
fn best(mut completions: Vec<(Completion, MeanLogprob)>, n: usize) -> Vec<Completion> {
    let score = |mean: &MeanLogprob| mean.get().unwrap_or(f64::NEG_INFINITY);
    completions.sort_by(|(_, a), (_, b)| score(b).total_cmp(&score(a)));
    completions.truncate(n);
    let best = completions.into_iter();
    best.map(|(completion, _)| completion).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_protocol::{Finish, FinishReason, Usage};

    fn completion(name: &str, logprobs: &[f32]) -> (Completion, MeanLogprob) {
        let mut mean = MeanLogprob::default();
        for logprob in logprobs {
            mean.add(*logprob);
        }
        let completion = Completion {
            tokens: Vec::new(),
            text: name.into(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            embedding: None,
            finish: Finish::new(FinishReason::Length, Usage::default()),
        };
        (completion, mean)
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
