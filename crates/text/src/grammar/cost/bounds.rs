//! Errors of bounds.

use motet_protocol::GrammarBound;

/// The bound on llguidance's own options.
pub(super) fn options(found: usize) -> GrammarBound {
    GrammarBound {
        bound: "grammar.options_allowed",
        limit: 0,
        found: found as u64,
    }
}

pub(super) fn check(bound: &'static str, limit: usize, found: f64) -> Result<(), GrammarBound> {
    if found > limit as f64 {
        return Err(GrammarBound {
            bound,
            limit: limit as u64,
            found: found as u64,
        });
    }
    Ok(())
}
