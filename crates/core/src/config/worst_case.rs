//! Memory that a model needs at least, and whether the settings grant it.

use super::{ConfigError, EngineConfig};
use motet_protocol::ModelSpec;

/// Memory that must fit on the device at once: see [`EngineConfig::worst_case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorstCase {
    /// Sequences of the whole context: `cache.full_sequences_min`.
    pub full_sequences: usize,
    /// Tokens of each sequence.
    pub context_tokens: usize,
    /// Bytes of cached state of all these sequences.
    pub tail_bytes: usize,
    /// Bytes of scratch memory for the largest step.
    pub scratch_bytes: usize,
}

impl EngineConfig {
    /// Returns the upper bound on the tokens of a sequence of this model.
    #[must_use]
    pub fn context_tokens_max(&self, spec: &ModelSpec) -> usize {
        self.context_tokens_max.unwrap_or(spec.context_tokens_max)
    }

    /// Returns the device bytes that the largest step needs beside weights and cached state.
    #[must_use]
    pub fn scratch_bytes(&self, spec: &ModelSpec) -> usize {
        spec.scratch_bytes_per_token
            .saturating_mul(self.scheduler.chunking.step_tokens_max)
    }

    /// Returns what must fit on the device at once, even after everything else was preempted or
    /// evicted.
    #[must_use]
    pub fn worst_case(&self, spec: &ModelSpec) -> WorstCase {
        let context_tokens = self.context_tokens_max(spec);
        let tail = spec.tail_bytes(context_tokens);
        let full_sequences = self.cache.full_sequences_min;
        WorstCase {
            full_sequences,
            context_tokens,
            // At least one byte is left for the cache.
            tail_bytes: tail.saturating_mul(full_sequences).max(1),
            scratch_bytes: self.scratch_bytes(spec),
        }
    }

    /// Checks the context limit against the model's, and the budget against the worst case: the
    /// scratch memory of the largest step, and `cache.full_sequences_min` sequences of the
    /// whole context at once. With at least one of them, one sequence can always continue after
    /// all others were preempted. A budget of 0 is checked when the model is loaded.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the valid context, or the bytes that would suffice.
    pub fn validate_for(&self, spec: &ModelSpec) -> Result<(), ConfigError> {
        let context = self.context_tokens_max(spec);
        if context == 0 || context > spec.context_tokens_max {
            return Err(ConfigError {
                field: "context_tokens_max",
                found: context.to_string(),
                expected: format!(
                    "from 1 to the model's own context, {}",
                    spec.context_tokens_max
                )
                .into(),
            });
        }
        let worst = self.worst_case(spec);
        let (needed, scratch) = (worst.bytes(), worst.scratch_bytes);
        let budget = self.cache.device_bytes_max;
        if budget == 0 || needed <= budget {
            return Ok(());
        }
        Err(ConfigError {
            field: "cache.device_bytes_max",
            found: self.cache.device_bytes_max.to_string(),
            expected: format!(
                "at least {needed} bytes: `cache.full_sequences_min` = {} sequences of \
                 {context} tokens (lower that to 0 if no request is that long, or set \
                 `context_tokens_max`), and {scratch} for a step of \
                 `scheduler.chunking.step_tokens_max` tokens",
                self.cache.full_sequences_min
            )
            .into(),
        })
    }
}

impl WorstCase {
    /// Returns the sum of all bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tail_bytes.saturating_add(self.scratch_bytes)
    }
}

impl std::fmt::Display for WorstCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} for {} sequences of {} tokens, and {} for the largest step's scratch",
            self.tail_bytes, self.full_sequences, self.context_tokens, self.scratch_bytes
        )
    }
}
