//! The keys of dictionaries: compared as Python does, and looked up by their hashes.
//!
//! A tuple may contain one tuple twice, which contains another twice, and so on: it is small, but its
//! items are without number. Each visit counts, as it does in comparisons.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHasher};

use super::error::Error;
use super::interpreter::Machine;
use super::operators::is_equal;
use super::value::{SeqKind, Value};

/// Keys by their hashes. The keys themselves are in a list of the owner's.
#[derive(Default)]
pub(super) struct KeyIndex {
    /// The number of the last key with a hash.
    last: FxHashMap<u64, usize>,
    /// For each key the number of the key before it with the same hash.
    before: Vec<Option<usize>>,
}

impl KeyIndex {
    /// The number of the equal key; `known` has the keys by their numbers.
    pub(super) fn find<'a>(
        &self,
        machine: &Machine<'_>,
        hash: u64,
        key: &Value,
        known: impl Fn(usize) -> &'a Value,
    ) -> Result<Option<usize>, Error> {
        let mut next = self.last.get(&hash).copied();
        while let Some(at) = next {
            if is_equal(machine, known(at), key)? {
                return Ok(Some(at));
            }
            next = self.before[at];
        }
        Ok(None)
    }

    /// Adds the key with the next number.
    pub(super) fn push(&mut self, hash: u64) {
        let before = self.last.insert(hash, self.before.len());
        self.before.push(before);
    }
}

/// The hash of a key. Equal keys have equal hashes, numbers of all types included.
pub(super) fn hash(machine: &Machine<'_>, key: &Value) -> Result<u64, Error> {
    let mut state = FxHasher::default();
    write_hash(machine, key, &mut state)?;
    Ok(state.finish())
}

fn write_hash(machine: &Machine<'_>, key: &Value, state: &mut FxHasher) -> Result<(), Error> {
    machine.visit()?;
    match key {
        Value::Str(text) => {
            machine.copy(text.text().len())?;
            text.text().hash(state);
        }
        Value::Bool(value) => i128::from(*value).hash(state),
        Value::Int(value) => value.hash(state),
        Value::Float(value) if value.fract() == 0.0 => (*value as i128).hash(state),
        Value::Float(value) => value.to_bits().hash(state),
        Value::Seq(seq) if seq.kind == SeqKind::Tuple => {
            for item in &seq.items {
                write_hash(machine, item, state)?;
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
pub(super) fn check(machine: &Machine<'_>, key: &Value) -> Result<(), Error> {
    machine.visit()?;
    let is_hashable = match key {
        Value::Seq(seq) if seq.kind == SeqKind::Tuple => {
            return seq.items.iter().try_for_each(|item| check(machine, item));
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
