//! Adds one entry to the cargo configuration of another crate, and keeps everything else.

use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

use super::TARGET;
use super::dependent::FILE;

/// Why an entry cannot be added to a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    NotToml(String),
    OwnTable,
    Include,
}

/// A configuration with an entry that includes [`FILE`]; none if it has the entry already.
pub(super) fn merge(existing: &str) -> Result<Option<String>, Conflict> {
    let mut document = parse(existing)?;
    if stands_in(&document) {
        return Err(Conflict::OwnTable);
    }
    match document.get_mut("include") {
        None => {
            let entries = Array::from_iter([entry()]);
            document.insert("include", Item::Value(entries.into()));
        }
        Some(Item::Value(Value::String(path))) => {
            if path.value() == FILE {
                return Ok(None);
            }
            let first = Value::from(path.value().as_str());
            let entries = Array::from_iter([first, entry()]);
            document["include"] = Item::Value(entries.into());
        }
        Some(Item::Value(Value::Array(entries))) => {
            if entries.iter().any(is_ours) {
                return Ok(None);
            }
            entries.push(entry());
        }
        Some(Item::ArrayOfTables(entries)) => {
            if entries.iter().any(table_is_ours) {
                return Ok(None);
            }
            add_table(entries);
        }
        Some(_) => return Err(Conflict::Include),
    }
    Ok(Some(document.to_string()))
}

pub(super) fn parse(text: &str) -> Result<DocumentMut, Conflict> {
    text.parse()
        .map_err(|error: toml_edit::TomlError| Conflict::NotToml(error.message().to_owned()))
}

/// Whether a configuration replaces mlx-sys' build script.
pub(super) fn stands_in(document: &DocumentMut) -> bool {
    let target = document.get("target").and_then(|item| item.get(TARGET));
    target.is_some_and(|target| target.get("mlx").is_some())
}

/// `{ path = "…", optional = true }`: a checkout of the crate elsewhere has no such file.
fn entry() -> Value {
    let mut entry = InlineTable::new();
    entry.insert("path", FILE.into());
    entry.insert("optional", true.into());
    entry.into()
}

fn add_table(entries: &mut ArrayOfTables) {
    let mut table = Table::new();
    table.insert("path", toml_edit::value(FILE));
    table.insert("optional", toml_edit::value(true));
    entries.push(table);
}

fn is_ours(entry: &Value) -> bool {
    let path = match entry {
        Value::InlineTable(table) => table.get("path").and_then(Value::as_str),
        other => other.as_str(),
    };
    path == Some(FILE)
}

fn table_is_ours(table: &Table) -> bool {
    table.get("path").and_then(Item::as_str) == Some(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "{ path = \"motet-mlx.toml\", optional = true }";

    #[test]
    fn one_entry_is_added_and_all_else_stays() {
        let plain = format!("include = [{ENTRY}]\n");
        let commented =
            "# Ours.\n[build]\n# Half of the cores.\njobs = 2 # two\n\n[env]\nA = \"b\"\n";
        let cases = [
            ("", plain.clone()),
            (commented, format!("{plain}{commented}")),
            (
                "include = \"team.toml\"\n",
                format!("include = [\"team.toml\", {ENTRY}]\n"),
            ),
            (
                "include = [\"a.toml\", { path = \"b.toml\" }] # shared\n[net]\noffline = true\n",
                format!(
                    "include = [\"a.toml\", {{ path = \"b.toml\" }}, {ENTRY}] # shared\n[net]\noffline = true\n"
                ),
            ),
            (
                "[target.x86_64-unknown-linux-gnu]\nlinker = \"clang\"\n",
                format!("{plain}[target.x86_64-unknown-linux-gnu]\nlinker = \"clang\"\n"),
            ),
        ];
        for (existing, expected) in cases {
            let merged = merge(existing)
                .expect("it can be merged")
                .expect("a change");
            assert_eq!(merged, expected, "from {existing:?}");
            assert_eq!(merge(&merged), Ok(None), "a second time changes nothing");
        }
    }

    #[test]
    fn tables_of_includes_get_one_more() {
        let existing = "[[include]]\npath = \"a.toml\"\n";
        let merged = merge(existing)
            .expect("it can be merged")
            .expect("a change");
        assert!(merged.starts_with(existing), "{merged}");
        let paths = parse(&merged).expect("TOML");
        let paths = paths["include"].as_array_of_tables().expect("tables");
        assert_eq!(paths.iter().filter(|table| table_is_ours(table)).count(), 1);
        assert_eq!(merge(&merged), Ok(None));
    }

    #[test]
    fn an_entry_in_any_form_is_enough() {
        for existing in [
            "include = \"motet-mlx.toml\"\n",
            "include = [\"motet-mlx.toml\"]\n",
            "include = [\"a.toml\", { path = \"motet-mlx.toml\" }]\n",
        ] {
            assert_eq!(merge(existing), Ok(None), "{existing}");
        }
    }

    #[test]
    fn conflicting_configuration_is_rejected() {
        let own = "[target.x86_64-unknown-linux-gnu.mlx]\nrustc-link-lib = [\"mlxc\"]\n";
        assert_eq!(merge(own), Err(Conflict::OwnTable));
        let inline = "target.x86_64-unknown-linux-gnu = { mlx = { rustc-link-lib = [] } }\n";
        assert_eq!(merge(inline), Err(Conflict::OwnTable));
        assert_eq!(merge("include = 3\n"), Err(Conflict::Include));
        assert!(matches!(merge("[build\n"), Err(Conflict::NotToml(_))));
    }
}
