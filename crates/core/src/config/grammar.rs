//! Checks of the bounds on the cost of a grammar.

use super::ConfigError;
use motet_protocol::GrammarLimits;

/// With fewer bytes hardly any grammar works.
const SEQUENCE_BYTES_LEAST: usize = 1 << 20;

/// Checks the limits; [`ConfigError`] names the first invalid field.
pub(super) fn validate(limits: &GrammarLimits) -> Result<(), ConfigError> {
    let check = |field, found: usize, least: usize| {
        if found >= least {
            return Ok(());
        }
        Err(ConfigError {
            field,
            found: found.to_string(),
            expected: format!("at least {least}").into(),
        })
    };
    check("grammar.depth_max", limits.depth_max, 1)?;
    check("grammar.members_max", limits.members_max, 1)?;
    check("grammar.expansion_max", limits.expansion_max, 1)?;
    check("grammar.compilations_max", limits.compilations_max, 1)?;
    check(
        "grammar.compilations_waiting_max",
        limits.compilations_waiting_max,
        1,
    )?;
    check(
        "grammar.sequence_bytes_max",
        limits.sequence_bytes_max,
        SEQUENCE_BYTES_LEAST,
    )?;
    if limits.compile_time_max.is_zero() {
        return Err(ConfigError {
            field: "grammar.compile_time_max",
            found: "0".into(),
            expected: "longer than 0".into(),
        });
    }
    if limits.bytes_max < limits.sequence_bytes_max {
        return Err(ConfigError {
            field: "grammar.bytes_max",
            found: limits.bytes_max.to_string(),
            expected: format!(
                "at least `grammar.sequence_bytes_max`, which is {}",
                limits.sequence_bytes_max
            )
            .into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn invalid_settings_are_reported_with_both_numbers() {
        let check = |change: fn(&mut GrammarLimits), words: &[&str]| {
            let mut limits = GrammarLimits::default();
            assert_eq!(validate(&limits), Ok(()));
            change(&mut limits);
            let error = validate(&limits)
                .expect_err("invalid limits are rejected")
                .to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        check(|l| l.depth_max = 0, &["grammar.depth_max", "0", "1"]);
        check(|l| l.members_max = 0, &["grammar.members_max"]);
        check(|l| l.expansion_max = 0, &["grammar.expansion_max"]);
        check(|l| l.compilations_max = 0, &["grammar.compilations_max"]);
        check(
            |l| l.compilations_waiting_max = 0,
            &["grammar.compilations_waiting_max", "0", "at least 1"],
        );
        check(
            |l| l.compile_time_max = Duration::ZERO,
            &["grammar.compile_time_max"],
        );
        check(
            |l| l.sequence_bytes_max = 7,
            &["grammar.sequence_bytes_max", "7", "1048576"],
        );
        check(|l| l.bytes_max = 8, &["grammar.bytes_max", "8", "33554432"]);
    }
}
