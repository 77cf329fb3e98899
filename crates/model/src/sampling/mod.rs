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
//!  SamplingSpec ─ biases, end, grammar ──────┤
//!  prompt, output ──────────────────▶ Sampler ── sample_inputs(row_sampling) ─▶ SampleInputs ── row ─▶ Sampled
//!                                        ▲─────── accept(token) ◀───────────────────┘
//! ```
//!
//! 1. Biases are added to the raw logits.
//! 2. Repetition, then presence and frequency penalties, as in llama.cpp and vLLM.
//! 3. What cannot be drawn is set to minus infinity: end tokens before the output is
//!    long enough, and what the grammar does not allow.
//! 4. Top-k, temperature, top-p and min-p, and the draw: see [`TokenSampling`].
//!
//! Log probabilities are of the raw logits, before all this.

mod adjustments;
mod filters;
mod history;
mod logprobs;
mod row_sampling;
pub mod rows;
mod sample_inputs;
mod sampler;
#[cfg(test)]
mod tests;

pub use adjustments::Adjustments;
pub use logprobs::logprobs_of;
pub use motet_core::protocol::{
    Sampling, SamplingError, SamplingSpec, TokenLogprobs, TokenSampling,
};
pub use row_sampling::{probabilities, sample_row, weights};
pub use sample_inputs::{SampleInputs, Sampled};
pub use sampler::Sampler;
