//! Bounds that settings of several components share.

use std::time::Duration;

use super::ConfigError;

/// Upper bound on a setting in bytes. No machine has more, so a larger one is a mistake.
const BYTES_MAX: usize = 1 << 48;

/// Checks that a budget is from 1 to `BYTES_MAX` bytes.
pub(super) fn bytes(field: &'static str, value: usize) -> Result<(), ConfigError> {
    if (1..=BYTES_MAX).contains(&value) {
        return Ok(());
    }
    Err(ConfigError {
        field,
        found: value.to_string(),
        expected: format!("from 1 to {BYTES_MAX} bytes").into(),
    })
}

/// Checks that a time is above 0.
pub(super) fn time(field: &'static str, value: Duration) -> Result<(), ConfigError> {
    if !value.is_zero() {
        return Ok(());
    }
    Err(ConfigError {
        field,
        found: "0".into(),
        expected: "a time above 0".into(),
    })
}

/// Checks that a count is above 0.
pub(super) fn positive(field: &'static str, value: usize) -> Result<(), ConfigError> {
    if value > 0 {
        return Ok(());
    }
    Err(ConfigError {
        field,
        found: "0".into(),
        expected: "at least 1".into(),
    })
}
