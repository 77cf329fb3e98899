//! The references of a schema, in the one form that llguidance reads.
//!
//! llguidance splits `#/…` at `/` and compares the parts as they are written. A reference may
//! write them percent-encoded (RFC 3986), with `~0` and `~1` (RFC 6901), name an `$anchor`, or go by
//! way of an `$id`. Each becomes a plain `#/…` here. A target that such a reference cannot name, since a
//! name in it contains `/`, is copied into `$defs`; so is one outside of all schemas, such as in
//! `components`, since no other pass visits it there.

use std::collections::BTreeSet;
use std::rc::Rc;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use super::budget::Budget;
use crate::schema::keywords::{Role, of_role};
use crate::schema::walk::{below, below_mut, each, value_at};

/// Names and numbers from the root to a value.
type Path = Vec<String>;

/// Most bytes of the paths of all schemas. Below a long name, each has a copy of it.
const PATHS_BYTES_MAX: usize = 8 << 20;

/// Rewrites each reference. The error says which one leads nowhere.
pub(super) fn make_plain(schema: &mut Value, budget: &mut Budget) -> Result<(), String> {
    let root = schema.clone();
    let places = Places::of(&root)?;
    let mut copies = Copies::default();
    places.rewrite(schema, "", &mut copies)?;
    let mut at = 0;
    while let Some((path, name)) = copies.targets.get(at).cloned() {
        let mut copy = value_at(&root, &path).cloned().unwrap_or_default();
        budget.copy(copy.to_string().len())?;
        let base = places.base_of(&path);
        places.rewrite(&mut copy, &base, &mut copies)?;
        copies.insert(schema, name, copy);
        at += 1;
    }
    Ok(())
}

/// Removes the definitions of a schema with plain references that none of them reaches: they are
/// neither checked nor compiled.
pub(super) fn drop_unused(schema: &mut Value) {
    let mut used: BTreeSet<(String, String)> = BTreeSet::new();
    let mut new = Vec::new();
    let mut find = |schema: &Value, new: &mut Vec<(String, String)>| {
        each(schema, &mut |fields| {
            let reference = fields
                .get("$ref")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let mut steps = reference.split('/').skip(1).map(str::to_owned);
            if let (Some(keyword), Some(name)) = (steps.next(), steps.next()) {
                new.extend(
                    used.insert((keyword.clone(), name.clone()))
                        .then_some((keyword, name)),
                );
            }
        });
    };
    let mut rest = schema.clone();
    if let Some(fields) = rest.as_object_mut() {
        of_role(Role::Defines).for_each(|keyword| drop(fields.remove(keyword)));
    }
    find(&rest, &mut new);
    while let Some((keyword, name)) = new.pop() {
        if let Some(target) = schema.get(&keyword).and_then(|schemas| schemas.get(&name)) {
            find(target, &mut new);
        }
    }
    for keyword in of_role(Role::Defines) {
        if let Some(schemas) = schema.get_mut(keyword).and_then(Value::as_object_mut) {
            schemas.retain(|name, _| used.contains(&(keyword.to_owned(), name.clone())));
        }
    }
}

/// The schemas of a document.
struct Places<'a> {
    root: &'a Value,
    /// The base URI of each schema.
    bases: FxHashMap<Path, Rc<str>>,
    /// The schemas that have an `$id`, by their URIs.
    resources: FxHashMap<Rc<str>, Path>,
    /// The schemas that have an `$anchor`, by the base URI and the name.
    anchors: FxHashMap<(Rc<str>, String), Path>,
    /// Bytes of the paths.
    bytes: usize,
}

/// Targets that are copied into `$defs`, and their names there.
#[derive(Default)]
struct Copies {
    targets: Vec<(Path, String)>,
}

impl<'a> Places<'a> {
    fn of(root: &'a Value) -> Result<Self, String> {
        let mut places = Self {
            root,
            bases: FxHashMap::default(),
            resources: FxHashMap::default(),
            anchors: FxHashMap::default(),
            bytes: 0,
        };
        places.add(root, Vec::new(), Rc::from(""))?;
        Ok(places)
    }

    fn add(&mut self, schema: &Value, path: Path, base: Rc<str>) -> Result<(), String> {
        let steps = path.iter().map(|step| size_of::<String>() + step.len());
        self.bytes += steps.sum::<usize>();
        if self.bytes > PATHS_BYTES_MAX {
            return Err(format!(
                "its schemas are too many below long names; expected at most {PATHS_BYTES_MAX} bytes \
                 of their paths"
            ));
        }
        let Some(fields) = schema.as_object() else {
            self.bases.insert(path, base);
            return Ok(());
        };
        let mut base = base;
        if let Some(id) = id(fields) {
            base = Rc::from(joined(&base, id));
            self.resources
                .entry(Rc::clone(&base))
                .or_insert_with(|| path.clone());
        }
        for name in anchors(fields) {
            let anchor = (Rc::clone(&base), name.to_owned());
            self.anchors.entry(anchor).or_insert_with(|| path.clone());
        }
        for (steps, schema) in below(fields) {
            let path = [path.as_slice(), &steps].concat();
            self.add(schema, path, Rc::clone(&base))?;
        }
        self.bases.insert(path, base);
        Ok(())
    }

    /// The base URI at a path: that of the nearest schema above.
    fn base_of(&self, path: &[String]) -> Rc<str> {
        let lengths = (0..=path.len()).rev();
        let mut above = lengths.filter_map(|length| self.bases.get(&path[..length]));
        above.next().map_or_else(|| Rc::from(""), Rc::clone)
    }

    /// Rewrites the references in a schema whose base URI is `base`.
    fn rewrite(&self, schema: &mut Value, base: &str, copies: &mut Copies) -> Result<(), String> {
        let Some(fields) = schema.as_object_mut() else {
            return Ok(());
        };
        let own = id(fields).map(|id| joined(base, id));
        let base = own.as_deref().unwrap_or(base);
        if let Some(Value::String(reference)) = fields.get_mut("$ref") {
            let path = self.find(reference, base)?;
            *reference = match plain(&path) {
                Some(plain) if self.bases.contains_key(&path) => plain,
                _ => copies.name(path, self.root),
            };
        }
        let mut schemas = below_mut(fields).into_iter();
        schemas.try_for_each(|(_, schema)| self.rewrite(schema, base, copies))
    }

    /// The path of a reference's target.
    fn find(&self, reference: &str, base: &str) -> Result<Path, String> {
        let nowhere = || format!("`$ref` {reference:?} names no part of the schema");
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let uri = joined(base, document);
        let start = match self.resources.get(uri.as_str()) {
            Some(path) => path.clone(),
            None if document.is_empty() => Vec::new(),
            None => return Err(format!("{}; expected `#…` or an `$id` in it", nowhere())),
        };
        // A name that only looks encoded is found as it is written.
        let decoded = percent_decoded(fragment).and_then(|text| self.within(&start, &uri, &text));
        let found = decoded.or_else(|| {
            let steps = fragment.strip_prefix('/')?.split('/').map(str::to_owned);
            let path: Path = start.iter().cloned().chain(steps).collect();
            value_at(self.root, &path).map(|_| path)
        });
        found.ok_or_else(nowhere)
    }

    /// The path of a decoded fragment: nothing, a pointer or an anchor.
    fn within(&self, start: &[String], uri: &str, fragment: &str) -> Option<Path> {
        let Some(pointer) = fragment.strip_prefix('/') else {
            let anchor = (Rc::from(uri), fragment.to_owned());
            return if fragment.is_empty() {
                Some(start.to_vec())
            } else {
                self.anchors.get(&anchor).cloned()
            };
        };
        let steps = pointer
            .split('/')
            .map(|step| step.replace("~1", "/").replace("~0", "~"));
        let path: Path = start.iter().cloned().chain(steps).collect();
        value_at(self.root, &path).map(|_| path)
    }
}

impl Copies {
    /// The reference to a target's copy.
    fn name(&mut self, path: Path, root: &Value) -> String {
        let known = self.targets.iter().find(|(target, _)| *target == path);
        let name = known.map(|(_, name)| name.clone()).unwrap_or_else(|| {
            let is_free = |name: &String| root["$defs"].get(name).is_none();
            let names = (self.targets.len()..).map(|number| format!("copy-{number}"));
            let used = |name: &String| self.targets.iter().any(|(_, other)| other == name);
            let mut free = names.filter(|name| is_free(name) && !used(name));
            let name = free.next().expect("a schema has finitely many names");
            self.targets.push((path, name.clone()));
            name
        });
        format!("#/$defs/{name}")
    }

    fn insert(&self, schema: &mut Value, name: String, copy: Value) {
        let Some(fields) = schema.as_object_mut() else {
            return;
        };
        let definitions = fields.entry("$defs").or_insert_with(|| Map::new().into());
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.insert(name, copy);
        }
    }
}

/// A path as llguidance reads it, if it can.
fn plain(path: &[String]) -> Option<String> {
    match path {
        [] => Some("#".to_owned()),
        // A reference to it would name the root.
        [one] if one.is_empty() => None,
        path if path.iter().any(|step| step.contains('/')) => None,
        path => Some(format!("#/{}", path.join("/"))),
    }
}

/// The `$id` of a schema, if it is more than an anchor.
fn id(fields: &Map<String, Value>) -> Option<&str> {
    let id = fields.get("$id")?.as_str()?;
    let id = id.split_once('#').map_or(id, |(id, _)| id);
    (!id.is_empty()).then_some(id)
}

/// The names of a schema: by `$anchor`, and by an `$id` as draft 7 has them.
fn anchors(fields: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let text = |keyword| fields.get(keyword).and_then(Value::as_str);
    let older = text("$id").and_then(|id| id.split_once('#'));
    let older = older.map(|(_, name)| name).filter(|name| !name.is_empty());
    [text("$anchor"), older].into_iter().flatten()
}

/// A URI relative to another.
fn joined(base: &str, relative: &str) -> String {
    let has_scheme = |uri: &str| {
        uri.split_once(':')
            .is_some_and(|(scheme, _)| !scheme.contains(['/', '?']) && !scheme.is_empty())
    };
    if relative.is_empty() {
        return base.to_owned();
    }
    if base.is_empty() || has_scheme(relative) {
        return relative.to_owned();
    }
    let path_start = base.find("://").map_or(0, |at| {
        base[at + 3..]
            .find('/')
            .map_or(base.len(), |slash| at + 3 + slash)
    });
    let (authority, path) = base.split_at(path_start);
    if relative.starts_with('/') {
        return format!("{authority}{relative}");
    }
    let folder = path.rfind('/').map_or("", |slash| &path[..=slash]);
    let folder = if folder.is_empty() && path_start > 0 {
        "/"
    } else {
        folder
    };
    format!("{authority}{folder}{}", relative.trim_start_matches("./"))
}

/// The text without percent-encoding; `None` if it is no UTF-8 then.
fn percent_decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|_| byte == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(code.unwrap_or(byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8(decoded).ok()
}
