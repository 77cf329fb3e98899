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
//! | `intersect.rs` | the intersection of two shapes |
//! | `account.rs` | the cost so far, checked against the bounds |

mod account;
mod intersect;
mod schema_counts;
mod shape;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use account::{Account, COMPARISONS_PER_NODE};
use motet_protocol::{GrammarBound, GrammarLimits};
use schema_counts::SchemaCounts;
use shape::{ARRAY, NUMBER, OBJECT, STRING, Shape, any, compared, constant, digits, types, union};

/// Checks the cost of a schema.
pub(super) fn judge(schema: &Value, limits: &GrammarLimits) -> Result<(), GrammarBound> {
    judge_all([schema], limits).map_err(|(_, bound)| bound)
}

/// Checks the cost of several schemas together. An error has the number of the schema with which
/// a bound is exceeded.
pub(super) fn judge_all<'a>(
    schemas: impl IntoIterator<Item = &'a Value>,
    limits: &GrammarLimits,
) -> Result<(), (usize, GrammarBound)> {
    let mut schema_counts = SchemaCounts::default();
    let mut account = Account::new(limits);
    for (number, schema) in schemas.into_iter().enumerate() {
        let judged = schema_counts.visit(schema, 1, limits).and_then(|()| {
            let mut judge = Judge {
                root: schema,
                definitions: FxHashMap::default(),
                account: std::mem::replace(&mut account, Account::new(limits)),
            };
            let root = judge.shape(schema, 0)?;
            judge.account.expand(root.nodes)?;
            account = judge.account;
            Ok(())
        });
        judged.map_err(|bound| (number, bound))?;
    }
    Ok(())
}

/// A walk over a schema.
struct Judge<'a> {
    root: &'a Value,
    /// Shapes of referenced schemas; `None` while one is being computed.
    definitions: FxHashMap<&'a str, Option<Rc<Shape<'a>>>>,
    account: Account<'a>,
}

impl<'a> Judge<'a> {
    fn shape(&mut self, schema: &'a Value, depth: usize) -> Result<Rc<Shape<'a>>, GrammarBound> {
        let Value::Object(fields) = schema else {
            return Ok(Rc::new(Shape {
                is_any: schema != &Value::Bool(false),
                nodes: 1.0,
                ..Shape::default()
            }));
        };
        let mut shape = self.plain(fields, depth)?;
        for (name, value) in fields {
            let applied = match (name.as_str(), value) {
                ("const", value) => constant(value),
                ("enum", Value::Array(values)) => {
                    let values: Vec<_> = values.iter().map(constant).map(Rc::new).collect();
                    union(&values)
                }
                ("allOf", Value::Array(parts)) => {
                    for part in parts {
                        let part = self.shape(part, depth + 1)?;
                        shape = self.intersect(&shape, &part, depth)?;
                    }
                    continue;
                }
                ("anyOf" | "oneOf", Value::Array(parts)) => {
                    let parts = parts.iter().map(|part| self.shape(part, depth + 1));
                    let parts = parts.collect::<Result<Vec<_>, _>>()?;
                    let mut all = union(&parts);
                    if name == "oneOf" {
                        all.is_one_of |= parts.len() > 1;
                        all.count_any();
                    }
                    all
                }
                ("$ref", Value::String(name)) => {
                    self.define(name, depth)?;
                    Shape {
                        refs: BTreeSet::from([name.as_str()]),
                        nodes: 1.0,
                        ..Shape::default()
                    }
                }
                _ => continue,
            };
            shape = self.intersect(&shape, &applied, depth)?;
        }
        self.account.compare_options(&shape)?;
        Ok(Rc::new(shape))
    }

    /// The keywords of a schema beside `allOf` and the like.
    fn plain(
        &mut self,
        fields: &'a Map<String, Value>,
        depth: usize,
    ) -> Result<Shape<'a>, GrammarBound> {
        const PLAIN: [&str; 20] = [
            "type",
            "items",
            "additionalItems",
            "prefixItems",
            "minItems",
            "maxItems",
            "properties",
            "additionalProperties",
            "patternProperties",
            "required",
            "minProperties",
            "maxProperties",
            "minLength",
            "maxLength",
            "pattern",
            "format",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
        ];
        let mut shape = Shape::default();
        let multiple_of = fields.get("multipleOf");
        if multiple_of.is_none() && !PLAIN.iter().any(|name| fields.contains_key(*name)) {
            shape.is_any = true;
            shape.nodes = 1.0;
            return Ok(shape);
        }
        shape.options = types(fields.get("type"));
        shape.nodes = shape.options.iter().sum::<f64>().max(1.0);
        if shape.options[OBJECT] > 0.0 {
            self.object(&mut shape, fields, depth)?;
        }
        if shape.options[ARRAY] > 0.0 {
            self.array(&mut shape, fields, depth)?;
        }
        if shape.options[STRING] > 0.0 {
            let is_there = |name: &str| fields.contains_key(name) as u8 as f64;
            shape.patterns = is_there("pattern") + is_there("format");
        }
        if let (Some(number), true) = (multiple_of, shape.options[NUMBER] > 0.0) {
            shape.multiple_of = digits(number);
            self.account.check_multiple(shape.multiple_of)?;
        }
        Ok(shape)
    }

    fn object(
        &mut self,
        shape: &mut Shape<'a>,
        fields: &'a Map<String, Value>,
        depth: usize,
    ) -> Result<(), GrammarBound> {
        let mut members = BTreeMap::new();
        if let Some(Value::Object(properties)) = fields.get("properties") {
            for (name, value) in properties {
                let member = self.shape(value, depth + 1)?;
                shape.nodes += member.nodes;
                members.insert(name.as_str(), member);
            }
        }
        if let Some(Value::Array(required)) = fields.get("required") {
            let names = required.iter().filter_map(Value::as_str);
            for name in names {
                members.entry(name).or_insert_with(|| Rc::new(any()));
            }
        }
        let mut pattern_keys = BTreeMap::new();
        if let Some(Value::Object(keys)) = fields.get("patternProperties") {
            for (key, value) in keys {
                let member = self.shape(value, depth + 1)?;
                shape.nodes += member.nodes;
                pattern_keys.insert(key.as_str(), member);
            }
        }
        if let Some(value) = fields.get("additionalProperties") {
            let additional = self.shape(value, depth + 1)?;
            shape.nodes += additional.nodes;
            shape.additional = Some(additional);
        }
        self.account.check_members(members.len())?;
        let counts = ["minProperties", "maxProperties"];
        if counts.iter().any(|name| fields.contains_key(*name)) {
            // Each member may be the required one: a rule for each pair.
            let pairs = members.len() as f64 * members.len() as f64;
            self.account.expand(pairs)?;
        }
        self.account.compare(pattern_keys.len(), members.len())?;
        self.match_members(&members, &pattern_keys, depth)?;
        shape.compared =
            shape.options[OBJECT] * compared(&members, &pattern_keys, shape.additional.as_deref());
        shape.members = Rc::new(members);
        shape.pattern_keys = Rc::new(pattern_keys);
        Ok(())
    }

    /// A member takes a copy of the pattern key that its name matches; it may match any of them.
    fn match_members(
        &mut self,
        members: &BTreeMap<&'a str, Rc<Shape<'a>>>,
        pattern_keys: &BTreeMap<&'a str, Rc<Shape<'a>>>,
        depth: usize,
    ) -> Result<(), GrammarBound> {
        let (mut nodes, mut comparisons): (f64, f64) = (0.0, 0.0);
        for key in pattern_keys.values().filter(|key| !key.is_any) {
            let key = self.resolved(key, depth)?;
            nodes = nodes.max(key.nodes);
            if key.is_one_of {
                comparisons = comparisons.max(key.comparisons());
            }
        }
        for member in members.values() {
            let pairs = (member.comparisons() * comparisons).powi(2) / 2.0;
            self.account.expand(nodes + pairs / COMPARISONS_PER_NODE)?;
        }
        Ok(())
    }

    fn array(
        &mut self,
        shape: &mut Shape<'a>,
        fields: &'a Map<String, Value>,
        depth: usize,
    ) -> Result<(), GrammarBound> {
        let mut items = Vec::new();
        for name in ["items", "prefixItems", "additionalItems"] {
            match fields.get(name) {
                Some(Value::Array(several)) => {
                    for item in several {
                        items.push(self.shape(item, depth + 1)?);
                    }
                }
                Some(item) => items.push(self.shape(item, depth + 1)?),
                None => {}
            }
        }
        if !items.is_empty() {
            let all = union(&items);
            shape.nodes += all.nodes;
            shape.items = Some(Rc::new(all));
        }
        Ok(())
    }

    /// The shape that a reference stands for; `None` while it is being computed, or if the target
    /// does not exist.
    fn define(
        &mut self,
        name: &'a str,
        depth: usize,
    ) -> Result<Option<Rc<Shape<'a>>>, GrammarBound> {
        if let Some(known) = self.definitions.get(name) {
            return Ok(known.clone());
        }
        let Some(target) = target(self.root, name) else {
            return Ok(None);
        };
        self.account.check_depth(depth)?;
        self.definitions.insert(name, None);
        let shape = self.shape(target, depth + 1)?;
        // A reference is compiled once.
        self.account.expand(shape.nodes)?;
        self.definitions.insert(name, Some(Rc::clone(&shape)));
        Ok(Some(shape))
    }
}

/// The target of a `#/…` reference, as llguidance finds it.
fn target<'a>(root: &'a Value, name: &str) -> Option<&'a Value> {
    match name {
        "#" | "#/" => Some(root),
        _ => name
            .strip_prefix("#/")?
            .split('/')
            .try_fold(root, |value, part| match value {
                Value::Array(items) => items.get(part.parse::<usize>().ok()?),
                value => value.get(part),
            }),
    }
}
