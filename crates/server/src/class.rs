//! Priority classes in the API and in settings.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use clap::ValueEnum;
use motet::request::Priority;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A request's priority class. A higher class starts first, and may preempt a lower one.
///
/// Bodies name it, or have vLLM's number, which is lower the earlier a request starts: 0 is
/// normal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Batch jobs.
    Background,
    /// Most requests.
    #[default]
    Normal,
    /// Work with precedence over all other.
    Urgent,
}

impl Class {
    /// All classes, the lowest first.
    pub(crate) const ALL: [Self; 3] = [Self::Background, Self::Normal, Self::Urgent];

    /// The class's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Normal => "normal",
            Self::Urgent => "urgent",
        }
    }

    /// The class of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The class of vLLM's number.
    #[must_use]
    pub fn of_number(number: i64) -> Self {
        match number.cmp(&0) {
            Ordering::Less => Self::Urgent,
            Ordering::Equal => Self::Normal,
            Ordering::Greater => Self::Background,
        }
    }

    /// The engine's priority for it.
    #[must_use]
    pub fn priority(self) -> Priority {
        match self {
            Self::Background => Priority::Background,
            Self::Normal => Priority::Normal,
            Self::Urgent => Priority::Urgent,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Class {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ClassVisitor)
    }
}

struct ClassVisitor;

impl Visitor<'_> for ClassVisitor {
    type Value = Class;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`background`, `normal` or `urgent`, or a whole number, of which 0 is normal")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Class, E> {
        let class = Class::named(name);
        class.ok_or_else(|| E::invalid_value(Unexpected::Str(name), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Class, E> {
        Ok(Class::of_number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Class, E> {
        Ok(Class::of_number(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Class, E> {
        if number.fract() != 0.0 {
            return Err(E::invalid_type(Unexpected::Float(number), &self));
        }
        Ok(Class::of_number(number as i64))
    }
}

impl JsonSchema for Class {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Class".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = Self::ALL.map(Self::name);
        json_schema!({"anyOf": [{"type": "string", "enum": names}, {"type": "integer"}]})
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn classes_have_names_and_numbers() {
        let class = |value: Value| serde_json::from_value::<Class>(value).ok();
        for (value, expected) in [
            (json!("urgent"), Some(Class::Urgent)),
            (json!(0), Some(Class::Normal)),
            (json!(0.0), Some(Class::Normal)),
            (json!(-3), Some(Class::Urgent)),
            (json!(u64::MAX), Some(Class::Background)),
            (json!(1e300), Some(Class::Background)),
            (json!(0.5), None),
            (json!("Urgent"), None),
            (json!(true), None),
        ] {
            assert_eq!(class(value.clone()), expected, "{value}");
        }
    }
}
