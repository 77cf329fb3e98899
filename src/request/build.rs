//! Constructors and setters of a request.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{CacheUse, Embedding, NonExhaustive, Prediction, Prompt, Request};
#[cfg(feature = "text")]
use crate::optional::Chat;
#[cfg(feature = "grammar")]
use crate::optional::GrammarSource;
use motet_protocol::TokenId;
use motet_protocol::{ContextLimit, Priority, ReasoningBudget, Sampling};

impl Request {
    /// Creates a request that continues text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Prompt::Text(text.into()))
    }

    /// Creates a request that continues tokens.
    #[must_use]
    pub fn tokens(tokens: impl Into<Vec<TokenId>>) -> Self {
        Self::new(Prompt::Tokens(tokens.into()))
    }

    /// Creates a request that answers a conversation.
    #[cfg(feature = "text")]
    #[must_use]
    pub fn chat(chat: impl Into<Chat>) -> Self {
        Self::new(Prompt::Chat(chat.into()))
    }

    /// Creates a request with this prompt and default settings: greedy, 256 tokens.
    #[must_use]
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            output_tokens_max: 256,
            output_tokens_min: 0,
            sampling: Sampling::GREEDY,
            logit_bias: BTreeMap::new(),
            logprobs: None,
            stop_strings: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end_tokens: false,
            special_tokens_in_text: false,
            grammar: None,
            reasoning: None,
            speculation: true,
            prediction: None,
            output_so_far: Vec::new(),
            n: 1,
            best_of: None,
            user: None,
            weight: 1.0,
            priority: Priority::Normal,
            start_within: None,
            finish_within: None,
            at_context_limit: ContextLimit::Stop,
            cache_salt: None,
            retention: 0,
            restore_points: Vec::new(),
            turn_end: None,
            cache: CacheUse::Shared,
            prompt_logprobs: None,
            prompt_logprobs_from: 0,
            embedding: None,
            report_prefill_progress: false,
            _non_exhaustive: NonExhaustive::default(),
        }
    }

    /// Creates a request for the log probabilities of `continuation` after `prompt`. It generates
    /// nothing. The prompt comes from the cache, but for its last token, where it was computed
    /// before. See [`Engine::score`](crate::Engine::score).
    ///
    /// Tokens of a text are those of [`Engine::tokenize`](crate::Engine::tokenize).
    #[must_use]
    pub fn score(prompt: &[TokenId], continuation: &[TokenId]) -> Self {
        Self::tokens([prompt, continuation].concat())
            .output_tokens_max(0)
            .prompt_logprobs(0)
            .prompt_logprobs_from(prompt.len())
    }

    /// Returns the log probabilities of the prompt's tokens, and of the `top` likeliest
    /// alternatives; see [`Request::prompt_logprobs`](field@Request::prompt_logprobs).
    #[must_use]
    pub fn prompt_logprobs(mut self, top: usize) -> Self {
        self.prompt_logprobs = Some(top);
        self
    }

    /// Returns those of the prompt's tokens from this offset on.
    #[must_use]
    pub fn prompt_logprobs_from(mut self, offset: usize) -> Self {
        self.prompt_logprobs_from = offset;
        self
    }

    /// Returns the prompt's embedding, and generates nothing.
    #[must_use]
    pub fn embedding(mut self, embedding: Embedding) -> Self {
        self.embedding = Some(embedding);
        self.output_tokens_max = 0;
        self
    }

    /// Sets the maximum number of tokens to generate.
    #[must_use]
    pub fn output_tokens_max(mut self, tokens: usize) -> Self {
        self.output_tokens_max = tokens;
        self
    }

    /// Samples no end token and no stop token before this many tokens.
    #[must_use]
    pub fn output_tokens_min(mut self, tokens: usize) -> Self {
        self.output_tokens_min = tokens;
        self
    }

    /// Sets all sampling settings at once.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets the temperature; 0 is greedy. The seed is 0 unless [set](Request::seed), so the
    /// same request samples the same tokens.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.sampling.temperature = temperature;
        self
    }

    /// Samples from the `top_k` most likely tokens only.
    #[must_use]
    pub fn top_k(mut self, top_k: u32) -> Self {
        self.sampling.top_k = top_k;
        self
    }

    /// Samples from the smallest set of tokens that reaches this probability.
    #[must_use]
    pub fn top_p(mut self, top_p: f32) -> Self {
        self.sampling.top_p = top_p;
        self
    }

    /// Samples from tokens at least this likely, relative to the likeliest.
    #[must_use]
    pub fn min_p(mut self, min_p: f32) -> Self {
        self.sampling.min_p = min_p;
        self
    }

    /// Sets the seed; the same seed samples the same tokens.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.seed = seed;
        self
    }

    /// Adds to a token's logit; negative infinity excludes the token.
    #[must_use]
    pub fn bias(mut self, token: TokenId, bias: f32) -> Self {
        self.logit_bias.insert(token, bias);
        self
    }

    /// Returns the log probability of each token, and of the `top` likeliest alternatives.
    #[must_use]
    pub fn logprobs(mut self, top: usize) -> Self {
        self.logprobs = Some(top);
        self
    }

    /// Adds a stop string.
    #[must_use]
    pub fn stop(mut self, stop: impl Into<String>) -> Self {
        self.stop_strings.push(stop.into());
        self
    }

    /// Adds a stop token.
    #[must_use]
    pub fn stop_token(mut self, token: TokenId) -> Self {
        self.stop_tokens.push(token);
        self
    }

    /// Continues past the model's own end tokens.
    #[must_use]
    pub fn ignore_end_tokens(mut self) -> Self {
        self.ignore_end_tokens = true;
        self
    }

    /// Spells special tokens out in the output's text.
    #[must_use]
    pub fn special_tokens_in_text(mut self) -> Self {
        self.special_tokens_in_text = true;
        self
    }

    /// Makes the output follow a grammar.
    #[cfg(feature = "grammar")]
    #[must_use]
    pub fn grammar(mut self, grammar: GrammarSource) -> Self {
        self.grammar = Some(grammar);
        self
    }

    /// Divides the likelihood of tokens that occurred recently by this factor; see
    /// [`Sampling::repetition_penalty`].
    #[must_use]
    pub fn repetition_penalty(mut self, penalty: f32) -> Self {
        self.sampling.repetition_penalty = penalty;
        self
    }

    /// Lowers the logits of tokens that occurred recently; see [`Sampling::presence_penalty`].
    #[must_use]
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.sampling.presence_penalty = penalty;
        self
    }

    /// Lowers the logits of tokens that occurred recently, once for each occurrence; see
    /// [`Sampling::frequency_penalty`].
    #[must_use]
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.sampling.frequency_penalty = penalty;
        self
    }

    /// Sets whether its tokens may be drafted.
    #[doc(alias = "speculative decoding")]
    #[must_use]
    pub fn speculation(mut self, is_on: bool) -> Self {
        self.speculation = is_on;
        self
    }

    /// Sets the text that the caller predicts as the output; see
    /// [`Request::prediction`](field@Request::prediction).
    #[doc(alias = "predicted outputs")]
    #[must_use]
    pub fn prediction(mut self, text: impl Into<String>) -> Self {
        self.prediction = Some(Prediction::Text(text.into()));
        self
    }

    /// Sets the tokens that the caller predicts as the output; see
    /// [`Request::prediction`](field@Request::prediction).
    #[doc(alias = "predicted outputs")]
    #[must_use]
    pub fn prediction_tokens(mut self, tokens: impl Into<Vec<TokenId>>) -> Self {
        self.prediction = Some(Prediction::Tokens(tokens.into()));
        self
    }

    /// Sets the beginning of the output, which the caller has already; see
    /// [`Request::output_so_far`](field@Request::output_so_far).
    #[must_use]
    pub fn output_so_far(mut self, tokens: impl Into<Vec<TokenId>>) -> Self {
        self.output_so_far = tokens.into();
        self
    }

    /// Requests this many outputs; see [`Engine::submit_many`](crate::Engine::submit_many).
    #[must_use]
    pub fn n(mut self, outputs: usize) -> Self {
        self.n = outputs;
        self
    }

    /// Chooses the `n` outputs from this many; see [`Engine::best_of`](crate::Engine::best_of).
    #[must_use]
    pub fn best_of(mut self, outputs: usize) -> Self {
        self.best_of = Some(outputs);
        self
    }

    /// Sets the user that the request belongs to.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the weight of its user's share, relative to other users.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the priority class.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the longest time from its submission to its start.
    #[must_use]
    pub fn start_within(mut self, time: Duration) -> Self {
        self.start_within = Some(time);
        self
    }

    /// Sets the longest time from its submission to its end.
    #[must_use]
    pub fn finish_within(mut self, time: Duration) -> Self {
        self.finish_within = Some(time);
        self
    }

    /// Continues when the context is full, keeping the first `keep` tokens; see
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

    /// Reads nothing from the cache and leaves nothing in it.
    #[must_use]
    pub fn without_cache(mut self) -> Self {
        self.cache = CacheUse::Off;
        self
    }

    /// Sets the marks of the model's reasoning, and the most tokens that it may take.
    #[must_use]
    pub fn reasoning(mut self, budget: ReasoningBudget) -> Self {
        self.reasoning = Some(budget);
        self
    }

    /// Makes the stream report how far the prompt is computed.
    #[must_use]
    pub fn report_prefill_progress(mut self) -> Self {
        self.report_prefill_progress = true;
        self
    }

    /// Sets how strongly its cached state is protected from eviction.
    #[must_use]
    pub fn retention(mut self, retention: u8) -> Self {
        self.retention = retention;
        self
    }

    /// Adds a restore point: an offset in the prompt's tokens where state is kept.
    #[must_use]
    pub fn restore_point(mut self, at: usize) -> Self {
        self.restore_points.push(at);
        self
    }

    /// Sets where the conversation so far ends in the prompt's tokens.
    #[must_use]
    pub fn turn_end(mut self, at: usize) -> Self {
        self.turn_end = Some(at);
        self
    }
}

/// A request without a prompt, which a fork may be: all of its output continues the source.
impl Default for Request {
    fn default() -> Self {
        Self::tokens([])
    }
}
