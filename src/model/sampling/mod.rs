//! How a token is drawn from logits.
//!
//! Randomness is a pure function of a request's seed and the index of the token
//! within its output, and everything else of the request and the sequence's own
//! tokens. So a sequence draws the same tokens whoever shares its batch, however often
//! it was preempted, and on every backend: to draw for a batch is to draw for each of
//! its rows.
//!
//! ```text
//!  Sampling ─ settings that are numbers ─┐
//!  DrawSpec ─ biases, end, grammar ──────┤
//!  prompt, output ──────────────────▶ Drawer ── drawing(draw) ─▶ Drawing ── row ─▶ Drawn
//!                                        ▲─────── accept(token) ◀───────────────────┘
//! ```
//!
//! 1. Biases are added to the raw logits.
//! 2. Repetition, then presence and frequency penalties, as in llama.cpp and vLLM.
//! 3. What cannot be drawn is set to minus infinity: end tokens before the output is
//!    long enough, and what the grammar does not allow.
//! 4. Top-k, temperature, top-p and min-p, and the draw: see [`Draw`].
//!
//! Log probabilities are of the raw logits, before all this.

mod adjustments;
mod draw;
mod drawer;
mod drawing;
mod filters;
mod history;
mod logprobs;
pub(in crate::model) mod rows;
mod spec;
#[cfg(test)]
mod tests;

pub use adjustments::Adjustments;
pub use draw::Draw;
pub use drawer::Drawer;
pub use drawing::{Drawing, Drawn};
pub use logprobs::TokenLogprobs;
pub use spec::{DrawSpec, SamplingError};

/// How a request wants its tokens drawn, as far as that is numbers; what is more is in
/// a [`DrawSpec`]. [`Sampling::GREEDY`] is the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token (greedy). Finite, >= 0.
    pub temperature: f32,
    /// Only tokens at least as likely as the `top_k`-th most likely take part; 0
    /// is no limit.
    pub top_k: u32,
    /// Only tokens at least as likely as the least likely one of the smallest set
    /// whose probability reaches `top_p` take part; in (0, 1], 1 is no limit.
    pub top_p: f32,
    /// Only tokens at least `min_p` times as likely as the likeliest take part;
    /// in [0, 1], 0 is no limit.
    pub min_p: f32,
    /// Seed of this request's random numbers.
    pub seed: u64,
    /// Divides the positive logits of tokens in the history and multiplies the
    /// negative ones (CTRL, Keskar et al. 2019); finite, > 0, 1 is off. Above 1 it
    /// makes repetition less likely; 1.1 is much.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the history, as OpenAI defines it;
    /// finite, 0 is off, usually in [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens for each time that they are in the
    /// history, as OpenAI defines it; finite, 0 is off, usually in [-2, 2].
    pub frequency_penalty: f32,
    /// The last so many tokens are the history that the three penalties look at; 0 is
    /// none of them, `u32::MAX` all. 64 is the default of llama.cpp and ollama; OpenAI
    /// and vLLM look at all.
    pub penalty_window: u32,
    /// Whether the prompt is part of the history, as in llama.cpp and ollama, or only
    /// the output, as for OpenAI's two penalties.
    pub penalize_prompt: bool,
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_window: 64,
        penalize_prompt: true,
    };

    /// Whether this always takes the most likely token.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Whether what is drawn depends on the tokens before it, beyond their logits.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        let is_on = self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0;
        is_on && self.penalty_window > 0
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// [`SamplingError`] naming the field, what it is, and what it may be.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let finite = |field, number: f32| {
            let expected = "a finite number";
            SamplingError::unless(number.is_finite(), field, number, expected)
        };
        let temperature = self.temperature;
        SamplingError::unless(
            temperature.is_finite() && temperature >= 0.0,
            "sampling.temperature",
            temperature,
            "a finite number, at least 0",
        )?;
        SamplingError::unless(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "sampling.top_p",
            self.top_p,
            "a number above 0 and at most 1",
        )?;
        SamplingError::unless(
            (0.0..=1.0).contains(&self.min_p),
            "sampling.min_p",
            self.min_p,
            "a number from 0 to 1",
        )?;
        SamplingError::unless(
            self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
            "sampling.repetition_penalty",
            self.repetition_penalty,
            "a finite number above 0",
        )?;
        finite("sampling.presence_penalty", self.presence_penalty)?;
        finite("sampling.frequency_penalty", self.frequency_penalty)
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}
