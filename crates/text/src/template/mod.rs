//! Chat templates: how a model expects a conversation to be spelled.
//!
//! Templates are Jinja programs written for the environment of Hugging Face's `transformers`,
//! which this one follows: `trim_blocks` and `lstrip_blocks`, Python's methods on strings, lists
//! and dictionaries, `raise_exception`, `strftime_now`, `tojson`, `break` and `continue`, and the
//! `generation` block (which only marks text, and is passed through).
//!
//! A template is a program that comes with the model. It can access no file and no other
//! template. One rendering may run a million instructions and write [`OUTPUT_BYTES_MAX`] bytes, so
//! that a template that never ends is stopped. The memory of its values is not bounded: a
//! template written to exhaust memory or the stack can do so.

mod environment;
mod functions;
mod json;
mod marks;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use minijinja::value::{Serde, Value};
use minijinja::{Environment, Template, context};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::error::field_error;
use super::folder::{TokenizerConfig, processor_template, read_optional};
use super::gguf::METADATA;
use super::{GgufVocabulary, TextError};

/// Bytes of one rendering: more than any context holds.
const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// The name under which the environment keeps the one template.
const NAME: &str = "chat";

/// A conversation, and the variables that its template may read. Its `Debug` output shows sizes
/// only.
///
/// ```
/// use motet_text::{Chat, Message};
///
/// let tools = serde_json::json!([{"type": "function", "function": {"name": "now"}}]);
/// let chat = Chat::from([Message::user("What time is it?")]).variable("tools", tools);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Chat {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Variables by name: `tools` (in the API's own shape), `documents`, and others that the
    /// template reads, such as `enable_thinking`.
    pub variables: BTreeMap<String, Json>,
    /// Whether special tokens that messages and variables spell (`<|im_end|>`) count as such. By
    /// default they are text, and only the template ends a turn and begins one. Set it if the
    /// whole conversation is the application's own.
    pub with_special_tokens: bool,
}

impl Chat {
    /// Sets a variable.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: Json) -> Self {
        self.variables.insert(name.into(), value);
        self
    }

    /// Lets special tokens that messages and variables spell count as such; see
    /// [`with_special_tokens`](Chat::with_special_tokens).
    #[must_use]
    pub fn recognize_special_tokens(mut self) -> Self {
        self.with_special_tokens = true;
        self
    }
}

impl From<Vec<Message>> for Chat {
    fn from(messages: Vec<Message>) -> Self {
        Self {
            messages,
            variables: BTreeMap::new(),
            with_special_tokens: false,
        }
    }
}

impl<const N: usize> From<[Message; N]> for Chat {
    fn from(messages: [Message; N]) -> Self {
        Self::from(Vec::from(messages))
    }
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (messages, variables) = (self.messages.len(), self.variables.len());
        write!(f, "Chat({messages} messages, {variables} variables)")
    }
}

/// One message of a conversation. Its `Debug` output shows its length only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker: `system`, `user`, `assistant`, or another role that the template knows.
    pub role: String,
    /// The text of the message.
    pub content: String,
    /// Further fields that the template may read: `name`, `tool_calls`, `tool_call_id`.
    #[serde(flatten)]
    pub more: BTreeMap<String, Json>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.content.len())
    }
}

impl Message {
    /// A message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            more: BTreeMap::new(),
        }
    }

    /// Instructions to the model before the conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// The message as the template reads it.
    fn value(&self) -> Value {
        let fields = context! { role => self.role.as_str(), content => self.content.as_str() };
        if self.more.is_empty() {
            fields
        } else {
            context! { ..fields, ..Serde(&self.more) }
        }
    }
}

/// A model's chat template, compiled. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate(Arc<Compiled>);

struct Compiled {
    environment: Environment<'static>,
    source: String,
    /// The template's special tokens, such as `bos_token`.
    special_tokens: Value,
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens` are variables that it may use, by
    /// name: `bos_token`, `eos_token` and so on.
    ///
    /// # Errors
    ///
    /// [`TextError::TemplateSyntax`].
    pub fn new<'a>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, TextError> {
        Self::compile("the given source", source, special_tokens)
    }

    /// The template of a model folder, if it has one: `chat_template.jinja`, else `chat_template`
    /// in `tokenizer_config.json`, else in the `chat_template.json` of a processor. The latter two
    /// are one template or a list of named ones, from which `default` is taken.
    ///
    /// # Errors
    ///
    /// [`TextError`] naming the file, and the field where there is one.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, TextError> {
        let config = TokenizerConfig::read(folder)?;
        let special_tokens = config.special_tokens();
        let path = folder.join("chat_template.jinja");
        if let Some(bytes) = read_optional(&path)? {
            let source = String::from_utf8(bytes).map_err(|error| TextError::Damaged {
                path: path.clone(),
                what: error.to_string(),
                expected: "a Jinja template in UTF-8",
            })?;
            let file = path.display().to_string();
            return Self::compile(&file, &source, special_tokens).map(Some);
        }
        let file = config.path.display().to_string();
        if let Some(source) = config_template(&file, &config.value["chat_template"])? {
            return Self::compile(&file, source, special_tokens).map(Some);
        }
        let (path, value) = processor_template(folder)?;
        let file = path.display().to_string();
        let Some(source) = config_template(&file, &value["chat_template"])? else {
            return Ok(None);
        };
        Self::compile(&file, source, special_tokens).map(Some)
    }

    /// The template in a GGUF file's metadata, if there is one.
    ///
    /// # Errors
    ///
    /// [`TextError::TemplateSyntax`].
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Option<Self>, TextError> {
        let Some(source) = &vocabulary.chat_template else {
            return Ok(None);
        };
        let special_tokens = [
            ("bos_token", vocabulary.begin),
            ("eos_token", vocabulary.end),
            ("unk_token", vocabulary.unknown),
            ("pad_token", vocabulary.padding),
        ];
        let special_tokens = special_tokens
            .into_iter()
            .filter_map(|(name, id)| Some((name, vocabulary.token(id)?)));
        let file = format!("{METADATA}, tokenizer.chat_template");
        Self::compile(&file, source, special_tokens).map(Some)
    }

    /// Renders a conversation. With `add_generation_prompt` it ends where the assistant's turn
    /// begins.
    ///
    /// # Errors
    ///
    /// [`TextError::Template`] when the template rejects the messages, with its own words, or
    /// exceeds its bounds.
    pub fn render(&self, chat: &Chat, add_generation_prompt: bool) -> Result<String, TextError> {
        self.render_within(chat, add_generation_prompt, OUTPUT_BYTES_MAX)
    }

    /// Renders as [`render`](Self::render) does, to at most `bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// [`TextError::TooLong`] beyond that, and as [`render`](Self::render).
    pub(super) fn render_within(
        &self,
        chat: &Chat,
        add_generation_prompt: bool,
        bytes_max: usize,
    ) -> Result<String, TextError> {
        let engine = context! {
            messages => chat.messages.iter().map(Message::value).collect::<Value>(),
            add_generation_prompt => add_generation_prompt,
        };
        let unless_given = context! { tools => (), documents => () };
        // Earlier entries hide later ones.
        let variables = context! {
            ..engine,
            ..Serde(&chat.variables),
            ..unless_given,
            ..self.0.special_tokens.clone(),
        };
        let bytes_max = bytes_max.min(OUTPUT_BYTES_MAX);
        let mut output = BoundedWriter {
            bytes: Vec::new(),
            bytes_max,
            is_full: false,
        };
        let rendered = self.template().render_captured_to(variables, &mut output);
        if output.is_full {
            return Err(TextError::TooLong { bytes_max });
        }
        rendered.map_err(|error| TextError::Template {
            what: reason(&error).into(),
        })?;
        Ok(String::from_utf8(output.bytes).expect("the template engine writes UTF-8"))
    }

    /// The template's text.
    pub(super) fn source(&self) -> &str {
        &self.0.source
    }

    fn template(&self) -> Template<'_, '_> {
        let template = self.0.environment.get_template(NAME);
        template.expect("compiled when the environment was made")
    }

    fn compile<'a>(
        file: &str,
        source: &str,
        special_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, TextError> {
        let mut environment = environment::environment();
        let source = marks::without_generation_marks(source);
        environment
            .add_template_owned(NAME, source.clone())
            .map_err(|error| TextError::TemplateSyntax {
                file: file.to_owned(),
                what: reason(&error),
            })?;
        let special_tokens = special_tokens.into_iter();
        let special_tokens: BTreeMap<String, Value> = special_tokens
            .map(|(name, text)| (name.to_owned(), Value::from(text)))
            .collect();
        Ok(Self(Arc::new(Compiled {
            environment,
            source,
            special_tokens: Value::from(special_tokens),
        })))
    }
}

/// The template in `chat_template` of `tokenizer_config.json` or `chat_template.json`.
fn config_template<'a>(file: &str, value: &'a Json) -> Result<Option<&'a str>, TextError> {
    let reject =
        |what: String, expected: &str| Err(field_error(file, "chat_template", what, expected));
    match value {
        Json::Null => Ok(None),
        Json::String(source) => Ok(Some(source)),
        Json::Array(named) => {
            let default = named.iter().find(|entry| entry["name"] == "default");
            match default.and_then(|entry| entry["template"].as_str()) {
                Some(source) => Ok(Some(source)),
                None => reject(format!("{} templates", named.len()), "one named `default`"),
            }
        }
        other => reject(other.to_string(), "a template or a list of named templates"),
    }
}

/// The error and its line, without the engine's own categories.
fn reason(error: &minijinja::Error) -> String {
    let mut what = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        what.push_str(&format!(" (line {line})"));
    }
    if let Some(source) = std::error::Error::source(error) {
        what.push_str(&format!(": {source}"));
    }
    what
}

/// Text of at most so many bytes.
struct BoundedWriter {
    bytes: Vec<u8>,
    bytes_max: usize,
    /// Whether text was cut off.
    is_full: bool,
}

impl io::Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.bytes_max - self.bytes.len() {
            self.is_full = true;
            return Err(io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("special_tokens", &self.0.special_tokens)
            .finish_non_exhaustive()
    }
}
