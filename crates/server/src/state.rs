//! Routes for models, health and metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use motet::HealthState;
use schemars::JsonSchema;
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use crate::{access, fleet};

/// The answer of `/v1/models`: the one model under each of its names.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Models {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<Model>,
}

/// A model.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Model {
    id: String,
    #[schemars(extend("const" = "model"))]
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    max_model_len: usize,
}

/// The state of this process.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "State")]
pub(crate) struct StateAnswer {
    /// The other fields are for the operator; others see `busy` as `ready`
    state: StateName,
    #[serde(flatten)]
    details: Option<StateDetails>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct StateDetails {
    reason: Option<String>,
    running: usize,
    waiting: usize,
    paused: usize,
    disk_degraded: bool,
    pager_lost: bool,
    /// Why the model's files cannot be trusted any more, if so
    files_changed: Option<String>,
}

/// The name of a state.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum StateName {
    Ready,
    Busy,
    Draining,
    Stopped,
    Recovering,
    Broken,
    Dead,
}

/// `GET /v1/models`.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Models> {
    let names = app.model_names.listed();
    Json(Models {
        object: "list",
        data: names.map(|name| description(&app, name)).collect(),
    })
}

/// `GET /v1/models/{model}`.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    named: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, ApiError> {
    let Path(named) = named
        .map_err(|rejected| ApiError::request(StatusCode::BAD_REQUEST, rejected.body_text()))?;
    app.model_names.check(Some(&named))?;
    Ok(Json(description(&app, &named)))
}

/// The one model under that name.
fn description(app: &App, name: &str) -> Model {
    Model {
        id: name.to_owned(),
        object: "model",
        created: app.created,
        owned_by: "motet",
        max_model_len: app.engine.model().context_tokens_max,
    }
}

/// `GET /health`: whether this process works; if not, restart it.
pub(crate) async fn health(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let health = app.engine.health();
    let is_lost = matches!(health.state, HealthState::Broken { .. } | HealthState::Dead);
    answer(&app, &headers, !is_lost && health.files_changed.is_none())
}

/// `GET /ready`: whether requests are accepted.
pub(crate) async fn ready(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let health = app.engine.health();
    let is_open = matches!(health.state, HealthState::Ready | HealthState::Busy);
    answer(&app, &headers, is_open && health.files_changed.is_none())
}

/// The bare state is for all callers, as load balancers have no key. The load and the reasons
/// of failures concern all tenants, so they are for the operator.
fn answer(app: &App, headers: &HeaderMap, is_well: bool) -> Response {
    let health = app.engine.health();
    let status = if is_well {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    if access::authorize_operator(app, headers).is_err() {
        let state = match health.state {
            // The load of others is such a detail.
            HealthState::Busy => StateName::Ready,
            state => StateName::from(&state),
        };
        let details = None;
        return (status, Json(StateAnswer { state, details })).into_response();
    }
    let state = StateName::from(&health.state);
    let reason = match health.state {
        HealthState::Broken { reason } => Some(reason),
        _ => None,
    };
    let details = Some(StateDetails {
        reason,
        running: health.running,
        waiting: health.waiting,
        paused: health.paused,
        disk_degraded: health.disk_degraded,
        pager_lost: health.pager_lost,
        files_changed: health.files_changed,
    });
    (status, Json(StateAnswer { state, details })).into_response()
}

impl From<&HealthState> for StateName {
    fn from(state: &HealthState) -> Self {
        match state {
            HealthState::Ready => Self::Ready,
            HealthState::Busy => Self::Busy,
            HealthState::Draining => Self::Draining,
            HealthState::Stopped => Self::Stopped,
            HealthState::Recovering { .. } => Self::Recovering,
            HealthState::Broken { .. } => Self::Broken,
            _ => Self::Dead,
        }
    }
}

/// `GET /metrics`, in Prometheus' text format.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    match &app.metrics {
        Some(metrics) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            let text = metrics.render() + &fleet::metrics::render(&app.engine, &app.model);
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        None => ApiError::request(StatusCode::NOT_FOUND, "no metrics are recorded").into_response(),
    }
}
