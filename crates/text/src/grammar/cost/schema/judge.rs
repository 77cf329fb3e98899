//! The shapes of schemas, combined as llguidance combines schemas, and charged to the account.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use super::account::{Account, COMPARISONS_PER_NODE};
use super::shape::{
    ARRAY, NUMBER, OBJECT, STRING, Shape, TYPES, any, compared, constant, digits, types, union,
};
use crate::schema::keywords::{Role, has};
use crate::schema::walk::target;
use motet_protocol::GrammarBound;

/// A walk over a schema.
pub(super) struct Judge<'a> {
    root: &'a Value,
    /// Shapes of referenced schemas; `None` while one is being computed.
    definitions: FxHashMap<&'a str, Option<Rc<Shape<'a>>>>,
    account: Account<'a>,
}

impl<'a> Judge<'a> {
    /// Charges a whole schema to the account.
    pub(super) fn charge(
        root: &'a Value,
        account: Account<'a>,
    ) -> Result<Account<'a>, GrammarBound> {
        let mut judge = Self {
            root,
            definitions: FxHashMap::default(),
            account,
        };
        let shape = judge.shape(root, 0)?;
        judge.account.expand(shape.nodes)?;
        Ok(judge.account)
    }

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
                    let is_one_of = name == "oneOf";
                    all.is_one_of |= is_one_of && parts.len() > 1;
                    // An option that allows everything takes a copy of what stands beside `anyOf`.
                    if is_one_of || !shape.is_any {
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
        let mut shape = Shape::default();
        if !has(fields, |keyword| keyword.role == Role::Restricts) {
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
            let is_present = |name: &str| fields.contains_key(name) as u8 as f64;
            shape.patterns = is_present("pattern") + is_present("format");
        }
        if let (Some(number), true) = (fields.get("multipleOf"), shape.options[NUMBER] > 0.0) {
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

    /// The shape that both allow.
    fn intersect(
        &mut self,
        a: &Shape<'a>,
        b: &Shape<'a>,
        depth: usize,
    ) -> Result<Shape<'a>, GrammarBound> {
        if a.is_any || b.is_any {
            let one = if a.is_any { b } else { a };
            self.account.compare_options(one)?;
            return Ok(one.clone());
        }
        self.account.check_depth(depth)?;
        let (a, b) = (self.resolved(a, depth)?, self.resolved(b, depth)?);
        let (a_options, b_options) = (a.count(), b.count());
        self.account.intersect(a_options * b_options)?;
        // Every option of the one takes a copy of the other.
        self.account
            .expand(a_options * b.nodes + b_options * a.nodes)?;
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
            self.account.check_patterns(both.patterns)?;
        }
        if both.options[NUMBER] > 0.0 {
            self.account.check_multiple(both.multiple_of)?;
        }
        both.nodes = pairs * (a.nodes / a_options + b.nodes / b_options);
        if both.options[OBJECT] > 0.0 {
            self.intersect_objects(&mut both, &a, &b, depth)?;
        }
        if both.options[ARRAY] > 0.0 {
            both.items = self.either(a.items.as_ref(), b.items.as_ref(), depth)?;
        }
        self.account.compare_options(&both)?;
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
        self.account.check_members(merged.len())?;
        self.account
            .compare_each(pairs, pattern_keys.len(), merged.len())?;
        both.nodes += pairs * grown;
        let each = |shape: &Shape<'_>| (shape.compared / shape.options[OBJECT]).powi(2);
        both.compared = pairs * (each(a) + each(b) + compared_more).sqrt();
        both.members = Rc::new(merged);
        both.pattern_keys = Rc::new(pattern_keys);
        both.additional = self.either(a.additional.as_ref(), b.additional.as_ref(), depth)?;
        self.account.expand(0.0)
    }

    /// The intersection of both, or the one that exists.
    fn either(
        &mut self,
        a: Option<&Rc<Shape<'a>>>,
        b: Option<&Rc<Shape<'a>>>,
        depth: usize,
    ) -> Result<Option<Rc<Shape<'a>>>, GrammarBound> {
        match (a, b) {
            (Some(a), Some(b)) => Ok(Some(Rc::new(self.intersect(a, b, depth + 1)?))),
            (Some(one), None) | (None, Some(one)) => {
                // The existing one is copied.
                self.account.expand(1.0)?;
                self.account.compare_options(one)?;
                Ok(Some(Rc::clone(one)))
            }
            (None, None) => Ok(None),
        }
    }

    /// The shape, with the shapes that it refers to in place of the references.
    fn resolved(&mut self, shape: &Shape<'a>, depth: usize) -> Result<Shape<'a>, GrammarBound> {
        let mut shape = shape.clone();
        let mut known = BTreeSet::new();
        while let Some(name) = shape.refs.pop_first() {
            if !known.insert(name) {
                continue;
            }
            if let Some(definition) = self.define(name, depth)? {
                self.account.expand(definition.nodes)?;
                shape = union(&[Rc::new(shape), definition]);
                shape.count_any();
            }
        }
        if shape.count() == 0.0 {
            shape.options = [1.0; TYPES.len()];
        }
        Ok(shape)
    }
}
