//! Counts over a schema that need one look at each value.

use serde_json::Value;

use crate::grammar::cost::{check, options};
use motet_protocol::{GrammarBound, GrammarLimits};

/// Counts over a schema that need one look at each value.
#[derive(Default)]
pub(super) struct SchemaCounts {
    patterns: usize,
    enum_values: usize,
}

impl SchemaCounts {
    pub(super) fn visit(
        &mut self,
        value: &Value,
        depth: usize,
        limits: &GrammarLimits,
    ) -> Result<(), GrammarBound> {
        check("grammar.depth_max", limits.depth_max, depth as f64)?;
        match value {
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| self.visit(item, depth + 1, limits)),
            Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
                self.count(name, value, limits)?;
                self.visit(value, depth + 1, limits)
            }),
            _ => Ok(()),
        }
    }

    fn count(
        &mut self,
        name: &str,
        value: &Value,
        limits: &GrammarLimits,
    ) -> Result<(), GrammarBound> {
        match (name, value) {
            ("x-guidance", _) if !limits.options_allowed => return Err(options(1)),
            ("pattern", Value::String(_)) => self.patterns += 1,
            ("patternProperties", Value::Object(keys)) => self.patterns += keys.len(),
            ("enum", Value::Array(values)) => self.enum_values += values.len(),
            _ => return Ok(()),
        }
        check(
            "grammar.patterns_max",
            limits.patterns_max,
            self.patterns as f64,
        )?;
        check(
            "grammar.enum_values_max",
            limits.enum_values_max,
            self.enum_values as f64,
        )
    }
}
