//! Admission: a request becomes tokens that fit, or a typed error.

use std::sync::Arc;

use super::Engine;
use super::admitted::Admitted;
use super::prompt_output::with_prompt_output;
use super::tokenize_prompt::TokenizeMode;
use crate::error::SubmitError;
use crate::error::field_error;
use crate::request::{Prompt, Request};
use motet_core::cache::shift;
use motet_protocol::ContextLimit;
use motet_protocol::TokenId;

/// Longest output of a shifting sequence, in contexts. A longer one is presumed endless, and
/// its slot is needed.
const SHIFTED_CONTEXTS_MAX: usize = 10;

/// Most restore points of one request: each interrupts a step for all sequences.
pub(super) const RESTORE_POINTS_MAX: usize = 64;

impl Engine {
    /// Returns the request's tokens, if model and device can ever run them. The request is
    /// unchanged afterwards, unless the error gives it back.
    pub(super) async fn admit(&self, request: &mut Request) -> Result<Admitted, SubmitError> {
        self.check_limit(request)?;
        let pooling = self.checked_pooling(request)?;
        if let Prompt::Tokens(tokens) = &request.prompt {
            self.check_fits(tokens.len(), request.at_context_limit)?;
        }
        // A model that can resume after any token needs no restore points in a conversation.
        let with_restore_points = !self.inner.spec.resumes_anywhere();
        let mode = TokenizeMode::Prompt {
            with_restore_points,
        };
        let tokenized = self.tokenize_prompt(request, mode).await?;
        let mut tokens = tokenized.tokens;
        if tokens.is_empty() {
            return Err(field_error("prompt", "empty", "at least one token"));
        }
        let mut restore_points = checked_points(&request.restore_points, tokens.len())?;
        // The last point of a chat is where its next turn begins; it may rewrite what is after
        // an earlier one.
        let mut of_chat = tokenized.restore_points;
        let mut turn_end = match request.turn_end {
            Some(at) => Some(checked_turn_end(at, tokens.len())?),
            None => of_chat.pop().filter(|at| *at > 0),
        };
        restore_points.extend(of_chat);
        let truncated_tokens = self.fit_prompt(&mut tokens, request.at_context_limit)?;
        if truncated_tokens > 0 {
            restore_points.clear();
            turn_end = None;
        }
        let output_tokens_max = self.output_tokens_max(tokens.len(), request)?;
        let admitted = Admitted {
            tokens: tokens.into(),
            prediction: self.tokenize_prediction(request).await?,
            output_so_far: request.output_so_far[..].into(),
            output_tokens_max,
            restore_points,
            turn_end,
            truncated_tokens,
            prompt_output: None,
        };
        with_prompt_output(request, pooling, admitted)
    }

    /// Returns a fork's tokens; only the scheduler knows how much the fork continues.
    pub(super) async fn admit_fork(
        &self,
        request: &mut Request,
        at_context_limit: ContextLimit,
    ) -> Result<Admitted, SubmitError> {
        let results = [
            ("prompt_logprobs", request.prompt_logprobs.is_some()),
            ("embedding", request.embedding.is_some()),
            ("output_so_far", !request.output_so_far.is_empty()),
        ];
        if let Some((field, _)) = results.iter().find(|(_, is_set)| *is_set) {
            let expected = "none: a fork's prompt and output are its source's";
            return Err(field_error(field, "set, in a fork", expected));
        }
        if let Prompt::Chat(_) = &request.prompt {
            return Err(field_error(
                "prompt",
                "a conversation",
                "tokens or text, which a fork appends",
            ));
        }
        if let Prompt::Tokens(tokens) = &request.prompt {
            self.check_fits(tokens.len(), at_context_limit)?;
        }
        let tokenized = self
            .tokenize_prompt(request, TokenizeMode::Continuation)
            .await?;
        let restore_points = checked_points(&request.restore_points, tokenized.tokens.len())?;
        Ok(Admitted {
            tokens: tokenized.tokens.into(),
            prediction: self.tokenize_prediction(request).await?,
            output_so_far: Arc::default(),
            output_tokens_max: request
                .output_tokens_max
                .min(self.output_limit(at_context_limit)),
            restore_points,
            turn_end: None,
            truncated_tokens: 0,
            prompt_output: None,
        })
    }

    fn check_limit(&self, request: &Request) -> Result<(), SubmitError> {
        let context = self.inner.spec.context_tokens_max;
        match request.at_context_limit {
            ContextLimit::Shift { keep } if keep >= context => Err(field_error(
                "at_context_limit.keep",
                keep.to_string(),
                format!("less than the {context} tokens of the model's context"),
            )),
            ContextLimit::Shift { .. } | ContextLimit::Stop => Ok(()),
        }
    }

    /// Cuts the middle out of a prompt that is too long, if the request allows it. Returns the
    /// number of tokens cut.
    fn fit_prompt(
        &self,
        tokens: &mut Vec<TokenId>,
        at_context_limit: ContextLimit,
    ) -> Result<usize, SubmitError> {
        self.check_fits(tokens.len(), at_context_limit)?;
        let context = self.inner.spec.context_tokens_max;
        match at_context_limit {
            ContextLimit::Shift { keep } if tokens.len() >= context => {
                let removed = shift::truncation(context, keep, tokens.len());
                Ok(tokens.drain(removed.expect("`keep` was checked")).count())
            }
            ContextLimit::Shift { .. } | ContextLimit::Stop => Ok(0),
        }
    }

    /// Rejects a prompt that is too long: for the context where it must stay whole, and for
    /// `text.shift_contexts_max` contexts where the middle may be cut.
    fn check_fits(&self, tokens: usize, at_context_limit: ContextLimit) -> Result<(), SubmitError> {
        let context = self.inner.spec.context_tokens_max;
        let (fits, expected) = match at_context_limit {
            ContextLimit::Stop => (
                tokens < context,
                format!("fewer than the {context} tokens of the model's context"),
            ),
            ContextLimit::Shift { .. } => {
                let contexts = self.contexts(at_context_limit);
                let tokens_max = context.saturating_mul(contexts);
                let named = self.contexts_named(contexts);
                (
                    tokens <= tokens_max,
                    format!("at most {tokens_max} tokens: {named}"),
                )
            }
        };
        if fits {
            return Ok(());
        }
        let lengths = (format!("{tokens} tokens long"), expected);
        let contexts = self.contexts(at_context_limit);
        Err(self.prompt_too_long("prompt", lengths, Some(tokens), contexts))
    }

    /// Returns the longest output of any prompt.
    fn output_limit(&self, at_context_limit: ContextLimit) -> usize {
        let context = self.inner.spec.context_tokens_max;
        match at_context_limit {
            ContextLimit::Stop => context,
            ContextLimit::Shift { .. } => context.saturating_mul(SHIFTED_CONTEXTS_MAX),
        }
    }

    /// Returns the longest output that context and device allow.
    fn output_tokens_max(&self, prompt: usize, request: &Request) -> Result<usize, SubmitError> {
        let context = self.inner.spec.context_tokens_max;
        let limit = match request.at_context_limit {
            ContextLimit::Stop => context - prompt,
            ContextLimit::Shift { .. } => self.output_limit(request.at_context_limit),
        };
        let output_tokens_max = request.output_tokens_max.min(limit);
        let needed_bytes = self
            .inner
            .spec
            .tail_bytes((prompt + output_tokens_max).min(context));
        let budget_bytes = self.inner.config.cache.device_bytes_max;
        if needed_bytes > budget_bytes {
            return Err(SubmitError::TooLarge {
                needed_bytes,
                budget_bytes,
            });
        }
        Ok(output_tokens_max)
    }
}

/// Checks that the end of the conversation lies within the prompt.
fn checked_turn_end(at: usize, tokens: usize) -> Result<usize, SubmitError> {
    if at > tokens {
        return Err(field_error(
            "turn_end",
            format!("{at}, in a prompt of {tokens} tokens"),
            "an offset within the prompt",
        ));
    }
    Ok(at)
}

/// Checks that a caller's restore points are not too many.
pub(super) fn check_point_count(points: &[usize]) -> Result<(), SubmitError> {
    if points.len() <= RESTORE_POINTS_MAX {
        return Ok(());
    }
    Err(field_error(
        "restore_points",
        format!("{} offsets", points.len()),
        format!("at most {RESTORE_POINTS_MAX}"),
    ))
}

/// Checks that the offsets lie within the prompt and are not too many.
fn checked_points(points: &[usize], tokens: usize) -> Result<Vec<usize>, SubmitError> {
    check_point_count(points)?;
    match points.iter().find(|at| **at > tokens) {
        None => Ok(points.to_vec()),
        Some(invalid_offset) => Err(field_error(
            "restore_points",
            format!("{invalid_offset}, in a prompt of {tokens} tokens"),
            "offsets within the prompt",
        )),
    }
}
