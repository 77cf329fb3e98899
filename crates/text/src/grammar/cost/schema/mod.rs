//! Size of a JSON schema after expansion, computed without expanding it.
//!
//! llguidance intersects schemas by copying them: `allOf`, and keywords beside `anyOf`, `oneOf`
//! and `$ref`, combine every option of one schema with every option of the other. Here a schema
//! is only a [`Shape`]: how many options it has of each type, how many schemas it would expand
//! to, and the shapes of its members. Shapes are intersected as llguidance intersects schemas.
//! Each intersection is charged to the bounds, so that the estimate itself is bounded by them.
//!
//! | file | content |
//! |---|---|
//! | `shape.rs` | the shape of a schema, as far as it affects the cost |
//! | `schema_counts.rs` | counts that need one look at each value |
//! | `judge.rs` | the shape of each schema, and of intersections |
//! | `account.rs` | the cost so far, checked against the bounds |

mod account;
mod judge;
mod schema_counts;
mod shape;
#[cfg(test)]
mod tests;

use serde_json::Value;

use account::Account;
use judge::Judge;
use motet_protocol::{GrammarBound, GrammarLimits};
use schema_counts::SchemaCounts;

/// Checks the cost of a schema.
pub(in crate::grammar) fn judge(
    schema: &Value,
    limits: &GrammarLimits,
) -> Result<(), GrammarBound> {
    judge_all([schema], limits).map_err(|(_, bound)| bound)
}

/// Checks the cost of several schemas together. An error has the number of the schema with which
/// a bound is exceeded.
pub(in crate::grammar) fn judge_all<'a>(
    schemas: impl IntoIterator<Item = &'a Value>,
    limits: &'a GrammarLimits,
) -> Result<(), (usize, GrammarBound)> {
    account(schemas, limits).map(drop)
}

/// The cost of several schemas together.
fn account<'a>(
    schemas: impl IntoIterator<Item = &'a Value>,
    limits: &'a GrammarLimits,
) -> Result<Account<'a>, (usize, GrammarBound)> {
    let mut schema_counts = SchemaCounts::default();
    let mut account = Account::new(limits);
    for (number, schema) in schemas.into_iter().enumerate() {
        let counted = schema_counts.visit(schema, limits);
        let charged = counted.and_then(|()| Judge::charge(schema, account));
        account = charged.map_err(|bound| (number, bound))?;
    }
    Ok(account)
}
