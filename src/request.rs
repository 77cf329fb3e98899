//! What a caller asks for, and what it gets.

use crate::TokenId;
use crate::error::SubmitError;
use crate::model::sampling::Sampling;
use crate::text::Message;

/// One request: a prompt, and how to continue it.
///
/// ```
/// use motet::Request;
///
/// let request = Request::text("The capital of France is")
///     .output_tokens_max(16)
///     .temperature(0.7)
///     .top_p(0.9)
///     .seed(1)
///     .stop(".");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What to continue.
    pub prompt: Prompt,
    /// Most tokens to generate; at least 1. Clipped to what the context leaves.
    pub output_tokens_max: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// The output ends before the first of these that appears in its text.
    pub stop_strings: Vec<String>,
    /// Whether to go on past the model's own end tokens, for measurements.
    pub ignore_end_tokens: bool,
    /// What happens when the model's context is full.
    pub at_context_limit: ContextLimit,
    /// With whom the request shares cached state: only with requests of the same
    /// salt, and those without one with each other. A server gives each tenant a
    /// salt of its own.
    pub cache_salt: Option<String>,
    /// How dearly its cached state is kept, beside that of others: state of a higher
    /// number is evicted only when none of a lower number is left.
    pub retention: u8,
    /// Offsets in the prompt's tokens where a later prompt is likely to branch off, so
    /// that it can be resumed there. Of use for models that cannot resume after any
    /// token (sliding windows, recurrent layers); chats have theirs by themselves.
    pub restore_points: Vec<usize>,
}

/// The class of a request. A higher class starts before a lower one and may take its
/// place; who waits long rises (see `scheduler.ageing` in the configuration).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Work that nobody waits for: batch jobs.
    Background,
    /// Most requests.
    #[default]
    Normal,
    /// Somebody waits at the screen.
    Urgent,
}

/// What happens when prompt and output fill the model's context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContextLimit {
    /// The output ends, with [`FinishReason::Length`].
    #[default]
    Stop,
    /// The oldest tokens after the first `keep` are forgotten, half of what is not
    /// kept at once, and the output goes on. What follows the gap was computed when
    /// the gap was not there: an approximation, which no other request is given.
    /// A prompt that is too long for the context loses its middle in the same way.
    Shift {
        /// Tokens at the beginning that stay, such as a system prompt; less than the
        /// model's context.
        keep: usize,
    },
}

/// What to continue.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Tokens as they are.
    Tokens(Vec<TokenId>),
    /// Text, tokenised as the model's tokenizer does by default.
    Text(String),
    /// A conversation, put into the model's chat template, up to where the
    /// assistant is to speak.
    Chat(Vec<Message>),
}

/// A token, and the text that has become certain with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token; none for text that was held back until the end.
    pub token: Option<TokenId>,
    /// Text, often empty: a token may end within a character, or within what could
    /// become a stop string. Always empty on an engine without a tokenizer.
    pub text: String,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model drew one of its end tokens (which is not part of the output).
    EndToken,
    /// The output is as long as it may be.
    Length,
    /// A stop string appeared.
    StopString,
    /// The caller left.
    Cancelled,
}

/// How a sequence ended, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
}

/// Tokens that a sequence used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose state was in the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
}

/// A whole output, for callers who do not stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The tokens generated.
    pub tokens: Vec<TokenId>,
    /// Their text; empty on an engine without a tokenizer.
    pub text: String,
    /// How it ended.
    pub finish: Finish,
}

impl Request {
    /// Continues text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Prompt::Text(text.into()))
    }

    /// Continues tokens.
    #[must_use]
    pub fn tokens(tokens: impl Into<Vec<TokenId>>) -> Self {
        Self::new(Prompt::Tokens(tokens.into()))
    }

    /// Answers a conversation.
    #[must_use]
    pub fn chat(messages: impl Into<Vec<Message>>) -> Self {
        Self::new(Prompt::Chat(messages.into()))
    }

    /// A request with this prompt and default settings: greedy, 256 tokens.
    #[must_use]
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            output_tokens_max: 256,
            sampling: Sampling::GREEDY,
            stop_strings: Vec::new(),
            ignore_end_tokens: false,
            at_context_limit: ContextLimit::Stop,
            cache_salt: None,
            retention: 0,
            restore_points: Vec::new(),
        }
    }

    /// Sets the most tokens to generate.
    #[must_use]
    pub fn output_tokens_max(mut self, tokens: usize) -> Self {
        self.output_tokens_max = tokens;
        self
    }

    /// Sets how tokens are drawn, all at once.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets the temperature; 0 is greedy. The seed is 0 unless [set](Request::seed):
    /// the same request draws the same tokens.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.sampling.temperature = temperature;
        self
    }

    /// Draws from the `top_k` most likely tokens only.
    #[must_use]
    pub fn top_k(mut self, top_k: u32) -> Self {
        self.sampling.top_k = top_k;
        self
    }

    /// Draws from the smallest set of tokens that reaches this probability.
    #[must_use]
    pub fn top_p(mut self, top_p: f32) -> Self {
        self.sampling.top_p = top_p;
        self
    }

    /// Draws from tokens at least this likely, relative to the likeliest.
    #[must_use]
    pub fn min_p(mut self, min_p: f32) -> Self {
        self.sampling.min_p = min_p;
        self
    }

    /// Sets the seed; the same seed draws the same tokens.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.seed = seed;
        self
    }

    /// Adds a stop string.
    #[must_use]
    pub fn stop(mut self, stop: impl Into<String>) -> Self {
        self.stop_strings.push(stop.into());
        self
    }

    /// Goes on past the model's own end tokens.
    #[must_use]
    pub fn ignore_end_tokens(mut self) -> Self {
        self.ignore_end_tokens = true;
        self
    }

    /// Goes on when the context is full, and keeps the first `keep` tokens then; see
    /// [`ContextLimit::Shift`].
    #[must_use]
    pub fn shift(mut self, keep: usize) -> Self {
        self.at_context_limit = ContextLimit::Shift { keep };
        self
    }

    /// Shares cached state with requests of the same salt only.
    #[must_use]
    pub fn cache_salt(mut self, salt: impl Into<String>) -> Self {
        self.cache_salt = Some(salt.into());
        self
    }

    /// Sets how dearly its cached state is kept.
    #[must_use]
    pub fn retention(mut self, retention: u8) -> Self {
        self.retention = retention;
        self
    }

    /// Adds an offset in the prompt's tokens at which it is to be restorable.
    #[must_use]
    pub fn restore_point(mut self, at: usize) -> Self {
        self.restore_points.push(at);
        self
    }

    /// Checks every field that can be judged without a model.
    pub(crate) fn validate(&self) -> Result<(), SubmitError> {
        let s = &self.sampling;
        let check = |ok: bool, field, found: String, expected: &str| match ok {
            true => Ok(()),
            false => Err(field_error(field, found, expected)),
        };
        check(
            self.output_tokens_max > 0,
            "output_tokens_max",
            "0".into(),
            "at least 1",
        )?;
        check(
            s.temperature.is_finite() && s.temperature >= 0.0,
            "sampling.temperature",
            s.temperature.to_string(),
            "a finite number, at least 0",
        )?;
        check(
            s.top_p > 0.0 && s.top_p <= 1.0,
            "sampling.top_p",
            s.top_p.to_string(),
            "a number above 0 and at most 1",
        )?;
        check(
            (0.0..=1.0).contains(&s.min_p),
            "sampling.min_p",
            s.min_p.to_string(),
            "a number from 0 to 1",
        )
    }
}

pub(crate) fn field_error(
    field: &'static str,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> SubmitError {
    SubmitError::Field {
        field,
        found: found.into(),
        expected: expected.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(request: Request, field: &str) {
        match request.validate() {
            Err(SubmitError::Field { field: found, .. }) => assert_eq!(found, field),
            other => panic!("expected a complaint about {field}, got {other:?}"),
        }
    }

    #[test]
    fn bad_fields_are_named() {
        let good = || Request::tokens([1]);
        assert!(
            good()
                .temperature(0.8)
                .top_p(1.0)
                .min_p(0.1)
                .validate()
                .is_ok()
        );
        check(good().output_tokens_max(0), "output_tokens_max");
        check(good().temperature(f32::NAN), "sampling.temperature");
        check(good().temperature(-0.1), "sampling.temperature");
        check(good().temperature(f32::INFINITY), "sampling.temperature");
        check(good().top_p(0.0), "sampling.top_p");
        check(good().top_p(1.01), "sampling.top_p");
        check(good().top_p(f32::NAN), "sampling.top_p");
        check(good().min_p(-0.5), "sampling.min_p");
        check(good().min_p(f32::NAN), "sampling.min_p");
    }
}
