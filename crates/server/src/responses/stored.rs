//! The routes that read the store of responses.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Serialize;

use super::Responses;
use super::background::Recording;
use super::events;
use super::items::Item;
use super::store::{ResponseStore, Turn};
use crate::error::ApiError;
use crate::kept::KeptResults;
use crate::keys::Caller;
use crate::pieces::{self, Deferred};

/// Most items of a list, and the default.
pub(crate) const LIMIT_MAX: usize = 100;
pub(crate) const LIMIT: usize = 20;

/// A list of the items of a request.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ItemList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Deferred<Vec<Item>>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// The answer to a deletion.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Deleted {
    id: String,
    #[schemars(extend("const" = "response"))]
    object: &'static str,
    #[schemars(extend("const" = true))]
    deleted: bool,
}

/// The settings of a list, in the query.
#[derive(Debug, PartialEq, Eq)]
struct ListQuery {
    limit: usize,
    /// Whether the newest item is the first.
    is_descending: bool,
    /// The id of the item before the first.
    after: Option<String>,
}

/// The settings of a read, in the query.
#[derive(Debug, Default)]
struct ReadQuery {
    is_streamed: bool,
    /// The number of the first event.
    from: u64,
}

/// A part of a request's items.
#[derive(Debug)]
struct Page {
    items: Vec<Arc<Item>>,
    has_more: bool,
}

type Named = Result<Path<String>, PathRejection>;

/// `GET /v1/responses/{id}`: the response, or its events if it is in the background.
pub(super) async fn get(
    State(responses): State<Responses>,
    Extension(caller): Extension<Caller>,
    named: Named,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = ReadQuery::parse(query.as_deref())?;
    let id = id(named)?;
    if query.is_streamed {
        let recording = recording(&responses, &caller, &id, || {
            let message = "`stream` is \"true\"; the events of this response are not kept: they are while it is \
                           answered with `background`, and for --background-seconds after its end";
            ApiError::unprocessable("stream", message)
        })?;
        let user = caller.name.as_deref();
        // Each reader writes the response for itself.
        let bytes = recording.bytes();
        let kept = KeptResults::of_bytes(&responses.app, user, bytes, "stream")?;
        let reader = recording.reader(query.from, Some((caller, kept)));
        return Ok(events::streamed(reader));
    }
    if let Some(recording) = responses.background.get(&caller.name, &id) {
        let body = pieces::pieces(&*recording.response());
        return Ok(pieces::json_response(body, (recording, caller)));
    }
    let turn = turn(&responses.store, &caller, &id)?;
    // The turn stays in memory, and counted, until it is sent.
    Ok(pieces::json_response(turn.body(), (turn, caller)))
}

/// `POST /v1/responses/{id}/cancel`: ends a response that is in the background.
pub(super) async fn cancel(
    State(responses): State<Responses>,
    Extension(caller): Extension<Caller>,
    named: Named,
) -> Result<Response, ApiError> {
    let id = id(named)?;
    let recording = recording(&responses, &caller, &id, || {
        let message = "this response is not in the background: it has ended";
        ApiError::request(StatusCode::BAD_REQUEST, message)
    })?;
    recording.cancel();
    recording.ended().await;
    let body = pieces::pieces(&*recording.response());
    Ok(pieces::json_response(body, (recording, caller)))
}

/// `DELETE /v1/responses/{id}`.
pub(super) async fn delete(
    State(responses): State<Responses>,
    Extension(caller): Extension<Caller>,
    named: Named,
) -> Result<Json<Deleted>, ApiError> {
    let id = id(named)?;
    let was_in_background = responses.background.remove(&caller.name, &id);
    if !responses.store.remove(&caller.name, &id) && !was_in_background {
        return Err(unknown(&responses.store, &id));
    }
    Ok(Json(Deleted {
        id,
        object: "response",
        deleted: true,
    }))
}

/// `GET /v1/responses/{id}/input_items`: the items of the response's own request.
pub(super) async fn input_items(
    State(responses): State<Responses>,
    Extension(caller): Extension<Caller>,
    named: Named,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = ListQuery::parse(query.as_deref())?;
    let turn = turn(&responses.store, &caller, &id(named)?)?;
    let list = query.list(turn.input())?.list();
    Ok(pieces::json_response(pieces::pieces(&list), (turn, caller)))
}

fn id(named: Named) -> Result<String, ApiError> {
    let Path(id) = named
        .map_err(|rejected| ApiError::request(StatusCode::BAD_REQUEST, rejected.body_text()))?;
    Ok(id)
}

fn turn(store: &ResponseStore, caller: &Caller, id: &str) -> Result<Arc<Turn>, ApiError> {
    let turn = store.get(&caller.name, id);
    turn.ok_or_else(|| unknown(store, id))
}

/// The recording of a response. `over` makes the error of one that is stored, and recorded no more.
fn recording(
    responses: &Responses,
    caller: &Caller,
    id: &str,
    over: impl FnOnce() -> ApiError,
) -> Result<Arc<Recording>, ApiError> {
    if let Some(recording) = responses.background.get(&caller.name, id) {
        return Ok(recording);
    }
    turn(&responses.store, caller, id)?;
    Err(over())
}

fn unknown(store: &ResponseStore, id: &str) -> ApiError {
    ApiError::response_not_found(id, &store.bounds())
}

/// The names and values of a query.
fn pairs(query: Option<&str>) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes())
}

fn invalid(name: &str, value: &str, expected: &str) -> ApiError {
    let message = format!("`{name}` is {value:?}; expected {expected}");
    ApiError::field(name, message)
}

impl ReadQuery {
    fn parse(query: Option<&str>) -> Result<Self, ApiError> {
        let mut parsed = Self::default();
        for (name, value) in pairs(query) {
            let invalid = |expected| invalid(&name, &value, expected);
            match &*name {
                "stream" => {
                    let is_streamed = value.parse().ok();
                    parsed.is_streamed = is_streamed.ok_or_else(|| invalid("true or false"))?;
                }
                "starting_after" => {
                    let after = value.parse::<u64>().ok();
                    let after = after.ok_or_else(|| invalid("the number of an event"))?;
                    parsed.from = after.saturating_add(1);
                }
                _ => {}
            }
        }
        if parsed.from > 0 && !parsed.is_streamed {
            let message = "`starting_after` is set; expected it with `stream=true`";
            return Err(ApiError::field("starting_after", message));
        }
        Ok(parsed)
    }
}

impl ListQuery {
    fn parse(query: Option<&str>) -> Result<Self, ApiError> {
        let mut parsed = Self {
            limit: LIMIT,
            is_descending: true,
            after: None,
        };
        for (name, value) in pairs(query) {
            let invalid = |expected| invalid(&name, &value, expected);
            match &*name {
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    parsed.limit = limit.ok_or_else(|| invalid("1 to 100"))?;
                }
                "order" => {
                    parsed.is_descending = match &*value {
                        "asc" => false,
                        "desc" => true,
                        _ => return Err(invalid("asc or desc")),
                    }
                }
                "after" => parsed.after = Some(value.into_owned()),
                _ => {}
            }
        }
        Ok(parsed)
    }

    fn list(&self, items: &[Arc<Item>]) -> Result<Page, ApiError> {
        let mut ordered: Vec<&Arc<Item>> = items.iter().collect();
        if self.is_descending {
            ordered.reverse();
        }
        let start = match &self.after {
            None => 0,
            Some(after) => {
                let position = ordered.iter().position(|item| item.id() == *after);
                let unknown = || {
                    let message = format!("`after` is {after:?}, which is no item of the request");
                    ApiError::field("after", message)
                };
                position.ok_or_else(unknown)? + 1
            }
        };
        let rest = &ordered[start..];
        let page = rest.iter().take(self.limit);
        let items: Vec<Arc<Item>> = page.map(|item| Arc::clone(item)).collect();
        Ok(Page {
            has_more: items.len() < rest.len(),
            items,
        })
    }
}

impl Page {
    fn list(self) -> ItemList {
        let Self { items, has_more } = self;
        ItemList {
            object: "list",
            first_id: items.first().map(|item| item.id().to_owned()),
            last_id: items.last().map(|item| item.id().to_owned()),
            has_more,
            data: Deferred::list(move || items.clone().into_iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responses::items::Role;

    fn ids(query: &str) -> Result<(Vec<String>, bool), ApiError> {
        let items: Vec<Arc<Item>> = (0..30)
            .map(|number| Item::message(number.to_string(), Role::User, "x".into()))
            .map(Arc::new)
            .collect();
        let page = ListQuery::parse(Some(query))?.list(&items)?;
        let ids: Vec<String> = page.items.iter().map(|item| item.id().to_owned()).collect();
        let list = page.list();
        assert_eq!(list.first_id.as_ref(), ids.first());
        assert_eq!(list.last_id.as_ref(), ids.last());
        let data = serde_json::to_value(&list.data).expect("JSON");
        assert_eq!(data.as_array().map(Vec::len), Some(ids.len()));
        Ok((ids, list.has_more))
    }

    #[test]
    fn items_are_listed_by_pages() {
        let (newest, has_more) = ids("").expect("a page");
        assert_eq!((newest.len(), &*newest[0], has_more), (LIMIT, "29", true));
        let check = |query: &str, expected: &[&str], expected_more: bool| {
            let (found, has_more) = ids(query).expect(query);
            assert_eq!(
                (found, has_more),
                (
                    expected.iter().map(|id| (*id).to_owned()).collect(),
                    expected_more
                ),
                "{query}"
            );
        };
        check("order=asc&limit=2", &["0", "1"], true);
        check("order=asc&limit=2&after=1", &["2", "3"], true);
        check(
            "order=asc&limit=2&after=27&include%5B%5D=x",
            &["28", "29"],
            false,
        );
        check("order=desc&limit=100&after=1", &["0"], false);
        check("after=0", &[], false);
    }

    #[test]
    fn invalid_queries_are_rejected_by_field() {
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=x", "limit"),
            ("order=up", "order"),
            ("after=30", "after"),
        ] {
            let error = ids(query).expect_err(query);
            let body = serde_json::to_value(error.body()).expect("JSON");
            assert_eq!(body["error"]["param"], field);
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
        }
    }
}
