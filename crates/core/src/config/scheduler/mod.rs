//! Settings of the scheduler: one struct for each decision that it makes.

mod admission;
mod chunking;
mod fairness;
mod speculation;

use std::time::Duration;

use motet_sync::admission::REQUESTS_MAX;

pub use self::admission::AdmissionConfig;
pub use self::chunking::{ChunkingConfig, InterToken};
pub use self::fairness::FairnessConfig;
pub use self::speculation::SpeculationConfig;
use super::ConfigError;
use super::bounds::positive;

/// Settings of the scheduler.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "preemption")]
pub struct SchedulerConfig {
    /// Upper bound on the sequences that run at once. More sequences give more throughput and a
    /// longer wait between two tokens. Measure where throughput stops growing.
    pub sequences_max: usize,
    /// Limits of the queue, of all users together and of each.
    pub admission: AdmissionConfig,
    /// Size of a step, and the part of it that prompts get.
    pub chunking: ChunkingConfig,
    /// Shares of the users, and turns of the priority classes.
    pub fairness: FairnessConfig,
    /// Drafts of the tokens that sequences may generate next.
    pub speculation: SpeculationConfig,
    /// Upper bound on the tokens that a sequence is ahead of its caller's reading. The sequence
    /// pauses there.
    pub unread_tokens_max: usize,
    /// Time after which a paused sequence fails if its caller has read nothing. `None` never
    /// ends it.
    pub unread_timeout: Option<Duration>,
    /// Upper bound on the duration of one piece of work on the device. After that the engine
    /// abandons the device thread, with all the memory that it holds, and loads the model again
    /// on another thread. Choose longer than any step can take.
    pub device_timeout: Duration,
    /// Upper bound on the failed steps in a row, without a new token between them, that a
    /// sequence survives. After the first one it is tried alone.
    pub step_retries_max: u32,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            sequences_max: 64,
            admission: AdmissionConfig::default(),
            chunking: ChunkingConfig::default(),
            fairness: FairnessConfig::default(),
            speculation: SpeculationConfig::default(),
            unread_tokens_max: 256,
            unread_timeout: None,
            device_timeout: Duration::from_secs(60),
            step_retries_max: 2,
        }
    }
}

impl SchedulerConfig {
    /// Returns the upper bound on admitted requests, running and waiting.
    #[must_use]
    pub fn inside_max(&self) -> usize {
        self.sequences_max.saturating_add(self.admission.queue_max)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        positive("scheduler.sequences_max", self.sequences_max)?;
        positive("scheduler.unread_tokens_max", self.unread_tokens_max)?;
        self.admission.validate()?;
        self.chunking.validate()?;
        self.fairness.validate()?;
        self.speculation.validate()?;
        if self.inside_max() > REQUESTS_MAX {
            return Err(ConfigError {
                field: "scheduler.admission.queue_max",
                found: self.admission.queue_max.to_string(),
                expected: "with `scheduler.sequences_max`, less than 2^24: a queue is bounded"
                    .into(),
            });
        }
        if self.device_timeout.is_zero() {
            return Err(ConfigError {
                field: "scheduler.device_timeout",
                found: "0".into(),
                expected: "longer than any step can take".into(),
            });
        }
        if self.unread_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(ConfigError {
                field: "scheduler.unread_timeout",
                found: "0".into(),
                expected: "longer than any reader may take, or none".into(),
            });
        }
        if self.chunking.step_tokens_max < self.sequences_max {
            return Err(ConfigError {
                field: "scheduler.chunking.step_tokens_max",
                found: self.chunking.step_tokens_max.to_string(),
                expected: "at least `scheduler.sequences_max`, so that all sequences may decode"
                    .into(),
            });
        }
        Ok(())
    }
}
