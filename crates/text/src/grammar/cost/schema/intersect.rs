//! Intersects shapes as llguidance intersects schemas.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::Judge;
use super::shape::{ARRAY, NUMBER, OBJECT, STRING, Shape, TYPES, union};
use motet_protocol::GrammarBound;

impl<'a> Judge<'a> {
    /// The shape that both allow.
    pub(super) fn intersect(
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
    pub(super) fn resolved(
        &mut self,
        shape: &Shape<'a>,
        depth: usize,
    ) -> Result<Shape<'a>, GrammarBound> {
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
