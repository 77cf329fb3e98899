//! A request is put together.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{CacheUse, Prompt, Request};
use motet_core::TokenId;
use motet_core::protocol::{ContextLimit, Priority, Sampling};
use motet_text::Chat;
use motet_text::grammar::GrammarSource;

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
    pub fn chat(chat: impl Into<Chat>) -> Self {
        Self::new(Prompt::Chat(chat.into()))
    }

    /// A request with this prompt and default settings: greedy, 256 tokens.
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
            grammar: None,
            n: 1,
            best_of: None,
            user: None,
            weight: 1.0,
            priority: Priority::Normal,
            start_by: None,
            finish_by: None,
            at_context_limit: ContextLimit::Stop,
            cache_salt: None,
            retention: 0,
            restore_points: Vec::new(),
            cache: CacheUse::Shared,
            tells_prefill: false,
        }
    }

    /// Sets the most tokens to generate.
    #[must_use]
    pub fn output_tokens_max(mut self, tokens: usize) -> Self {
        self.output_tokens_max = tokens;
        self
    }

    /// Draws no end token and no stop token before so many tokens.
    #[must_use]
    pub fn output_tokens_min(mut self, tokens: usize) -> Self {
        self.output_tokens_min = tokens;
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

    /// Adds to a token's logit; negative infinity rules the token out.
    #[must_use]
    pub fn bias(mut self, token: TokenId, bias: f32) -> Self {
        self.logit_bias.insert(token, bias);
        self
    }

    /// Tells the log probability of each token, and of the `top` likeliest beside it.
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

    /// Goes on past the model's own end tokens.
    #[must_use]
    pub fn ignore_end_tokens(mut self) -> Self {
        self.ignore_end_tokens = true;
        self
    }

    /// Has the output follow a grammar.
    #[must_use]
    pub fn grammar(mut self, grammar: GrammarSource) -> Self {
        self.grammar = Some(grammar);
        self
    }

    /// Makes what the last tokens hold less likely by this factor; see
    /// [`Sampling::repetition_penalty`].
    #[must_use]
    pub fn repetition_penalty(mut self, penalty: f32) -> Self {
        self.sampling.repetition_penalty = penalty;
        self
    }

    /// Lowers the logits of what the last tokens hold; see
    /// [`Sampling::presence_penalty`].
    #[must_use]
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.sampling.presence_penalty = penalty;
        self
    }

    /// Lowers the logits of what the last tokens hold, once for each time; see
    /// [`Sampling::frequency_penalty`].
    #[must_use]
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.sampling.frequency_penalty = penalty;
        self
    }

    /// Asks for so many outputs; see [`Engine::submit_many`](crate::Engine::submit_many).
    #[must_use]
    pub fn n(mut self, outputs: usize) -> Self {
        self.n = outputs;
        self
    }

    /// Chooses the `n` outputs from so many; see
    /// [`Engine::best_of`](crate::Engine::best_of).
    #[must_use]
    pub fn best_of(mut self, outputs: usize) -> Self {
        self.best_of = Some(outputs);
        self
    }

    /// Says whose it is.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets what its user's share is worth beside that of others.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Sets its class.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets when it must have started.
    #[must_use]
    pub fn start_by(mut self, deadline: impl Into<Instant>) -> Self {
        self.start_by = Some(deadline.into());
        self
    }

    /// Gives it so long to start, from now on; a time beyond all clocks is none.
    #[must_use]
    pub fn start_within(mut self, time: Duration) -> Self {
        self.start_by = Instant::now().checked_add(time);
        self
    }

    /// Sets when it must be over.
    #[must_use]
    pub fn finish_by(mut self, deadline: impl Into<Instant>) -> Self {
        self.finish_by = Some(deadline.into());
        self
    }

    /// Gives it so long to be over, from now on; a time beyond all clocks is none.
    #[must_use]
    pub fn finish_within(mut self, time: Duration) -> Self {
        self.finish_by = Instant::now().checked_add(time);
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

    /// Uses nothing that is cached, and leaves nothing in the cache.
    #[must_use]
    pub fn without_cache(mut self) -> Self {
        self.cache = CacheUse::Off;
        self
    }

    /// Has the stream tell how far the prompt is computed.
    #[must_use]
    pub fn tells_prefill(mut self) -> Self {
        self.tells_prefill = true;
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
}
