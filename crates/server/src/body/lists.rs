//! Lists of bounded length. Longer ones are rejected while they are read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A list of at most `MAX` values.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct List<T, const MAX: usize>(pub(crate) Vec<T>);

/// A map of at most `MAX` values.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Table<T, const MAX: usize>(pub(crate) BTreeMap<String, T>);

/// One value, or a list of at most `MAX`.
#[derive(Clone, Debug, Default)]
pub(crate) struct OneOrMany<const MAX: usize>(pub(crate) Vec<String>);

pub(crate) fn too_many<E: Error>(max: usize) -> E {
    E::custom(format_args!(
        "there are more than {max}; expected at most as many"
    ))
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Table<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor(PhantomData))
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for OneOrMany<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextsVisitor)
    }
}

impl<T: JsonSchema, const MAX: usize> JsonSchema for List<T, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "List".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let items = generator.subschema_for::<T>();
        json_schema!({"type": "array", "items": items, "maxItems": MAX})
    }
}

impl<T: JsonSchema, const MAX: usize> JsonSchema for Table<T, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Table".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let values = generator.subschema_for::<T>();
        json_schema!({"type": "object", "additionalProperties": values, "maxProperties": MAX})
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = List<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = values.next_element()? {
            if all.len() == MAX {
                return Err(too_many(MAX));
            }
            all.push(value);
        }
        Ok(List(all))
    }
}

struct TableVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for TableVisitor<T, MAX> {
    type Value = Table<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {MAX}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut all = BTreeMap::new();
        while let Some((name, value)) = members.next_entry()? {
            all.insert(name, value);
            if all.len() > MAX {
                return Err(too_many(MAX));
            }
        }
        Ok(Table(all))
    }
}

struct TextsVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for TextsVisitor<MAX> {
    type Value = OneOrMany<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string or a list of at most {MAX}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(OneOrMany(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<Self::Value, A::Error> {
        let List(texts) = ListVisitor::<String, MAX>(PhantomData).visit_seq(texts)?;
        Ok(OneOrMany(texts))
    }
}
