//! `Debug` output of a request: sizes and settings, no content. Errors give requests back, and
//! errors are logged.

use std::fmt;

use super::{Prediction, Prompt, Request};

/// Prints sizes and settings. Tokens, texts, user and salt are left out: they may be secrets.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            prompt,
            output_tokens_max,
            output_tokens_min,
            sampling,
            logit_bias,
            logprobs,
            stop_strings,
            stop_tokens,
            ignore_end_tokens,
            special_tokens_in_text,
            grammar,
            reasoning,
            speculation,
            prediction,
            output_so_far,
            n,
            best_of,
            user,
            weight,
            priority,
            start_within,
            finish_within,
            at_context_limit,
            cache_salt,
            retention,
            restore_points,
            turn_end,
            cache,
            prompt_logprobs,
            prompt_logprobs_from,
            embedding,
            report_prefill_progress,
            _non_exhaustive: _,
        } = self;
        f.debug_struct("Request")
            .field("prompt", prompt)
            .field("output_tokens_max", output_tokens_max)
            .field("output_tokens_min", output_tokens_min)
            .field("sampling", sampling)
            .field("logit_biases", &logit_bias.len())
            .field("logprobs", logprobs)
            .field("stop_strings", &stop_strings.len())
            .field("stop_tokens", &stop_tokens.len())
            .field("ignore_end_tokens", ignore_end_tokens)
            .field("special_tokens_in_text", special_tokens_in_text)
            .field("grammar", grammar)
            .field(
                "reasoning",
                &reasoning.as_ref().map(|budget| budget.tokens_max),
            )
            .field("speculation", speculation)
            .field("prediction", prediction)
            .field("output_so_far", &output_so_far.len())
            .field("n", n)
            .field("best_of", best_of)
            .field("has_user", &user.is_some())
            .field("weight", weight)
            .field("priority", priority)
            .field("start_within", start_within)
            .field("finish_within", finish_within)
            .field("at_context_limit", at_context_limit)
            .field("has_cache_salt", &cache_salt.is_some())
            .field("retention", retention)
            .field("restore_points", restore_points)
            .field("turn_end", turn_end)
            .field("cache", cache)
            .field("prompt_logprobs", prompt_logprobs)
            .field("prompt_logprobs_from", prompt_logprobs_from)
            .field("embedding", embedding)
            .field("report_prefill_progress", report_prefill_progress)
            .finish()
    }
}

/// Prints the kind of prediction and its length.
impl fmt::Debug for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => write!(f, "Tokens({} tokens)", tokens.len()),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
        }
    }
}

/// Prints the kind of prompt and its length.
impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => write!(f, "Tokens({} tokens)", tokens.len()),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Chat(chat) => chat.fmt(f),
        }
    }
}
