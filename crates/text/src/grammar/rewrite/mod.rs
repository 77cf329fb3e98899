//! Schemas as llguidance compiles them: rewritten where it reads one differently, or not at all.
//!
//! A rewritten schema accepts no value that the caller's own does not accept. It may accept fewer,
//! where a grammar cannot express the rest; such places are named below.
//!
//! | file | what is rewritten |
//! |---|---|
//! | `budget.rs` | nothing: the cost of all passes together |
//! | `targets.rs` | nothing: the schemas that references name |
//! | `options.rs` | llguidance's own options |
//! | `references.rs` | `$ref`s that are encoded, or go by an anchor or an `$id` |
//! | `simple.rs` | keywords that say nothing here, whole numbers such as `3.0`, unknown formats |
//! | `numbers.rs` | bounds and multiples, for readers that compute with `f64`s |
//! | `members.rs`, `sets.rs` | which members an object has: numbers of them, dependencies, names |
//! | `choices.rs` | `oneOf` whose options one member tells apart |
//!
//! To be removed once llguidance does it: `references.rs`, `members.rs`, `sets.rs`, the formats and whole
//! numbers of `simple.rs`, the bounds beyond 2^63 of `numbers.rs`, and the escapes of `options.rs`.

mod budget;
mod choices;
mod members;
mod numbers;
mod options;
mod references;
mod sets;
mod simple;
mod targets;

#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::schema::walk::each_mut;
pub(super) use budget::Budget;
pub(super) use options::{set_escapes, set_option};
#[cfg(test)]
pub(super) use tests::Random;

/// The schema as it is compiled. The budget is that of all schemas of one request.
///
/// # Errors
///
/// The reason why no grammar expresses it.
pub(super) fn prepared(schema: &Value, budget: &mut Budget) -> Result<Value, String> {
    let mut prepared = schema.clone();
    references::make_plain(&mut prepared, budget)?;
    references::drop_unused(&mut prepared);
    each_mut(&mut prepared, &mut |fields| {
        simple::simplify(fields)?;
        numbers::narrow(fields);
        Ok::<_, String>(())
    })?;
    let root = prepared.clone();
    each_mut(&mut prepared, &mut |fields| {
        choices::tell_apart(fields, &root, budget)?;
        members::rewrite(fields, &root, budget)
    })?;
    Ok(prepared)
}
