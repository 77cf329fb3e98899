//! The fields of a message's request, as an internal request.

use std::collections::BTreeMap;

use motet::Request;
use motet::chat::{ChatRequest, History, Reasoning};
use motet::grammar::GrammarSource;
use motet::request::{Prompt, Sampling};
use motet::text::Message;
use motet_text::StopStrings;
use schemars::JsonSchema;
use serde::Deserialize;

use super::NAMES;
use super::blocks::{InputMessage, System};
use super::tools::{InputTool, ToolChoiceInput};
use crate::api::{NAME_BYTES_MAX, StopList};
use crate::app::App;
use crate::body::fields::fields;
use crate::body::json::Json;
use crate::body::lists::List;
use crate::class::Class;
use crate::conversation::{ConversationRequest, Effort, Tenancy, chat_of, check_schema_bytes};
use crate::error::ApiError;
use crate::keys::Caller;

fields! {
    /// Settings of an answer: its length, its sampling, its delivery.
    pub(crate) struct Settings {
        /// Reduced to the rest of the context
        #[schemars(required, range(min = 1))]
        max_tokens: Option<usize>,
        /// 0 is greedy; the default is 1
        #[schemars(range(min = 0))]
        temperature: Option<f32>,
        #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
        top_p: Option<f32>,
        /// 0 means all tokens
        top_k: Option<u32>,
        #[schemars(with = "Option<StopList>")]
        stop_sequences: Option<List<String, { StopStrings::COUNT_MAX }>>,
        stream: Option<bool>,
        metadata: Option<Metadata>,
        /// Not in Anthropic's API: a request with a seed gets the same answer again
        seed: Option<i64>,
        /// Not in Anthropic's API: cached state is shared with requests of the same salt only
        #[schemars(length(max = NAME_BYTES_MAX))]
        cache_salt: Option<String>,
        /// Not in Anthropic's API: a priority class
        priority: Option<Class>,
    }
}

fields! {
    /// The conversation of a message's request, and what the model is to know of it.
    pub(crate) struct Turn {
        /// Another is answered with 404
        model: Option<String>,
        /// The answer goes on with the text of a last message that is the assistant's
        #[schemars(required, length(min = 1))]
        messages: Option<Vec<InputMessage>>,
        system: Option<System>,
        /// Tools that the client runs; others are answered with 422
        tools: Option<Vec<InputTool>>,
        tool_choice: Option<ToolChoiceInput>,
        thinking: Option<Thinking>,
        output_config: Option<OutputConfig>,
        /// Not in Anthropic's API: variables of the chat template
        chat_template_kwargs: Option<BTreeMap<String, Json>>,
    }
}

/// The body of a message's request.
pub(crate) type MessagesRequest = (Settings, Turn);

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct Metadata {
    /// Users share the model fairly; with API keys, the key is the user
    #[schemars(length(max = NAME_BYTES_MAX))]
    user_id: Option<String>,
}

/// Whether the model reasons before it answers, as far as its chat template can say so.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct Thinking {
    #[serde(rename = "type")]
    kind: ThinkingKind,
    /// Most tokens of reasoning, below `max_tokens`; then the reasoning is ended
    #[schemars(range(min = 1))]
    budget_tokens: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ThinkingKind {
    Enabled,
    Disabled,
    Adaptive,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
struct OutputConfig {
    effort: Option<Effort>,
    /// A form that llguidance compiles and the text can follow; else 422
    format: Option<OutputFormat>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct OutputFormat {
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "json_schema"))]
    _kind: JsonSchemaKind,
    schema: Json,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JsonSchemaKind {
    JsonSchema,
}

impl Settings {
    pub(super) fn is_streamed(&self) -> bool {
        self.stream == Some(true)
    }

    /// The engine's request, without its prompt.
    pub(super) fn request(self, app: &App, caller: &Caller) -> Result<Request, ApiError> {
        let most = self.max_tokens.ok_or_else(|| {
            ApiError::field("max_tokens", "`max_tokens` is missing; expected 1 or more")
        })?;
        let metadata = self.metadata.as_ref();
        let user = metadata.and_then(|metadata| metadata.user_id.as_deref());
        check_name("metadata.user_id", user)?;
        check_name("cache_salt", self.cache_salt.as_deref())?;
        let no_prompt = Prompt::Tokens(Vec::new());
        let mut request = Request::new(no_prompt).output_tokens_max(most);
        request.sampling = Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
            seed: self.seed.map_or_else(rand::random, i64::cast_unsigned),
            ..Sampling::GREEDY
        };
        let tenancy = Tenancy {
            user,
            cache_salt: self.cache_salt.as_deref(),
            uses_cache: None,
            class: self.priority,
        };
        tenancy.apply(app, caller, &mut request)?;
        request.stop_strings = self.stop_sequences.unwrap_or_default().0;
        check_stops(&request.stop_strings)?;
        Ok(request)
    }
}

impl Turn {
    /// The conversation as an internal request with these settings.
    pub(super) fn conversation(
        self,
        app: &App,
        settings: Request,
    ) -> Result<ConversationRequest, ApiError> {
        app.model_names.check(self.model.as_deref())?;
        let messages = self.messages.unwrap_or_default();
        if messages.is_empty() {
            let message = "`messages` is empty or missing; expected at least one";
            return Err(ApiError::field("messages", message));
        }
        let mut history = History::default();
        let mut all: Vec<Message> = Vec::new();
        if let Some(system) = self.system {
            all.extend(system.message()?);
        }
        // The beginning of an answer, which the model goes on with.
        let is_begun = messages.last().is_some_and(InputMessage::is_assistant);
        for (index, message) in (0..).zip(messages) {
            message.append(index, &mut history, &mut all)?;
        }
        let mut chat = chat_of(app, all, self.chat_template_kwargs);
        chat.continues_last = is_begun;
        let tools = (0..).zip(self.tools.into_iter().flatten());
        let tools = tools.map(|(index, tool)| tool.tool(index));
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        let choice = self.tool_choice.unwrap_or_default();
        let output = self.output_config.unwrap_or_default();
        let thinking = self.thinking.as_ref();
        let chat = ChatRequest {
            chat,
            tools,
            tool_choice: choice.choice()?,
            has_one_call: !choice.is_parallel(),
            reasoning: reasoning(thinking, output.effort, settings.output_tokens_max)?,
            output_format: output.grammar()?,
            settings,
        };
        Ok(ConversationRequest { chat, names: NAMES })
    }
}

impl OutputConfig {
    fn grammar(self) -> Result<Option<GrammarSource>, ApiError> {
        let Some(format) = self.format else {
            return Ok(None);
        };
        let schema = format.schema.0.to_string();
        check_schema_bytes(&schema, NAMES.output_format)?;
        Ok(Some(GrammarSource::JsonSchema(schema)))
    }
}

/// The settings of reasoning, of which some contradict others.
fn reasoning(
    thinking: Option<&Thinking>,
    effort: Option<Effort>,
    output_tokens_max: usize,
) -> Result<Reasoning, ApiError> {
    let effort = effort.map(String::from);
    let Some(thinking) = thinking else {
        return Ok(Reasoning {
            effort,
            ..Reasoning::default()
        });
    };
    if let Some(tokens) = thinking.budget_tokens
        && !(1..output_tokens_max).contains(&tokens)
    {
        let field = NAMES.reasoning_tokens_max;
        let message = format!(
            "`{field}` is {tokens}; expected 1 or more, below `max_tokens`, which is {output_tokens_max}"
        );
        return Err(ApiError::field(field, message));
    }
    Ok(Reasoning {
        // Without reasoning, the effort is about the answer, and no template reads that.
        effort: effort.filter(|_| thinking.kind != ThinkingKind::Disabled),
        is_enabled: match thinking.kind {
            ThinkingKind::Enabled => Some(true),
            ThinkingKind::Disabled => Some(false),
            ThinkingKind::Adaptive => None,
        },
        tokens_max: thinking.budget_tokens,
    })
}

fn check_name(field: &str, text: Option<&str>) -> Result<(), ApiError> {
    let bytes = text.map_or(0, str::len);
    if bytes <= NAME_BYTES_MAX {
        return Ok(());
    }
    let message = format!("`{field}` has {bytes} bytes; expected at most {NAME_BYTES_MAX}");
    Err(ApiError::field(field, message))
}

fn check_stops(stops: &[String]) -> Result<(), ApiError> {
    let longest = stops.iter().map(String::len).max().unwrap_or(0);
    if longest <= StopStrings::BYTES_MAX {
        return Ok(());
    }
    let field = NAMES.stop_strings;
    let most = StopStrings::BYTES_MAX;
    let message =
        format!("`{field}` has a string of {longest} bytes; expected strings of 1 to {most} bytes");
    Err(ApiError::field(field, message))
}
