//! Fields with a value for each layer.

use std::ops::RangeInclusive;

use motet_protocol::ModelError;

use super::super::fields::Fields;
use super::{Settings, Source};

/// A field's value: one for all layers, or one for each.
enum Listed {
    One(usize),
    Many(Vec<usize>),
}

/// The pattern in which layers of two kinds alternate.
pub(crate) enum Pattern {
    /// Every such layer is of the second kind: the third, sixth and so on for 3.
    Every(usize),
    /// Whether each layer is of the first kind.
    Flags(Vec<bool>),
}

impl Settings<'_> {
    /// A number for each layer: one for all, or a list.
    pub(crate) fn counts(
        &self,
        name: &str,
        layers: usize,
    ) -> Result<Option<Vec<usize>>, ModelError> {
        let list = match self.list(name)? {
            None => return Ok(None),
            Some(Listed::One(one)) => vec![one; layers],
            Some(Listed::Many(many)) => many,
        };
        self.expect_layers(name, list.len(), layers)?;
        Ok(Some(list))
    }

    /// The kind of each layer, which must be one of `known`. Files that do not list them have
    /// the kind that `absent` gives to an index.
    pub(crate) fn kinds(
        &self,
        known: &'static [&'static str],
        layers: usize,
        absent: impl Fn(usize) -> &'static str,
    ) -> Result<Vec<&'static str>, ModelError> {
        let name = "layer_types";
        let Source::HuggingFace(folder) = self.source else {
            return Ok((0..layers).map(absent).collect());
        };
        let object = folder.text();
        let name = self.json_name(name);
        let Some(found) = object.get(&name) else {
            return Ok((0..layers).map(absent).collect());
        };
        let Some(found) = found.as_array() else {
            return Err(object.unlike(&name, found, "an array of texts"));
        };
        self.expect_layers(&name, found.len(), layers)?;
        let kind = |value: &serde_json::Value| {
            let kind = known.iter().find(|kind| value.as_str() == Some(kind));
            kind.copied()
                .ok_or_else(|| object.unlike(&name, value, &format!("one of {known:?}")))
        };
        found.iter().map(kind).collect()
    }

    /// A list of layers by their indices.
    pub(crate) fn layer_indices(
        &self,
        name: &str,
        layers: usize,
    ) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(list) = self.list_of_numbers(name)? else {
            return Ok(None);
        };
        match list.iter().find(|index| **index >= layers) {
            None => Ok(Some(list)),
            Some(index) => Err(self.wrong(
                name,
                format!("found {index} in the list"),
                format!("indices below {layers}, the number of layers"),
            )),
        }
    }

    /// A list of flags. `lengths` are the lengths that it may have.
    pub(crate) fn flags(
        &self,
        name: &str,
        lengths: RangeInclusive<usize>,
    ) -> Result<Option<Vec<bool>>, ModelError> {
        match self.list_of_numbers(name)? {
            None => Ok(None),
            Some(list) => self.to_flags(name, &list, lengths).map(Some),
        }
    }

    /// The pattern in which layers of two kinds alternate.
    pub(crate) fn pattern(&self, name: &str, layers: usize) -> Result<Option<Pattern>, ModelError> {
        match self.list(name)? {
            None => Ok(None),
            Some(Listed::One(0)) => Err(self.wrong(name, "found 0", "a whole number, 1 or more")),
            Some(Listed::One(every)) => Ok(Some(Pattern::Every(every))),
            Some(Listed::Many(many)) => {
                let flags = self.to_flags(name, &many, layers..=layers)?;
                Ok(Some(Pattern::Flags(flags)))
            }
        }
    }

    fn to_flags(
        &self,
        name: &str,
        list: &[usize],
        lengths: RangeInclusive<usize>,
    ) -> Result<Vec<bool>, ModelError> {
        if !lengths.contains(&list.len()) {
            self.expect_layers(name, list.len(), *lengths.start())?;
        }
        match list.iter().find(|one| **one > 1) {
            None => Ok(list.iter().map(|one| *one == 1).collect()),
            Some(other) => {
                let what = format!("found {other} in the list");
                Err(self.wrong(name, what, "true or false for each layer"))
            }
        }
    }

    /// A list, which a single number is not.
    fn list_of_numbers(&self, name: &str) -> Result<Option<Vec<usize>>, ModelError> {
        match self.list(name)? {
            None => Ok(None),
            Some(Listed::Many(many)) => Ok(Some(many)),
            Some(Listed::One(one)) => {
                Err(self.wrong(name, format!("found {one}"), "a list of whole numbers"))
            }
        }
    }

    /// Two numbers, of which the second may be `Infinity` or `null`.
    pub(crate) fn bounds(&self, name: &str) -> Result<Option<(f32, f32)>, ModelError> {
        let Source::HuggingFace(folder) = self.source else {
            return Ok(None);
        };
        let object = folder.text();
        let Some(value) = object.get(name) else {
            return Ok(None);
        };
        let bound = |at: usize| match value.get(at) {
            Some(serde_json::Value::Null) => Some(f64::INFINITY),
            Some(one) if one.is_object() => Some(f64::INFINITY), // {"__float__": "Infinity"}
            Some(serde_json::Value::String(text)) if text == "Infinity" => Some(f64::INFINITY),
            Some(one) => one.as_f64(),
            None => None,
        };
        match (bound(0), bound(1)) {
            (Some(low), Some(high)) if low <= high => Ok(Some((low as f32, high as f32))),
            _ => Err(object.unlike(name, value, "two numbers, the smaller one first")),
        }
    }

    fn expect_layers(&self, name: &str, found: usize, layers: usize) -> Result<(), ModelError> {
        if found == layers {
            return Ok(());
        }
        Err(self.wrong(
            name,
            format!("found a list of {found}"),
            format!("one for each of the {layers} layers"),
        ))
    }

    fn list(&self, name: &str) -> Result<Option<Listed>, ModelError> {
        match self.source {
            Source::HuggingFace(folder) => {
                let name = self.json_name(name);
                let Some(many) = folder.text().get(&name).and_then(|found| found.as_array()) else {
                    return Ok(self.integer(&name)?.map(|one| Listed::One(one as usize)));
                };
                let number = |value: &serde_json::Value| {
                    let flag = value.as_bool().map(usize::from);
                    let index = value.as_u64().and_then(|found| usize::try_from(found).ok());
                    flag.or(index).ok_or_else(|| {
                        folder
                            .text()
                            .unlike(&name, value, "a whole number, 0 or more")
                    })
                };
                let many = many.iter().map(number).collect::<Result<_, _>>()?;
                Ok(Some(Listed::Many(many)))
            }
            Source::Gguf {
                metadata,
                architecture,
            } => {
                let Some(key) = self.gguf_name(metadata, architecture, name) else {
                    return Ok(None);
                };
                if let Some(many) = metadata.whole_numbers(&key)? {
                    return Ok(Some(Listed::Many(many)));
                }
                Ok(self.integer(name)?.map(|one| Listed::One(one as usize)))
            }
        }
    }
}
