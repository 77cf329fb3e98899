//! Bounds on the cost of a request's grammar.

use std::time::Duration;

/// Bounds on the cost of a request's grammar: before compilation, during it, and while an
/// output follows the grammar.
///
/// The bounds on a source are checked before anything is compiled, in time proportional to the
/// source and to the bounds. The defaults accept all but a few in a thousand of the schemas
/// that people write: see docs/performance.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarLimits {
    /// Whether a request may set llguidance's own options: `x-guidance` in a schema, `%json` and `%llguidance` in a
    /// Lark text. They change whitespace, separators and leniency. Allow them to callers that you trust.
    pub options_allowed: bool,
    /// Whether tokens that a grammar forces are appended without a forward pass each. The output
    /// is the same either way; turn it off for measurements.
    pub forced_tokens: bool,
    /// Depth of nesting of the values of a schema.
    pub depth_max: usize,
    /// Total number of `enum` values in a schema.
    pub enum_values_max: usize,
    /// Total number of patterns in a schema: `pattern` and the keys of `patternProperties`.
    pub patterns_max: usize,
    /// Pairs of `patternProperties` in a schema that are compared, including pairs that `allOf`
    /// and similar keywords combine. Each pair costs up to a millisecond.
    pub pattern_pairs_max: usize,
    /// Patterns that one string must match together, and expressions that a Lark text intersects or negates.
    pub intersected_patterns_max: usize,
    /// Members of one object of a schema.
    pub members_max: usize,
    /// Schema intersections that result from `allOf`, and from keywords beside `anyOf`, `oneOf`
    /// and `$ref`.
    pub intersections_max: usize,
    /// Schemas that these intersections copy and that a schema expands to. Twenty comparisons
    /// of the options of a `oneOf`, key by key, count as one.
    pub expansion_max: usize,
    /// The largest `multipleOf`, as an integer of its decimal digits; if several apply to one
    /// value, their product.
    pub multiple_of_max: usize,
    /// Concurrent compilations. Each occupies a core while it lasts.
    pub compilations_max: usize,
    /// Requests whose grammars wait for a compilation; at least 1. A full queue rejects further
    /// requests at once.
    pub compilations_waiting_max: usize,
    /// Longest compilation, from its start. The request ends then; the bounds above keep the
    /// rest of the work short.
    pub compile_time_max: Duration,
    /// Bytes that the lexer's states of one output may take; at least 1 MiB.
    pub sequence_bytes_max: usize,
    /// Bytes that the lexers' states of all outputs may take together. When they exceed it, an
    /// output ends that uses more than an equal share.
    pub bytes_max: usize,
}

/// A bound that a grammar exceeds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bound} is {found}; expected at most {limit}")]
pub struct GrammarBound {
    /// Name of the setting in [`GrammarLimits`], or of the constant of `GrammarSource`.
    pub bound: &'static str,
    /// Value of the bound.
    pub limit: u64,
    /// The grammar's value, or more: counting stops where a bound is exceeded.
    pub found: u64,
}

impl GrammarLimits {
    /// Limits without bounds other than those on the bytes of sources, for trusted sources and
    /// for measurements.
    #[must_use]
    pub fn unbounded() -> Self {
        Self {
            options_allowed: true,
            depth_max: usize::MAX,
            enum_values_max: usize::MAX,
            patterns_max: usize::MAX,
            pattern_pairs_max: usize::MAX,
            intersected_patterns_max: usize::MAX,
            members_max: usize::MAX,
            intersections_max: usize::MAX,
            expansion_max: usize::MAX,
            multiple_of_max: usize::MAX,
            ..Self::default()
        }
    }

    /// Whether only the bytes of a source are bounded, so that nothing else is checked.
    pub fn is_unbounded(&self) -> bool {
        let unbounded = Self {
            forced_tokens: self.forced_tokens,
            compilations_max: self.compilations_max,
            compilations_waiting_max: self.compilations_waiting_max,
            compile_time_max: self.compile_time_max,
            sequence_bytes_max: self.sequence_bytes_max,
            bytes_max: self.bytes_max,
            ..Self::unbounded()
        };
        *self == unbounded
    }
}

impl Default for GrammarLimits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            options_allowed: false,
            forced_tokens: true,
            depth_max: 100,
            enum_values_max: 6000,
            patterns_max: 200,
            pattern_pairs_max: 600,
            intersected_patterns_max: 4,
            members_max: 1000,
            intersections_max: 50_000,
            expansion_max: 200_000,
            multiple_of_max: 100_000,
            compilations_max: (cores / 2).clamp(1, 2),
            compilations_waiting_max: 64,
            compile_time_max: Duration::from_secs(2),
            sequence_bytes_max: 32 << 20,
            bytes_max: 1 << 30,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifting_one_bound_lifts_no_other() {
        let mut limits = GrammarLimits {
            compilations_max: 7,
            bytes_max: usize::MAX,
            ..GrammarLimits::unbounded()
        };
        assert!(
            limits.is_unbounded(),
            "only the bytes of a source are bounded"
        );
        limits.patterns_max = 200;
        assert!(!limits.is_unbounded());
        let limits = GrammarLimits {
            expansion_max: usize::MAX,
            ..GrammarLimits::default()
        };
        assert!(!limits.is_unbounded());
    }
}
