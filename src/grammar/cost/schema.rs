//! What a JSON schema expands to, reckoned without expanding it.
//!
//! llguidance intersects schemas by copying them: `allOf`, and what stands beside `anyOf`, `oneOf` and `$ref`, give
//! every option of the one with every option of the other. Here a schema is only a [`Shape`]: how many options it has
//! of each type, how many schemas it would expand to, and the shapes of its members. Shapes are intersected as
//! llguidance intersects schemas, and each intersection is paid for out of the bounds, so that the judgement itself
//! is bounded by them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use super::{check, options};
use crate::grammar::{GrammarBound, GrammarLimits};

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
const NUMBER: usize = 2;
const STRING: usize = 3;
const ARRAY: usize = 4;
const OBJECT: usize = 5;
/// Shapes are nested no deeper; llguidance gives up there as well.
const NESTED_MAX: usize = 128;
/// So many comparisons of `oneOf`'s options take what copying a schema takes.
const COMPARISONS_PER_NODE: f64 = 20.0;

/// What a schema allows, as far as its cost goes.
#[derive(Clone, Debug, Default)]
struct Shape<'a> {
    /// It allows everything, and takes no part in an intersection.
    is_any: bool,
    /// Alternatives of each of [`TYPES`].
    options: [f64; TYPES.len()],
    /// Schemas that it consists of, those inside counted.
    nodes: f64,
    /// What it refers to, which is looked at only where it is intersected.
    refs: BTreeSet<&'a str>,
    members: Rc<BTreeMap<&'a str, Rc<Shape<'a>>>>,
    additional: Option<Rc<Shape<'a>>>,
    items: Option<Rc<Shape<'a>>>,
    /// Keys of `patternProperties`, and their bytes.
    pattern_keys: Rc<BTreeMap<&'a str, Rc<Shape<'a>>>>,
    /// Patterns that a string must match together.
    patterns: f64,
    /// The product of its `multipleOf`s.
    multiple_of: f64,
    /// A `oneOf` is among what it consists of: llguidance compares all pairs of its options whenever it makes it.
    is_one_of: bool,
    /// What its objects add to [`comparisons`](Self::comparisons).
    compared: f64,
}

/// Judges a schema.
pub(super) fn judge(schema: &Value, limits: &GrammarLimits) -> Result<(), GrammarBound> {
    let mut seen = Seen::default();
    seen.look(schema, 1, limits)?;
    let mut judge = Judge {
        root: schema,
        limits,
        definitions: FxHashMap::default(),
        pattern_pairs: 0.0,
        intersections: 0.0,
        expansion: 0.0,
    };
    let root = judge.shape(schema, 0)?;
    judge.expand(root.nodes)
}

/// What is counted by looking at each value once.
#[derive(Default)]
struct Seen {
    patterns: usize,
    enum_values: usize,
}

impl Seen {
    fn look(
        &mut self,
        value: &Value,
        depth: usize,
        limits: &GrammarLimits,
    ) -> Result<(), GrammarBound> {
        check("grammar.depth_max", limits.depth_max, depth as f64)?;
        match value {
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| self.look(item, depth + 1, limits)),
            Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
                self.count(name, value, limits)?;
                self.look(value, depth + 1, limits)
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

struct Judge<'a> {
    root: &'a Value,
    limits: &'a GrammarLimits,
    /// Shapes of what is referred to; none while one is being made.
    definitions: FxHashMap<&'a str, Option<Rc<Shape<'a>>>>,
    pattern_pairs: f64,
    intersections: f64,
    expansion: f64,
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
                    self.union(&values)
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
                    let mut all = self.union(&parts);
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
        self.compare_options(&shape)?;
        Ok(Rc::new(shape))
    }

    /// What stands in a schema beside `allOf` and the like.
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
            self.check_multiple(shape.multiple_of)?;
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
        self.check_members(members.len())?;
        let counts = ["minProperties", "maxProperties"];
        if counts.iter().any(|name| fields.contains_key(*name)) {
            // Each member may be the one that must be there: a rule for each pair.
            let pairs = members.len() as f64 * members.len() as f64;
            self.expand(pairs)?;
        }
        self.compare(pattern_keys.len(), members.len())?;
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
            self.expand(nodes + pairs / COMPARISONS_PER_NODE)?;
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
            let all = self.union(&items);
            shape.nodes += all.nodes;
            shape.items = Some(Rc::new(all));
        }
        Ok(())
    }

    /// The alternatives of all these.
    fn union(&mut self, parts: &[Rc<Shape<'a>>]) -> Shape<'a> {
        if let [one] = parts {
            return Shape::clone(one);
        }
        let mut all = Shape::default();
        let mut members: BTreeMap<&str, Rc<Shape<'_>>> = BTreeMap::new();
        let mut pattern_keys = BTreeMap::new();
        for part in parts {
            all.is_any |= part.is_any;
            all.nodes += part.nodes;
            all.is_one_of |= part.is_one_of;
            all.compared += part.compared;
            for (sum, more) in all.options.iter_mut().zip(part.options) {
                *sum += more;
            }
            all.refs.extend(&part.refs);
            all.patterns = all.patterns.max(part.patterns);
            all.multiple_of = all.multiple_of.max(part.multiple_of);
            for (name, member) in part.members.iter() {
                larger(&mut members, name, member);
            }
            for (key, member) in part.pattern_keys.iter() {
                larger(&mut pattern_keys, key, member);
            }
            for (mine, others) in [
                (&mut all.items, &part.items),
                (&mut all.additional, &part.additional),
            ] {
                let is_larger = |other: &Rc<Shape<'_>>| {
                    mine.as_ref().is_none_or(|mine| mine.nodes < other.nodes)
                };
                if others.as_ref().is_some_and(is_larger) {
                    mine.clone_from(others);
                }
            }
        }
        all.members = Rc::new(members);
        all.pattern_keys = Rc::new(pattern_keys);
        all
    }

    fn intersect(
        &mut self,
        a: &Shape<'a>,
        b: &Shape<'a>,
        depth: usize,
    ) -> Result<Shape<'a>, GrammarBound> {
        if a.is_any || b.is_any {
            let one = if a.is_any { b } else { a };
            self.compare_options(one)?;
            return Ok(one.clone());
        }
        check(
            "grammar.depth_max",
            NESTED_MAX.min(self.limits.depth_max),
            depth as f64,
        )?;
        let (a, b) = (self.resolved(a, depth)?, self.resolved(b, depth)?);
        let (a_options, b_options) = (a.count(), b.count());
        self.intersections += a_options * b_options;
        check(
            "grammar.intersections_max",
            self.limits.intersections_max,
            self.intersections,
        )?;
        // Every option of the one takes a copy of the other.
        self.expand(a_options * b.nodes + b_options * a.nodes)?;
        let mut both = Shape {
            patterns: a.patterns + b.patterns,
            multiple_of: a.multiple_of.max(1.0) * b.multiple_of.max(1.0),
            is_one_of: a.is_one_of || b.is_one_of,
            ..Shape::default()
        };
        let mut pairs = 0.0;
        for (index, sum) in both.options.iter_mut().enumerate() {
            *sum = a.options[index] * b.options[index];
            pairs += *sum;
        }
        if both.options[STRING] > 0.0 {
            check(
                "grammar.intersected_patterns_max",
                self.limits.intersected_patterns_max,
                both.patterns,
            )?;
        }
        if both.options[NUMBER] > 0.0 {
            self.check_multiple(both.multiple_of)?;
        }
        both.nodes = pairs * (a.nodes / a_options + b.nodes / b_options);
        if both.options[OBJECT] > 0.0 {
            self.intersect_objects(&mut both, &a, &b, depth)?;
        }
        if both.options[ARRAY] > 0.0 {
            both.items = self.either(a.items.as_ref(), b.items.as_ref(), depth)?;
        }
        self.compare_options(&both)?;
        Ok(both)
    }

    fn intersect_objects(
        &mut self,
        both: &mut Shape<'a>,
        a: &Shape<'a>,
        b: &Shape<'a>,
        depth: usize,
    ) -> Result<(), GrammarBound> {
        let pairs = both.options[OBJECT];
        let mut grown = 0.0;
        let mut compared_more = 0.0;
        let mut merged = BTreeMap::new();
        for (mine, others) in [(a, b), (b, a)] {
            for (name, member) in mine.members.iter() {
                if merged.contains_key(name) {
                    continue;
                }
                let other = others.members.get(name).or(others.additional.as_ref());
                let met = self.either(Some(member), other, depth)?;
                let met = met.expect("one of them is there");
                grown += (met.nodes - member.nodes - other.map_or(0.0, |o| o.nodes)).max(0.0);
                let apart = member.comparisons().powi(2)
                    + other.map_or(0.0, |other| other.comparisons().powi(2));
                compared_more += (met.comparisons().powi(2) - apart).max(0.0);
                merged.insert(*name, met);
            }
        }
        let mut pattern_keys = BTreeMap::new();
        for (mine, others) in [(a, b), (b, a)] {
            for (key, member) in mine.pattern_keys.iter() {
                if pattern_keys.contains_key(key) {
                    continue;
                }
                let other = others.pattern_keys.get(key).or(others.additional.as_ref());
                let met = self.either(Some(member), other, depth)?;
                pattern_keys.insert(*key, met.expect("one of them is there"));
            }
        }
        self.check_members(merged.len())?;
        for _ in 0..(pairs as usize).min(self.limits.pattern_pairs_max) {
            self.compare(pattern_keys.len(), merged.len())?;
            if pattern_keys.is_empty() {
                break;
            }
        }
        both.nodes += pairs * grown;
        let each = |shape: &Shape<'_>| (shape.compared / shape.options[OBJECT]).powi(2);
        both.compared = pairs * (each(a) + each(b) + compared_more).sqrt();
        both.members = Rc::new(merged);
        both.pattern_keys = Rc::new(pattern_keys);
        both.additional = self.either(a.additional.as_ref(), b.additional.as_ref(), depth)?;
        self.expand(0.0)
    }

    /// What is in both, or in the one that there is.
    fn either(
        &mut self,
        a: Option<&Rc<Shape<'a>>>,
        b: Option<&Rc<Shape<'a>>>,
        depth: usize,
    ) -> Result<Option<Rc<Shape<'a>>>, GrammarBound> {
        match (a, b) {
            (Some(a), Some(b)) => Ok(Some(Rc::new(self.intersect(a, b, depth + 1)?))),
            (Some(one), None) | (None, Some(one)) => {
                // It is copied.
                self.expand(1.0)?;
                self.compare_options(one)?;
                Ok(Some(Rc::clone(one)))
            }
            (None, None) => Ok(None),
        }
    }

    /// The shape, with what it refers to in its place.
    fn resolved(&mut self, shape: &Shape<'a>, depth: usize) -> Result<Shape<'a>, GrammarBound> {
        let mut shape = shape.clone();
        let mut known = BTreeSet::new();
        while let Some(name) = shape.refs.pop_first() {
            if !known.insert(name) {
                continue;
            }
            if let Some(definition) = self.define(name, depth)? {
                self.expand(definition.nodes)?;
                shape = self.union(&[Rc::new(shape), definition]);
                shape.count_any();
            }
        }
        if shape.count() == 0.0 {
            shape.options = [1.0; TYPES.len()];
        }
        Ok(shape)
    }

    /// What a reference stands for; none while that is being looked at, or if there is nothing.
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
        check(
            "grammar.depth_max",
            NESTED_MAX.min(self.limits.depth_max),
            depth as f64,
        )?;
        self.definitions.insert(name, None);
        let shape = self.shape(target, depth + 1)?;
        // It is compiled once.
        self.expand(shape.nodes)?;
        self.definitions.insert(name, Some(Rc::clone(&shape)));
        Ok(Some(shape))
    }

    fn expand(&mut self, nodes: f64) -> Result<(), GrammarBound> {
        self.expansion += nodes;
        check(
            "grammar.expansion_max",
            self.limits.expansion_max,
            self.expansion,
        )
    }

    /// Each option of a `oneOf` is compared with each other, key by key.
    fn compare_options(&mut self, shape: &Shape<'a>) -> Result<(), GrammarBound> {
        if !shape.is_one_of {
            return Ok(());
        }
        let comparisons = shape.comparisons().powi(2) / 2.0;
        self.expand(comparisons / COMPARISONS_PER_NODE)
    }

    /// Keys of `patternProperties` are compared with each other, and with the names of members.
    fn compare(&mut self, keys: usize, members: usize) -> Result<(), GrammarBound> {
        let keys = keys as f64;
        // A name takes a fiftieth of what a pair takes.
        self.pattern_pairs += keys * (keys - 1.0).max(0.0) / 2.0 + keys * members as f64 / 50.0;
        check(
            "grammar.pattern_pairs_max",
            self.limits.pattern_pairs_max,
            self.pattern_pairs,
        )
    }

    fn check_members(&self, members: usize) -> Result<(), GrammarBound> {
        check(
            "grammar.members_max",
            self.limits.members_max,
            members as f64,
        )
    }

    fn check_multiple(&self, multiple_of: f64) -> Result<(), GrammarBound> {
        check(
            "grammar.multiple_of_max",
            self.limits.multiple_of_max,
            multiple_of,
        )
    }
}

impl Shape<'_> {
    /// Options of all types.
    fn count(&self) -> f64 {
        self.options.iter().sum()
    }

    /// Comparing this with another takes at most as many comparisons as the product of both their numbers. Options of
    /// one are added; keys of an object are compared one by one, and add their squares.
    fn comparisons(&self) -> f64 {
        (self.count() - self.options[OBJECT] + self.compared).max(1.0)
    }

    /// Makes an option of what allows everything: it leaves the other side of an intersection as it is.
    fn count_any(&mut self) {
        if self.is_any {
            self.options = self.options.map(|options| options.max(1.0));
            self.is_any = false;
        }
    }
}

/// What comparing an object takes, as [`Shape::comparisons`] has it.
fn compared(
    members: &BTreeMap<&str, Rc<Shape<'_>>>,
    pattern_keys: &BTreeMap<&str, Rc<Shape<'_>>>,
    additional: Option<&Shape<'_>>,
) -> f64 {
    // A name that the object does not have is looked for in these.
    let elsewhere = pattern_keys.values().map(Rc::as_ref).chain(additional);
    let elsewhere = elsewhere.map(Shape::comparisons).fold(1.0, f64::max);
    let members = members.values().map(|member| member.comparisons());
    let squares: f64 = members.map(|member| member.max(elsewhere).powi(2)).sum();
    ((1.0 + pattern_keys.len() as f64) * (1.0 + squares)).sqrt()
}

fn any() -> Shape<'static> {
    Shape {
        is_any: true,
        nodes: 1.0,
        ..Shape::default()
    }
}

fn larger<'a>(shapes: &mut BTreeMap<&'a str, Rc<Shape<'a>>>, name: &'a str, shape: &Rc<Shape<'a>>) {
    let kept = shapes.entry(name).or_insert_with(|| Rc::clone(shape));
    if kept.nodes < shape.nodes {
        *kept = Rc::clone(shape);
    }
}

/// The shape of one value. Its members are its own: what is inside counts as nodes.
fn constant(value: &Value) -> Shape<'static> {
    let kind = match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => NUMBER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    };
    let mut shape = Shape {
        nodes: values(value),
        ..Shape::default()
    };
    shape.options[kind] = 1.0;
    shape.compared = if kind == OBJECT {
        shape.nodes.sqrt()
    } else {
        0.0
    };
    shape.patterns = if kind == STRING { 1.0 } else { 0.0 };
    shape
}

fn values(value: &Value) -> f64 {
    1.0 + match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(fields) => fields.values().map(values).sum(),
        _ => 0.0,
    }
}

fn types(kind: Option<&Value>) -> [f64; TYPES.len()] {
    let index = |name: &str| match name {
        "integer" => Some(NUMBER),
        name => TYPES.iter().position(|kind| *kind == name),
    };
    let mut options = [0.0; TYPES.len()];
    match kind {
        None => return [1.0; TYPES.len()],
        Some(Value::String(name)) => {
            index(name).into_iter().for_each(|at| options[at] += 1.0);
        }
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str).filter_map(index);
            names.for_each(|at| options[at] += 1.0);
        }
        Some(_) => {}
    }
    options
}

/// A number as an integer of its decimal digits: 0.25 is 25.
fn digits(number: &Value) -> f64 {
    let text = number.as_f64().map(|number| number.abs().to_string());
    let digits: String = text
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap_or(0.0)
}

/// What a `#/…` refers to, as llguidance finds it.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Which bound a schema passes.
    fn bound(schema: &Value, limits: &GrammarLimits) -> Option<&'static str> {
        judge(schema, limits).err().map(|refusal| refusal.bound)
    }

    #[test]
    fn each_bound_is_named() {
        let tight = GrammarLimits {
            depth_max: 9,
            enum_values_max: 3,
            patterns_max: 4,
            pattern_pairs_max: 3,
            intersected_patterns_max: 2,
            members_max: 4,
            intersections_max: 40,
            expansion_max: 200,
            multiple_of_max: 100,
            ..GrammarLimits::default()
        };
        let check = |schema: Value, expected: Option<&str>| {
            assert_eq!(bound(&schema, &tight), expected, "{schema}");
        };
        check(json!({"type": "object"}), None);
        check(json!([[[[[[[[[1]]]]]]]]]), Some("grammar.depth_max"));
        check(json!({"enum": [1, 2, 3]}), None);
        check(
            json!({"items": {"enum": [1, 2, 3, 4]}}),
            Some("grammar.enum_values_max"),
        );
        let keys = |n: usize| -> Value {
            (0..n)
                .map(|k| (format!("^{k}"), json!(true)))
                .collect::<Map<_, _>>()
                .into()
        };
        check(json!({"patternProperties": keys(3)}), None);
        check(
            json!({"patternProperties": keys(4)}),
            Some("grammar.pattern_pairs_max"),
        );
        check(
            json!({"patternProperties": keys(5)}),
            Some("grammar.patterns_max"),
        );
        let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
        check(json!({"allOf": [text("a"), text("b")]}), None);
        check(
            json!({"allOf": [text("a"), text("b"), text("c")]}),
            Some("grammar.intersected_patterns_max"),
        );
        check(json!({"properties": keys(4)}), None);
        check(json!({"properties": keys(5)}), Some("grammar.members_max"));
        check(
            json!({"required": ["a", "b", "c", "d", "e"]}),
            Some("grammar.members_max"),
        );
        check(json!({"type": "integer", "multipleOf": 0.25}), None);
        check(
            json!({"type": "integer", "multipleOf": 101}),
            Some("grammar.multiple_of_max"),
        );
        check(
            json!({"allOf": [{"type": "number", "multipleOf": 20}, {"type": "number", "multipleOf": 30}]}),
            Some("grammar.multiple_of_max"),
        );
        check(
            json!({"properties": {"x-guidance": {}}}),
            Some("grammar.options_allowed"),
        );
    }

    #[test]
    fn options_multiply() {
        let limits = GrammarLimits {
            intersections_max: 100,
            ..GrammarLimits::default()
        };
        let options = |n: usize| -> Value {
            let each = (0..n).map(|k| json!({"type": "object", "required": [format!("{k}")]}));
            json!({"anyOf": each.collect::<Vec<_>>()})
        };
        assert_eq!(
            bound(&json!({"allOf": [options(9), options(9)]}), &limits),
            None
        );
        assert_eq!(
            bound(
                &json!({"allOf": [options(9), options(9), options(9)]}),
                &limits
            ),
            Some("grammar.intersections_max")
        );
        let inside = |n| json!({"type": "object", "properties": {"a": options(n)}});
        assert_eq!(
            bound(
                &json!({"allOf": [inside(5), inside(5), inside(5)]}),
                &limits
            ),
            Some("grammar.intersections_max")
        );
    }

    #[test]
    fn options_of_one_of_are_compared_at_each_intersection() {
        let limits = GrammarLimits {
            expansion_max: 12_000,
            ..GrammarLimits::default()
        };
        let options = |count: usize, names: usize| -> Vec<Value> {
            let required: Vec<_> = (0..names).map(|name| format!("{name}")).collect();
            let each = |n: usize| json!({"type": "object", "required": required, "properties": {"0": {"const": n}}});
            (0..count).map(each).collect()
        };
        let with = |keyword: &str, count: usize, names: usize, more: &[Value]| {
            let mut parts = vec![json!({keyword: options(count, names)})];
            parts.extend_from_slice(more);
            bound(&json!({"allOf": parts}), &limits)
        };
        let expansion = Some("grammar.expansion_max");
        // Fifty options of fifteen names: 1000 schemas each time that all of them are compared.
        assert_eq!(with("oneOf", 50, 15, &[]), None);
        let objects = vec![json!({"type": "object"}); 9];
        assert_eq!(with("anyOf", 50, 15, &objects), None);
        assert_eq!(with("oneOf", 50, 15, &objects), expansion);
        assert_eq!(with("oneOf", 50, 1, &objects), None);
        // What allows everything makes it anew as well.
        let anything = vec![json!({}); 20];
        assert_eq!(with("anyOf", 50, 15, &anything), None);
        assert_eq!(with("oneOf", 50, 15, &anything), expansion);
        // Its own option that allows everything does not hide the others.
        let mut all = options(50, 15);
        all.push(json!({}));
        let mut parts = vec![json!({"oneOf": all})];
        parts.extend(objects);
        assert_eq!(bound(&json!({"allOf": parts}), &limits), expansion);
    }

    #[test]
    fn options_of_one_of_inside_others_are_compared_as_well() {
        let limits = GrammarLimits {
            expansion_max: 50_000,
            ..GrammarLimits::default()
        };
        let kinds = |first: usize, count: usize| -> Value {
            let each = (first..first + count).map(|n| json!({"const": format!("{n}")}));
            json!({"anyOf": each.collect::<Vec<_>>()})
        };
        // Comparing one pair takes as many comparisons as their members have pairs of options.
        let nested = |keyword: &str, count: usize| {
            let each = (0..40).map(|n| {
                let kinds = kinds(n * count, count);
                json!({"type": "object", "required": ["a"], "properties": {"a": kinds}})
            });
            bound(&json!({keyword: each.collect::<Vec<_>>()}), &limits)
        };
        assert_eq!(nested("oneOf", 3), None);
        assert_eq!(nested("anyOf", 30), None);
        assert_eq!(nested("oneOf", 30), Some("grammar.expansion_max"));
        // A member takes what the pattern key says that its name matches.
        let matched = |keyword: &str, members: usize| {
            let names = (0..members).map(|n| (format!("{n}"), json!({})));
            let each: Vec<_> = (0..60).map(|n| json!({"const": format!("{n}")})).collect();
            let schema = json!({
                "$defs": {"a": {keyword: each}},
                "patternProperties": {"^": {"$ref": "#/$defs/a"}},
                "properties": names.collect::<Map<_, _>>(),
            });
            bound(&schema, &limits)
        };
        assert_eq!(matched("oneOf", 9), None);
        assert_eq!(matched("anyOf", 400), None);
        assert_eq!(matched("oneOf", 400), Some("grammar.expansion_max"));
        assert_eq!(matched("anyOf", 900), Some("grammar.expansion_max"));
    }

    #[test]
    fn references_expand_where_they_are_intersected_only() {
        let limits = GrammarLimits {
            expansion_max: 5000,
            ..GrammarLimits::default()
        };
        let definitions = |schema: &dyn Fn(String) -> Value| -> Value {
            let mut all: Map<_, _> = (0..20)
                .map(|n| (format!("d{n}"), schema(format!("#/$defs/d{}", n + 1))))
                .collect();
            all.insert("d20".into(), json!({"type": "object"}));
            json!({"$ref": "#/$defs/d0", "$defs": all})
        };
        let plain = definitions(
            &|next| json!({"type": "object", "properties": {"a": {"$ref": next}, "b": {"$ref": next}}}),
        );
        assert_eq!(bound(&plain, &limits), None);
        let doubled = definitions(&|next| {
            let part =
                json!({"allOf": [{"$ref": next}, {"type": "object", "properties": {"c": {}}}]});
            json!({"type": "object", "properties": {"a": part, "b": part}})
        });
        assert_eq!(bound(&doubled, &limits), Some("grammar.expansion_max"));
        let ring = json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]});
        assert_eq!(bound(&ring, &limits), None);
        assert_eq!(bound(&json!({"$ref": "#/nowhere"}), &limits), None);
    }
}
