//! The answer to a request, whole or streamed.

use std::mem;
use std::sync::Arc;

use axum::response::Response;
use motet::chat::{ChatEvent, ChatRequest};
use motet::text::Message;

use super::Responses;
use super::background::{RECORDING_BYTES, Recording, Script};
use super::events::{EventSource, HandedOver, ResponseEvent};
use super::items::Item;
use super::messages::messages;
use super::names::NAMES;
use super::progress::{Outcome, Progress};
use super::request::PreparedAnswer;
use super::response::ResponseBody;
use super::store::{NewTurn, Owner, ResponseStore, Turn};
use crate::conversation::{AnswerEvent, Answers, ConversationRequest, chat_of};
use crate::error::ApiError;
use crate::kept::Keep;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::pieces::{self, Deferred};

/// A request whose items are known.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) owner: Owner,
    /// The turn before this one and the request's items.
    pub(super) previous: Option<Arc<Turn>>,
    pub(super) input: Vec<Arc<Item>>,
    pub(super) answer: PreparedAnswer,
}

/// A response that is being answered.
#[derive(Debug)]
pub(super) struct Creation {
    store: Arc<ResponseStore>,
    pub(super) owner: Owner,
    pub(super) answers: Answers,
    pub(super) progress: Progress,
    /// The turn before this one and the request's items, to be kept with the answer.
    previous: Option<Arc<Turn>>,
    input: Vec<Arc<Item>>,
    /// Whether it has ended with an error.
    is_failed: bool,
}

/// The parts of a request that become messages.
#[derive(Debug)]
struct Conversation {
    instructions: Option<String>,
    previous: Option<Arc<Turn>>,
    input: Vec<Arc<Item>>,
}

impl Asked {
    /// Submits the request.
    pub(super) async fn submit(
        self,
        responses: &Responses,
        script: &Script,
        caller: Caller,
        log: RequestLog,
    ) -> Result<Creation, ApiError> {
        let Self {
            owner,
            previous,
            input,
            answer,
        } = self;
        let app = &responses.app;
        let echo = script.begun.echo();
        let conversation = Conversation {
            instructions: answer.instructions,
            previous: previous.clone(),
            input: input.clone(),
        };
        // A long conversation is copied where long bodies are read, and not beside the actors.
        let messages = app
            .body_receiver
            .work(conversation.bytes(), move || conversation.messages());
        let mut chat = chat_of(app, messages.await??, answer.variables);
        chat.continues_last = answer.continues_last;
        // A response that is not kept needs neither while it is answered.
        let previous = previous.filter(|_| echo.store);
        let input = if echo.store { input } else { Vec::new() };
        let chat = ChatRequest {
            chat,
            tools: answer.tools,
            tool_choice: answer.tool_choice,
            has_one_call: answer.has_one_call,
            reasoning: answer.reasoning,
            output_format: answer.output_format,
            settings: answer.settings,
        };
        let request = ConversationRequest { chat, names: NAMES };
        // The last events, and the stored response, repeat the answer.
        let input_bytes: usize = input.iter().map(|item| item.bytes()).sum();
        let recording_bytes = if answer.is_background {
            RECORDING_BYTES
        } else {
            0
        };
        let keep = Keep {
            outputs: true,
            is_streamed: answer.is_streamed,
            other_bytes: echo.bytes + input_bytes + recording_bytes,
        };
        let answers = request.submit(app, caller, log, keep).await?;
        Ok(Creation {
            store: Arc::clone(&responses.store),
            owner,
            answers,
            progress: script.progress(answer.is_streamed && !answer.is_background),
            previous,
            input,
            is_failed: false,
        })
    }
}

impl Conversation {
    /// Bytes of its text.
    fn bytes(&self) -> usize {
        let earlier = self.previous.as_ref().map_or(0, |turn| turn.text_bytes());
        let input = self.input.iter().map(|item| item.text_bytes());
        earlier + input.sum::<usize>()
    }

    fn messages(self) -> Result<Vec<Message>, ApiError> {
        let history = self.previous.as_deref().map(Turn::history);
        let history = history.unwrap_or_default();
        messages(self.instructions.as_deref(), &history, &self.input)
    }
}

impl Creation {
    /// Waits for the whole answer.
    pub(super) async fn whole(mut self) -> Result<Response, ApiError> {
        let mut body = None;
        while let Some((_, event)) = self.answers.next().await {
            match self.read(event, None) {
                None => {}
                Some(Outcome::Ended(ended)) => body = Some(ended),
                Some(Outcome::Failed(error)) => return Err(error),
            }
        }
        let body = body.expect("answers end with an outcome");
        let pieces = pieces::pieces(&*body);
        Ok(pieces::json_response(pieces, self.answers.until_sent()))
    }

    /// Adds an event of the answer to the response. The last one has an outcome.
    pub(super) fn read(
        &mut self,
        event: AnswerEvent,
        recording: Option<&Recording>,
    ) -> Option<Outcome> {
        let outcome = match event {
            Ok(ChatEvent::Ended { end, usage }) => {
                self.answers.kept().complete();
                let is_cancelled = recording.is_some_and(Recording::is_cancelled);
                let ended = self.progress.complete(end, usage, is_cancelled);
                if ended.echo().store {
                    match recording {
                        None => self.keep(&ended),
                        Some(recording) => recording.store(|| self.keep(&ended)),
                    }
                }
                Outcome::Ended(ended)
            }
            Ok(event) => {
                if let ChatEvent::Delta { delta, logprobs } = &event
                    && let Err(error) = self.answers.kept().add(delta.bytes(), logprobs.len())
                {
                    Outcome::Failed(error)
                } else {
                    self.progress.push(event);
                    return None;
                }
            }
            Err(error) => Outcome::Failed(error),
        };
        self.progress.end(&outcome);
        Some(outcome)
    }

    fn keep(&mut self, ended: &Arc<ResponseBody>) {
        let (previous, input) = (self.previous.take(), mem::take(&mut self.input));
        keep(&self.store, &self.owner, ended, previous, input);
    }
}

/// Keeps a response in the store.
pub(super) fn keep(
    store: &ResponseStore,
    owner: &Owner,
    ended: &Arc<ResponseBody>,
    previous: Option<Arc<Turn>>,
    input: Vec<Arc<Item>>,
) {
    let turn = NewTurn {
        id: ended.id().to_owned(),
        previous,
        input,
        output: ended.output().to_vec(),
        body: Deferred::shared(Arc::clone(ended)),
        body_bytes: ended.bytes(),
    };
    if !store.insert(owner, turn) {
        tracing::warn!("a response is not kept: there is no space in the store for its key");
    }
}

impl EventSource for Creation {
    /// Cancel safe, as [`Answers::next`] is.
    async fn next(&mut self) -> Option<Result<ResponseEvent, HandedOver>> {
        loop {
            if let Some(event) = self.progress.pop() {
                return Some(Ok(event));
            }
            if self.is_failed {
                return None;
            }
            let (_, event) = self.answers.next().await?;
            self.is_failed = matches!(self.read(event, None), Some(Outcome::Failed(_)));
        }
    }
}
