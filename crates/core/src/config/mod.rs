//! Engine settings: one struct per component. Each field states its unit and how to choose it.

mod bounds;
mod cache;
mod grammar;
mod pager;
mod recovery;
mod scheduler;
mod text;
mod worst_case;

use std::borrow::Cow;

use self::bounds::positive;
pub use self::cache::{CacheConfig, EvictionPolicy, RestorePointPolicy, SlotChoice};
pub use self::pager::{DiskConfig, PagerConfig, RemoteConfig, RemoteSends};
pub use self::recovery::RecoveryConfig;
pub use self::scheduler::{
    AdmissionConfig, ChunkingConfig, FairnessConfig, InterToken, SchedulerConfig, SpeculationConfig,
};
pub use self::text::TextConfig;
pub use self::worst_case::WorstCase;
use motet_protocol::GrammarLimits;
pub use motet_protocol::Precision;

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("configuration field `{field}` is {found}; expected {expected}")]
pub struct ConfigError {
    /// The whole path of the field, for example `scheduler.chunking.step_tokens_max`.
    pub field: &'static str,
    /// The value that was found.
    pub found: String,
    /// The values that would work.
    pub expected: Cow<'static, str>,
}

/// Settings of a whole engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineConfig {
    /// Upper bound on the tokens of one sequence, prompt and output together; `None` is the
    /// model's whole context. With a lower bound, a smaller `cache.device_bytes_max` holds
    /// `cache.full_sequences_min` sequences.
    pub context_tokens_max: Option<usize>,
    /// Settings of the scheduler: steps, queue limits, fairness.
    pub scheduler: SchedulerConfig,
    /// Settings of the cache: state on the device.
    pub cache: CacheConfig,
    /// Settings of the pager: copies in host memory and on disk.
    pub pager: PagerConfig,
    /// Settings of recovery from failed parts.
    pub recovery: RecoveryConfig,
    /// Settings of rendering and tokenising.
    pub text: TextConfig,
    /// Limits on the cost of a request's grammar.
    pub grammar: GrammarLimits,
}

impl EngineConfig {
    /// Checks that every setting can work.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first field that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        positive(
            "context_tokens_max",
            self.context_tokens_max.unwrap_or(usize::MAX),
        )?;
        grammar::validate(&self.grammar)?;
        self.recovery.validate()?;
        self.cache.validate()?;
        self.scheduler.validate()?;
        self.pager.validate()?;
        self.text.validate()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn defaults_are_valid_and_zeroes_are_named() {
        assert_eq!(EngineConfig::default().validate(), Ok(()));
        let mut config = EngineConfig::default();
        config.scheduler.chunking.step_tokens_max = 0;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.chunking.step_tokens_max");
        config.scheduler.chunking.step_tokens_max = config.scheduler.sequences_max - 1;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.chunking.step_tokens_max");
        let mut config = EngineConfig::default();
        config.scheduler.admission.user_requests_max = Some(0);
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.admission.user_requests_max");
        let mut config = EngineConfig::default();
        config.text.shift_contexts_max = 0;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "text.shift_contexts_max");
        let mut config = EngineConfig::default();
        config.scheduler.admission.queue_max = usize::MAX;
        assert_eq!(
            config.validate().unwrap_err().field,
            "scheduler.admission.queue_max"
        );
        let mut config = EngineConfig::default();
        config.scheduler.device_timeout = Duration::ZERO;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.device_timeout");
    }
}
