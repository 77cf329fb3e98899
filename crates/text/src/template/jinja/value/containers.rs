//! Lists, tuples, generators and dictionaries.

use std::cell::OnceCell;
use std::rc::Rc;

use super::compare::{self, KeyIndex, is_equal};
use super::{SeqKind, Value};
use crate::template::jinja::error::Error;
use crate::template::jinja::meter::Meter;
use crate::template::jinja::text::{Budget, Charge};

/// Deepest nesting of a list or dictionary: values are compared, printed and dropped recursively.
/// JSON has at most 128 levels, and a conversation some more around it.
const DEPTH_MAX: u32 = 160;
/// Entries of a dictionary beyond which keys are looked up by their hash.
const SEARCHED_MAX: usize = 8;

pub(in crate::template::jinja) struct Seq {
    pub(in crate::template::jinja) kind: SeqKind,
    pub(in crate::template::jinja) items: Vec<Value>,
    pub(super) depth: u32,
    _charge: Charge,
}

pub(in crate::template::jinja) struct Dict {
    pub(in crate::template::jinja) entries: Vec<(Value, Value)>,
    index: OnceCell<KeyIndex>,
    pub(super) depth: u32,
    _charge: Charge,
}

impl Value {
    pub(in crate::template::jinja) fn seq(
        kind: SeqKind,
        items: Vec<Self>,
        budget: &Rc<Budget>,
    ) -> Result<Self, Error> {
        Seq::new(kind, items, budget).map(Self::Seq)
    }

    pub(in crate::template::jinja) fn list(
        items: Vec<Self>,
        budget: &Rc<Budget>,
    ) -> Result<Self, Error> {
        Self::seq(SeqKind::List, items, budget)
    }

    /// A dictionary; the last of equal keys counts.
    pub(in crate::template::jinja) fn dict(
        meter: &Meter,
        entries: Vec<(Self, Self)>,
    ) -> Result<Self, Error> {
        let mut unique: Vec<(Self, Self)> = Vec::with_capacity(entries.len());
        let mut index = KeyIndex::default();
        for (key, value) in entries {
            compare::check_key(meter, &key)?;
            let hash = compare::hash(meter, &key)?;
            match index.find(meter, hash, &key, |at| &unique[at].0)? {
                Some(at) => unique[at].1 = value,
                None => {
                    index.push(hash);
                    unique.push((key, value));
                }
            }
        }
        Self::dict_of(unique, &meter.budget)
    }

    /// A dictionary whose keys are known to differ.
    pub(in crate::template::jinja) fn dict_of(
        entries: Vec<(Self, Self)>,
        budget: &Rc<Budget>,
    ) -> Result<Self, Error> {
        let charge = budget.take(entries.capacity() * size_of::<(Self, Self)>())?;
        let depth = deepened(entries.iter().map(|(_, value)| value))?;
        Ok(Self::Dict(Rc::new(Dict {
            entries,
            index: OnceCell::new(),
            depth,
            _charge: charge,
        })))
    }
}

/// The depth of what contains these.
pub(super) fn deepened<'a>(items: impl Iterator<Item = &'a Value>) -> Result<u32, Error> {
    let deepest = items.map(Value::depth).max().map_or(0, |depth| depth + 1);
    if deepest > DEPTH_MAX {
        let what = format!("a value is nested more than {DEPTH_MAX} deep");
        return Err(Error::new(what));
    }
    Ok(deepest)
}

impl Seq {
    pub(in crate::template::jinja) fn new(
        kind: SeqKind,
        items: Vec<Value>,
        budget: &Rc<Budget>,
    ) -> Result<Rc<Self>, Error> {
        let charge = budget.take(items.capacity() * size_of::<Value>())?;
        let depth = deepened(items.iter())?;
        Ok(Rc::new(Self {
            kind,
            items,
            depth,
            _charge: charge,
        }))
    }
}

impl Dict {
    pub(in crate::template::jinja) fn get(
        &self,
        meter: &Meter,
        key: &Value,
    ) -> Result<Option<&Value>, Error> {
        if self.entries.len() > SEARCHED_MAX {
            let hash = compare::hash(meter, key)?;
            let known = |at: usize| &self.entries[at].0;
            let at = self.index(meter)?.find(meter, hash, key, known)?;
            return Ok(at.map(|at| &self.entries[at].1));
        }
        for (known, value) in &self.entries {
            if is_equal(meter, known, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn index(&self, meter: &Meter) -> Result<&KeyIndex, Error> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let mut index = KeyIndex::default();
        for (key, _) in &self.entries {
            index.push(compare::hash(meter, key)?);
        }
        Ok(self.index.get_or_init(|| index))
    }

    pub(in crate::template::jinja) fn get_str(
        &self,
        meter: &Meter,
        key: &str,
    ) -> Result<Option<&Value>, Error> {
        if self.entries.len() > SEARCHED_MAX {
            return self.get(meter, &Value::own(key));
        }
        let is_key = |known: &Value| known.as_str().is_some_and(|known| known.text() == key);
        let entry = self.entries.iter().find(|(known, _)| is_key(known));
        Ok(entry.map(|(_, value)| value))
    }
}
