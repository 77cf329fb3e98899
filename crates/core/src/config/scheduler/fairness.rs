//! Shares of the users, and turns of the priority classes.

use std::time::Duration;

use crate::config::ConfigError;

/// Shares of the users, in service units, and turns of the priority classes.
#[derive(Clone, Debug, PartialEq)]
pub struct FairnessConfig {
    /// Cost of a computed prompt token, in service units charged to its user. Tokens that were
    /// in the cache cost nothing.
    pub prompt_token_service: f64,
    /// Cost of a generated token, in service units charged to its user.
    pub output_token_service: f64,
    /// Service units by which a user may be ahead of the least-served user and still start
    /// first, because more of its prompt is cached.
    pub locality_service: f64,
    /// Service units by which a returning user may start below the least-served active user. A
    /// larger credit lets an occasional user send a burst ahead of heavy users.
    pub credit_service: f64,
    /// Time that a request waits before its class gets turns, although requests of a higher
    /// class wait. Turns take one start of eight, and at most an eighth of the slots (at least
    /// one) and of the steps. A request that starts in a turn keeps its slot for 16 tokens.
    /// With turns no class starves. Choose how long a request of a lower class may wait while a
    /// higher class takes all capacity. The higher class then waits for a slot as long as a
    /// turn lasts. `None` gives no turns: a saturated class starves those below it.
    pub ageing: Option<Duration>,
}

impl Default for FairnessConfig {
    fn default() -> Self {
        Self {
            prompt_token_service: 1.0,
            output_token_service: 2.0,
            locality_service: 2048.0,
            credit_service: 4096.0,
            ageing: Some(Duration::from_secs(30)),
        }
    }
}

impl FairnessConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            (
                "scheduler.fairness.prompt_token_service",
                self.prompt_token_service,
            ),
            (
                "scheduler.fairness.output_token_service",
                self.output_token_service,
            ),
            ("scheduler.fairness.locality_service", self.locality_service),
            ("scheduler.fairness.credit_service", self.credit_service),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(ConfigError {
                    field,
                    found: value.to_string(),
                    expected: "a finite number, at least 0".into(),
                });
            }
        }
        Ok(())
    }
}
