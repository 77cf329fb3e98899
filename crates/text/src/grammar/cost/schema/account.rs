//! The cost of a schema so far, and its bounds.

use super::shape::Shape;
use crate::grammar::cost::bounds::check;
use motet_protocol::{GrammarBound, GrammarLimits};

/// Shapes are nested no deeper; llguidance gives up at this depth as well.
const NESTED_MAX: usize = 128;
/// Number of comparisons of `oneOf`'s options that cost as much as copying a schema.
pub(super) const COMPARISONS_PER_NODE: f64 = 20.0;

/// The accumulated cost of a schema. Each addition is checked against the limits at once.
pub(super) struct Account<'a> {
    limits: &'a GrammarLimits,
    pattern_pairs: f64,
    intersections: f64,
    pub(super) expansion: f64,
}

impl<'a> Account<'a> {
    pub(super) fn new(limits: &'a GrammarLimits) -> Self {
        Self {
            limits,
            pattern_pairs: 0.0,
            intersections: 0.0,
            expansion: 0.0,
        }
    }

    /// Charges for schemas that are copied or expanded.
    pub(super) fn expand(&mut self, nodes: f64) -> Result<(), GrammarBound> {
        self.expansion += nodes;
        check(
            "grammar.expansion_max",
            self.limits.expansion_max,
            self.expansion,
        )
    }

    /// Charges for comparing each option of a `oneOf` with each other, key by key.
    pub(super) fn compare_options(&mut self, shape: &Shape<'_>) -> Result<(), GrammarBound> {
        if !shape.is_one_of {
            return Ok(());
        }
        let comparisons = shape.comparisons().powi(2) / 2.0;
        self.expand(comparisons / COMPARISONS_PER_NODE)
    }

    /// Charges for comparing keys of `patternProperties` with each other, and with the names of
    /// members.
    pub(super) fn compare(&mut self, keys: usize, members: usize) -> Result<(), GrammarBound> {
        let keys = keys as f64;
        // A name costs a fiftieth of a pair.
        self.pattern_pairs += keys * (keys - 1.0).max(0.0) / 2.0 + keys * members as f64 / 50.0;
        check(
            "grammar.pattern_pairs_max",
            self.limits.pattern_pairs_max,
            self.pattern_pairs,
        )
    }

    /// Charges for comparing keys of two objects, for each pair of options that they are in.
    pub(super) fn compare_each(
        &mut self,
        pairs: f64,
        keys: usize,
        members: usize,
    ) -> Result<(), GrammarBound> {
        for _ in 0..(pairs as usize).min(self.limits.pattern_pairs_max) {
            self.compare(keys, members)?;
            if keys == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Charges for intersecting options of two shapes.
    pub(super) fn intersect(&mut self, pairs: f64) -> Result<(), GrammarBound> {
        self.intersections += pairs;
        check(
            "grammar.intersections_max",
            self.limits.intersections_max,
            self.intersections,
        )
    }

    pub(super) fn check_depth(&self, depth: usize) -> Result<(), GrammarBound> {
        check(
            "grammar.depth_max",
            NESTED_MAX.min(self.limits.depth_max),
            depth as f64,
        )
    }

    pub(super) fn check_members(&self, members: usize) -> Result<(), GrammarBound> {
        check(
            "grammar.members_max",
            self.limits.members_max,
            members as f64,
        )
    }

    pub(super) fn check_multiple(&self, multiple_of: f64) -> Result<(), GrammarBound> {
        check(
            "grammar.multiple_of_max",
            self.limits.multiple_of_max,
            multiple_of,
        )
    }

    pub(super) fn check_patterns(&self, patterns: f64) -> Result<(), GrammarBound> {
        check(
            "grammar.intersected_patterns_max",
            self.limits.intersected_patterns_max,
            patterns,
        )
    }
}
