//! The keywords of JSON schema, each with all that passes over schemas need to know of it.
//!
//! A new keyword is a new row. A pass asks the table and has no list of its own. It names keywords only
//! where it has a rule for them alone.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

/// One keyword.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keyword {
    pub(crate) name: &'static str,
    pub(crate) holds: Holds,
    pub(crate) role: Role,
    /// Whether it is about single members of an object.
    pub(crate) is_about_members: bool,
    /// Whether an object may have members beside it that `properties` does not name.
    pub(crate) opens_objects: bool,
    /// Whether it evaluates members or items that the keywords for all of them do not name.
    pub(crate) evaluates_others: bool,
    pub(crate) closing: Closing,
}

/// The value of a keyword, as far as schemas, expressions or counts are within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// None of these: data, a name, a number.
    Nothing,
    /// A schema.
    Schema,
    /// A schema, or a list of them.
    SchemaOrSchemas,
    /// A list of schemas.
    Schemas,
    /// Schemas by name. A value that is no schema, such as a list of names, is left alone.
    SchemasByName,
    /// Schemas by regular expression.
    SchemasByPattern,
    /// A regular expression.
    Pattern,
    /// A list of values.
    Values,
    /// A whole number that is not negative.
    Count,
}

/// The part that a keyword has in its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Restricts values of some types. llguidance compiles it.
    Restricts,
    /// Combines its schema with others, or with values.
    Combines,
    /// Has schemas that are compiled only where references name them.
    Defines,
    /// About references whose target depends on the caller of a schema. Without such a reference, it
    /// says nothing.
    Dynamic,
    /// A note for readers.
    Note,
    /// Any other. Those that restrict values are rewritten, or rejected.
    Other,
}

/// The treatment of the schemas within a keyword when the schema around them is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Nothing, notes included.
    Untouched,
    /// They stay open: each is one part of a combination.
    Open,
    /// They stay open, and so do definitions: a closed one would be excluded less.
    Exact,
    /// They are closed, too.
    Closed,
    /// They are closed, too, unless the schema around them is about members itself.
    Options,
    /// They are closed, unless a reference needs them as they are.
    Definitions,
}

#[rustfmt::skip] // a table
static KEYWORDS: [Keyword; 60] = [
    // Names.
    row("$schema", Holds::Nothing, Role::Other),
    row("$id", Holds::Nothing, Role::Other),
    row("$anchor", Holds::Nothing, Role::Other),
    row("$dynamicAnchor", Holds::Nothing, Role::Dynamic),
    row("$recursiveAnchor", Holds::Nothing, Role::Dynamic),
    row("$defs", Holds::SchemasByName, Role::Defines).closing(Closing::Definitions),
    row("definitions", Holds::SchemasByName, Role::Defines).closing(Closing::Definitions),
    // Notes. A closed schema loses them in this order.
    row("description", Holds::Nothing, Role::Note),
    row("title", Holds::Nothing, Role::Note),
    row("default", Holds::Nothing, Role::Note),
    row("examples", Holds::Nothing, Role::Note),
    row("$comment", Holds::Nothing, Role::Note),
    row("deprecated", Holds::Nothing, Role::Note),
    // Combinations.
    row("$ref", Holds::Nothing, Role::Combines).opens_objects(),
    row("allOf", Holds::Schemas, Role::Combines).opens_objects().closing(Closing::Open),
    row("anyOf", Holds::Schemas, Role::Combines).opens_objects().closing(Closing::Options),
    row("oneOf", Holds::Schemas, Role::Combines).opens_objects().closing(Closing::Exact),
    row("const", Holds::Nothing, Role::Combines),
    row("enum", Holds::Values, Role::Combines),
    row("if", Holds::Schema, Role::Combines).opens_objects().closing(Closing::Exact),
    row("then", Holds::Schema, Role::Other).closing(Closing::Open),
    row("else", Holds::Schema, Role::Other).closing(Closing::Open),
    row("not", Holds::Schema, Role::Other).opens_objects().closing(Closing::Exact),
    // Any type.
    row("type", Holds::Nothing, Role::Restricts),
    // Objects.
    row("properties", Holds::SchemasByName, Role::Restricts).about_members().closing(Closing::Closed),
    row("patternProperties", Holds::SchemasByPattern, Role::Restricts).about_members().opens_objects().closing(Closing::Open),
    row("additionalProperties", Holds::Schema, Role::Restricts).about_members().opens_objects().closing(Closing::Closed),
    row("unevaluatedProperties", Holds::Schema, Role::Other).opens_objects(),
    row("propertyNames", Holds::Schema, Role::Other).opens_objects(),
    row("required", Holds::Nothing, Role::Restricts).about_members(),
    row("minProperties", Holds::Count, Role::Restricts).about_members().opens_objects(),
    row("maxProperties", Holds::Count, Role::Restricts),
    row("dependentRequired", Holds::Nothing, Role::Other).opens_objects(),
    row("dependentSchemas", Holds::SchemasByName, Role::Other).opens_objects().evaluates_others(),
    row("dependencies", Holds::SchemasByName, Role::Other).evaluates_others(),
    row("discriminator", Holds::Nothing, Role::Other),
    // Arrays.
    row("items", Holds::SchemaOrSchemas, Role::Restricts).closing(Closing::Closed),
    row("prefixItems", Holds::Schemas, Role::Restricts).closing(Closing::Closed),
    row("additionalItems", Holds::Schema, Role::Restricts).evaluates_others(),
    row("unevaluatedItems", Holds::Schema, Role::Other),
    row("contains", Holds::Schema, Role::Other).evaluates_others(),
    row("minContains", Holds::Count, Role::Other),
    row("maxContains", Holds::Count, Role::Other),
    row("minItems", Holds::Count, Role::Restricts),
    row("maxItems", Holds::Count, Role::Restricts),
    row("uniqueItems", Holds::Nothing, Role::Other),
    // Texts.
    row("pattern", Holds::Pattern, Role::Restricts),
    row("format", Holds::Nothing, Role::Restricts),
    row("minLength", Holds::Count, Role::Restricts),
    row("maxLength", Holds::Count, Role::Restricts),
    row("contentEncoding", Holds::Nothing, Role::Other),
    row("contentMediaType", Holds::Nothing, Role::Other),
    row("contentSchema", Holds::Schema, Role::Other),
    // Numbers.
    row("minimum", Holds::Nothing, Role::Restricts),
    row("maximum", Holds::Nothing, Role::Restricts),
    row("exclusiveMinimum", Holds::Nothing, Role::Restricts),
    row("exclusiveMaximum", Holds::Nothing, Role::Restricts),
    row("multipleOf", Holds::Nothing, Role::Restricts),
    // Reading and writing.
    row("readOnly", Holds::Nothing, Role::Other),
    row("writeOnly", Holds::Nothing, Role::Other),
];

const fn row(name: &'static str, holds: Holds, role: Role) -> Keyword {
    Keyword {
        name,
        holds,
        role,
        is_about_members: false,
        opens_objects: false,
        evaluates_others: false,
        closing: Closing::Untouched,
    }
}

impl Keyword {
    const fn about_members(self) -> Self {
        Self {
            is_about_members: true,
            ..self
        }
    }

    const fn opens_objects(self) -> Self {
        Self {
            opens_objects: true,
            ..self
        }
    }

    const fn evaluates_others(self) -> Self {
        Self {
            evaluates_others: true,
            ..self
        }
    }

    const fn closing(self, closing: Closing) -> Self {
        Self { closing, ..self }
    }

    /// The regular expressions in the keyword's value.
    pub(crate) fn patterns<'a>(&self, value: &'a Value) -> Vec<&'a str> {
        match (self.holds, value) {
            (Holds::Pattern, Value::String(pattern)) => vec![pattern],
            (Holds::SchemasByPattern, Value::Object(schemas)) => {
                schemas.keys().map(String::as_str).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The row of a keyword; `None` if it is unknown. An unknown keyword holds no schemas and says nothing.
pub(crate) fn keyword(name: &str) -> Option<&'static Keyword> {
    static BY_NAME: LazyLock<FxHashMap<&str, &Keyword>> =
        LazyLock::new(|| KEYWORDS.iter().map(|row| (row.name, row)).collect());
    BY_NAME.get(name).copied()
}

/// The keywords of a role, in the order of the table.
pub(crate) fn of_role(role: Role) -> impl Iterator<Item = &'static str> {
    let rows = KEYWORDS.iter().filter(move |row| row.role == role);
    rows.map(|row| row.name)
}

/// Whether a schema has a keyword of this kind.
pub(crate) fn has(fields: &Map<String, Value>, is_such: impl Fn(&Keyword) -> bool) -> bool {
    let mut rows = fields.keys().filter_map(|name| keyword(name));
    rows.any(is_such)
}

/// Whether a schema stands for itself, without others that say more about the same value.
pub(crate) fn stands_alone(fields: &Map<String, Value>) -> bool {
    !has(fields, |keyword| keyword.role == Role::Combines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keyword_has_one_row() {
        for row in &KEYWORDS {
            assert_eq!(keyword(row.name), Some(row));
        }
    }
}
