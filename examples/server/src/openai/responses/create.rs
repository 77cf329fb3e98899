//! `POST /v1/responses`.

use std::convert::Infallible;
use std::mem;
use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use motet::request::Usage;
use motet::text::Message;

use super::events::{EventLog, ResponseEvent};
use super::ids::{Ids, response_of_item};
use super::items::{Item, ItemStatus, Logprob};
use super::messages::messages;
use super::request::{CreateRequest, NAMES, Prepared, prepare};
use super::response::{ResponseBody, Status};
use super::store::{NewTurn, Owner, Turn};
use super::writer::OutputWriter;
use crate::app::App;
use crate::body::Body;
use crate::conversation::{
    AnswerEnd, AnswerEvent, Answers, ConversationRequest, ScoredToken, chat_of, continue_last,
};
use crate::error::ApiError;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::openai::answer::KEEP_ALIVE;

/// A response that is being answered.
#[derive(Debug)]
struct Creation {
    app: Arc<App>,
    owner: Owner,
    answers: Answers,
    /// The response without output.
    begun: ResponseBody,
    writer: OutputWriter,
    log: EventLog,
    /// The turn before this one and the request's items, to be kept with the answer.
    previous: Option<Arc<Turn>>,
    input: Vec<Item>,
    has_logprobs: bool,
}

/// How an answer ended.
#[derive(Debug)]
enum Outcome {
    Ended(Bytes),
    Failed(ApiError),
}

/// Answers a conversation.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body(body): Body<CreateRequest>,
) -> Result<Response, ApiError> {
    let prepared = prepare(body, &app, &caller)?;
    check_store(&app, prepared.echo.store)?;
    let owner = caller.name.clone();
    let ids = Ids::new();
    let previous = previous(&app, &owner, &prepared)?;
    let stored = |id: &str| stored_item(&app, &owner, id);
    let input = prepared.input.items(&ids, stored)?;
    let messages = conversation(
        prepared.echo.instructions.as_deref(),
        previous.as_deref(),
        &input,
    )?;
    let mut chat = chat_of(&app, messages, prepared.variables);
    if prepared.continues_last {
        continue_last(&mut chat, "continue_final_message")?;
    }
    let has_logprobs = prepared.request.logprobs.is_some();
    // A response that is not kept needs neither while it is answered.
    let is_kept = prepared.echo.store;
    let previous = previous.filter(|_| is_kept);
    let input = if is_kept { input } else { Vec::new() };
    let request = ConversationRequest {
        chat,
        tools: prepared.tools,
        reasoning: prepared.reasoning,
        output_format: prepared.output_format,
        request: prepared.request,
        names: NAMES,
    };
    let answers = request.submit(&app, caller, log).await?;
    let creation = Creation {
        app,
        owner,
        answers,
        begun: ResponseBody::new(ids.response(), prepared.echo),
        writer: OutputWriter::new(ids.clone(), prepared.has_summary),
        log: EventLog::new(prepared.is_streamed),
        previous,
        input,
        has_logprobs,
    };
    if prepared.is_streamed {
        Ok(creation.streamed())
    } else {
        creation.whole().await
    }
}

fn check_store(app: &App, is_asked: bool) -> Result<(), ApiError> {
    if is_asked && !app.responses.keeps_any() {
        let message = "`store` is true; this server keeps no responses";
        return Err(ApiError::unprocessable("store", message));
    }
    Ok(())
}

/// The turn that the request continues.
fn previous(app: &App, owner: &Owner, prepared: &Prepared) -> Result<Option<Arc<Turn>>, ApiError> {
    let Some(id) = &prepared.echo.previous_response_id else {
        return Ok(None);
    };
    let turn = app.responses.get(owner, id);
    let unknown = || ApiError::previous_response_not_found(id, &app.responses.bounds());
    turn.ok_or_else(unknown).map(Some)
}

/// The item with this id, if the store has it.
fn stored_item(app: &App, owner: &Owner, id: &str) -> Option<Item> {
    let turn = app.responses.get(owner, &response_of_item(id)?)?;
    let mut items = turn.input().iter().chain(turn.output());
    items.find(|item| item.id() == id).cloned()
}

fn conversation(
    instructions: Option<&str>,
    previous: Option<&Turn>,
    input: &[Item],
) -> Result<Vec<Message>, ApiError> {
    let history = previous.map(Turn::history).unwrap_or_default();
    messages(instructions, &history, input)
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
        Ok(json(body))
    }

    /// Streams the events as they come. When the client disconnects, the stream and the answer
    /// are dropped. A client that reads slowly pauses it.
    fn streamed(mut self) -> Response {
        let begun = &self.begun;
        self.log.push(|sequence_number| ResponseEvent::Created {
            sequence_number,
            response: Box::new(begun.clone()),
        });
        self.log.push(|sequence_number| ResponseEvent::InProgress {
            sequence_number,
            response: Box::new(begun.clone()),
        });
        let events = stream::unfold(self, |mut creation| async {
            let event = creation.next().await?;
            Some((Ok::<_, Infallible>(event.sent()), creation))
        });
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
        Sse::new(events).keep_alive(keep_alive).into_response()
    }

    async fn next(&mut self) -> Option<ResponseEvent> {
        loop {
            if let Some(event) = self.log.pop() {
                return Some(event);
            }
            let (_, event) = self.answers.next().await?;
            self.read(event);
        }
    }

    /// Adds an event of the answer to the response. The last one has an outcome.
    fn read(&mut self, event: AnswerEvent) -> Option<Outcome> {
        match event {
            AnswerEvent::Prefilled(_) => None,
            AnswerEvent::Piece { piece, logprobs } => {
                let logprobs = self.logprobs(&logprobs);
                self.writer.push(piece, logprobs, &mut self.log);
                None
            }
            AnswerEvent::Ended { end, usage } => Some(Outcome::Ended(self.end(end, usage))),
            AnswerEvent::Failed(error) => {
                self.fail(&error);
                Some(Outcome::Failed(error))
            }
        }
    }

    fn logprobs(&self, scored: &[ScoredToken]) -> Vec<Logprob> {
        let text = self.app.engine.text().filter(|_| self.has_logprobs);
        let Some(text) = text else { return Vec::new() };
        let scored = scored.iter();
        scored.map(|scored| Logprob::of(scored, text)).collect()
    }

    /// Completes the response, keeps it if the request asks for that, and returns it as JSON.
    fn end(&mut self, end: AnswerEnd, usage: Usage) -> Bytes {
        let (status, item_status) = match end {
            AnswerEnd::Length => (Status::Incomplete, ItemStatus::Incomplete),
            AnswerEnd::Stop | AnswerEnd::StopString | AnswerEnd::Calls => {
                (Status::Completed, ItemStatus::Completed)
            }
        };
        self.writer.finish(item_status, &mut self.log);
        let output = self.writer.take_items();
        let ended = self.begun.ended(status, output.clone(), usage);
        let body = serde_json::to_vec(&ended).expect("its keys are strings");
        let body = Bytes::from(body);
        if ended.echo().store {
            self.keep(output, body.clone());
        }
        self.log.push(|sequence_number| {
            let response = Box::new(ended);
            match status {
                Status::Incomplete => ResponseEvent::Incomplete {
                    sequence_number,
                    response,
                },
                _ => ResponseEvent::Completed {
                    sequence_number,
                    response,
                },
            }
        });
        body
    }

    fn keep(&mut self, output: Vec<Item>, body: Bytes) {
        let turn = NewTurn {
            id: self.begun.id().to_owned(),
            previous: self.previous.take(),
            input: mem::take(&mut self.input),
            output,
            body,
        };
        if !self.app.responses.insert(&self.owner, turn) {
            tracing::debug!("a conversation is longer than the store of responses");
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
            response: Box::new(failed),
        });
    }
}

/// An answer that is JSON already.
pub(super) fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
