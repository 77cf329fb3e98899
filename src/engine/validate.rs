//! Checks of a request's fields that need no model.

use std::time::Duration;

use super::prompt_output::contradictions;
use crate::error::{SubmitError, field_error};
use crate::optional::StopStrings;
use crate::request::{CacheUse, Prediction, ReasoningBudget, Request};
use motet_protocol::SamplingSpec;
use motet_protocol::TokenId;

/// Weights that differ enough to keep rounding out of the charges.
const WEIGHTS: std::ops::RangeInclusive<f64> = 1e-3..=1e3;

impl Request {
    /// Most outputs that one request may have.
    pub const N_MAX: usize = 128;
    /// Most alternatives that each token's log probability may have.
    pub const LOGPROBS_MAX: usize = SamplingSpec::LOGPROBS_MAX;
    /// Most stop tokens: every sampled token is compared with each.
    pub const STOP_TOKENS_MAX: usize = 256;
    /// Most tokens with a bias: each bias is added at every sampled token.
    pub const LOGIT_BIAS_MAX: usize = 4096;

    /// Checks every field that needs no model.
    pub(crate) fn validate(&self) -> Result<(), SubmitError> {
        self.validate_output()?;
        self.validate_prompt_output()?;
        self.validate_sampling()?;
        self.validate_bias()?;
        self.validate_stops()?;
        self.validate_reasoning()?;
        self.validate_prediction()?;
        self.validate_so_far()?;
        self.validate_cache()?;
        self.validate_service()
    }

    /// Checks that every token id in the request is in the vocabulary. `check_token` returns what
    /// is wrong with one, and what is expected.
    pub(crate) fn validate_tokens(
        &self,
        check_token: impl Fn(TokenId) -> Result<(), (&'static str, String)>,
    ) -> Result<(), SubmitError> {
        let check = |field, token: &TokenId| {
            // The token id itself stays out of logs.
            let checked = check_token(*token);
            checked.map_err(|(found, expected)| field_error(field, found, expected))
        };
        let check_all = |field, tokens: &[TokenId]| {
            let mut tokens = tokens.iter();
            tokens.try_for_each(|token| check(field, token))
        };
        check_all("stop_tokens", &self.stop_tokens)?;
        check_all("output_so_far", &self.output_so_far)?;
        if let Some(Prediction::Tokens(tokens)) = &self.prediction {
            check_all("prediction", tokens)?;
        }
        let mut biased = self.logit_bias.keys();
        biased.try_for_each(|token| check("logit_bias", token))?;
        let Some(reasoning) = &self.reasoning else {
            return Ok(());
        };
        check_all("reasoning.open", &reasoning.open)?;
        check_all("reasoning.close", &reasoning.close)
    }

    /// Returns the number of outputs to generate.
    pub(crate) fn outputs(&self) -> usize {
        self.best_of.unwrap_or(self.n)
    }

    fn validate_output(&self) -> Result<(), SubmitError> {
        let has_prompt_output = self.prompt_logprobs.is_some() || self.embedding.is_some();
        check(
            self.output_tokens_max > 0 || has_prompt_output,
            "output_tokens_max",
            self.output_tokens_max,
            "at least 1, or 0 with `prompt_logprobs` or `embedding`",
        )?;
        check(
            self.output_tokens_min <= self.output_tokens_max,
            "output_tokens_min",
            self.output_tokens_min,
            format!("at most `output_tokens_max`, {}", self.output_tokens_max),
        )?;
        check(
            (1..=Self::N_MAX).contains(&self.n),
            "n",
            self.n,
            format!("a number from 1 to {}", Self::N_MAX),
        )?;
        let outputs = self.outputs();
        check(
            (self.n..=Self::N_MAX).contains(&outputs),
            "best_of",
            outputs,
            format!("a number from `n`, {}, to {}", self.n, Self::N_MAX),
        )?;
        let alternatives = self.logprobs.unwrap_or_default();
        check(
            alternatives <= Self::LOGPROBS_MAX,
            "logprobs",
            alternatives,
            format!("at most {}", Self::LOGPROBS_MAX),
        )
    }

    fn validate_prompt_output(&self) -> Result<(), SubmitError> {
        let alternatives = self.prompt_logprobs.unwrap_or_default();
        check(
            alternatives <= Self::LOGPROBS_MAX,
            "prompt_logprobs",
            alternatives,
            format!("at most {}", Self::LOGPROBS_MAX),
        )?;
        for (field, is_set, expected) in contradictions(self) {
            check(!is_set, field, "set", expected)?;
        }
        Ok(())
    }

    fn validate_sampling(&self) -> Result<(), SubmitError> {
        let checked = self.sampling.validate();
        checked.map_err(|error| field_error(error.field, error.found, error.expected))
    }

    fn validate_bias(&self) -> Result<(), SubmitError> {
        check(
            self.logit_bias.len() <= Self::LOGIT_BIAS_MAX,
            "logit_bias",
            format!("{} tokens", self.logit_bias.len()),
            format!("at most {}", Self::LOGIT_BIAS_MAX),
        )?;
        let is_valid = |bias: &f32| bias.is_finite() || *bias == f32::NEG_INFINITY;
        match self.logit_bias.iter().find(|(_, bias)| !is_valid(bias)) {
            None => Ok(()),
            Some((_, bias)) => Err(field_error(
                "logit_bias",
                format!("{bias} for a token"),
                "finite numbers, or negative infinity",
            )),
        }
    }

    fn validate_stops(&self) -> Result<(), SubmitError> {
        check(
            self.stop_strings.len() <= StopStrings::COUNT_MAX,
            "stop_strings",
            format!("{} strings", self.stop_strings.len()),
            format!("at most {}", StopStrings::COUNT_MAX),
        )?;
        for stop in &self.stop_strings {
            check(
                (1..=StopStrings::BYTES_MAX).contains(&stop.len()),
                "stop_strings",
                format!("a string of {} bytes", stop.len()),
                format!("strings of 1 to {} bytes", StopStrings::BYTES_MAX),
            )?;
        }
        check(
            self.stop_tokens.len() <= Self::STOP_TOKENS_MAX,
            "stop_tokens",
            format!("{} tokens", self.stop_tokens.len()),
            format!("at most {}", Self::STOP_TOKENS_MAX),
        )?;
        check(
            self.grammar.is_none() || !self.ignore_end_tokens,
            "ignore_end_tokens",
            true,
            "false with a `grammar`, which only an end token can end",
        )
    }

    fn validate_reasoning(&self) -> Result<(), SubmitError> {
        let Some(reasoning) = &self.reasoning else {
            return Ok(());
        };
        let tokens = |mark: &[TokenId]| format!("{} tokens", mark.len());
        let most = ReasoningBudget::MARK_TOKENS_MAX;
        check(
            (1..=most).contains(&reasoning.close.len()),
            "reasoning.close",
            tokens(&reasoning.close),
            format!("1 to {most} tokens"),
        )?;
        let least = usize::from(!reasoning.is_open);
        check(
            (least..=most).contains(&reasoning.open.len()),
            "reasoning.open",
            tokens(&reasoning.open),
            format!("1 to {most} tokens; none only if `reasoning.is_open`"),
        )?;
        check(
            reasoning.open != reasoning.close,
            "reasoning.open",
            "the same as `reasoning.close`",
            "another mark",
        )
    }

    fn validate_so_far(&self) -> Result<(), SubmitError> {
        let tokens = self.output_so_far.len();
        if tokens == 0 {
            return Ok(());
        }
        check(
            tokens < self.output_tokens_max,
            "output_so_far",
            format!("{tokens} tokens"),
            "fewer than `output_tokens_max`",
        )?;
        let unlike = [
            ("prompt_logprobs", self.prompt_logprobs.is_some()),
            ("embedding", self.embedding.is_some()),
            ("n", self.outputs() != 1),
        ];
        for (field, is_set) in unlike {
            let expected = "not set beside `output_so_far`: one output goes on";
            check(!is_set, field, "set", expected)?;
        }
        Ok(())
    }

    fn validate_prediction(&self) -> Result<(), SubmitError> {
        check(
            self.speculation || self.prediction.is_none(),
            "prediction",
            "set",
            "none where `speculation` is off: nothing is drafted",
        )
    }

    fn validate_cache(&self) -> Result<(), SubmitError> {
        if self.cache == CacheUse::Shared {
            return Ok(());
        }
        let fields = [
            ("cache_salt", self.cache_salt.is_some()),
            ("restore_points", !self.restore_points.is_empty()),
            ("turn_end", self.turn_end.is_some()),
        ];
        for (field, is_set) in fields {
            let expected = "none where `cache` is off: nothing is shared";
            check(!is_set, field, "set", expected)?;
        }
        Ok(())
    }

    fn validate_service(&self) -> Result<(), SubmitError> {
        check(
            WEIGHTS.contains(&self.weight),
            "weight",
            self.weight,
            "a number from 0.001 to 1000",
        )?;
        let deadlines = [
            ("start_within", self.start_within),
            ("finish_within", self.finish_within),
        ];
        for (field, within) in deadlines {
            let within = within.unwrap_or(Duration::MAX);
            check(!within.is_zero(), field, "0", "longer than 0")?;
        }
        match (self.start_within, self.finish_within) {
            (Some(start), Some(finish)) => check(
                start <= finish,
                "finish_within",
                format!("{finish:?}"),
                format!("at least `start_within`, which is {start:?}"),
            ),
            _ => Ok(()),
        }
    }
}

fn check(
    ok: bool,
    field: &'static str,
    found: impl ToString,
    expected: impl Into<String>,
) -> Result<(), SubmitError> {
    if ok {
        Ok(())
    } else {
        Err(field_error(field, found.to_string(), expected))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use motet_text::grammar::GrammarSource;

    const VOCAB_SIZE: usize = 100;

    fn judged(request: &Request) -> Result<(), SubmitError> {
        request.validate()?;
        request.validate_tokens(|token| {
            if (token as usize) < VOCAB_SIZE {
                return Ok(());
            }
            Err(("a token id beyond the vocabulary", "other ids".to_owned()))
        })
    }

    #[test]
    fn every_invalid_value_is_reported_by_its_field() {
        let good = || Request::tokens([1]);
        let sampling = |change: fn(&mut Request)| {
            let mut request = good();
            change(&mut request);
            request
        };
        let hour = Duration::from_secs(3600);
        let many_stops = (0..17).fold(good(), |request, n| request.stop(n.to_string()));
        let many_tokens = (0..257).fold(good(), |request, _| request.stop_token(1));
        let reasoning = |open: &[TokenId], close: &[TokenId], is_open| {
            good().reasoning(ReasoningBudget {
                open: open.to_vec(),
                close: close.to_vec(),
                is_open,
                opens_once: false,
                tokens_max: 4,
            })
        };
        let many_biases = (0..4097).fold(good(), |request, token| request.bias(token, 1.0));
        let table = [
            ("output_tokens_max", good().output_tokens_max(0)),
            (
                "output_tokens_min",
                good().output_tokens_max(3).output_tokens_min(4),
            ),
            ("n", good().n(0)),
            ("n", good().n(129)),
            ("best_of", good().n(3).best_of(2)),
            ("best_of", good().best_of(0)),
            ("best_of", good().best_of(129)),
            ("logprobs", good().logprobs(21)),
            ("sampling.temperature", good().temperature(f32::NAN)),
            ("sampling.temperature", good().temperature(-0.1)),
            ("sampling.temperature", good().temperature(f32::INFINITY)),
            ("sampling.top_p", good().top_p(0.0)),
            ("sampling.top_p", good().top_p(1.01)),
            ("sampling.top_p", good().top_p(f32::NAN)),
            ("sampling.min_p", good().min_p(-0.5)),
            ("sampling.min_p", good().min_p(f32::NAN)),
            (
                "sampling.min_p",
                sampling(|request| request.sampling.min_p = 1.5),
            ),
            (
                "sampling.repetition_penalty",
                good().repetition_penalty(0.0),
            ),
            (
                "sampling.repetition_penalty",
                good().repetition_penalty(f32::NAN),
            ),
            (
                "sampling.presence_penalty",
                good().presence_penalty(f32::INFINITY),
            ),
            (
                "sampling.frequency_penalty",
                good().frequency_penalty(f32::NAN),
            ),
            (
                "ignore_end_tokens",
                good().grammar(GrammarSource::Json).ignore_end_tokens(),
            ),
            ("logit_bias", good().bias(1, f32::NAN)),
            ("logit_bias", good().bias(1, f32::INFINITY)),
            ("logit_bias", good().bias(100, 1.0)),
            ("logit_bias", many_biases),
            ("stop_strings", good().stop("")),
            ("stop_strings", good().stop("x").stop("")),
            ("stop_strings", good().stop("x".repeat(1025))),
            ("stop_strings", many_stops),
            ("stop_tokens", good().stop_token(100)),
            ("stop_tokens", many_tokens),
            ("reasoning.close", reasoning(&[1], &[], false)),
            ("reasoning.close", reasoning(&[1], &[2; 65], false)),
            ("reasoning.close", reasoning(&[1], &[100], false)),
            ("reasoning.open", reasoning(&[], &[2], false)),
            ("reasoning.open", reasoning(&[1; 65], &[2], true)),
            ("reasoning.open", reasoning(&[100], &[2], false)),
            ("reasoning.open", reasoning(&[2], &[2], false)),
            ("weight", good().weight(0.0)),
            ("weight", good().weight(-1.0)),
            ("weight", good().weight(f64::NAN)),
            ("weight", good().weight(f64::INFINITY)),
            ("start_within", good().start_within(Duration::ZERO)),
            ("finish_within", good().finish_within(Duration::ZERO)),
            (
                "finish_within",
                good().start_within(2 * hour).finish_within(hour),
            ),
            ("prediction", good().prediction_tokens([1, 100])),
            ("prediction", good().prediction("a").speculation(false)),
            (
                "prediction",
                good()
                    .output_tokens_max(0)
                    .prompt_logprobs(0)
                    .prediction("a"),
            ),
            ("cache_salt", good().cache_salt("tenant").without_cache()),
            ("restore_points", good().restore_point(0).without_cache()),
            ("turn_end", good().turn_end(0).without_cache()),
        ];
        for (field, request) in table {
            match judged(&request) {
                Err(SubmitError::Field {
                    field: found,
                    expected,
                    ..
                }) => {
                    assert_eq!(found, field, "{request:?}");
                    assert!(!expected.is_empty());
                }
                other => panic!("expected an error about {field}, got {other:?}"),
            }
        }
    }

    #[test]
    fn valid_requests_are_accepted() {
        let good = || Request::tokens([1]);
        let hour = Duration::from_secs(3600);
        for request in [
            good().temperature(0.8).top_p(1.0).min_p(0.1),
            good().output_tokens_max(4).output_tokens_min(4),
            good().ignore_end_tokens().output_tokens_min(9),
            good().repetition_penalty(1.1).presence_penalty(-2.0),
            good().grammar(GrammarSource::Json),
            good().speculation(false),
            good().prediction(""),
            good().prediction_tokens([1, 99]).n(2),
            good().n(128),
            good().n(2).best_of(2).logprobs(20),
            good().bias(99, f32::NEG_INFINITY).bias(0, -100.0),
            good().stop("x".repeat(1024)).stop_token(99),
            good().reasoning(ReasoningBudget {
                open: Vec::new(),
                close: vec![99],
                is_open: true,
                opens_once: false,
                tokens_max: 0,
            }),
            good().weight(1e-3).user("").start_within(hour),
            good().start_within(hour).finish_within(2 * hour),
            good().finish_within(Duration::MAX),
            good().start_within(hour).finish_within(hour),
        ] {
            assert!(judged(&request).is_ok(), "{request:?}");
        }
    }
}
