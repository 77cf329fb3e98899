//! `POST /v1/responses`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;

use super::Responses;
use super::answer::Asked;
use super::background::Script;
use super::events;
use super::ids::{Ids, place_of_item};
use super::items::Item;
use super::journal::{Header, Journal, Journals};
use super::request::{CreateRequest, Prepared, fields_json, input_json, is_in_background, prepare};
use super::response::{Echo, ResponseBody};
use super::store::{Owner, ResponseStore, Turn};
use crate::app::{App, now};
use crate::body::Body;
use crate::error::ApiError;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::pieces;

/// Answers a conversation.
pub(super) async fn create(
    State(responses): State<Responses>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body(body): Body<CreateRequest>,
) -> Result<Response, ApiError> {
    let Responses { app, store, .. } = &responses;
    let journals = responses.journals.clone();
    let journals = journals.filter(|_| is_in_background(&body));
    let journals = journals.map(|journals| (journals, fields_json(&body)));
    let prepared = prepare(body, app, &caller, store.keeps_any())?;
    check_store(store, prepared.echo.store)?;
    let owner = caller.name.clone();
    let ids = Ids::new();
    let previous = previous(app, store, &owner, &prepared.echo)?;
    let Prepared {
        input,
        echo,
        answer,
    } = prepared;
    let earlier_bytes = previous.as_ref().map_or(0, |turn| turn.text_bytes());
    let stored = |id: &str| stored_item(store, &owner, id);
    let referenced_bytes_max = app.access.body_bytes_max - earlier_bytes;
    let input = input.items(&ids, stored, referenced_bytes_max)?;
    let (is_streamed, is_background) = (answer.is_streamed, answer.is_background);
    let begun = ResponseBody::new(ids.response(), now(), echo, is_background);
    let script = Script::new(begun, ids, &answer, app);
    let asked = Asked {
        owner,
        previous,
        input,
        answer,
    };
    let journal = journals.map(|(journals, fields)| {
        let file = journals.file(&script.ids, asked.owner.clone());
        (file, header(&journals, &script, &asked, fields))
    });
    let creation = asked.submit(&responses, &script, caller, log).await?;
    if is_background {
        let mut journal = journal.map(|(file, header)| Journal::begin(file, header));
        if let Some(journal) = &mut journal {
            // A client that has the id finds the response after a restart, too.
            journal.begun().await;
        }
        let recording = creation.in_background(responses, script, journal);
        return Ok(if is_streamed {
            events::streamed(recording.reader(0, None))
        } else {
            pieces::json_response(pieces::pieces(&*recording.response()), recording)
        });
    }
    if is_streamed {
        Ok(events::streamed(creation))
    } else {
        creation.whole().await
    }
}

/// Makes the first part of a journal, which takes as long as the conversation is long.
fn header(
    journals: &Journals,
    script: &Script,
    asked: &Asked,
    fields: String,
) -> impl FnOnce() -> Header + Send + use<> {
    let model = journals.model;
    let key = asked.owner.as_deref().map(str::to_owned);
    let (id, created_at) = (script.ids.random().to_owned(), script.begun.created_at());
    let seed = asked.answer.settings.sampling.seed;
    let (previous, input) = (asked.previous.clone(), asked.input.clone());
    move || Header {
        model,
        key,
        id,
        created_at,
        seed,
        fields,
        input: input_json(&input),
        history: previous.map(|turn| input_json(&turn.history())),
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
    echo: &Echo,
) -> Result<Option<Arc<Turn>>, ApiError> {
    let Some(id) = &echo.previous_response_id else {
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
