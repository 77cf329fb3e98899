//! The schemas that plain references name.

use serde_json::Value;

use super::budget::Budget;
use crate::schema::walk;

/// Longest chain of references that is followed.
const REFERENCES_MAX: usize = 16;

/// The schema that a plain reference names, and the ones that it refers to in turn.
pub(super) fn resolved<'a>(
    schema: &'a Value,
    root: &'a Value,
    budget: &mut Budget,
) -> Result<&'a Value, String> {
    let mut schema = schema;
    // A ring of references ends here as well.
    for _ in 0..REFERENCES_MAX {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
            break;
        };
        match target(reference, root, budget)? {
            Some(found) => schema = found,
            None => break,
        }
    }
    Ok(schema)
}

/// The schema that one plain reference names.
pub(super) fn target<'a>(
    reference: &str,
    root: &'a Value,
    budget: &mut Budget,
) -> Result<Option<&'a Value>, String> {
    budget.step(reference.split('/').count())?;
    Ok(walk::target(root, reference))
}
