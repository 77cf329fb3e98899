//! Routes, and the layers that every request passes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::app::App;
use crate::error::ApiError;
use crate::log::RequestLog;
use crate::trace::{RequestHead, RequestTrace, TRACEPARENT};
use crate::{access, anthropic, openai, openapi, page, responses, state, tokens};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest request id that is accepted from a client.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// The whole server without its socket. Each call makes a store of responses of its own: clone the router to share it.
pub fn router(app: Arc<App>) -> Router {
    let responses = responses::routers(&app);
    let guarded = Router::new()
        .route("/v1/chat/completions", post(openai::chat::complete))
        .route("/v1/completions", post(openai::text::complete))
        .route("/v1/embeddings", post(openai::embeddings::embed))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/models", get(state::models))
        .route("/v1/models/{*model}", get(state::model))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .merge(responses.create)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), authorize));
    let readers = responses.read.route_layer(middleware::from_fn_with_state(
        Arc::clone(&app),
        authorize_reader,
    ));
    let operators = Router::new()
        .route("/metrics", get(state::metrics))
        .route("/openapi.json", get(openapi::describe))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            access::check_operator,
        ));
    Router::new()
        .merge(guarded)
        .merge(readers)
        .merge(operators)
        .merge(page::router(&app))
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
pub(crate) async fn log_request(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let sent = request.headers().get(&REQUEST_ID).cloned();
    let id = sent
        .filter(is_printable)
        .unwrap_or_else(|| HeaderValue::try_from(app.name("req")).expect("it is ASCII"));
    let text = id.to_str().unwrap_or_default().to_owned();
    let (trace, traceparent) = trace(&app, &request);
    let path = request.uri().path().to_owned();
    let log = RequestLog::new(text.clone(), request.method(), &path, trace);
    request.extensions_mut().insert(log.clone());
    let response = if header_bytes(request.headers()) <= app.access.header_bytes_max {
        next.run(request).await
    } else {
        ApiError::request(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!(
                "the headers are longer than {} bytes",
                app.access.header_bytes_max
            ),
        )
        .into_response()
    };
    log.answered(response.status(), response.headers());
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

/// Rejects reads of responses without a valid key, and those above its limit of readers.
async fn authorize_reader(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let caller = app.keys.admit_reader(request.headers())?;
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
