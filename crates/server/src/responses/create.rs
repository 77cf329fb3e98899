//! `POST /v1/responses`.

use std::convert::Infallible;
use std::mem;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body as AnswerBody, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use motet::chat::{AnswerEnd, ChatEvent, ChatRequest};
use motet::request::Usage;
use motet::text::Message;
use tokio::time::timeout;

use super::Responses;
use super::events::{EventLog, ResponseEvent};
use super::ids::{Ids, place_of_item};
use super::items::{Item, ItemStatus};
use super::messages::messages;
use super::names::NAMES;
use super::request::{CreateRequest, Prepared, prepare};
use super::response::{ResponseBody, Status};
use super::store::{NewTurn, Owner, ResponseStore, Turn};
use super::writer::OutputWriter;
use crate::api::KEEP_ALIVE;
use crate::app::App;
use crate::body::Body;
use crate::conversation::{AnswerEvent, Answers, ConversationRequest, chat_of};
use crate::error::ApiError;
use crate::kept::Keep;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::pieces::{self, Deferred, Pieces};

/// Keeps the connection open: clients ignore it.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// A response that is being answered.
#[derive(Debug)]
struct Creation {
    store: Arc<ResponseStore>,
    owner: Owner,
    answers: Answers,
    /// The response without output.
    begun: ResponseBody,
    writer: OutputWriter,
    log: EventLog,
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

/// How an answer ended.
#[derive(Debug)]
enum Outcome {
    Ended(Arc<ResponseBody>),
    Failed(ApiError),
}

/// Answers a conversation.
pub(super) async fn create(
    State(Responses { app, store }): State<Responses>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body(body): Body<CreateRequest>,
) -> Result<Response, ApiError> {
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
        other_bytes: prepared.echo.bytes + input_bytes,
    };
    let answers = request.submit(&app, caller, log, keep).await?;
    let spelling = app.engine.text().filter(|_| has_logprobs).cloned();
    let creation = Creation {
        store,
        owner,
        answers,
        begun: ResponseBody::new(ids.response(), prepared.echo),
        writer: OutputWriter::new(ids.clone(), prepared.has_summary, spelling),
        log: EventLog::new(prepared.is_streamed),
        previous,
        input,
        is_failed: false,
    };
    if prepared.is_streamed {
        Ok(creation.streamed())
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
            match self.read(event) {
                None => {}
                Some(Outcome::Ended(ended)) => body = Some(ended),
                Some(Outcome::Failed(error)) => return Err(error),
            }
        }
        let body = body.expect("answers end with an outcome");
        let pieces = pieces::pieces(&*body);
        Ok(pieces::json_response(pieces, self.answers.until_sent()))
    }

    /// Streams the events as they come. When the client disconnects, the stream and the answer
    /// are dropped. A client that reads slowly pauses it.
    fn streamed(mut self) -> Response {
        let begun = &self.begun;
        self.log.push(|sequence_number| ResponseEvent::Created {
            sequence_number,
            response: Arc::new(begun.clone()),
        });
        self.log.push(|sequence_number| ResponseEvent::InProgress {
            sequence_number,
            response: Arc::new(begun.clone()),
        });
        // The answer keeps its reserved bytes until its last event is sent.
        let sending = (self, None::<Pieces>);
        let events = stream::unfold(sending, |(mut creation, mut sent)| async {
            loop {
                if let Some(piece) = sent.as_mut().and_then(Iterator::next) {
                    return Some((Ok::<_, Infallible>(piece), (creation, sent)));
                }
                match timeout(KEEP_ALIVE, creation.next()).await {
                    Ok(event) => sent = Some(event?.sent()),
                    Err(_) => return Some((Ok(COMMENT), (creation, None))),
                }
            }
        });
        let kind = (header::CONTENT_TYPE, "text/event-stream");
        let uncached = (header::CACHE_CONTROL, "no-cache");
        ([kind, uncached], AnswerBody::from_stream(events)).into_response()
    }

    /// The next event. Cancel safe, as [`Answers::next`] is.
    async fn next(&mut self) -> Option<ResponseEvent> {
        loop {
            if let Some(event) = self.log.pop() {
                return Some(event);
            }
            if self.is_failed {
                return None;
            }
            let (_, event) = self.answers.next().await?;
            self.is_failed = matches!(self.read(event), Some(Outcome::Failed(_)));
        }
    }

    /// Adds an event of the answer to the response. The last one has an outcome.
    fn read(&mut self, event: AnswerEvent) -> Option<Outcome> {
        match event {
            Ok(ChatEvent::Prefilled(_)) => None,
            Ok(ChatEvent::Delta { delta, logprobs }) => {
                let kept = self.answers.kept();
                if let Err(error) = kept.add(delta.bytes(), logprobs.len()) {
                    self.fail(&error);
                    return Some(Outcome::Failed(error));
                }
                self.writer.push(delta, logprobs, &mut self.log);
                None
            }
            Ok(ChatEvent::Ended { end, usage }) => Some(Outcome::Ended(self.end(end, usage))),
            Err(error) => {
                self.fail(&error);
                Some(Outcome::Failed(error))
            }
        }
    }

    /// Completes the response, keeps it if the request asks for that, and returns it.
    fn end(&mut self, end: AnswerEnd, usage: Usage) -> Arc<ResponseBody> {
        self.answers.kept().complete();
        let (status, item_status) = match end {
            AnswerEnd::Length => (Status::Incomplete, ItemStatus::Incomplete),
            AnswerEnd::Stop | AnswerEnd::StopString | AnswerEnd::Calls => {
                (Status::Completed, ItemStatus::Completed)
            }
        };
        self.writer.finish(item_status, &mut self.log);
        let output = self.writer.take_items();
        let ended = Arc::new(self.begun.ended(status, output, usage));
        if ended.echo().store {
            self.keep(&ended);
        }
        let response = Arc::clone(&ended);
        self.log.push(|sequence_number| match status {
            Status::Incomplete => ResponseEvent::Incomplete {
                sequence_number,
                response,
            },
            _ => ResponseEvent::Completed {
                sequence_number,
                response,
            },
        });
        ended
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

    /// The status of the stream was already sent, so events report the error.
    fn fail(&mut self, error: &ApiError) {
        let failed = self.begun.failed(self.writer.items().to_vec(), error);
        self.log.push(|sequence_number| ResponseEvent::Error {
            sequence_number,
            code: error.code(),
            message: error.message().to_owned(),
            param: error.param().map(str::to_owned),
        });
        self.log.push(|sequence_number| ResponseEvent::Failed {
            sequence_number,
            response: Arc::new(failed),
        });
    }
}
