//! The templates of a model's files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::jinja::Template;
use crate::error::TextError;
use crate::error::field_error;
use crate::folder::{TokenizerConfig, processor_template, read_optional};
use crate::gguf::GgufVocabulary;
use crate::gguf::METADATA;

/// The name of a model's usual template.
const DEFAULT: &str = "default";
/// The name of the template of conversations with tools.
const TOOL_USE: &str = "tool_use";
/// The folder of templates beside the default one: a file for each name.
const ADDITIONAL: &str = "additional_chat_templates";

/// A template's text, and where it came from.
pub(super) struct Source {
    file: String,
    text: String,
}

/// The templates of a model that are used.
pub(super) struct Sources {
    pub(super) default: Source,
    pub(super) tool_use: Option<Source>,
}

impl Source {
    fn new(file: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            text: text.into(),
        }
    }

    /// A file in UTF-8, if it exists.
    fn read(path: &Path) -> Result<Option<Self>, TextError> {
        let Some(bytes) = read_optional(path)? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes).map_err(|error| TextError::Damaged {
            path: path.to_owned(),
            what: error.to_string(),
            expected: "a Jinja template in UTF-8",
        })?;
        Ok(Some(Self::new(path.display().to_string(), text)))
    }

    pub(super) fn parse(&self) -> Result<Template, TextError> {
        Template::parse(&self.text).map_err(|error| TextError::TemplateSyntax {
            file: self.file.clone(),
            what: error.to_string(),
        })
    }
}

impl Sources {
    pub(super) fn single(file: &str, text: &str) -> Self {
        Self {
            default: Source::new(file, text),
            tool_use: None,
        }
    }

    /// All text, that for tools first: models call tools as it teaches them.
    pub(super) fn text(&self) -> String {
        let sources = self.tool_use.iter().chain([&self.default]);
        let texts: Vec<&str> = sources.map(|source| &*source.text).collect();
        texts.join("\n")
    }

    /// The templates of a model folder, and its configuration of the tokenizer.
    pub(super) fn from_folder(folder: &Path) -> Result<Option<(Self, TokenizerConfig)>, TextError> {
        let config = TokenizerConfig::read(folder)?;
        let file = config.path.display().to_string();
        let mut named = match Source::read(&folder.join("chat_template.jinja"))? {
            Some(default) => BTreeMap::from([(DEFAULT.to_owned(), default)]),
            None => config_templates(&file, &config.value["chat_template"])?,
        };
        let tool_use: PathBuf = [ADDITIONAL, "tool_use.jinja"].iter().collect();
        if let Some(tool_use) = Source::read(&folder.join(tool_use))? {
            named.insert(TOOL_USE.to_owned(), tool_use);
        }
        if !named.contains_key(DEFAULT) {
            let (path, value) = processor_template(folder)?;
            let path = path.display().to_string();
            named.extend(config_templates(&path, &value["chat_template"])?);
        }
        if named.is_empty() {
            return Ok(None);
        }
        let Some(default) = named.remove(DEFAULT) else {
            let names: Vec<String> = named.into_keys().collect();
            let what = format!("templates `{}`", names.join("`, `"));
            return Err(field_error(
                file,
                "chat_template",
                what,
                "one named `default`",
            ));
        };
        let tool_use = named.remove(TOOL_USE);
        Ok(Some((Self { default, tool_use }, config)))
    }

    /// The templates in a GGUF file's metadata.
    pub(super) fn from_gguf(vocabulary: &GgufVocabulary) -> Option<Self> {
        let source = |text: &Option<String>, field: &str| {
            let text = text.as_ref()?;
            Some(Source::new(format!("{METADATA}, {field}"), text))
        };
        let default = source(&vocabulary.chat_template, "tokenizer.chat_template")?;
        let tool_use = source(
            &vocabulary.tool_template,
            "tokenizer.chat_template.tool_use",
        );
        Some(Self { default, tool_use })
    }
}

/// The templates in `chat_template` of a JSON file, by name.
fn config_templates(file: &str, value: &Json) -> Result<BTreeMap<String, Source>, TextError> {
    let reject =
        |what: String, expected: &str| Err(field_error(file, "chat_template", what, expected));
    match value {
        Json::Null => Ok(BTreeMap::new()),
        Json::String(text) => Ok(BTreeMap::from([(
            DEFAULT.to_owned(),
            Source::new(file, text),
        )])),
        Json::Array(entries) => {
            let named = entries.iter().map(|entry| {
                let name = entry["name"].as_str()?.to_owned();
                Some((name, Source::new(file, entry["template"].as_str()?)))
            });
            match named.collect() {
                Some(named) => Ok(named),
                None => reject(
                    "an entry without a text".to_owned(),
                    "entries with `name` and `template`",
                ),
            }
        }
        other => reject(other.to_string(), "a template or a list of named templates"),
    }
}
