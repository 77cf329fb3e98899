//! Values that are a text or a list, as the contents of messages are in every API.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use super::json;

/// A value of the body that is a text or a list.
pub(crate) trait TextOrList: Sized {
    /// An element of the list.
    type Element;
    /// The value in words, for errors.
    const EXPECTED: &'static str;
    /// Free-form values that an element counts as, by its size in memory.
    const ELEMENT_VALUES: usize;

    fn text(text: String) -> Self;
    fn list(elements: Vec<Self::Element>) -> Self;
}

/// Reads a text or a list.
pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TextOrList<Element: Deserialize<'de>>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(TextOrListVisitor(PhantomData))
}

/// Reads the rest of a list, whose elements count as this many free-form values each.
pub(crate) fn elements<'de, T, A>(mut list: A, values: usize) -> Result<Vec<T>, A::Error>
where
    T: Deserialize<'de>,
    A: SeqAccess<'de>,
{
    let mut all = Vec::new();
    while let Some(element) = list.next_element()? {
        json::count(values)?;
        all.push(element);
    }
    Ok(all)
}

struct TextOrListVisitor<T>(PhantomData<T>);

impl<'de, T: TextOrList<Element: Deserialize<'de>>> Visitor<'de> for TextOrListVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok(T::text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<T, E> {
        Ok(T::text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        elements(list, T::ELEMENT_VALUES).map(T::list)
    }
}
