//! The layers of a request before its service: its key, and the memory of its message.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use tonic::Status;
use tonic_health::pb::health_server;
use vllm_proto::inference_server;

use super::SMALL_MESSAGE_BYTES_MAX;
use super::fields;
use crate::app::App;
use crate::body::BodyReservation;
use crate::error::ApiError;
use crate::generate::UntilSent;

/// The memory of a message, until its request is made from it.
#[derive(Clone, Debug)]
pub(super) struct MessageMemory(#[expect(dead_code, reason = "held")] Arc<Option<BodyReservation>>);

/// The results of an answer that is sent whole, held until then.
#[derive(Clone)]
pub(super) struct WholeUntilSent(#[expect(dead_code, reason = "held")] Arc<UntilSent>);

impl WholeUntilSent {
    pub(super) fn new(until_sent: UntilSent) -> Self {
        Self(Arc::new(until_sent))
    }
}

/// Whether a request is for this service.
fn is_for(service: &str, request: &Request) -> bool {
    let path = request.uri().path().strip_prefix('/');
    path.and_then(|path| path.split('/').next()) == Some(service)
}

/// Rejects requests without a valid key. Health needs none, and only requests for the model count
/// against the key's limit.
pub(super) async fn authorize(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    if is_for(health_server::SERVICE_NAME, &request) {
        return next.run(request).await;
    }
    let (headers, keys) = (request.headers(), &app.keys);
    let authorized = if is_for(inference_server::SERVICE_NAME, &request) {
        keys.admit(headers).map(|caller| {
            request.extensions_mut().insert(caller);
        })
    } else {
        keys.name(headers).map(|name| {
            request.extensions_mut().insert(name);
        })
    };
    match authorized {
        Ok(()) => next.run(request).await,
        Err(error) => Status::from(error).into_http(),
    }
}

/// Receives the whole message within the budget of bodies, and checks the bounds of one for the model.
/// An answer that is sent whole holds its results until it is sent.
pub(super) async fn receive(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match received(&app, request).await {
        Ok(request) => next.run(request).await,
        Err(error) => return Status::from(error).into_http(),
    };
    let Some(held) = response.extensions_mut().remove::<WholeUntilSent>() else {
        return response;
    };
    response.map(|body| {
        let frames = body.map_frame(move |frame| {
            let _held = &held;
            frame
        });
        Body::new(frames)
    })
}

async fn received(app: &App, request: Request) -> Result<Request, ApiError> {
    let is_for_model = is_for(inference_server::SERVICE_NAME, &request);
    let bytes_max = if is_for_model {
        app.access.body_bytes_max
    } else {
        SMALL_MESSAGE_BYTES_MAX
    };
    let (mut head, body) = request.into_parts();
    let receiver = &app.body_receiver;
    let received = receiver.receive_message(&head, body, bytes_max, &app.access);
    let (bytes, reservation) = received.await?.into_parts();
    if is_for_model {
        fields::check(&bytes)?;
    }
    head.extensions.insert(MessageMemory(Arc::new(reservation)));
    Ok(Request::from_parts(head, Body::from(bytes)))
}
