//! Routes, and the layers that every request passes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use motet::{Engine, Shutdown, UserId};

use crate::activity::Activity;
use crate::arguments::{Conduct, StoreSettings};
use crate::body::BodyReceiver;
use crate::error::ApiError;
use crate::keys::Keys;
use crate::log::RequestLog;
use crate::model_names::ModelNames;
use crate::openai::responses::store::ResponseStore;
use crate::openai::responses::{create, stored};
use crate::page::{self, Watchers};
use crate::trace::{RequestHead, RequestTrace, TRACEPARENT, Tracer};
use crate::{access, anthropic, openai, openapi, state, tokens};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest request id that is accepted from a client.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// The state that all routes share.
#[derive(Debug)]
pub struct App {
    pub(crate) engine: Engine,
    /// The model's name in answers.
    pub(crate) model: String,
    /// Its names in requests.
    pub(crate) model_names: ModelNames,
    pub(crate) keys: Keys,
    pub(crate) conduct: Conduct,
    /// The responses that clients can continue and read.
    pub(crate) responses: ResponseStore,
    /// Receives bodies within a memory budget.
    pub(crate) body_receiver: BodyReceiver,
    /// The watchers of the page.
    pub(crate) watchers: Watchers,
    /// The parts of running answers.
    pub(crate) activity: Arc<Activity>,
    /// Names of users that watchers may see.
    pub(crate) names: BTreeMap<UserId, Arc<str>>,
    pub(crate) metrics: Option<PrometheusHandle>,
    /// Records the spans of requests.
    tracer: Tracer,
    /// Start time, in seconds since 1970.
    pub(crate) created: u64,
    /// A random prefix of generated names, which end in a number.
    instance: u32,
    names_given: AtomicU64,
}

impl App {
    /// Creates the server's state from its parts.
    #[must_use]
    pub fn new(engine: Engine, model_names: ModelNames, keys: Keys, conduct: Conduct) -> Self {
        let known = conduct.page_names.then(|| keys.names());
        let names = known.into_iter().flatten();
        Self {
            engine,
            model: model_names.first().to_owned(),
            model_names,
            watchers: Watchers::new(),
            activity: Arc::default(),
            names: names
                .map(|name| (UserId::of(name), Arc::clone(name)))
                .collect(),
            keys,
            responses: ResponseStore::new(StoreSettings::default()),
            body_receiver: BodyReceiver::new(&conduct),
            conduct,
            metrics: None,
            tracer: Tracer::default(),
            created: now(),
            instance: rand::random(),
            names_given: AtomicU64::new(0),
        }
    }

    /// Adds a metrics recorder, which `/metrics` renders.
    #[must_use]
    pub fn metrics(mut self, metrics: PrometheusHandle) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Adds a provider of traces, which records spans of requests and sequences.
    #[cfg(feature = "otel")]
    #[must_use]
    pub fn traces(mut self, provider: &opentelemetry_sdk::trace::SdkTracerProvider) -> Self {
        self.tracer = Tracer::new(provider, self.model.clone());
        self
    }

    /// Sets the bounds of the store of responses, which is empty then.
    #[must_use]
    pub fn store(mut self, settings: StoreSettings) -> Self {
        self.responses = ResponseStore::new(settings);
        self
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the engine, to shut it down.
    #[must_use]
    pub fn into_engine(self) -> Engine {
        self.engine
    }

    /// Accepts no more requests, and returns when all have finished.
    pub async fn drain(&self) {
        self.engine.drain().await;
    }

    /// Accepts no more requests and ends the current ones with an error.
    pub(crate) async fn abort(&self) {
        self.engine.shutdown(Shutdown::Abort).await;
    }

    /// Returns a unique name.
    pub(crate) fn name(&self, prefix: &str) -> String {
        let number = self.names_given.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{:08x}{number:08x}", self.instance)
    }
}

/// The current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The whole server without its socket.
pub fn router(app: Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/v1/chat/completions", post(openai::chat::complete))
        .route("/v1/completions", post(openai::text::complete))
        .route("/v1/responses", post(create::create))
        .route("/v1/responses/{id}", get(stored::get))
        .route("/v1/responses/{id}", delete(stored::delete))
        .route("/v1/responses/{id}/input_items", get(stored::input_items))
        .route("/v1/embeddings", post(openai::embeddings::embed))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/models", get(state::models))
        .route("/v1/models/{*model}", get(state::model))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), authorize));
    let operators = Router::new()
        .route("/metrics", get(state::metrics))
        .route("/openapi.json", get(openapi::describe))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            access::check_operator,
        ));
    Router::new()
        .merge(guarded)
        .merge(operators)
        .merge(page::router())
        .route("/health", get(state::health))
        .route("/ready", get(state::ready))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            access::check_site,
        ))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            log_request,
        ))
        .with_state(app)
}

/// Gives the request its id, its place in a trace and its log line, and checks the size of its
/// headers.
async fn log_request(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let sent = request.headers().get(&REQUEST_ID).cloned();
    let id = sent
        .filter(is_printable)
        .unwrap_or_else(|| HeaderValue::try_from(app.name("req")).expect("it is ASCII"));
    let text = id.to_str().unwrap_or_default().to_owned();
    let (trace, traceparent) = trace(&app, &request);
    let path = request.uri().path().to_owned();
    let log = RequestLog::new(text.clone(), request.method(), &path, trace);
    request.extensions_mut().insert(log.clone());
    let response = if header_bytes(request.headers()) <= app.conduct.header_bytes_max {
        next.run(request).await
    } else {
        ApiError::request(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!(
                "the headers are longer than {} bytes",
                app.conduct.header_bytes_max
            ),
        )
        .into_response()
    };
    log.answered(response.status());
    let mut response = anthropic::errors::reshape(&path, &text, response);
    response.headers_mut().insert(&REQUEST_ID, id);
    response.headers_mut().insert(&TRACEPARENT, traceparent);
    response
}

/// The request's place in its trace, and the header that says so in the answer.
fn trace(app: &App, request: &Request) -> (RequestTrace, HeaderValue) {
    let route = request.extensions().get::<MatchedPath>();
    let head = RequestHead {
        method: request.method().as_str(),
        path: request.uri().path(),
        route: route.map(MatchedPath::as_str),
        headers: request.headers(),
    };
    let trace = RequestTrace::begin(&app.tracer, &head);
    let header = trace.header();
    (trace, header)
}

/// Rejects requests without a valid key, and those above their key's limit.
async fn authorize(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let caller = app.keys.admit(request.headers())?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

fn is_printable(id: &HeaderValue) -> bool {
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

fn header_bytes(headers: &HeaderMap) -> usize {
    let bytes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    bytes.sum()
}

async fn not_found(method: Method, request: Request) -> ApiError {
    let message = format!("there is nothing at {method} {}", request.uri().path());
    ApiError::request(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(method: Method, request: Request) -> ApiError {
    let message = format!("{} does not take {method}", request.uri().path());
    ApiError::request(StatusCode::METHOD_NOT_ALLOWED, message)
}
