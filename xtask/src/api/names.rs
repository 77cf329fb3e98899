//! The public names: items that `pub` and `pub use` reach from `motet`, with their public members.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::documented::{Documented, Item};

/// Types whose members are for those who name the crate that defines them: a model or a backend is
/// written with `motet-model` and `motet-weights`, a test with the oracle's settings.
const OPAQUE: [&str; 9] = [
    "motet::model::Model",
    "motet::model::mlx::MlxModel",
    "motet::model::oracle::Faults",
    "motet::model::oracle::Oracle",
    "motet::model::oracle::OracleConfig",
    "motet::model::weights::ModelFiles",
    "motet::text::ChatTemplate",
    "motet::text::TextCodec",
    "motet::text::Tokenizer",
];

pub(super) struct Names<'a> {
    items: BTreeMap<String, Item<'a>>,
}

impl<'a> Names<'a> {
    pub(super) fn of(documented: &'a Documented) -> Result<Self> {
        let mut names = Self {
            items: BTreeMap::new(),
        };
        names.add_module(documented, documented.root()?, "motet")?;
        Ok(names)
    }

    fn add_module(
        &mut self,
        documented: &'a Documented,
        module: Item<'a>,
        path: &str,
    ) -> Result<()> {
        for (id, name) in exports(documented, module)? {
            let path = format!("{path}::{name}");
            let item = documented.item(module.of_crate, id);
            let item = item.with_context(|| format!("rustdoc's JSON lacks {path}: see CRATES"))?;
            let is_module = item.inner().0 == "module";
            if self.items.insert(path.clone(), item).is_none() && is_module {
                self.add_module(documented, item, &path)?;
            }
        }
        Ok(())
    }

    /// Items. One that has two paths counts once.
    pub(super) fn count(&self) -> usize {
        let items = self.items.values();
        items
            .map(|item| std::ptr::from_ref(item.value))
            .collect::<BTreeSet<_>>()
            .len()
    }

    /// A line for each name, and a line that is set in for each of its members.
    pub(super) fn list(&self, documented: &Documented) -> String {
        let mut list = String::new();
        for (path, item) in &self.items {
            list += &format!("{} {path}\n", item.inner().0);
            let members = members(documented, *item);
            let lines = members
                .into_iter()
                .filter_map(|member| Some(format!("  {} {}\n", member.inner().0, member.name()?)));
            list.extend(lines.collect::<BTreeSet<_>>());
        }
        list
    }

    /// Types in signatures that have no public name.
    pub(super) fn unnamed(&self, documented: &Documented) -> BTreeSet<String> {
        let named = |item: &Item<'_>| documented.defined(item.of_crate, &item.value["id"]);
        let named: BTreeSet<String> = self.items.values().filter_map(named).collect();
        let mut unnamed = BTreeSet::new();
        for (path, item) in self
            .items
            .iter()
            .filter(|(path, _)| !OPAQUE.contains(&path.as_str()))
        {
            for member in std::iter::once(*item).chain(members(documented, *item)) {
                let mut types = Vec::new();
                add_types(member, &mut types);
                let types = types
                    .into_iter()
                    .filter_map(|id| documented.defined(member.of_crate, id));
                unnamed.extend(types.filter(|name| !named.contains(name)).map(|name| {
                    format!("  {name} in {path}::{}", member.name().unwrap_or_default())
                }));
            }
        }
        unnamed
    }
}

/// The exports of a module: ids and names.
fn exports<'a>(documented: &'a Documented, module: Item<'a>) -> Result<Vec<(&'a Value, &'a str)>> {
    let items = module.inner().1["items"].as_array().into_iter().flatten();
    let mut exports = Vec::new();
    for id in items {
        let Some(item) = documented.item(module.of_crate, id) else {
            continue;
        };
        match item.inner() {
            ("use", used) => {
                ensure!(
                    used["is_glob"] == false,
                    "`pub use {}::*` has no names: list them",
                    used["source"]
                );
                exports.extend(used["name"].as_str().map(|name| (&used["id"], name)));
            }
            ("impl", _) => {}
            _ if item.is_public() => exports.extend(item.name().map(|name| (id, name))),
            _ => {}
        }
    }
    Ok(exports)
}

/// Public fields, variants, and items of a trait or of the type itself.
fn members<'a>(documented: &'a Documented, item: Item<'a>) -> Vec<Item<'a>> {
    let (kind, inner) = item.inner();
    let ids = |value: &'a Value| value.as_array().into_iter().flatten();
    let find = |id: &'a Value| documented.item(item.of_crate, id);
    let fields = |kind: &'a Value| {
        ids(&kind["plain"]["fields"])
            .chain(ids(&kind["struct"]["fields"]))
            .chain(ids(&kind["tuple"]))
    };
    let mut members = Vec::new();
    match kind {
        "struct" => members.extend(
            fields(&inner["kind"])
                .filter_map(find)
                .filter(|field| field.is_public()),
        ),
        "enum" => {
            for variant in ids(&inner["variants"]).filter_map(find) {
                members.push(variant);
                members.extend(fields(&variant.inner().1["kind"]).filter_map(find));
            }
        }
        "trait" => members.extend(ids(&inner["items"]).filter_map(find)),
        _ => {}
    }
    for found in ids(&inner["impls"]).filter_map(find) {
        let found = found.inner().1;
        let is_own = found["trait"].is_null();
        let is_written = found["is_synthetic"] == false && found["blanket_impl"].is_null();
        let items = ids(&found["items"]).filter_map(find);
        members.extend(items.filter(|item| {
            is_own && item.is_public() || !is_own && is_written && item.inner().0 == "assoc_type"
        }));
    }
    members
}

/// Ids of the types and traits in an item's signature.
fn add_types<'a>(item: Item<'a>, types: &mut Vec<&'a Value>) {
    match item.inner() {
        // Their members are items of their own.
        ("struct" | "enum" | "trait" | "variant" | "module", _) => {}
        (_, signature) => add_types_in(signature, types),
    }
}

fn add_types_in<'a>(signature: &'a Value, types: &mut Vec<&'a Value>) {
    match signature {
        Value::Object(fields) => {
            for (name, value) in fields {
                if matches!(name.as_str(), "resolved_path" | "trait") && value["id"].is_number() {
                    types.push(&value["id"]);
                }
                add_types_in(value, types);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_types_in(value, types)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `motet` exports a struct of another crate, which has a field of this type.
    fn names_with_field_of(path: [&str; 3]) -> (String, Vec<String>) {
        let shown =
            json!({ "crate_id": 1, "path": ["motet_core", "a", "Shown"], "kind": "struct" });
        let mut own = shown.clone();
        own["crate_id"] = json!(0);
        let used = json!({ "use": { "name": "Shown", "id": 2, "is_glob": false, "source": "" } });
        let field = json!({ "struct_field": { "resolved_path": { "id": 9 } } });
        let of_struct =
            json!({ "struct": { "kind": { "plain": { "fields": [8] } }, "impls": [] } });
        let item = |id: u32, name: Option<&str>, inner: &Value| json!({ "id": id, "name": name, "visibility": "public", "inner": inner });
        let motet = json!({
            "root": 0,
            "index": {
                "0": item(0, Some("motet"), &json!({ "module": { "items": [1] } })),
                "1": item(1, None, &used),
            },
            "paths": { "2": shown },
        });
        let core = json!({
            "index": { "7": item(7, Some("Shown"), &of_struct), "8": item(8, Some("inside"), &field) },
            "paths": { "7": own, "9": { "crate_id": 0, "path": path, "kind": "struct" } },
        });
        let documented = Documented::of([("motet", motet), ("motet_core", core)]);
        let names = Names::of(&documented).expect("it is documented");
        let unnamed = names.unnamed(&documented).into_iter().collect();
        (names.list(&documented), unnamed)
    }

    #[test]
    fn re_exports_are_listed_with_their_members() {
        let (list, unnamed) = names_with_field_of(["std", "string", "String"]);
        assert_eq!(list, "struct motet::Shown\n  struct_field inside\n");
        assert_eq!(unnamed, [""; 0], "types of others have their names");
    }

    #[test]
    fn type_that_no_caller_can_name_is_found() {
        let (_, unnamed) = names_with_field_of(["motet_core", "a", "Inside"]);
        assert_eq!(unnamed, ["  motet_core::a::Inside in motet::Shown::inside"]);
    }
}
