//! The layers of a request before its service: its key, and the memory budget of bodies.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::Semaphore;
use tonic::Status;
use vllm_proto::{control_server, inference_server};

use super::fields;
use crate::app::App;
use crate::body::BodyReservation;
use crate::error::ApiError;

/// The state of the layers.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    app: Arc<App>,
    /// Permits to receive a short body. A connection may have many requests, so that their number
    /// is bounded here.
    receiving_permits: Arc<Semaphore>,
}

/// The memory of a message, until its request is made from it.
#[derive(Clone, Debug)]
pub(super) struct MessageMemory(#[expect(dead_code, reason = "held")] Arc<Option<BodyReservation>>);

impl Layers {
    pub(super) fn new(app: &Arc<App>) -> Self {
        let permits = app.access.connections_max as usize;
        Self {
            app: Arc::clone(app),
            receiving_permits: Arc::new(Semaphore::new(permits)),
        }
    }
}

/// Whether a request is for this service.
fn is_for(service: &str, request: &Request) -> bool {
    let path = request.uri().path().strip_prefix('/');
    path.and_then(|path| path.split('/').next()) == Some(service)
}

/// Rejects requests without a valid key. Health needs none.
pub(super) async fn authorize(
    State(layers): State<Layers>,
    mut request: Request,
    next: Next,
) -> Response {
    let keys = &layers.app.keys;
    if is_for(inference_server::SERVICE_NAME, &request) {
        match keys.admit(request.headers()) {
            Ok(caller) => request.extensions_mut().insert(caller),
            Err(error) => return Status::from(error).into_http(),
        };
    } else if is_for(control_server::SERVICE_NAME, &request) {
        match keys.name(request.headers()) {
            Ok(name) => request.extensions_mut().insert(name),
            Err(error) => return Status::from(error).into_http(),
        };
    }
    next.run(request).await
}

/// Receives the message of a request for the model within the budget of bodies, and checks its
/// bounds.
pub(super) async fn receive(
    State(layers): State<Layers>,
    request: Request,
    next: Next,
) -> Response {
    if !is_for(inference_server::SERVICE_NAME, &request) {
        return next.run(request).await;
    }
    match layers.received(request).await {
        Ok(request) => next.run(request).await,
        Err(error) => Status::from(error).into_http(),
    }
}

impl Layers {
    async fn received(&self, request: Request) -> Result<Request, ApiError> {
        let permit = self.receiving_permits.acquire().await;
        let permit = permit.expect("the semaphore is never closed");
        let (mut head, body) = request.into_parts();
        let app = &self.app;
        let received = app.body_receiver.receive(&head, body, &app.access).await?;
        drop(permit);
        let (bytes, reservation) = received.into_parts();
        fields::check(&bytes)?;
        head.extensions.insert(MessageMemory(Arc::new(reservation)));
        Ok(Request::from_parts(head, Body::from(bytes)))
    }
}
