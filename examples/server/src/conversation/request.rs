//! A request of any face, and its way to the engine.

use motet::Request;
use motet::grammar::GrammarSource;
use motet::request::Prompt;
use motet::text::{AnswerFormat, Chat, TextCodec};

use super::prompt_end::prompt_end;
use super::{Answers, FieldNames, OfferedTools, Reasoning};
use crate::app::App;
use crate::error::ApiError;
use crate::generate::OutputStreams;
use crate::keys::Caller;
use crate::log::RequestLog;

/// What a face asks of the model.
#[derive(Debug)]
pub(crate) struct ConversationRequest {
    /// The messages in the form of templates, and the variables that the client sets. Tools and
    /// settings of reasoning are added to them on the way.
    pub(crate) chat: Chat,
    /// The tools that the model may call.
    pub(crate) tools: Option<OfferedTools>,
    /// How the model reasons.
    pub(crate) reasoning: Reasoning,
    /// The form that the answer's text must have.
    pub(crate) output_format: Option<GrammarSource>,
    /// Sampling, lengths, tenancy and everything else. Its prompt and its grammar are set on the
    /// way.
    pub(crate) request: Request,
    /// The face's names of fields.
    pub(crate) names: &'static FieldNames,
}

/// How the outputs of a request are read.
#[derive(Debug)]
struct Reader {
    format: AnswerFormat,
    /// The text that the prompt ends with.
    prompt_end: String,
}

impl ConversationRequest {
    /// Returns the conversation as the template gets it, to count its tokens.
    ///
    /// # Errors
    ///
    /// Settings of reasoning that contradict each other are an error.
    pub(crate) fn into_chat(mut self) -> Result<Chat, ApiError> {
        self.complete_chat()?;
        Ok(self.chat)
    }

    /// Submits the request.
    ///
    /// # Errors
    ///
    /// The error names the face's field.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the request.
    pub(crate) async fn submit(
        mut self,
        app: &App,
        caller: Caller,
        log: RequestLog,
    ) -> Result<Answers, ApiError> {
        self.complete_chat()?;
        let format = app.engine.text().and_then(TextCodec::answer_format);
        let grammar_field = self.set_grammar(format.as_ref())?;
        let reader = format.and_then(|format| self.reader_of(app, format));
        let Self {
            chat,
            tools,
            mut request,
            names,
            ..
        } = self;
        if let Some(reader) = &reader {
            request.special_tokens_in_text = reader.format.shows_special_tokens();
        }
        request.prompt = Prompt::Chat(chat);
        let streams = OutputStreams::submit(&app.engine, vec![request], caller, log).await;
        let streams = streams.map_err(|error| names.submit_error(&grammar_field, error))?;
        let is_parallel = tools.as_ref().is_none_or(|tools| tools.is_parallel);
        let tools = tools.as_ref().map(|tools| &tools.tools);
        let parser = || {
            let reader = reader.as_ref()?;
            Some(reader.format.parser(&reader.prompt_end, tools))
        };
        Ok(Answers::new(streams, parser, is_parallel, grammar_field))
    }

    /// Adds the tools and the settings of reasoning to the variables of the template.
    fn complete_chat(&mut self) -> Result<(), ApiError> {
        self.reasoning.apply(&mut self.chat.variables, self.names)?;
        if let Some(tools) = &mut self.tools {
            let variables = &mut self.chat.variables;
            variables.insert("tools".to_owned(), tools.take_variable());
        }
        Ok(())
    }

    /// Sets the grammar of the output, and returns the field that it comes from.
    fn set_grammar(&mut self, format: Option<&AnswerFormat>) -> Result<String, ApiError> {
        let names = self.names;
        let output_format = self.output_format.take();
        let (Some(tools), Some(format)) = (&self.tools, format) else {
            self.request.grammar = output_format;
            return Ok(names.output_format.to_owned());
        };
        if output_format.is_some() && !tools.is_call_required() {
            let message = format!(
                "`{}` cannot be held together with `{}` that the model may call or not: expected \
                 one of them, or a `{}` that requires a call or forbids it",
                names.output_format, names.tools, names.tool_choice
            );
            return Err(ApiError::unprocessable(names.output_format, message));
        }
        let has_reasoning = format.reasoning_marks().is_some();
        let grammar = format.grammar(&tools.tools, &tools.choice, tools.is_parallel, has_reasoning);
        self.request.grammar = grammar.map_err(|error| names.tool_error(&error))?;
        Ok(names.tools.to_owned())
    }

    /// How the outputs are read; `None` if all of an output is its text. An output that is held to
    /// a form from its first token on is.
    fn reader_of(&self, app: &App, format: AnswerFormat) -> Option<Reader> {
        let template = app.engine.text()?.template()?;
        let is_text = match &self.tools {
            Some(_) => false,
            None => self.request.grammar.is_some() || format.reasoning_marks().is_none(),
        };
        (!is_text).then(|| Reader {
            prompt_end: prompt_end(template, &self.chat),
            format,
        })
    }
}
