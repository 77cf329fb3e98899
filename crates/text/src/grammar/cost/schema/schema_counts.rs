//! Counts over a schema that need one look at each value.

use serde_json::Value;

use crate::grammar::cost::bounds::{check, options};
use crate::schema::keywords::{Holds, keyword};
use crate::schema::walk::each_value;
use motet_protocol::{GrammarBound, GrammarLimits};

/// Counts over all values of a schema, since a reference may make a schema of any.
#[derive(Default)]
pub(super) struct SchemaCounts {
    patterns: usize,
    enum_values: usize,
}

impl SchemaCounts {
    pub(super) fn visit(
        &mut self,
        schema: &Value,
        limits: &GrammarLimits,
    ) -> Result<(), GrammarBound> {
        each_value(schema, &mut |place| {
            if let Some(name) = place.name {
                self.count(name, place.value, limits)?;
            }
            check("grammar.depth_max", limits.depth_max, place.depth as f64)
        })
    }

    fn count(
        &mut self,
        name: &str,
        value: &Value,
        limits: &GrammarLimits,
    ) -> Result<(), GrammarBound> {
        if name == "x-guidance" && !limits.options_allowed {
            return Err(options(1));
        }
        let Some(keyword) = keyword(name) else {
            return Ok(());
        };
        self.patterns += keyword.patterns(value).len();
        if let (Holds::Values, Value::Array(values)) = (keyword.holds, value) {
            self.enum_values += values.len();
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
