//! Responses that an earlier run of the server has answered, in part or whole.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, Method, StatusCode};
use motet::TokenId;
use motet::chat::ChatEvent;
use tokio::time::Instant;

use super::Responses;
use super::answer::{Asked, Creation, keep};
use super::background::{EVENT_BYTES, RECORDING_BYTES, Recording, Script};
use super::ids::Ids;
use super::items::Item;
use super::journal::{Entry, Header, Journal, JournalFile, Saved};
use super::progress::Outcome;
use super::record::Retention;
use super::request::{CreateRequest, Prepared, prepare, set_input, take_input};
use super::response::{End, ResponseBody};
use crate::app::{App, now};
use crate::body;
use crate::error::{ApiError, ErrorCode};
use crate::kept::{KeptResults, row_bytes};
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::trace::{RequestHead, RequestTrace};

/// A response whose request is read again.
#[derive(Debug)]
struct Resumed {
    asked: Asked,
    script: Script,
    entries: Vec<Entry>,
    file: Arc<JournalFile>,
}

/// Goes on with the answers that journals have, and keeps those that have ended as long as they would be kept
/// without a restart.
pub(super) fn resume(responses: &Responses) {
    let saved = responses.journals.iter().flat_map(|all| all.read());
    let saved: Vec<Saved> = saved.collect();
    // The store forgets the oldest first, and continues earlier turns with later ones.
    for saved in saved.into_iter().rev() {
        let file = Arc::clone(&saved.file);
        if let Err(error) = resume_one(responses, saved) {
            tracing::warn!("a response is not continued: {}", error.message());
            file.remove_later();
        }
    }
}

fn resume_one(responses: &Responses, saved: Saved) -> Result<(), ApiError> {
    let Responses { app, .. } = responses;
    let since = |end: &End| Duration::from_secs(now().saturating_sub(end.at));
    let since = saved.end.as_ref().map(since);
    if since.is_some_and(|since| since > app.store_settings.background_time()) {
        saved.file.remove_later();
        return Ok(());
    }
    let keys = &app.keys;
    let caller = keys.caller(saved.header.key.as_deref());
    let caller = caller.ok_or_else(|| conflict("there is no such key any more"))?;
    let (asked, script) = asked(responses, &saved.header, &caller)?;
    let resumed = Resumed {
        asked,
        script,
        entries: saved.entries,
        file: saved.file,
    };
    match saved.end.zip(since) {
        Some((end, since)) => resumed.retain(responses, &end, since),
        None => {
            let place = keys.place(&caller);
            let caller = place.ok_or_else(|| conflict("its key has no place for it"))?;
            resumed.go_on(responses.clone(), caller);
            Ok(())
        }
    }
}

/// The request of a journal, as it was.
fn asked(
    responses: &Responses,
    header: &Header,
    caller: &Caller,
) -> Result<(Asked, Script), ApiError> {
    let Responses { app, store, .. } = responses;
    let owner = caller.name.clone();
    let ids = Ids::of(&header.id);
    let mut body: CreateRequest = body::read(header.fields.as_bytes())?;
    let mut input: CreateRequest = body::read(header.input.as_bytes())?;
    set_input(&mut body, take_input(&mut input));
    let prepared = prepare(body, app, caller, store.keeps_any())?;
    let Prepared {
        input,
        echo,
        mut answer,
    } = prepared;
    answer.settings.sampling.seed = header.seed;
    let history = header.history.as_ref().map(|history| {
        let previous = echo.previous_response_id.as_ref();
        if let Some(turn) = previous.and_then(|id| store.get(&owner, id)) {
            return Ok(turn);
        }
        let mut earlier: CreateRequest = body::read(history.as_bytes())?;
        let items = take_input(&mut earlier).ok_or_else(|| conflict("it has no history"))?;
        let held = store.hold(&owner, &ids.response(), whole(items, &ids)?);
        held.ok_or_else(|| conflict("there is no space in the store for its conversation"))
    });
    let asked = Asked {
        owner,
        previous: history.transpose()?,
        input: whole(input, &ids)?,
        answer,
    };
    let begun = ResponseBody::new(ids.response(), header.created_at, echo, true);
    let script = Script::new(begun, ids, &asked.answer, app);
    Ok((asked, script))
}

/// Items without references: these were followed before the items were written.
fn whole(input: super::input::Input, ids: &Ids) -> Result<Vec<Arc<Item>>, ApiError> {
    input.items(ids, |_| None, 0)
}

impl Resumed {
    /// Keeps an answer that has ended since so long, for the rest of its time.
    fn retain(self, responses: &Responses, end: &End, since: Duration) -> Result<(), ApiError> {
        let app = &responses.app;
        let Self { asked, script, .. } = self;
        let retention = Retention::new(responses, &asked.owner, &script);
        let mut progress = script.progress(false);
        let recording = Arc::new(Recording::new(script, Some(self.file)));
        for event in events(self.entries) {
            let bytes = recorded_bytes(&event);
            progress.push(event.clone());
            recording.push(event, bytes);
        }
        let response = progress.ended(end);
        let bytes = recording.bytes() + response.bytes() + RECORDING_BYTES;
        let user = asked.answer.settings.user.as_deref();
        let kept = KeptResults::of_bytes(app, user, bytes, "background")?;
        let Asked {
            owner,
            previous,
            input,
            ..
        } = asked;
        keep(&responses.store, &owner, &response, previous, input);
        let at = Instant::now();
        let at = at.checked_sub(since).unwrap_or(at);
        recording.end(
            Outcome::Ended(Arc::clone(&response)),
            response,
            Some(kept),
            at,
        );
        responses.background.insert(&owner, &recording);
        tokio::spawn(retention.wait(since));
        Ok(())
    }

    /// Goes on with an answer, on a task of its own.
    fn go_on(self, responses: Responses, caller: Caller) {
        let Self {
            mut asked,
            script,
            entries,
            file,
        } = self;
        let tokens: Vec<TokenId> = entries.iter().flat_map(|e| e.tokens.clone()).collect();
        tracing::info!(output_tokens = tokens.len(), "going on with a response");
        asked.answer.settings.output_so_far = tokens;
        let retention = Retention::new(&responses, &asked.owner, &script);
        let journal = Journal::resumed(Arc::clone(&file), entries.len());
        let recording = Arc::new(Recording::new(script, Some(file)));
        responses.background.insert(&asked.owner, &recording);
        tokio::spawn(async move {
            let log = log(&responses.app);
            let submitted = asked
                .submit(&responses, recording.script(), caller, log)
                .await;
            let begun = submitted.and_then(|mut creation| {
                recorded(&mut creation, entries, &recording)?;
                Ok(creation)
            });
            match begun {
                Ok(creation) => creation.answer(responses, recording, Some(journal)).await,
                Err(error) if error.code() == Some(ErrorCode::Draining) => recording.hand_over(),
                Err(error) => {
                    drop(responses);
                    recording.end_failed(error);
                    drop(recording);
                    retention.wait(Duration::ZERO).await;
                }
            }
        });
    }
}

/// Records the events that an earlier run had.
fn recorded(
    creation: &mut Creation,
    entries: Vec<Entry>,
    recording: &Recording,
) -> Result<(), ApiError> {
    for event in events(entries) {
        if let Some(Outcome::Failed(error)) = creation.record_event(Ok(event), recording, None) {
            return Err(error);
        }
    }
    Ok(())
}

fn events(entries: Vec<Entry>) -> impl Iterator<Item = ChatEvent> {
    let events = entries.into_iter().flat_map(|entry| entry.events);
    events.map(ChatEvent::from)
}

/// Bytes of an event in a recording.
fn recorded_bytes(event: &ChatEvent) -> usize {
    let ChatEvent::Delta { delta, logprobs } = event else {
        return 0;
    };
    let rows = logprobs.iter().map(|(_, row)| row_bytes(row.top.len()));
    delta.bytes() + EVENT_BYTES + rows.sum::<usize>()
}

/// The log line of an answer whose client is not there.
fn log(app: &App) -> RequestLog {
    let (method, path) = (Method::POST, "/v1/responses");
    let headers = HeaderMap::new();
    let head = RequestHead {
        method: method.as_str(),
        path,
        route: Some(path),
        headers: &headers,
    };
    let trace = RequestTrace::begin(&app.tracer, &head);
    let log = RequestLog::new(app.name("req"), &method, path, trace);
    log.answered(StatusCode::OK, &headers);
    log
}

fn conflict(why: &str) -> ApiError {
    ApiError::request(StatusCode::CONFLICT, why)
}
