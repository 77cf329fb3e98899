//! Sampling of tokens from logits.
//!
//! Randomness is a pure function of a request's seed, the position in the sequence's text, and the
//! token: see [`Noise`]. Everything else is a function of the request and the sequence's own
//! tokens. A sequence therefore samples the same tokens in any batch, however often it was
//! preempted, and on every backend. Sampling for a batch is sampling for each of its rows.
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
//! 3. Tokens that cannot be sampled are set to minus infinity: end tokens before the output is
//!    long enough, and tokens that the grammar does not allow.
//! 4. Top-k, temperature, top-p and min-p are applied, and a token is sampled: of those that are
//!    left, the one with the largest weight divided by its [`Noise`].
//!
//! Log probabilities are those of the raw logits, before all this.

mod adjustments;
mod filters;
mod history;
mod logprobs;
mod noise;
mod prompt_logprobs;
mod row_sampling;
pub mod rows;
mod sample_inputs;
mod sampler;
#[cfg(test)]
mod tests;

pub use adjustments::Adjustments;
pub use logprobs::{logprobs_of, logprobs_with};
pub use motet_protocol::{Sampling, SamplingError, SamplingSpec, TokenLogprobs, TokenSampling};
pub use noise::Noise;
pub use prompt_logprobs::prompt_logprobs;
pub use row_sampling::{probabilities, sample_row, weights};
pub use sample_inputs::{SampleInputs, Sampled};
pub use sampler::Sampler;
