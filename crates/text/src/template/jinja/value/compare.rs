//! Values compared as Python does, and keys of dictionaries looked up by their hashes.
//!
//! A tuple may contain one tuple twice, which contains another twice, and so on: it is small, but its
//! items are without number. Each visit counts, as it does in comparisons.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHasher};

use super::{SeqKind, Value};
use crate::template::jinja::error::Error;
use crate::template::jinja::meter::Meter;

/// Whether two values are equal. One value in two places is compared once, as Python does.
pub(in crate::template::jinja) fn is_equal(
    meter: &Meter,
    one: &Value,
    other: &Value,
) -> Result<bool, Error> {
    meter.visit()?;
    Ok(match (one, other) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(one), Value::Str(other)) => {
            meter.copy(one.text().len().min(other.text().len()))?;
            one.text() == other.text()
        }
        (Value::Seq(one), Value::Seq(other)) if Rc::ptr_eq(one, other) => true,
        (Value::Seq(one), Value::Seq(other)) => {
            matches!(one.kind, SeqKind::List | SeqKind::Tuple)
                && one.kind == other.kind
                && are_equal(meter, &one.items, &other.items)?
        }
        (Value::Dict(one), Value::Dict(other)) if Rc::ptr_eq(one, other) => true,
        (Value::Dict(one), Value::Dict(other)) => {
            if one.entries.len() != other.entries.len() {
                return Ok(false);
            }
            for (key, value) in &one.entries {
                let Some(other) = other.get(meter, key)? else {
                    return Ok(false);
                };
                if !is_equal(meter, value, other)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Namespace(one), Value::Namespace(other)) => Rc::ptr_eq(one, other),
        (Value::Macro(one), Value::Macro(other)) => Rc::ptr_eq(one, other),
        (Value::Function(one), Value::Function(other)) => one == other,
        _ => match (one.as_int(), other.as_int()) {
            (Some(one), Some(other)) => one == other,
            _ => match (one.as_number(), other.as_number()) {
                (Some(one), Some(other)) => one == other,
                _ => false,
            },
        },
    })
}

/// Whether as many values are equal one by one.
pub(in crate::template::jinja) fn are_equal(
    meter: &Meter,
    some: &[Value],
    others: &[Value],
) -> Result<bool, Error> {
    if some.len() != others.len() {
        return Ok(false);
    }
    for (one, other) in some.iter().zip(others) {
        if !is_equal(meter, one, other)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The order of two values; `None` for a number that is none.
pub(in crate::template::jinja) fn compare(
    meter: &Meter,
    one: &Value,
    other: &Value,
    sign: &str,
) -> Result<Option<Ordering>, Error> {
    meter.visit()?;
    if let (Some(one), Some(other)) = (one.as_int(), other.as_int()) {
        return Ok(Some(one.cmp(&other)));
    }
    if let (Some(one), Some(other)) = (one.as_number(), other.as_number()) {
        return Ok(one.partial_cmp(&other));
    }
    match (one, other) {
        (Value::Str(one), Value::Str(other)) => {
            meter.copy(one.text().len().min(other.text().len()))?;
            Ok(Some(one.text().cmp(other.text())))
        }
        (Value::Seq(a), Value::Seq(b))
            if a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            for (one, other) in a.items.iter().zip(&b.items) {
                if !is_equal(meter, one, other)? {
                    return compare(meter, one, other, sign);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => {
            let what = format!(
                "'{sign}' not supported between instances of '{}' and '{}'",
                one.type_name(),
                other.type_name()
            );
            let missing = if one.is_undefined() { one } else { other };
            Err(missing.refuse(what))
        }
    }
}

/// Keys by their hashes. The keys themselves are in a list of the owner's.
#[derive(Default)]
pub(in crate::template::jinja) struct KeyIndex {
    /// The number of the last key with a hash.
    last: FxHashMap<u64, usize>,
    /// For each key the number of the key before it with the same hash.
    before: Vec<Option<usize>>,
}

impl KeyIndex {
    /// The number of the equal key; `known` has the keys by their numbers.
    pub(in crate::template::jinja) fn find<'a>(
        &self,
        meter: &Meter,
        hash: u64,
        key: &Value,
        known: impl Fn(usize) -> &'a Value,
    ) -> Result<Option<usize>, Error> {
        let mut next = self.last.get(&hash).copied();
        while let Some(at) = next {
            if is_equal(meter, known(at), key)? {
                return Ok(Some(at));
            }
            next = self.before[at];
        }
        Ok(None)
    }

    /// Adds the key with the next number.
    pub(in crate::template::jinja) fn push(&mut self, hash: u64) {
        let before = self.last.insert(hash, self.before.len());
        self.before.push(before);
    }
}

/// The hash of a key. Equal keys have equal hashes, numbers of all types included.
pub(in crate::template::jinja) fn hash(meter: &Meter, key: &Value) -> Result<u64, Error> {
    let mut state = FxHasher::default();
    write_hash(meter, key, &mut state)?;
    Ok(state.finish())
}

fn write_hash(meter: &Meter, key: &Value, state: &mut FxHasher) -> Result<(), Error> {
    meter.visit()?;
    match key {
        Value::Str(text) => {
            meter.copy(text.text().len())?;
            text.text().hash(state);
        }
        Value::Bool(value) => i128::from(*value).hash(state),
        Value::Int(value) => value.hash(state),
        Value::Float(value) if value.fract() == 0.0 => (*value as i128).hash(state),
        Value::Float(value) => value.to_bits().hash(state),
        Value::Seq(seq) if seq.kind == SeqKind::Tuple => {
            for item in &seq.items {
                write_hash(meter, item, state)?;
            }
        }
        Value::Seq(seq) => Rc::as_ptr(seq).hash(state),
        Value::Namespace(namespace) => Rc::as_ptr(namespace).hash(state),
        Value::Macro(called) => Rc::as_ptr(called).hash(state),
        _ => {}
    }
    Ok(())
}

/// # Errors
///
/// Lists and dictionaries are no keys, and neither are tuples that contain them.
pub(in crate::template::jinja) fn check_key(meter: &Meter, key: &Value) -> Result<(), Error> {
    meter.visit()?;
    let is_hashable = match key {
        Value::Seq(seq) if seq.kind == SeqKind::Tuple => {
            return seq.items.iter().try_for_each(|item| check_key(meter, item));
        }
        Value::Seq(seq) => seq.kind == SeqKind::Generator,
        Value::Dict(_) => false,
        _ => true,
    };
    if is_hashable {
        return Ok(());
    }
    Err(Error::new(format!(
        "unhashable type: '{}'",
        key.type_name()
    )))
}
