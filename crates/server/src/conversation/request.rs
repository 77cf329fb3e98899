//! A request of any dialect, and its way to the engine.

use std::collections::BTreeMap;

use motet::Request;
use motet::grammar::GrammarSource;
use motet::request::{Prompt, ReasoningBudget};
use motet::text::{AnswerFormat, Chat, Message, ReasoningStart, TextCodec};

use super::tools_as_text;
use super::{Answers, CallableTools, FieldNames, Reasoning};
use crate::app::App;
use crate::body::json::Json;
use crate::error::ApiError;
use crate::generate::{OutputStreams, UntilSent};
use crate::kept::{Keep, KeptResults};
use crate::keys::Caller;
use crate::log::RequestLog;

/// A request of a dialect to the model.
#[derive(Debug)]
pub(crate) struct ConversationRequest {
    /// The messages in the form of templates, and the variables that the client sets. Tools and
    /// settings of reasoning are added to them on the way.
    pub(crate) chat: Chat,
    /// The tools that the model may call.
    pub(crate) tools: Option<CallableTools>,
    /// How the model reasons.
    pub(crate) reasoning: Reasoning,
    /// The form that the answer's text must have.
    pub(crate) output_format: Option<GrammarSource>,
    /// Sampling, lengths, tenancy and everything else. Its prompt, its grammar and its reasoning
    /// are set on the way.
    pub(crate) request: Request,
    /// The dialect's names of fields.
    pub(crate) names: &'static FieldNames,
}

/// How the outputs of a request are read.
#[derive(Debug)]
struct Reading {
    /// The text that the prompt ends with.
    prompt_end: String,
    /// Whether the outputs begin with reasoning.
    start: ReasoningStart,
}

/// Puts messages, and variables that the client sets, in the form of templates.
pub(crate) fn chat_of(
    app: &App,
    messages: Vec<Message>,
    variables: Option<BTreeMap<String, Json>>,
) -> Chat {
    let mut chat = Chat::from(messages);
    chat.with_special_tokens = app.conduct.special_tokens_in_messages;
    let variables = variables.into_iter().flatten();
    chat.variables = variables.map(|(name, Json(value))| (name, value)).collect();
    chat
}

/// Lets the answer go on with the text of the last message.
///
/// # Errors
///
/// A last message that is not the assistant's, or that has calls, is an error, which names `field`.
pub(crate) fn continue_last(chat: &mut Chat, field: &str) -> Result<(), ApiError> {
    let last = chat.messages.last();
    let found = match last {
        Some(last) if last.role != "assistant" => format!("of the role {:?}", last.role),
        Some(last) if last.more.contains_key("tool_calls") => "with calls".to_owned(),
        Some(_) => {
            chat.continues_last = true;
            return Ok(());
        }
        None => "missing".to_owned(),
    };
    let message = format!(
        "`{field}`: the message that the answer goes on with is {found}; expected one of the \
         assistant without calls"
    );
    Err(ApiError::field(field, message))
}

/// Checks the length of a schema that an answer's text must follow.
///
/// # Errors
///
/// The error names the dialect's `field`.
pub(crate) fn check_schema_bytes(schema: &str, field: &'static str) -> Result<(), ApiError> {
    let (bytes, most) = (schema.len(), GrammarSource::SCHEMA_BYTES_MAX);
    if bytes <= most {
        return Ok(());
    }
    let message = format!("`{field}` has a schema of {bytes} bytes; expected at most {most}");
    Err(ApiError::unprocessable(field, message))
}

impl ConversationRequest {
    /// Returns the conversation as the template gets it, to count its tokens.
    ///
    /// # Errors
    ///
    /// Settings of reasoning that contradict each other are an error.
    pub(crate) fn into_chat(mut self, app: &App) -> Result<Chat, ApiError> {
        self.complete_chat(app.format.as_ref())?;
        Ok(self.chat)
    }

    /// Submits the request.
    ///
    /// # Errors
    ///
    /// The error names the dialect's field.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the request.
    pub(crate) async fn submit(
        mut self,
        app: &App,
        caller: Caller,
        log: RequestLog,
        keep: Keep,
    ) -> Result<Answers, ApiError> {
        self.check_logprobs()?;
        let field = self.names.kept(&self.request);
        let kept = KeptResults::reserve(app, self.request.user.as_deref(), keep, field)?;
        let format = app.format.as_ref();
        self.complete_chat(format)?;
        let reading = self.prepare(app).await?;
        let grammar_field = self.set_grammar(format, reading.as_ref())?;
        if let (Some(format), Some(reading), Some(text)) = (format, &reading, app.engine.text()) {
            self.request.special_tokens_in_text = format.shows_special_tokens();
            let tokens_max = self.reasoning.tokens_max;
            self.request.reasoning = budget(text, format, reading.start, tokens_max);
        }
        let Self {
            tools,
            request,
            names,
            ..
        } = self;
        let is_parallel = tools.as_ref().is_none_or(|tools| tools.is_parallel);
        let tools = tools.as_ref().map(|tools| &tools.tools);
        let until_sent = UntilSent {
            kept,
            _caller: caller,
        };
        let streams = OutputStreams::submit(&app.engine, vec![request], until_sent, log).await;
        let streams = streams.map_err(|error| {
            let other = |error| names.submit_error(error, &grammar_field, tools);
            KeptResults::submit_error(field, error, other)
        })?;
        let parser = || Some(format?.parser(&reading.as_ref()?.prompt_end, tools));
        let answers = Answers::new(streams, parser, is_parallel, grammar_field);
        Ok(answers.observed(&app.activity))
    }

    /// Tokens that end the reasoning are not sampled and have no log probabilities, so that those of
    /// later tokens could not be told apart.
    fn check_logprobs(&self) -> Result<(), ApiError> {
        if self.request.logprobs.is_none() || self.reasoning.tokens_max.is_none() {
            return Ok(());
        }
        let field = self.names.reasoning_tokens_max;
        let message = format!("`{field}` is not supported with log probabilities");
        Err(ApiError::unprocessable(field, message))
    }

    /// Adds the tools and the settings of reasoning to what the template gets.
    fn complete_chat(&mut self, format: Option<&AnswerFormat>) -> Result<(), ApiError> {
        self.reasoning.apply(&mut self.chat.variables, self.names)?;
        if self.output_format.is_some() {
            Reasoning::turn_off(&mut self.chat.variables);
        }
        match format {
            Some(format) if !format.template_knows_tools() => {
                let tools = self.tools.as_ref().map(|tools| &tools.tools);
                tools_as_text::write(&mut self.chat, format, tools);
            }
            _ => {
                let tools = self.tools.as_ref().map(CallableTools::variable);
                let variable = tools.map(|tools| ("tools".to_owned(), tools));
                self.chat.variables.extend(variable);
            }
        }
        Ok(())
    }

    /// Turns the conversation into the request's prompt, once, and returns how the outputs are
    /// read.
    async fn prepare(&mut self, app: &App) -> Result<Option<Reading>, ApiError> {
        let continues_last = self.chat.continues_last;
        self.request.prompt = Prompt::Chat(std::mem::take(&mut self.chat));
        let end = app.engine.prepare_chat(&mut self.request).await;
        let end = end.map_err(|error| {
            let tools = self.tools.as_ref().map(|tools| &tools.tools);
            self.names.submit_error(error, self.names.tools, tools)
        })?;
        let format = app.format.as_ref().filter(|_| continues_last);
        let end = format.map_or(end.clone(), |format| format.continued_end(&end));
        Ok(self.reading(app, end))
    }

    /// How the outputs are read; `None` if all of an output is its text. That is so where the text
    /// is held to a form from its first token on.
    fn reading(&self, app: &App, prompt_end: String) -> Option<Reading> {
        let format = app.format.as_ref()?;
        let is_text = match &self.tools {
            Some(_) => false,
            None => self.output_format.is_some() || format.reasoning_marks().is_none(),
        };
        (!is_text).then(|| {
            let start = self.reasoning_start(format.reasoning_start(&prompt_end));
            Reading { prompt_end, start }
        })
    }

    /// A call that is required begins at once, unless the prompt has opened the reasoning or a
    /// setting asks for it.
    fn reasoning_start(&self, start: ReasoningStart) -> ReasoningStart {
        let is_call_required = self
            .tools
            .as_ref()
            .is_some_and(CallableTools::is_call_required);
        let is_asked_for = self.reasoning.is_asked_for(&self.chat.variables);
        match start {
            ReasoningStart::Possible if is_call_required && !is_asked_for => ReasoningStart::Absent,
            start => start,
        }
    }

    /// Sets the grammar of the output, and returns the field that it comes from.
    fn set_grammar(
        &mut self,
        format: Option<&AnswerFormat>,
        reading: Option<&Reading>,
    ) -> Result<String, ApiError> {
        let names = self.names;
        let output_format = self.output_format.take();
        let (Some(tools), Some(format)) = (&self.tools, format) else {
            self.request.grammar = output_format;
            return Ok(names.output_format.to_owned());
        };
        if output_format.is_some() && !tools.is_call_required() {
            let message = format!(
                "`{}` cannot be held together with `{}` that the model may call or not; expected \
                 one of them, or a `{}` that requires a call or forbids it",
                names.output_format, names.tools, names.tool_choice
            );
            return Err(ApiError::unprocessable(names.output_format, message));
        }
        let start = reading.map_or(ReasoningStart::Absent, |reading| reading.start);
        let grammar = format.grammar(&tools.tools, &tools.choice, tools.is_parallel, start);
        self.request.grammar = grammar.map_err(|error| names.tool_error(&error))?;
        Ok(names.tools.to_owned())
    }
}

/// The budget of the reasoning, by which the engine counts it as well. `None` if there is none, or
/// if the vocabulary cannot spell its marks.
fn budget(
    text: &TextCodec,
    format: &AnswerFormat,
    start: ReasoningStart,
    tokens_max: Option<usize>,
) -> Option<ReasoningBudget> {
    let marks = format.reasoning_marks()?;
    if start == ReasoningStart::Absent {
        return None;
    }
    let spell = |mark: &str| text.encode_continuation(mark).ok();
    Some(ReasoningBudget {
        open: spell(&marks.open)?,
        close: spell(&marks.close)?,
        is_open: start == ReasoningStart::Open,
        opens_once: marks.opens_once,
        tokens_max: tokens_max.unwrap_or(usize::MAX),
    })
}
