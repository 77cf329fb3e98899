//! From a conversation to the engine's request, and to the answer.

use std::mem;

use motet_text::{AnswerFormat, Chat, ReasoningStart, TextCodec};

use super::tools::CallableTools;
use super::{
    AnswerReader, ChatError, ChatField, ChatRequest, ChatStream, History, Reasoning, tools_as_text,
};
use crate::engine::Engine;
use crate::error::SubmitError;
use crate::request::{Prompt, ReasoningBudget, Request};
use crate::stream::TokenStream;

/// A conversation on its way to the engine.
#[derive(Debug)]
struct Preparation<'a> {
    text: &'a TextCodec,
    format: &'a AnswerFormat,
    /// The tools that the model may call.
    tools: Option<CallableTools>,
    conversation: ChatRequest,
}

/// How the outputs of a request are read.
#[derive(Debug)]
struct Reading {
    /// The text that the prompt ends with.
    prompt_end: String,
    /// Whether the outputs begin with reasoning.
    start: ReasoningStart,
}

impl Engine {
    /// Answers a conversation, in which the model may call tools. The events of the answer arrive
    /// through the returned stream.
    ///
    /// # Errors
    ///
    /// [`ChatError`], which names the field, when the tools, the messages or the settings of
    /// reasoning are invalid, and when the engine rejects the request as
    /// [`submit`](Engine::submit) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready cancels the request.
    #[doc(alias = "tool calls")]
    #[doc(alias = "function calling")]
    pub async fn chat(&self, request: ChatRequest) -> Result<ChatStream, ChatError> {
        let (request, reader) = request.prepare(self).await?;
        match self.submit(request).await {
            Ok(tokens) => Ok(ChatStream::new(tokens, reader)),
            Err(error) => Err(reader.submit_error(error)),
        }
    }

    /// Answers a conversation several times: [`Request::n`] of its settings, as
    /// [`submit_many`](Engine::submit_many) does. The prompt is computed once.
    ///
    /// # Errors
    ///
    /// As for [`chat`](Engine::chat); either all answers are accepted or none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready cancels the request.
    pub async fn chat_many(&self, request: ChatRequest) -> Result<Vec<ChatStream>, ChatError> {
        let (request, reader) = request.prepare(self).await?;
        let streams = self.submit_many(request).await;
        let streams = streams.map_err(|error| reader.submit_error(error))?;
        let stream = |tokens: TokenStream| ChatStream::new(tokens, reader.clone());
        Ok(streams.into_iter().map(stream).collect())
    }
}

impl ChatRequest {
    /// Turns the conversation into a request of the engine, and into the reader of its outputs. A
    /// caller that reserves [results](Engine::submit_all_keeping) or watches the tokens submits
    /// the request by itself; [`Engine::chat`] does both steps.
    ///
    /// # Errors
    ///
    /// As for [`Engine::chat`], as far as they are known before the request is submitted.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future removes a conversation that waits to be rendered.
    pub async fn prepare(self, engine: &Engine) -> Result<(Request, AnswerReader), ChatError> {
        // Boxed, so that it is compiled in this crate.
        let prepared = async {
            let mut preparation = Preparation::new(self, engine)?;
            let reading = preparation.render(engine).await?;
            preparation.finish(reading)
        };
        let prepared: crate::engine::BoxedFuture<'_, _> = Box::pin(prepared);
        prepared.await
    }

    /// Returns the conversation as the chat template gets it, with its tools and its settings of
    /// reasoning: [`Engine::tokenize`] counts its tokens.
    ///
    /// # Errors
    ///
    /// As for [`Engine::chat`], as far as they are about messages, tools and reasoning.
    pub fn into_chat(self, engine: &Engine) -> Result<Chat, ChatError> {
        Ok(Preparation::new(self, engine)?.conversation.chat)
    }
}

impl<'a> Preparation<'a> {
    /// Checks the conversation, and adds the tools and the settings of reasoning to what the
    /// template gets.
    fn new(mut conversation: ChatRequest, engine: &'a Engine) -> Result<Self, ChatError> {
        let text = engine.text().ok_or_else(|| {
            let field = "prompt.chat";
            let error = SubmitError::NoTokenizer { field };
            ChatError::submit(error, ChatField::OutputFormat, None)
        })?;
        if conversation.settings.logprobs.is_some() && conversation.reasoning.tokens_max.is_some() {
            return Err(ChatError::BudgetWithLogprobs);
        }
        check_continued(&conversation.chat)?;
        History::complete(&mut conversation.chat.messages)?;
        let tools = mem::take(&mut conversation.tools);
        let choice = mem::take(&mut conversation.tool_choice);
        let mut preparation = Self {
            text,
            format: text.answer_format(),
            tools: CallableTools::new(tools, choice, !conversation.has_one_call)?,
            conversation,
        };
        preparation.complete_chat()?;
        Ok(preparation)
    }

    fn complete_chat(&mut self) -> Result<(), ChatError> {
        let ChatRequest {
            chat,
            reasoning,
            output_format,
            settings,
            ..
        } = &mut self.conversation;
        *output_format = output_format.take().or(settings.grammar.take());
        reasoning.apply(&mut chat.variables)?;
        if output_format.is_some() {
            Reasoning::turn_off(&mut chat.variables);
        }
        if !self.format.template_knows_tools() {
            let tools = self.tools.as_ref().map(|tools| &tools.tools);
            if tools.is_some() {
                chat.variables.remove("tools");
            }
            tools_as_text::write(chat, self.format, tools);
        } else if let Some(tools) = &self.tools {
            let variable = chat.variables.entry("tools".to_owned());
            variable.or_insert_with(|| tools.for_template.clone());
        }
        Ok(())
    }

    /// Turns the conversation into the request's prompt, once, and returns how the outputs are
    /// read.
    async fn render(&mut self, engine: &Engine) -> Result<Option<Reading>, ChatError> {
        let conversation = &mut self.conversation;
        let continues_last = conversation.chat.continues_last;
        let chat = mem::take(&mut conversation.chat);
        let is_asked_for = conversation.reasoning.is_asked_for(&chat.variables);
        conversation.settings.prompt = Prompt::Chat(chat);
        let end = engine.prepare_chat(&mut conversation.settings).await;
        let mut end = end.map_err(|error| {
            let tools = self.tools.as_ref().map(|tools| &tools.tools);
            ChatError::submit(error, self.grammar_field(), tools)
        })?;
        if continues_last {
            end = self.format.continued_end(&end);
        }
        Ok(self.reading(end, is_asked_for))
    }

    /// How the outputs are read; `None` if all of an output is its text. That is so where the text
    /// follows a form from its first token on.
    fn reading(&self, prompt_end: String, is_reasoning_asked_for: bool) -> Option<Reading> {
        let is_text = match &self.tools {
            Some(_) => false,
            None => {
                self.conversation.output_format.is_some() || self.format.reasoning_marks().is_none()
            }
        };
        if is_text {
            return None;
        }
        let is_call_required = self
            .tools
            .as_ref()
            .is_some_and(CallableTools::is_call_required);
        // A call that is required begins at once, unless the prompt has opened the reasoning or a
        // setting asks for it.
        let start = match self.format.reasoning_start(&prompt_end) {
            ReasoningStart::Possible if is_call_required && !is_reasoning_asked_for => {
                ReasoningStart::Absent
            }
            start => start,
        };
        Some(Reading { prompt_end, start })
    }

    /// The field that the grammar of the output comes from.
    fn grammar_field(&self) -> ChatField {
        match self.tools {
            Some(_) => ChatField::Tools,
            None => ChatField::OutputFormat,
        }
    }

    /// Sets the grammar and the budget of the request, and makes the reader of its outputs.
    fn finish(mut self, reading: Option<Reading>) -> Result<(Request, AnswerReader), ChatError> {
        let start = reading
            .as_ref()
            .map_or(ReasoningStart::Absent, |reading| reading.start);
        self.set_grammar(start)?;
        let grammar_field = self.grammar_field();
        let tokens_max = self.conversation.reasoning.tokens_max;
        let mut request = self.conversation.settings;
        let has_logprobs = request.logprobs.is_some();
        let mut reader = AnswerReader::of_text(has_logprobs).grammar_field(grammar_field);
        let tools = self.tools.as_ref().map(|tools| &tools.tools);
        if let Some(reading) = &reading {
            request.special_tokens_in_text = self.format.shows_special_tokens();
            request.reasoning = budget(self.text, self.format, start, tokens_max);
            reader = reader.parser(self.format.parser(&reading.prompt_end, tools));
        }
        if let Some(tools) = self.tools {
            reader = reader.tools(tools.tools, !tools.is_parallel);
        }
        reader.read_so_far(self.text, &request);
        Ok((request, reader))
    }

    fn set_grammar(&mut self, start: ReasoningStart) -> Result<(), ChatError> {
        let output_format = self.conversation.output_format.take();
        let Some(tools) = &self.tools else {
            self.conversation.settings.grammar = output_format;
            return Ok(());
        };
        if output_format.is_some() && !tools.is_call_required() {
            return Err(ChatError::FormatWithTools);
        }
        self.conversation.settings.grammar = tools.grammar(self.format, start)?;
        Ok(())
    }
}

/// Checks that an answer that goes on with the last message can do so.
fn check_continued(chat: &Chat) -> Result<(), ChatError> {
    if !chat.continues_last {
        return Ok(());
    }
    let found = match chat.messages.last() {
        Some(last) if last.role != "assistant" => format!("of the role {:?}", last.role),
        Some(last) if last.more.contains_key("tool_calls") => "with calls".to_owned(),
        Some(_) => return Ok(()),
        None => "missing".to_owned(),
    };
    Err(ChatError::NotContinued { found })
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
