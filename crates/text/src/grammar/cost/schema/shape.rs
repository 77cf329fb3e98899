//! Shape of a schema, as far as it affects the cost.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::rc::Rc;

use serde_json::Value;

use crate::schema::walk::each_value;

pub(super) const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
pub(super) const NUMBER: usize = 2;
pub(super) const STRING: usize = 3;
pub(super) const ARRAY: usize = 4;
pub(super) const OBJECT: usize = 5;

/// Shape of a schema, as far as it affects the cost.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape<'a> {
    /// Whether it allows everything, and takes no part in an intersection.
    pub(super) is_any: bool,
    /// Alternatives of each of [`TYPES`].
    pub(super) options: [f64; TYPES.len()],
    /// Number of schemas that it consists of, including nested ones.
    pub(super) nodes: f64,
    /// Its references, which are resolved only when it is intersected.
    pub(super) refs: BTreeSet<&'a str>,
    pub(super) members: Rc<BTreeMap<&'a str, Rc<Shape<'a>>>>,
    pub(super) additional: Option<Rc<Shape<'a>>>,
    pub(super) items: Option<Rc<Shape<'a>>>,
    /// Keys of `patternProperties`, and their bytes.
    pub(super) pattern_keys: Rc<BTreeMap<&'a str, Rc<Shape<'a>>>>,
    /// Patterns that a string must match together.
    pub(super) patterns: f64,
    /// The product of its `multipleOf`s.
    pub(super) multiple_of: f64,
    /// Whether it contains a `oneOf`: llguidance compares all pairs of its options whenever it
    /// builds it.
    pub(super) is_one_of: bool,
    /// Comparisons that its objects add to [`comparisons`](Self::comparisons).
    pub(super) compared: f64,
}

impl Shape<'_> {
    /// Options of all types.
    pub(super) fn count(&self) -> f64 {
        self.options.iter().sum()
    }

    /// Weight of the shape in a comparison: comparing two shapes takes at most as many
    /// comparisons as the product of their weights. Options of one shape are added. Keys of an
    /// object are compared one by one, and add their squares.
    pub(super) fn comparisons(&self) -> f64 {
        (self.count() - self.options[OBJECT] + self.compared).max(1.0)
    }

    /// Turns a shape that allows everything into an option, which leaves the other side of an
    /// intersection as it is.
    pub(super) fn count_any(&mut self) {
        if self.is_any {
            self.options = self.options.map(|options| options.max(1.0));
            self.is_any = false;
        }
    }
}

/// The union of the alternatives of all parts.
pub(super) fn union<'a>(parts: &[Rc<Shape<'a>>]) -> Shape<'a> {
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
            let is_larger =
                |other: &Rc<Shape<'_>>| mine.as_ref().is_none_or(|mine| mine.nodes < other.nodes);
            if others.as_ref().is_some_and(is_larger) {
                mine.clone_from(others);
            }
        }
    }
    all.members = Rc::new(members);
    all.pattern_keys = Rc::new(pattern_keys);
    all
}

/// Weight of an object in a comparison, as in [`Shape::comparisons`].
pub(super) fn compared(
    members: &BTreeMap<&str, Rc<Shape<'_>>>,
    pattern_keys: &BTreeMap<&str, Rc<Shape<'_>>>,
    additional: Option<&Shape<'_>>,
) -> f64 {
    // A name that the object does not have is looked up in these.
    let elsewhere = pattern_keys.values().map(Rc::as_ref).chain(additional);
    let elsewhere = elsewhere.map(Shape::comparisons).fold(1.0, f64::max);
    let members = members.values().map(|member| member.comparisons());
    let squares: f64 = members.map(|member| member.max(elsewhere).powi(2)).sum();
    ((1.0 + pattern_keys.len() as f64) * (1.0 + squares)).sqrt()
}

pub(super) fn any() -> Shape<'static> {
    Shape {
        is_any: true,
        nodes: 1.0,
        ..Shape::default()
    }
}

/// The shape of one value. The members are its own; nested values count as nodes.
pub(super) fn constant(value: &Value) -> Shape<'static> {
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

pub(super) fn types(kind: Option<&Value>) -> [f64; TYPES.len()] {
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
pub(super) fn digits(number: &Value) -> f64 {
    let text = number.as_f64().map(|number| number.abs().to_string());
    let digits: String = text
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap_or(0.0)
}

fn larger<'a>(shapes: &mut BTreeMap<&'a str, Rc<Shape<'a>>>, name: &'a str, shape: &Rc<Shape<'a>>) {
    let largest = shapes.entry(name).or_insert_with(|| Rc::clone(shape));
    if largest.nodes < shape.nodes {
        *largest = Rc::clone(shape);
    }
}

fn values(value: &Value) -> f64 {
    let mut values = 0.0;
    let counted = each_value(value, &mut |_| {
        values += 1.0;
        Ok::<_, Infallible>(())
    });
    match counted {
        Ok(()) => values,
    }
}
