//! Size of a step, and the part of it that prompts get.

use std::time::Duration;

use crate::config::ConfigError;
use crate::config::bounds::positive;

/// Size of a step. A prompt is computed in chunks beside the decoding sequences; these settings
/// choose between its first token and even gaps between theirs.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "chunked prefill")]
pub struct ChunkingConfig {
    /// Upper bound on the tokens that one step evaluates, decode and prefill together;
    /// `inter_token` may lower it. Scratch memory for this many tokens is reserved. It must be
    /// at least `scheduler.sequences_max`, so that every sequence can be in every step.
    pub step_tokens_max: usize,
    /// Bound on the duration of a step that computes prompts beside decoding sequences.
    pub inter_token: InterToken,
    /// Number of planned steps after which a prompt with a slot computes a chunk, even when
    /// decoding leaves no time for it; at least 1. One such prompt per step gets a chunk.
    /// Choose less for a sooner first token, and more for more even gaps between tokens.
    pub prefill_wait_steps_max: usize,
    /// Tokens of that chunk. No other chunk is shorter either, except at the end of a prompt.
    pub prefill_tokens_min: usize,
}

/// Bound on the duration of a step that computes prompts: the gap between two tokens that
/// decoding sequences accept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InterToken {
    /// As long as `step_tokens_max` tokens take: fastest for prompts.
    Unbounded,
    /// Prompts add at most this many times the duration of a step with one decoding sequence,
    /// or as much as all decoding sequences take together, whichever is more. Above 0.
    Relative(f64),
    /// The step takes at most this long. Above 0.
    Absolute(Duration),
}

impl Default for ChunkingConfig {
    fn default() -> Self {
        Self {
            step_tokens_max: 256,
            inter_token: InterToken::Relative(2.5),
            prefill_wait_steps_max: 16,
            prefill_tokens_min: 16,
        }
    }
}

impl ChunkingConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        positive("scheduler.chunking.step_tokens_max", self.step_tokens_max)?;
        positive(
            "scheduler.chunking.prefill_wait_steps_max",
            self.prefill_wait_steps_max,
        )?;
        let error = |found: String, expected: &'static str| ConfigError {
            field: "scheduler.chunking.inter_token",
            found,
            expected: expected.into(),
        };
        match self.inter_token {
            InterToken::Absolute(Duration::ZERO) => Err(error("0".into(), "a time above 0")),
            InterToken::Relative(times) if !(times > 0.0 && times.is_finite()) => {
                Err(error(times.to_string(), "a finite number above 0"))
            }
            _ => Ok(()),
        }
    }
}
