//! Single fields: their names in the file, their values, and the family's defaults.

use std::borrow::Cow;
use std::path::Path;

use motet_protocol::ModelError;

use super::super::fields::Fields;
use super::super::gguf::GgufMetadata;
use super::{FieldDefault, Settings, Source, names};

impl Settings<'_> {
    /// The name of a field in `config.json`: another name that the family has for it, if the
    /// file has that.
    pub(super) fn json_name<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let Source::HuggingFace(folder) = self.source else {
            return Cow::Borrowed(name);
        };
        let mut aliases = self.aliases(name).into_iter();
        match aliases.find(|alias| folder.text().get(alias).is_some()) {
            Some(alias) => Cow::Owned(alias.to_owned()),
            None => Cow::Borrowed(name),
        }
    }

    fn aliases(&self, name: &str) -> Vec<&'static str> {
        let all = self.rules.aliases.iter();
        all.filter(|(canonical, _)| *canonical == name)
            .map(|(_, alias)| *alias)
            .collect()
    }

    /// The key of a field in GGUF metadata: its own, or that of another name for it if the file
    /// has only that.
    pub(super) fn gguf_name(
        &self,
        metadata: &GgufMetadata,
        architecture: &str,
        name: &str,
    ) -> Option<String> {
        let own = names::gguf_key(architecture, name);
        let aliases = self.aliases(name).into_iter();
        let mut others = aliases.filter_map(|alias| names::gguf_key(architecture, alias));
        match &own {
            Some(key) if metadata.contains(key) => own,
            _ => others.find(|key| metadata.contains(key)).or(own),
        }
    }

    /// The family's value of a field that the file leaves out. A default applies to GGUF only
    /// where the format has no key. Exception: the rotary base of window layers.
    fn default(&self, name: &str) -> Option<FieldDefault> {
        if let Source::Gguf { architecture, .. } = self.source
            && names::gguf_key(architecture, name).is_some()
            && name != "rope_local_base_freq"
        {
            return None;
        }
        let mut defaults = self.rules.defaults.iter();
        let found = defaults.find(|(field, _)| *field == name);
        found.map(|(_, default)| *default)
    }

    /// Reads a field from the container, or takes its default if the file does not mention it.
    fn read<T>(
        &self,
        name: &str,
        read: impl FnOnce(&dyn ReadField) -> Result<Option<T>, ModelError>,
        default: impl FnOnce(FieldDefault) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.source {
            Source::HuggingFace(folder) => {
                let name = self.json_name(name);
                let object = folder.object_with(&name);
                if object.mentions(&name) {
                    return read(&(object, &*name));
                }
            }
            Source::Gguf {
                metadata,
                architecture,
            } => match self.gguf_name(metadata, architecture, name) {
                Some(key) if metadata.contains(&key) => return read(&(metadata, &*key)),
                _ => {}
            },
        }
        Ok(self.default(name).and_then(default))
    }
}

/// One field of a container.
trait ReadField {
    fn integer(&self) -> Result<Option<u64>, ModelError>;
    fn number(&self) -> Result<Option<f64>, ModelError>;
    fn flag(&self) -> Result<Option<bool>, ModelError>;
}

impl<F: Fields> ReadField for (&F, &str) {
    fn integer(&self) -> Result<Option<u64>, ModelError> {
        self.0.integer(self.1)
    }

    fn number(&self) -> Result<Option<f64>, ModelError> {
        self.0.number(self.1)
    }

    fn flag(&self) -> Result<Option<bool>, ModelError> {
        self.0.flag(self.1)
    }
}

impl Fields for Settings<'_> {
    fn path(&self) -> &Path {
        match self.source {
            Source::HuggingFace(folder) => folder.text().path(),
            Source::Gguf { metadata, .. } => metadata.path(),
        }
    }

    fn spelled(&self, name: &str) -> String {
        match self.source {
            Source::HuggingFace(folder) => {
                let name = self.json_name(name);
                folder.object_with(&name).spelled(&name)
            }
            Source::Gguf {
                metadata,
                architecture,
            } => {
                let key = self.gguf_name(metadata, architecture, name);
                key.unwrap_or_else(|| name.to_owned())
            }
        }
    }

    fn integer(&self, name: &str) -> Result<Option<u64>, ModelError> {
        let default = |default| match default {
            FieldDefault::Count(count) => Some(count),
            _ => None,
        };
        self.read(name, |field| field.integer(), default)
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ModelError> {
        let default = |default| match default {
            FieldDefault::Number(number) => Some(number),
            _ => None,
        };
        self.read(name, |field| field.number(), default)
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ModelError> {
        let found = match self.source {
            Source::HuggingFace(folder) => {
                let name = self.json_name(name);
                if folder.text().mentions(&name) {
                    return folder.text().text(&name);
                }
                None
            }
            Source::Gguf {
                metadata,
                architecture,
            } => match self.gguf_name(metadata, architecture, name) {
                Some(key) => metadata.text(&key)?,
                None => None,
            },
        };
        let default = || match self.default(name) {
            Some(FieldDefault::Text(text)) => Some(text),
            _ => None,
        };
        Ok(found.or_else(default))
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        let default = |default| match default {
            FieldDefault::Flag(flag) => Some(flag),
            _ => None,
        };
        self.read(name, |field| field.flag(), default)
    }
}
