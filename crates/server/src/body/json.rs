//! Free-form JSON, such as tools and schemas, counted while it is read.

use std::cell::Cell;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Most free-form values and messages of one body, all together. Each takes up to a hundred
/// bytes in memory, and as few as two in a body.
pub(crate) const VALUES_MAX: usize = 1 << 17;

thread_local! {
    /// Values that the body read by this thread may still have.
    static VALUES_LEFT: Cell<usize> = const { Cell::new(VALUES_MAX) };
}

/// Counts the values of the body that this thread reads.
#[derive(Debug)]
pub(super) struct ValueCounter(());

impl ValueCounter {
    pub(super) fn start() -> Self {
        VALUES_LEFT.set(VALUES_MAX);
        Self(())
    }
}

impl Drop for ValueCounter {
    fn drop(&mut self) {
        VALUES_LEFT.set(VALUES_MAX);
    }
}

/// Counts values; an error if there are too many.
pub(crate) fn count<E: Error>(values: usize) -> Result<(), E> {
    let left = VALUES_LEFT.get().checked_sub(values);
    VALUES_LEFT.set(left.ok_or_else(too_many)?);
    Ok(())
}

/// Parses JSON inside a string of the body. Its values count as the body's. Returns `None` if
/// it is not JSON.
pub(crate) fn parse_embedded<E: Error>(text: &str) -> Result<Option<Value>, E> {
    let left = VALUES_LEFT.get();
    match serde_json::from_str::<Json>(text) {
        Ok(Json(value)) => Ok(Some(value)),
        // All JSON is valid here: the only data error is that there are too many values.
        Err(error) if error.is_data() => Err(too_many()),
        Err(_) => {
            VALUES_LEFT.set(left);
            Ok(None)
        }
    }
}

fn too_many<E: Error>() -> E {
    E::custom(format_args!(
        "more than {VALUES_MAX} values in messages, tools and schemas; expected at most as many"
    ))
}

/// Any JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(inline, transparent)]
pub(crate) struct Json(pub(crate) Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        count(1)?;
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        count(1)?;
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        count(1)?;
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        count(1)?;
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        count(1)?;
        Ok(Value::String(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        count(1)?;
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        count(1)?;
        let mut all = Vec::new();
        while let Some(Json(value)) = values.next_element()? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        count(1)?;
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            count(1)?;
            let Json(value) = members.next_value()?;
            all.insert(name, value);
        }
        Ok(Value::Object(all))
    }
}
