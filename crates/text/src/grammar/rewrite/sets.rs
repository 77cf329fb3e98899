//! The sets of members that an object with a number of members may have.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::simple::count;

/// Most sets of members that one object is written as.
pub(super) const SETS_MAX: usize = 64;

/// The members of one object schema, as far as their number depends on them.
pub(super) struct Members {
    pub(super) required: BTreeSet<String>,
    /// Members that are named and not required.
    pub(super) optional: Vec<String>,
    /// Whether there may be members that the schema does not name.
    pub(super) is_open: bool,
    /// The least and greatest number of members.
    pub(super) least: usize,
    pub(super) greatest: Option<usize>,
}

/// One way to have a number of members.
#[derive(Default)]
pub(super) struct Set {
    present: Vec<String>,
    absent: Vec<String>,
    /// Whether a member that the schema does not name must be there as well.
    has_other: bool,
}

impl Members {
    pub(super) fn of(fields: &Map<String, Value>) -> Self {
        let is_never = |schema: Option<&Value>| schema == Some(&Value::Bool(false));
        let keys = fields.get("patternProperties").and_then(Value::as_object);
        let mut optional = Vec::new();
        for (name, schema) in fields
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            if !is_never(Some(schema)) {
                optional.push(name.clone());
            }
        }
        Self {
            required: BTreeSet::new(),
            optional,
            is_open: !is_never(fields.get("additionalProperties"))
                || keys.is_some_and(|keys| !keys.is_empty()),
            least: count(fields, "minProperties").unwrap_or(0) as usize,
            greatest: count(fields, "maxProperties").map(|most| most as usize),
        }
    }

    /// Members that must be there beside the required ones.
    pub(super) fn missing(&self) -> usize {
        self.least.saturating_sub(self.required.len())
    }

    /// Members that may be there beside the required ones.
    pub(super) fn free(&self) -> Option<usize> {
        Some(self.greatest?.saturating_sub(self.required.len()))
    }

    /// All sets of optional members; `None` if they are too many.
    pub(super) fn sets(&self) -> Option<Vec<Set>> {
        let missing = self.missing();
        let mut sets = Vec::new();
        let Some(free) = self.free() else {
            // Further members may be there beside each set.
            self.add_sets(missing, &mut sets, |present, _| Set {
                present,
                ..Set::default()
            })?;
            if self.is_open && missing > 0 {
                let with_other = |present, absent| Set {
                    present,
                    absent,
                    has_other: true,
                };
                self.add_sets(missing - 1, &mut sets, with_other)?;
            }
            return Some(sets);
        };
        for size in 0..=free.min(self.optional.len()) {
            if size + 1 < missing || size < missing && !self.is_open {
                continue;
            }
            let exactly = |present, absent| Set {
                present,
                absent,
                has_other: size < missing,
            };
            self.add_sets(size, &mut sets, exactly)?;
        }
        Some(sets)
    }

    /// Adds the sets of so many optional members.
    fn add_sets(
        &self,
        size: usize,
        sets: &mut Vec<Set>,
        set: impl Fn(Vec<String>, Vec<String>) -> Set,
    ) -> Option<()> {
        if size > self.optional.len() {
            return Some(());
        }
        // The numbers of the members that are there, in ascending order.
        let mut chosen: Vec<usize> = (0..size).collect();
        loop {
            if sets.len() == SETS_MAX {
                return None;
            }
            let (mut present, mut absent) = (Vec::new(), Vec::new());
            for (at, name) in self.optional.iter().enumerate() {
                let part = if chosen.binary_search(&at).is_ok() {
                    &mut present
                } else {
                    &mut absent
                };
                part.push(name.clone());
            }
            sets.push(set(present, absent));
            let end = self.optional.len() - size;
            let Some(at) = (0..size).rev().find(|at| chosen[*at] < end + at) else {
                return Some(());
            };
            let next = chosen[at] + 1;
            (at..size).for_each(|later| chosen[later] = next + later - at);
        }
    }

    /// The schema of a set, beside the object's own.
    pub(super) fn option(&self, set: &Set, is_for_objects: bool) -> Value {
        let mut option = Map::new();
        if is_for_objects {
            option.insert("type".to_owned(), json!("object"));
        }
        if !set.absent.is_empty() {
            let absent: Map<_, _> = set
                .absent
                .iter()
                .map(|name| (name.clone(), Value::Bool(false)))
                .collect();
            option.insert("properties".to_owned(), absent.into());
        }
        if !set.present.is_empty() {
            option.insert("required".to_owned(), json!(set.present));
        }
        let there = self.required.len() + set.present.len();
        if set.has_other {
            option.insert("minProperties".to_owned(), json!(there + 1));
        }
        if let Some(greatest) = self.greatest.filter(|_| self.is_open) {
            option.insert("maxProperties".to_owned(), json!(greatest));
        }
        Value::Object(option)
    }
}
