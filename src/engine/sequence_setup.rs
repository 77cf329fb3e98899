//! Setup of an admitted request: its admission guard, its sequence actor and its stream.

use std::sync::Arc;
use std::time::Duration;

use kameo::actor::{ActorRef, Spawn};
use kameo::mailbox;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Engine;
use super::admitted::Admitted;
use super::cache_control::salt;
use crate::actors::scheduler::Submit;
use crate::actors::sequence::{
    AdmissionGuard, PREFILL_PIECES_MAX, PromptResults, SequenceActor, SequenceArgs, SoFar,
};
use crate::error::field_error;
use crate::error::{QueueLimit, SubmitError, retry_after};
use crate::handle::SequenceHandle;
use crate::optional::TextOutput;
use crate::request::{CacheUse, Milestones, Request};
use crate::results::ResultsReservation;
use crate::stream::TokenStream;
use motet_core::cache::{PrefixKey, Salt};
use motet_core::scheduler::Submission;
use motet_protocol::{
    FORCED_TOKENS_MAX, ReasoningBudget, ReasoningTracker, SamplingSpec, WORK_IN_FLIGHT_MAX,
};
use motet_protocol::{SequenceId, TokenId, UserId};
use motet_sync::admission::AdmissionError;
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;
use motet_sync::primitives::Ordering;

/// Events to a sequence that carry no token, and kameo's own signals.
const OTHER_EVENTS_MAX: usize = 16;
/// Tokens that one outcome may bring for a sequence: forced ones or those of a draft, and the end of
/// its reasoning.
const OUTCOME_TOKENS_MAX: usize = FORCED_TOKENS_MAX + ReasoningBudget::MARK_TOKENS_MAX;
/// A sequence that is about to be submitted, with its actor and its stream.
pub(super) struct SequenceSetup {
    pub(super) submission: Submission,
    actor: ActorRef<SequenceActor>,
    pub(super) stream: TokenStream,
}

impl SequenceSetup {
    /// Returns the message for the scheduler and the stream for the caller.
    pub(super) fn into_parts(self) -> (Submit, TokenStream) {
        let submit = Submit {
            submission: self.submission,
            actor: self.actor,
            cancel: self.stream.handle.cancel_flag(),
            credits: self.stream.credits.clone(),
        };
        (submit, self.stream)
    }
}

/// Reads the part of an output that its caller has, and that goes on.
fn read_so_far(
    text: Option<&mut TextOutput>,
    request: &Request,
    end_tokens: &[TokenId],
) -> Result<SoFar, SubmitError> {
    let ended = |found| {
        field_error(
            "output_so_far",
            found,
            "an output without one, which goes on",
        )
    };
    let mut tokens = request.output_so_far.iter();
    if tokens.any(|token| end_tokens.contains(token)) {
        return Err(ended("one with an end token or a stop token"));
    }
    let mut so_far = SoFar {
        tokens: request.output_so_far.len(),
        held_bytes: 0,
    };
    let Some(text) = text else {
        return Ok(so_far);
    };
    for token in &request.output_so_far {
        let read = text.push(*token)?;
        if read.stopped {
            return Err(ended("one with a stop string"));
        }
        so_far.held_bytes = so_far.held_bytes + read.completed_bytes - read.text.len();
    }
    Ok(so_far)
}

/// The tracker after the part of the output that its caller has.
fn followed(mut tracker: ReasoningTracker, request: &Request) -> ReasoningTracker {
    for token in &request.output_so_far {
        tracker.push(*token);
    }
    tracker
}

impl Engine {
    /// Admits a request, or fails at a limit.
    pub(super) fn admission_guard(
        &self,
        request: &Request,
    ) -> Result<AdmissionGuard, AdmissionError> {
        let permit = self
            .inner
            .admission
            .enter(user_id(request.user.as_deref()))?;
        Ok(AdmissionGuard::new(
            permit,
            Arc::clone(&self.inner.guard_released),
        ))
    }

    /// Admits all outputs of a request, or none.
    pub(super) fn admission_guards(
        &self,
        request: &Request,
    ) -> Result<Vec<AdmissionGuard>, AdmissionError> {
        let user = user_id(request.user.as_deref());
        let permits = self.inner.admission.enter_all(user, request.outputs())?;
        let admission_guard =
            |permit| AdmissionGuard::new(permit, Arc::clone(&self.inner.guard_released));
        Ok(permits.into_iter().map(admission_guard).collect())
    }

    /// Checks everything that needs no tokens; this is cheap.
    pub(super) fn check_request(&self, request: &Request) -> Result<(), SubmitError> {
        request.validate()?;
        self.check_prediction(request)?;
        request.validate_tokens(|token| self.check_token(token))
    }

    /// Whether a token can be in a request; if not, the error's words: what was found, and what is
    /// expected.
    pub(super) fn check_token(&self, token: TokenId) -> Result<(), (&'static str, String)> {
        let vocab_size = self.inner.spec.vocab_size;
        if token as usize >= vocab_size {
            let expected = format!("token ids below {vocab_size}");
            return Err(("a token id beyond the vocabulary", expected));
        }
        let known = self.inner.known_tokens.as_ref();
        if known.is_some_and(|known| !known.allows(token)) {
            let expected = "token ids that the tokenizer has a token for".to_owned();
            return Err(("a token id that the vocabulary skips", expected));
        }
        Ok(())
    }

    /// Checks the same, for a request with one output.
    pub(super) fn check_single_output(&self, request: &Request) -> Result<(), SubmitError> {
        self.check_request(request)?;
        for (field, outputs) in [("n", request.n), ("best_of", request.outputs())] {
            if outputs != 1 {
                let expected = "1; for more, `Engine::submit_many` or `Engine::best_of`";
                return Err(field_error(field, outputs.to_string(), expected));
            }
        }
        Ok(())
    }

    /// Creates the sequence actor and the stream of an admitted request.
    pub(super) fn sequence_setup(
        &self,
        request: &Request,
        admitted: Admitted,
        sampling_spec: Option<Arc<SamplingSpec>>,
        admission_guard: AdmissionGuard,
        results: Arc<ResultsReservation>,
    ) -> Result<SequenceSetup, SubmitError> {
        let mut text = self.text_output(request)?;
        let so_far = read_so_far(text.as_mut(), request, &self.end_tokens(request))?;
        let reasoning = self.reasoning_tracker(request);
        let number = self.inner.sequences_made.fetch_add(1, Ordering::Relaxed);
        let sequence = SequenceId(number as u64 + 1);
        let cancel = CancelFlag::new();
        let credits = Credits::new(self.inner.config.scheduler.unread_tokens_max);
        let prefill_pieces_max = if request.report_prefill_progress {
            PREFILL_PIECES_MAX
        } else {
            0
        };
        let prompt_results = PromptResults::new(
            admitted.prompt_output.as_ref(),
            request.embedding,
            admitted.tokens.len(),
        );
        // The results of a prompt come in one piece.
        let prompt_pieces_max = prefill_pieces_max + usize::from(admitted.prompt_output.is_some());
        let pieces_max = self.pieces_max(admitted.output_tokens_max) + prompt_pieces_max;
        let (sender, output) = mpsc::channel(pieces_max);
        let (end_sender, ended) = watch::channel(None);
        let prompt_tokens = admitted.prompt_tokens();
        let milestones = Arc::new(Milestones::new());
        let handle = SequenceHandle::new(
            sequence,
            request.at_context_limit,
            cancel.clone(),
            self.inner.scheduler.downgrade(),
            self.inner.wakeup.clone(),
            ended,
            Arc::clone(&milestones),
        );
        let stream = TokenStream {
            handle,
            prompt_tokens,
            output,
            credits: credits.clone(),
            results: Arc::clone(&results),
            replaced: None,
            is_finished: false,
        };
        let entered_at = admission_guard.entered_at;
        let arguments = SequenceArgs {
            id: sequence,
            prompt_tokens,
            prediction_tokens: admitted.prediction.len(),
            truncated_tokens: admitted.truncated_tokens,
            report_prefill_progress: request.report_prefill_progress,
            prompt_results,
            reasoning: reasoning.clone().map(|tracker| followed(tracker, request)),
            so_far,
            text,
            output: sender,
            ended: end_sender,
            scheduler: self.inner.scheduler.clone().recipient(),
            cancel,
            credits,
            telemetry: Arc::clone(&self.inner.telemetry),
            known_tokens: self.inner.known_tokens.clone(),
            milestones,
            admission_guard,
            _results: results,
        };
        // As many events as credits allow, so that no event waits in the scheduler. The start,
        // the end, and kameo's own signals come in addition.
        let events_max = pieces_max + OTHER_EVENTS_MAX;
        let actor = SequenceActor::spawn_with_mailbox(arguments, mailbox::bounded(events_max));
        Ok(SequenceSetup {
            submission: Submission {
                reasoning,
                ..self.submission(sequence, request, admitted, sampling_spec, entered_at)
            },
            actor,
            stream,
        })
    }

    /// Returns the error for the caller, with the request and an estimate for the retry.
    pub(super) fn admission_error(&self, error: AdmissionError, request: Request) -> SubmitError {
        let (what, estimate) = match error {
            AdmissionError::Shut => return SubmitError::Draining,
            AdmissionError::Requests => {
                let ends = request.outputs() as u32;
                let interval = self.inner.telemetry.finish_interval();
                let estimate = interval.map(|interval| interval.saturating_mul(ends));
                (QueueLimit::Requests, estimate)
            }
            AdmissionError::Tokens { excess } => (
                QueueLimit::Tokens,
                self.inner.telemetry.prefill_time(excess),
            ),
            // Other users are served as well: this user's sequences end less often, in
            // proportion.
            AdmissionError::UserRequests { excess, inside } => {
                let ends = scaled(excess, self.inner.admission.inside(), inside);
                let interval = self.inner.telemetry.finish_interval();
                let ends = u32::try_from(ends).unwrap_or(u32::MAX);
                let estimate = interval.map(|interval| interval.saturating_mul(ends));
                (QueueLimit::UserRequests, estimate)
            }
            AdmissionError::UserTokens { excess, waiting } => {
                let tokens = scaled(excess, self.inner.admission.waiting_tokens(), waiting);
                (
                    QueueLimit::UserTokens,
                    self.inner.telemetry.prefill_time(tokens),
                )
            }
        };
        self.queue_full(what, estimate, request)
    }

    /// Returns the error for a full queue, with an estimate of when capacity is free.
    pub(super) fn queue_full(
        &self,
        what: QueueLimit,
        estimate: Option<Duration>,
        request: Request,
    ) -> SubmitError {
        SubmitError::QueueFull {
            what,
            retry_after: retry_after(estimate),
            request: Box::new(request),
        }
    }

    /// Creates what follows the reasoning of an output, if that is bounded. The scheduler and the
    /// sequence actor have a clone each.
    fn reasoning_tracker(&self, request: &Request) -> Option<ReasoningTracker> {
        let budget = request.reasoning.clone()?;
        let tracker = ReasoningTracker::new(Arc::new(budget));
        Some(match &self.inner.text {
            Some(text) => tracker.with_spelling(text.token_spelling()),
            None => tracker,
        })
    }

    /// Creates the text output, if the engine has a tokenizer.
    fn text_output(&self, request: &Request) -> Result<Option<TextOutput>, SubmitError> {
        let special = request.special_tokens_in_text;
        let output = |text| TextOutput::new(text, &request.stop_strings, special);
        match &self.inner.text {
            None if !request.stop_strings.is_empty() => Err(SubmitError::NoTokenizer {
                field: "stop_strings",
            }),
            None if special => Err(SubmitError::NoTokenizer {
                field: "special_tokens_in_text",
            }),
            text => Ok(text.as_ref().map(output).transpose()?),
        }
    }

    /// Returns the number of pieces that may wait for a caller: the tokens that a sequence may
    /// be ahead of its reader, the tokens in flight when it paused and those appended to them,
    /// the held-back text, and the end.
    pub(super) fn pieces_max(&self, output_tokens_max: usize) -> usize {
        let unread_max = self.inner.config.scheduler.unread_tokens_max;
        let ahead_max = unread_max.saturating_add((WORK_IN_FLIGHT_MAX + 1) * OUTCOME_TOKENS_MAX);
        ahead_max.min(output_tokens_max) + 2
    }

    fn submission(
        &self,
        sequence: SequenceId,
        request: &Request,
        admitted: Admitted,
        sampling_spec: Option<Arc<SamplingSpec>>,
        entered_at: Instant,
    ) -> Submission {
        let entered_at = entered_at.saturating_duration_since(self.inner.started_at);
        // A deadline beyond the clock's end is none.
        let deadline = |within: Duration| entered_at.checked_add(within);
        Submission {
            sequence,
            prompt: admitted.tokens,
            output_tokens_max: admitted.output_tokens_max,
            prompt_output: admitted.prompt_output,
            sampling: request.sampling,
            // Each output has a grammar walk of its own.
            sampling_spec: sampling_spec.map(|spec| spec.for_one_sequence()),
            end_tokens: self.end_tokens(request),
            user: user_id(request.user.as_deref()),
            weight: request.weight,
            priority: request.priority,
            start_by: request.start_within.and_then(deadline),
            finish_by: request.finish_within.and_then(deadline),
            at_context_limit: request.at_context_limit,
            key: PrefixKey::of(match request.cache {
                CacheUse::Shared => salt(request.cache_salt.as_deref()),
                CacheUse::Off => Salt::private(sequence),
            }),
            restore_points: admitted.restore_points,
            turn_end: admitted.turn_end,
            retention: request.retention,
            reasoning: None,
            report_prefill_progress: request.report_prefill_progress,
            speculates: request.speculation,
            prediction: admitted.prediction,
            output_so_far: admitted.output_so_far,
        }
    }

    /// Returns the tokens that end the output: the model's, unless they are ignored, and the
    /// request's own.
    pub(super) fn end_tokens(&self, request: &Request) -> Arc<[TokenId]> {
        let models: &[TokenId] = if request.ignore_end_tokens {
            &[]
        } else {
            &self.inner.spec.end_tokens
        };
        [models, &request.stop_tokens].concat().into()
    }
}

/// Returns how much all users complete while a user with `own` of `all` completes `amount`.
fn scaled(amount: usize, all: usize, own: usize) -> usize {
    amount.saturating_mul(all.max(own)) / own.max(1)
}

pub(super) fn user_id(name: Option<&str>) -> UserId {
    name.map(UserId::of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_limits_scale_the_wait_by_the_share_of_others() {
        assert_eq!(scaled(2, 10, 5), 4, "half of all is the user's own");
        assert_eq!(scaled(2, 5, 5), 2);
        assert_eq!(
            scaled(1, 3, 0),
            3,
            "all of the user's own may have ended meanwhile"
        );
        assert_eq!(scaled(usize::MAX, 2, 1), usize::MAX);
    }
}
