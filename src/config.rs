//! How an engine is set up: one struct a component, each field with advice.

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("configuration field `{field}` is {found}; expected {expected}")]
pub struct ConfigError {
    /// The field, with its component, for example `scheduler.step_tokens_max`.
    pub field: &'static str,
    /// What it was set to.
    pub found: String,
    /// What would work.
    pub expected: &'static str,
}

/// Requests that may be inside in all.
const INSIDE_MAX: usize = 1 << 32;

/// Settings of a whole engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineConfig {
    /// Who runs in a step, and how many may wait.
    pub scheduler: SchedulerConfig,
    /// What is kept on the device.
    pub cache: CacheConfig,
}

/// Settings of the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerConfig {
    /// Sequences that may run at once. More give more throughput and a longer
    /// wait between two tokens; 64 is past the knee on most devices.
    pub sequences_max: usize,
    /// Requests that may wait beyond those that run. A full queue refuses at
    /// once. Choose how long a caller may wait, times requests served in that
    /// time.
    pub queue_max: usize,
    /// Tokens that one step may evaluate, decode and prefill together. Larger
    /// prefills prompts faster, smaller keeps the gap between two tokens short.
    /// At least `sequences_max`, so that every sequence is in every step.
    pub step_tokens_max: usize,
    /// Failed steps in a row, without a new token between, that a sequence may be
    /// part of before it fails itself. After the first it is tried alone.
    pub step_retries_max: u32,
}

/// Settings of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheConfig {
    /// Device bytes for cached state: sealed segments and the tails of live
    /// sequences. Weights and scratch come on top. A request that could never
    /// fit is refused.
    pub device_bytes_max: usize,
    /// A new sequence waits for another's prefill only if that spares it at least
    /// this many tokens.
    pub share_tokens_min: usize,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            sequences_max: 64,
            queue_max: 256,
            step_tokens_max: 256,
            step_retries_max: 2,
        }
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            device_bytes_max: 2 << 30,
            share_tokens_min: 16,
        }
    }
}

impl EngineConfig {
    /// Checks that every setting can work.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first field that cannot.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let positive = |field, value: usize| match value {
            0 => Err(ConfigError {
                field,
                found: "0".into(),
                expected: "at least 1",
            }),
            _ => Ok(()),
        };
        positive("scheduler.sequences_max", self.scheduler.sequences_max)?;
        positive("scheduler.step_tokens_max", self.scheduler.step_tokens_max)?;
        positive("cache.device_bytes_max", self.cache.device_bytes_max)?;
        let inside = self
            .scheduler
            .sequences_max
            .checked_add(self.scheduler.queue_max);
        if inside.is_none_or(|inside| inside > INSIDE_MAX) {
            return Err(ConfigError {
                field: "scheduler.queue_max",
                found: self.scheduler.queue_max.to_string(),
                expected: "with `scheduler.sequences_max`, at most 2^32: a queue is bounded",
            });
        }
        match self.scheduler.step_tokens_max >= self.scheduler.sequences_max {
            true => Ok(()),
            false => Err(ConfigError {
                field: "scheduler.step_tokens_max",
                found: self.scheduler.step_tokens_max.to_string(),
                expected: "at least `scheduler.sequences_max`, so that all may decode",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_zeroes_are_named() {
        assert_eq!(EngineConfig::default().validate(), Ok(()));
        let mut config = EngineConfig::default();
        config.scheduler.step_tokens_max = 0;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.step_tokens_max");
        config.scheduler.step_tokens_max = config.scheduler.sequences_max - 1;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.step_tokens_max");
        let mut config = EngineConfig::default();
        config.scheduler.queue_max = usize::MAX;
        assert_eq!(config.validate().unwrap_err().field, "scheduler.queue_max");
    }
}
