//! Several structs that are read from one object together, each with its own fields.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

/// A struct that is read field by field. A field that is missing in the object keeps its
/// default. If a field is there twice, the last one counts.
pub(crate) trait Fields: Default {
    /// Reads a field. Returns false if the struct has no field of this name.
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;

    /// The names of its fields.
    #[cfg(test)]
    fn names(visit: &mut impl FnMut(&'static str));
}

/// Declares a struct whose fields may all be missing in an object.
macro_rules! fields {
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident {
            $($(#[$about_field:meta])* $field:ident: $kind:ty,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Default)]
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

            #[cfg(test)]
            fn names(visit: &mut impl FnMut(&'static str)) {
                $(visit(stringify!($field));)*
            }
        }
    };
}

pub(crate) use fields;

impl<A: Fields, B: Fields> Fields for (A, B) {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<bool, M::Error> {
        Ok(self.0.read(name, map)? || self.1.read(name, map)?)
    }

    #[cfg(test)]
    fn names(visit: &mut impl FnMut(&'static str)) {
        A::names(visit);
        B::names(visit);
    }
}

impl<A: Fields, B: Fields, C: Fields> Fields for (A, B, C) {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<bool, M::Error> {
        Ok(self.0.read(name, map)? || self.1.read(name, map)? || self.2.read(name, map)?)
    }

    #[cfg(test)]
    fn names(visit: &mut impl FnMut(&'static str)) {
        A::names(visit);
        B::names(visit);
        C::names(visit);
    }
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
