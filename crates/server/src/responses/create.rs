//! `POST /v1/responses`.

use std::mem;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use futures_util::FutureExt;
use motet::chat::{ChatEvent, ChatRequest};
use motet::error::GenerateError;
use motet::text::Message;

use super::Responses;
use super::background::{BackgroundResponses, EVENT_BYTES, RECORDING_BYTES, Recording, Script};
use super::events::{self, EventSource, ResponseEvent};
use super::ids::{Ids, place_of_item};
use super::items::Item;
use super::messages::messages;
use super::names::NAMES;
use super::progress::{Outcome, Progress};
use super::request::{CreateRequest, Prepared, prepare};
use super::response::ResponseBody;
use super::store::{NewTurn, Owner, ResponseStore, Turn};
use crate::app::App;
use crate::body::Body;
use crate::conversation::{AnswerEvent, Answers, ConversationRequest, chat_of};
use crate::error::ApiError;
use crate::kept::Keep;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::pieces::{self, Deferred};

/// The part of the memory for results that a key's recordings of ended answers may take.
const ENDED_SHARE: usize = 8;

/// A response that is being answered.
#[derive(Debug)]
struct Creation {
    store: Arc<ResponseStore>,
    owner: Owner,
    answers: Answers,
    progress: Progress,
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

/// Answers a conversation.
pub(super) async fn create(
    State(responses): State<Responses>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body(body): Body<CreateRequest>,
) -> Result<Response, ApiError> {
    let Responses {
        app,
        store,
        background,
    } = responses;
    let prepared = prepare(body, &app, &caller, store.keeps_any())?;
    check_store(&store, prepared.echo.store)?;
    let owner = caller.name.clone();
    let ids = Ids::new();
    let previous = previous(&app, &store, &owner, &prepared)?;
    let earlier_bytes = previous.as_ref().map_or(0, |turn| turn.text_bytes());
    let stored = |id: &str| stored_item(&store, &owner, id);
    let referenced_bytes_max = app.access.body_bytes_max - earlier_bytes;
    let input = prepared.input.items(&ids, stored, referenced_bytes_max)?;
    let conversation = Conversation {
        instructions: prepared.instructions,
        previous: previous.clone(),
        input: input.clone(),
    };
    let bytes = earlier_bytes + input.iter().map(|item| item.text_bytes()).sum::<usize>();
    // A long conversation is copied where long bodies are read, and not beside the actors.
    let messages = app
        .body_receiver
        .work(bytes, move || conversation.messages());
    let mut chat = chat_of(&app, messages.await??, prepared.variables);
    chat.continues_last = prepared.continues_last;
    let has_logprobs = prepared.settings.logprobs.is_some();
    // A response that is not kept needs neither while it is answered.
    let is_kept = prepared.echo.store;
    let previous = previous.filter(|_| is_kept);
    let input = if is_kept { input } else { Vec::new() };
    let chat = ChatRequest {
        chat,
        tools: prepared.tools,
        tool_choice: prepared.tool_choice,
        has_one_call: prepared.has_one_call,
        reasoning: prepared.reasoning,
        output_format: prepared.output_format,
        settings: prepared.settings,
    };
    let request = ConversationRequest { chat, names: NAMES };
    // The last events, and the stored response, repeat the answer.
    let input_bytes: usize = input.iter().map(|item| item.bytes()).sum();
    let keep = Keep {
        outputs: true,
        is_streamed: prepared.is_streamed,
        other_bytes: prepared.echo.bytes
            + input_bytes
            + if prepared.is_background {
                RECORDING_BYTES
            } else {
                0
            },
    };
    let answers = request.submit(&app, caller, log, keep).await?;
    let spelling = app.engine.text().filter(|_| has_logprobs).cloned();
    let script = Script {
        begun: ResponseBody::new(ids.response(), prepared.echo, prepared.is_background),
        ids,
        has_summary: prepared.has_summary,
        spelling,
    };
    let is_direct_stream = prepared.is_streamed && !prepared.is_background;
    let creation = Creation {
        store,
        owner,
        answers,
        progress: script.progress(is_direct_stream),
        previous,
        input,
        is_failed: false,
    };
    if prepared.is_background {
        let recording = creation.in_background(script, background, &app);
        return Ok(if prepared.is_streamed {
            events::streamed(recording.reader(0, None))
        } else {
            pieces::json_response(pieces::pieces(&*recording.response()), recording)
        });
    }
    if prepared.is_streamed {
        Ok(events::streamed(creation))
    } else {
        creation.whole().await
    }
}

fn check_store(store: &ResponseStore, is_asked: bool) -> Result<(), ApiError> {
    if is_asked && !store.keeps_any() {
        let message = "`store` is true; this server keeps no responses";
        return Err(ApiError::unprocessable("store", message));
    }
    Ok(())
}

/// The turn that the request continues.
fn previous(
    app: &App,
    store: &ResponseStore,
    owner: &Owner,
    prepared: &Prepared,
) -> Result<Option<Arc<Turn>>, ApiError> {
    let Some(id) = &prepared.echo.previous_response_id else {
        return Ok(None);
    };
    let turn = store.get(owner, id);
    let unknown = || ApiError::previous_response_not_found(id, &store.bounds());
    let turn = turn.ok_or_else(unknown)?;
    let (bytes, most) = (turn.text_bytes(), app.access.body_bytes_max);
    if bytes > most {
        let field = "previous_response_id";
        let message = format!(
            "`{field}` is a conversation of {bytes} bytes; expected at most {most}, as in a body \
             (--body-bytes-max)"
        );
        return Err(ApiError::field(field, message));
    }
    Ok(Some(turn))
}

/// The item with this id, if the store has it.
fn stored_item(store: &ResponseStore, owner: &Owner, id: &str) -> Option<Arc<Item>> {
    let place = place_of_item(id)?;
    let turn = store.get(owner, &place.response)?;
    let items = if place.is_input {
        turn.input()
    } else {
        turn.output()
    };
    // An item that its client has named, or a reference, has another id.
    let item = items.get(place.index).filter(|item| item.id() == id);
    item.cloned()
}

impl Conversation {
    fn messages(self) -> Result<Vec<Message>, ApiError> {
        let history = self.previous.as_deref().map(Turn::history);
        let history = history.unwrap_or_default();
        messages(self.instructions.as_deref(), &history, &self.input)
    }
}

impl Creation {
    /// Waits for the whole answer.
    async fn whole(mut self) -> Result<Response, ApiError> {
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

    /// Answers without a client, and records the answer's events for readers.
    fn in_background(
        self,
        script: Script,
        responses: Arc<BackgroundResponses>,
        app: &App,
    ) -> Arc<Recording> {
        let key = (self.owner.clone(), script.begun.id().to_owned());
        let recording = Arc::new(Recording::new(script, self.answers.sequences()));
        responses.insert(&self.owner, &recording);
        let time = app.store_settings.background_time();
        let results = &app.engine.config().scheduler.admission;
        let bytes_max = results.results_bytes_max / ENDED_SHARE;
        let recorded = Arc::clone(&recording);
        tokio::spawn(async move {
            let answered = AssertUnwindSafe(self.record(Arc::clone(&recorded)));
            if answered.catch_unwind().await.is_err() {
                recorded.end_lost();
            }
            drop(recorded);
            responses.remove_after(time, bytes_max, key).await;
        });
        recording
    }

    /// Records the answer to its end. The key has its place again then.
    async fn record(mut self, recording: Arc<Recording>) {
        let outcome = loop {
            let event = match self.answers.next().await {
                Some((_, event)) => event,
                None => Err(GenerateError::Lost.into()),
            };
            let delta = event.as_ref().ok().cloned();
            if let Some(outcome) = self.read(event, Some(&recording)) {
                break outcome;
            }
            if let Some(ChatEvent::Delta {
                delta: part,
                logprobs,
            }) = &delta
            {
                let (text_bytes, rows) = (part.bytes(), logprobs.len());
                match self.answers.kept().add_recorded(EVENT_BYTES, rows) {
                    Ok(bytes) => delta
                        .into_iter()
                        .for_each(|delta| recording.push(delta, text_bytes + bytes)),
                    Err(error) => break Outcome::Failed(error),
                }
            }
        };
        let response = match &outcome {
            Outcome::Ended(response) => {
                // It says for the log that the answer is whole.
                while self.answers.next().await.is_some() {}
                Arc::clone(response)
            }
            Outcome::Failed(error) => {
                self.answers.failed(error.status);
                Arc::new(self.progress.failed(error))
            }
        };
        let mut kept = self.answers.until_sent().kept;
        kept.only_recorded(response.bytes() + RECORDING_BYTES);
        recording.end(outcome, response, Some(kept));
    }

    /// Adds an event of the answer to the response. The last one has an outcome.
    fn read(&mut self, event: AnswerEvent, recording: Option<&Recording>) -> Option<Outcome> {
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
        let turn = NewTurn {
            id: ended.id().to_owned(),
            previous: self.previous.take(),
            input: mem::take(&mut self.input),
            output: ended.output().to_vec(),
            body: Deferred::shared(Arc::clone(ended)),
            body_bytes: ended.bytes(),
        };
        if !self.store.insert(&self.owner, turn) {
            tracing::warn!("a response is not kept: there is no space in the store for its key");
        }
    }
}

impl EventSource for Creation {
    /// Cancel safe, as [`Answers::next`] is.
    async fn next(&mut self) -> Option<ResponseEvent> {
        loop {
            if let Some(event) = self.progress.pop() {
                return Some(event);
            }
            if self.is_failed {
                return None;
            }
            let (_, event) = self.answers.next().await?;
            self.is_failed = matches!(self.read(event, None), Some(Outcome::Failed(_)));
        }
    }
}
