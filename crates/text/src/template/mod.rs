//! Chat templates: how a model expects a conversation to be spelled.
//!
//! Templates are Jinja programs written for the environment of Hugging Face's `transformers`,
//! which this one follows: `trim_blocks` and `lstrip_blocks`, Python's methods on strings, lists
//! and dictionaries, `raise_exception`, `strftime_now`, `tojson`, `break` and `continue`, and the
//! `generation` block (which only marks text, and is passed through).
//!
//! A template is a program that comes with the model. It can access no file and no other
//! template. One rendering may take a million steps and 64 MiB for the values that it makes,
//! recurse 200 levels deep, and write [`OUTPUT_BYTES_MAX`] bytes: a template that never ends, or
//! that is written to exhaust memory or the stack, is stopped with an error.

mod chat;
mod continued;
mod functions;
mod jinja;
mod sources;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::error::TextError;
use super::gguf::GgufVocabulary;
pub use chat::{Chat, Message};
use continued::TextEnd;
pub(crate) use jinja::Written;
use jinja::{Template, Variables};
use sources::Sources;

/// Bytes of one rendering: more than any context holds.
const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// A model's chat template, compiled. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate(Arc<Compiled>);

struct Compiled {
    default: Template,
    /// The template of conversations with tools, if that is another.
    tool_use: Option<Template>,
    source: String,
    /// The template's special tokens by their names, such as `bos_token`.
    special_tokens: BTreeMap<String, String>,
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
        Self::compile(Sources::single("the given source", source), special_tokens)
    }

    /// The template of a model folder, if it has one: `chat_template.jinja`, else `chat_template`
    /// in `tokenizer_config.json`, else in the `chat_template.json` of a processor. The latter two
    /// are one template or a list of named ones; further ones by name are in the folder
    /// `additional_chat_templates`. The one named `default` is used, and `tool_use` for a
    /// conversation with the variable `tools`.
    ///
    /// # Errors
    ///
    /// [`TextError`] naming the file, and the field where there is one.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, TextError> {
        let Some((sources, config)) = Sources::from_folder(folder)? else {
            return Ok(None);
        };
        Self::compile(sources, config.special_tokens()).map(Some)
    }

    /// The template in a GGUF file's metadata, if there is one; `tool_use` as in
    /// [`from_folder`](Self::from_folder).
    ///
    /// # Errors
    ///
    /// [`TextError::TemplateSyntax`].
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Option<Self>, TextError> {
        let Some(sources) = Sources::from_gguf(vocabulary) else {
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
        Self::compile(sources, special_tokens).map(Some)
    }

    /// Renders a conversation. With `add_generation_prompt` it ends where the assistant's turn
    /// begins; one whose [last message goes on](Chat::continues_last) ends with its text in any
    /// case.
    ///
    /// # Errors
    ///
    /// [`TextError::Template`] when the template rejects the messages, with its own words, exceeds
    /// its bounds, or does not write the text that is to go on.
    pub fn render(&self, chat: &Chat, add_generation_prompt: bool) -> Result<String, TextError> {
        let written = self.render_within(chat, add_generation_prompt, OUTPUT_BYTES_MAX)?;
        Ok(written.text)
    }

    /// Looks for unknown filters and tests, and renders short conversations: a question, and one
    /// with a system message, a tool, a call and its result. A template that uses what this engine
    /// does not have fails here, and so does one that rejects the question. It may reject the
    /// other.
    ///
    /// # Errors
    ///
    /// As [`render`](Self::render).
    pub fn check(&self) -> Result<(), TextError> {
        for template in self.0.tool_use.iter().chain([&self.0.default]) {
            template.check_names().map_err(|error| refusal(&error, 0))?;
        }
        self.render(&Chat::from([Message::user("Hello")]), true)?;
        match self.rendered(&conversation_with_tool(), true, OUTPUT_BYTES_MAX) {
            Err(error) if !error.is_raised => Err(refusal(&error, OUTPUT_BYTES_MAX)),
            _ => Ok(()),
        }
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
    ) -> Result<Written, TextError> {
        if !chat.continues_last {
            return self.render_whole(chat, add_generation_prompt, bytes_max);
        }
        let end = TextEnd::choose(chat, self.source())?;
        let mut written = self.render_whole(&end.behind_last(chat), false, bytes_max)?;
        end.cut(&mut written, chat)?;
        Ok(written)
    }

    fn render_whole(
        &self,
        chat: &Chat,
        add_generation_prompt: bool,
        bytes_max: usize,
    ) -> Result<Written, TextError> {
        let bytes_max = bytes_max.min(OUTPUT_BYTES_MAX);
        let rendered = self.rendered(chat, add_generation_prompt, bytes_max);
        rendered.map_err(|error| refusal(&error, bytes_max))
    }

    fn rendered(
        &self,
        chat: &Chat,
        add_generation_prompt: bool,
        bytes_max: usize,
    ) -> Result<Written, jinja::Error> {
        let variables = Variables {
            chat,
            add_generation_prompt,
            special_tokens: &self.0.special_tokens,
        };
        self.template(chat).render(&variables, bytes_max)
    }

    /// The templates' text.
    pub(super) fn source(&self) -> &str {
        &self.0.source
    }

    /// The template that a conversation is written by.
    fn template(&self, chat: &Chat) -> &Template {
        let has_tools = chat
            .variables
            .get("tools")
            .is_some_and(|tools| !tools.is_null());
        let tool_use = self.0.tool_use.as_ref().filter(|_| has_tools);
        tool_use.unwrap_or(&self.0.default)
    }

    fn compile<'a>(
        sources: Sources,
        special_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, TextError> {
        let special_tokens = special_tokens.into_iter();
        let owned = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
        Ok(Self(Arc::new(Compiled {
            default: sources.default.parse()?,
            tool_use: sources
                .tool_use
                .as_ref()
                .map(sources::Source::parse)
                .transpose()?,
            source: sources.text(),
            special_tokens: special_tokens.map(owned).collect(),
        })))
    }
}

fn refusal(error: &jinja::Error, bytes_max: usize) -> TextError {
    if error.is_too_long {
        return TextError::TooLong { bytes_max };
    }
    let what = error.to_string().into();
    TextError::Template { what }
}

/// A short conversation with all that agents send.
fn conversation_with_tool() -> Chat {
    let parameters = json!({"type": "object", "properties": {"zone": {"type": "string"}}});
    let function = json!({"name": "now", "description": "The time", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    // Mistral's templates want nine letters or digits.
    let id = "abcdefghi";
    let called = json!({"name": "now", "arguments": {"zone": "UTC"}});
    let calls = json!([{"type": "function", "id": id, "function": called}]);
    let mut assistant = Message::assistant("");
    assistant.more.insert("tool_calls".to_owned(), calls);
    let mut result = Message::new("tool", "noon");
    result.more.insert("name".to_owned(), json!("now"));
    result.more.insert("tool_call_id".to_owned(), json!(id));
    let question = Message::user("What time is it?");
    let messages = [Message::system("Be brief."), question, assistant, result];
    Chat::from(messages).variable("tools", tools)
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("special_tokens", &self.0.special_tokens)
            .finish_non_exhaustive()
    }
}
