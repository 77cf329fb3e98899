//! The body of a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use motet::Request;
use motet::chat::Reasoning;
use motet::grammar::GrammarSource;
use motet::request::Sampling;
use motet::text::{Tool, ToolChoice};
use motet_text::Tools;
use serde_json::json;

use super::input::Input;
use super::items::Item;
use super::parameters::{Includable, ReasoningParam, TextParam, Truncation};
use super::response::{Echo, SamplingEcho};
use super::tools::{ToolChoiceParam, ToolParam, choose};
use crate::api::NAME_BYTES_MAX;
use crate::app::App;
use crate::body::fields::fields;
use crate::body::json::Json;
use crate::body::lists::{List, Table};
use crate::class::Class;
use crate::conversation::Tenancy;
use crate::error::ApiError;
use crate::keys::Caller;
use crate::pieces::{self, Deferred};

/// Most pairs of `metadata`.
const METADATA_MAX: usize = 16;
/// Longest key of `metadata`, in characters.
const METADATA_KEY_MAX: usize = 64;
/// Longest value of `metadata`, in characters.
const METADATA_VALUE_MAX: usize = 512;
/// Most values of `include`.
const INCLUDE_MAX: usize = 16;

fields! {
    /// The conversation, and what becomes of the response. It is written without its input.
    #[derive(serde::Serialize)]
    pub(crate) struct ConversationFields {
        #[schemars(required)]
        #[serde(skip_serializing)]
        input: Option<Input>,
        /// A message of the system before all others. It is not carried to the next response
        instructions: Option<String>,
        /// A stored response, which the input continues. One that is unknown or forgotten is answered with 400
        previous_response_id: Option<String>,
        /// Keep the response for `previous_response_id` and for later reads; the default is true. The store forgets the oldest
        store: Option<bool>,
        /// Up to 16 pairs, returned with the response: keys of up to 64 characters, values of up to 512
        metadata: Option<Table<String, METADATA_MAX>>,
        /// Functions that the model may call. Tools of other types are answered with 422
        tools: Option<List<ToolParam, { Tools::COUNT_MAX }>>,
        /// Which tools the model may or must call
        #[schemars(with = "Option<ToolChoiceParam>")]
        tool_choice: Option<Json>,
        /// Whether an answer may have several calls; the default is true
        parallel_tool_calls: Option<bool>,
        text: Option<TextParam>,
        reasoning: Option<ReasoningParam>,
        /// `message.output_text.logprobs` returns log probabilities. The others add nothing here
        include: Option<List<Includable, INCLUDE_MAX>>,
        /// `auto` is answered with 422: no item is dropped from a conversation that is too long
        truncation: Option<Truncation>,
        /// Answer without the client: it reads the response, or its events from any one on, by the id. Needs `store`
        background: Option<bool>,
        /// Answered with 422, unless null
        conversation: Option<Json>,
        /// Answered with 422, unless null
        prompt: Option<Json>,
    }
}

fields! {
    /// How the answer is generated. Fields that OpenAI's API lacks have vLLM's names.
    #[derive(serde::Serialize)]
    pub(crate) struct AnswerFields {
        /// Another is answered with 404
        model: Option<String>,
        stream: Option<bool>,
        /// Reduced to the rest of the context, which is the default
        #[schemars(range(min = 1))]
        max_output_tokens: Option<usize>,
        /// 0 is greedy; the default is 1
        #[schemars(range(min = 0))]
        temperature: Option<f32>,
        #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
        top_p: Option<f32>,
        /// Log probabilities of so many alternatives to each token of text
        #[schemars(range(max = Request::LOGPROBS_MAX))]
        top_logprobs: Option<usize>,
        /// Users share the model fairly; with API keys, the key is the user
        #[schemars(length(max = NAME_BYTES_MAX))]
        user: Option<String>,
        seed: Option<i64>,
        /// Cached state is shared with requests of the same salt only
        #[schemars(length(max = NAME_BYTES_MAX))]
        cache_salt: Option<String>,
        /// A priority class: a higher one starts first. One above that of the key is answered with 403
        priority: Option<Class>,
        /// Most tokens of reasoning
        thinking_token_budget: Option<usize>,
        /// Go on with the text of the last item, a message of the assistant. The name is vLLM's
        continue_final_message: Option<bool>,
        /// Variables of the chat template, such as `enable_thinking`
        chat_template_kwargs: Option<BTreeMap<String, Json>>,
    }
}

/// The body of a request.
pub(crate) type CreateRequest = (ConversationFields, AnswerFields);

/// A body, checked.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) input: Input,
    /// The fields that the response repeats.
    pub(super) echo: Echo,
    pub(super) answer: PreparedAnswer,
}

/// How a body is answered, as the parts of an internal request.
#[derive(Debug)]
pub(super) struct PreparedAnswer {
    pub(super) is_streamed: bool,
    pub(super) is_background: bool,
    /// Whether the answer goes on with the last message.
    pub(super) continues_last: bool,
    pub(super) tools: Vec<Tool>,
    pub(super) tool_choice: ToolChoice,
    pub(super) has_one_call: bool,
    pub(super) reasoning: Reasoning,
    /// Whether reasoning has a summary.
    pub(super) has_summary: bool,
    pub(super) output_format: Option<GrammarSource>,
    /// Variables of the chat template.
    pub(super) variables: Option<BTreeMap<String, Json>>,
    /// Sampling, lengths and tenancy.
    pub(super) settings: Request,
    /// Instructions before the conversation.
    pub(super) instructions: Option<String>,
}

/// Whether a body asks for an answer in the background.
pub(super) fn is_in_background((conversation, _): &CreateRequest) -> bool {
    conversation.background == Some(true)
}

/// The JSON of a body's fields, without its input.
pub(super) fn fields_json((conversation, answer): &CreateRequest) -> String {
    /// The fields of both.
    #[derive(serde::Serialize)]
    struct Both<'a> {
        #[serde(flatten)]
        conversation: &'a ConversationFields,
        #[serde(flatten)]
        answer: &'a AnswerFields,
    }
    let both = Both {
        conversation,
        answer,
    };
    serde_json::to_string(&both).expect("its keys are strings")
}

/// The JSON of a body that has these items as its input, and nothing else.
pub(super) fn input_json(items: &[Arc<Item>]) -> String {
    #[derive(serde::Serialize)]
    struct Body<'a> {
        input: &'a [Arc<Item>],
    }
    let json = pieces::whole(&Body { input: items });
    String::from_utf8(json.into()).expect("JSON is text")
}

/// The input of a body, taken out of it.
pub(super) fn take_input((conversation, _): &mut CreateRequest) -> Option<Input> {
    conversation.input.take()
}

/// Sets the input of a body.
pub(super) fn set_input((conversation, _): &mut CreateRequest, input: Option<Input>) {
    conversation.input = input;
}

/// Checks a body. `keeps_any` is whether the server keeps responses.
///
/// # Errors
///
/// The error names the field.
pub(super) fn prepare(
    request: CreateRequest,
    app: &App,
    caller: &Caller,
    keeps_any: bool,
) -> Result<Prepared, ApiError> {
    let is_background = is_in_background(&request);
    let (conversation, answer) = request;
    conversation.check()?;
    answer.check(app)?;
    let mut settings = answer.request(app, caller)?;
    settings.logprobs = answer.logprobs(&conversation);
    let text = conversation.text.unwrap_or_default().with_format();
    let output_format = text.grammar()?;
    let reasoning = conversation.reasoning.unwrap_or_default();
    let params = conversation.tools.map_or_else(Vec::new, |tools| tools.0);
    let choice = conversation.tool_choice.map(|Json(choice)| choice);
    let choice = choice.unwrap_or_else(|| json!("auto"));
    let is_parallel = conversation.parallel_tool_calls.unwrap_or(true);
    let (tools, tool_choice) = choose(&params, &choice)?;
    let (instructions, instructions_bytes) = Deferred::json(&conversation.instructions);
    let (tools_echo, tools_bytes) = Deferred::json(&params);
    let (choice_echo, choice_bytes) = Deferred::json(&choice);
    let (text, text_bytes) = Deferred::json(&text);
    if is_background && !conversation.store.unwrap_or(keeps_any) {
        let message = "`background` is true, and the response is not stored; expected `store`, as it is read by \
                       its id";
        return Err(ApiError::unprocessable("background", message));
    }
    Ok(Prepared {
        input: conversation.input.ok_or_else(|| missing("input"))?,
        answer: PreparedAnswer {
            is_streamed: answer.stream == Some(true),
            is_background,
            continues_last: answer.continue_final_message == Some(true),
            tools,
            tool_choice,
            has_one_call: !is_parallel,
            reasoning: Reasoning {
                effort: reasoning.effort.map(String::from),
                tokens_max: answer.thinking_token_budget,
                ..Reasoning::default()
            },
            has_summary: reasoning.summary.is_some(),
            output_format,
            variables: answer.chat_template_kwargs,
            settings,
            instructions: conversation.instructions,
        },
        echo: Echo {
            model: app.model.clone(),
            instructions,
            previous_response_id: conversation.previous_response_id,
            store: conversation.store.unwrap_or(keeps_any),
            metadata: conversation.metadata.unwrap_or_default().0,
            tools: tools_echo,
            tool_choice: choice_echo.of_type(),
            parallel_tool_calls: is_parallel,
            text,
            reasoning,
            truncation: Truncation::Disabled,
            user: answer.user,
            sampling: SamplingEcho {
                max_output_tokens: answer.max_output_tokens,
                temperature: answer.temperature.unwrap_or(1.0),
                top_p: answer.top_p.unwrap_or(1.0),
                top_logprobs: answer.top_logprobs.unwrap_or(0),
            },
            bytes: instructions_bytes + tools_bytes + choice_bytes + text_bytes,
        },
    })
}

fn missing(field: &str) -> ApiError {
    ApiError::field(field, format!("`{field}` is missing"))
}

impl ConversationFields {
    fn check(&self) -> Result<(), ApiError> {
        self.check_supported()?;
        for (key, value) in self.metadata.iter().flat_map(|metadata| &metadata.0) {
            for (what, text, most) in [
                ("key", key, METADATA_KEY_MAX),
                ("value", value, METADATA_VALUE_MAX),
            ] {
                let length = text.chars().count();
                if length > most {
                    let message = format!(
                        "`metadata` has a {what} of {length} characters; expected at most {most}"
                    );
                    return Err(ApiError::field("metadata", message));
                }
            }
        }
        Ok(())
    }

    /// Rejects what this server does not do, rather than ignoring it.
    fn check_supported(&self) -> Result<(), ApiError> {
        let unsupported = [
            (
                "truncation",
                self.truncation == Some(Truncation::Auto),
                "is \"auto\"; this server drops no items: expected \"disabled\"",
            ),
            (
                "conversation",
                self.conversation.is_some(),
                "is set; this server keeps no conversations: expected `previous_response_id`",
            ),
            (
                "prompt",
                self.prompt.is_some(),
                "is set; this server has no stored prompts: expected `instructions` and `input`",
            ),
        ];
        for (field, is_set, what) in unsupported {
            if is_set {
                let message = format!("`{field}` {what}");
                return Err(ApiError::unprocessable(field, message));
            }
        }
        Ok(())
    }

    fn includes(&self, value: Includable) -> bool {
        let mut included = self.include.iter().flat_map(|include| &include.0);
        included.any(|included| *included == value)
    }
}

impl AnswerFields {
    fn check(&self, app: &App) -> Result<(), ApiError> {
        for (field, text) in [("user", &self.user), ("cache_salt", &self.cache_salt)] {
            let bytes = text.as_ref().map_or(0, String::len);
            if bytes > NAME_BYTES_MAX {
                let message =
                    format!("`{field}` has {bytes} bytes; expected at most {NAME_BYTES_MAX}");
                return Err(ApiError::field(field, message));
            }
        }
        app.model_names.check(self.model.as_deref())
    }

    /// The engine's request, without a prompt.
    fn request(&self, app: &App, caller: &Caller) -> Result<Request, ApiError> {
        // The default output length is what fits in the context.
        let most = app.engine.model().context_tokens_max;
        let most = self.max_output_tokens.unwrap_or(most);
        let mut request = Request::text("").output_tokens_max(most);
        request.sampling = Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            seed: self.seed.map_or_else(rand::random, i64::cast_unsigned),
            ..Sampling::GREEDY
        };
        let tenancy = Tenancy {
            user: self.user.as_deref(),
            cache_salt: self.cache_salt.as_deref(),
            uses_cache: None,
            class: self.priority,
        };
        tenancy.apply(app, caller, &mut request)?;
        Ok(request)
    }

    /// The number of alternatives per token; `None` without log probabilities.
    fn logprobs(&self, conversation: &ConversationFields) -> Option<usize> {
        let alternatives = self.top_logprobs.filter(|top| *top > 0);
        let is_included = conversation.includes(Includable::Logprobs);
        alternatives.or(is_included.then_some(0))
    }
}
