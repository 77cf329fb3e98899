//! Several structs that are read from one object together, each with its own fields.

use std::fmt;
use std::marker::PhantomData;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// A struct that is read field by field. A field that is missing in the object keeps its
/// default. If a field is there twice, the last one counts.
pub(crate) trait Fields: Default {
    /// Reads a field. Returns false if the struct has no field of this name.
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;

    /// The schema of an object with its fields.
    fn schema(generator: &mut SchemaGenerator) -> Schema;
}

/// Declares a struct whose fields may all be missing in an object. The comments of its fields are
/// their descriptions in the server's API description.
macro_rules! fields {
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident {
            $($(#[$about_field:meta])* $field:ident: $kind:ty,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Default, schemars::JsonSchema)]
        $visible struct $name {
            $($(#[$about_field])* $field: $kind,)*
        }

        impl $crate::body::fields::Fields for $name {
            fn read<'de, A: serde::de::MapAccess<'de>>(
                &mut self,
                name: &str,
                map: &mut A,
            ) -> Result<bool, A::Error> {
                match name {
                    $(stringify!($field) => self.$field = map.next_value()?,)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                <Self as schemars::JsonSchema>::json_schema(generator)
            }
        }
    };
}

pub(crate) use fields;

impl<A: Fields, B: Fields> Fields for (A, B) {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<bool, M::Error> {
        Ok(self.0.read(name, map)? || self.1.read(name, map)?)
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        merged([A::schema(generator), B::schema(generator)])
    }
}

impl<A: Fields, B: Fields, C: Fields> Fields for (A, B, C) {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<bool, M::Error> {
        Ok(self.0.read(name, map)? || self.1.read(name, map)? || self.2.read(name, map)?)
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        merged([
            A::schema(generator),
            B::schema(generator),
            C::schema(generator),
        ])
    }
}

/// The schema of an object that has the fields of all.
fn merged<const N: usize>(all: [Schema; N]) -> Schema {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for mut schema in all {
        if let Some(Value::Object(more)) = schema.remove("properties") {
            properties.extend(more);
        }
        if let Some(Value::Array(more)) = schema.remove("required") {
            required.extend(more);
        }
    }
    json_schema!({"type": "object", "properties": properties, "required": required})
}

/// A whole object. Unknown fields are skipped.
pub(crate) struct Whole<T>(pub(crate) T);

impl<'de, T: Fields> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Object(PhantomData))
    }
}

struct Object<T>(PhantomData<T>);

impl<'de, T: Fields> Visitor<'de> for Object<T> {
    type Value = Whole<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut whole = T::default();
        while let Some(name) = map.next_key::<String>()? {
            if !whole.read(&name, &mut map)? {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Whole(whole))
    }
}
