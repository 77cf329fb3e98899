//! `grpc.health.v1.Health`: whether requests are accepted. Like `/ready`, it needs no key.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream;
use motet::HealthState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};
use vllm_proto::{control_server, inference_server};

use crate::app::App;

/// Most clients that watch at once: routers, of which there are few.
const WATCHERS_MAX: usize = 64;
/// Time between two looks at the engine's health.
const INTERVAL: Duration = Duration::from_millis(250);

/// The service.
#[derive(Debug)]
pub(super) struct Health {
    app: Arc<App>,
    watchers: Arc<Semaphore>,
}

impl Health {
    pub(super) fn new(app: &Arc<App>) -> Self {
        Self {
            app: Arc::clone(app),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
        }
    }
}

/// Whether requests are accepted now.
fn serving(app: &App) -> ServingStatus {
    let health = app.engine.health();
    let is_open = matches!(health.state, HealthState::Ready | HealthState::Busy);
    if is_open && health.files_changed.is_none() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

/// Whether a service of this name is here. The empty name is the whole server.
fn is_known(service: &str) -> bool {
    [
        "",
        inference_server::SERVICE_NAME,
        control_server::SERVICE_NAME,
    ]
    .contains(&service)
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(&request.get_ref().service) {
            return Err(Status::not_found("there is no such service here"));
        }
        Ok(Response::new(answer(serving(&self.app))))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let permit = Arc::clone(&self.watchers).try_acquire_owned();
        let permit = permit.map_err(|_| {
            let message = format!("{WATCHERS_MAX} clients watch already: ask with `Check`");
            Status::resource_exhausted(message)
        })?;
        let watch = Watch {
            app: Arc::clone(&self.app),
            is_known: is_known(&request.get_ref().service),
            last: None,
            _permit: permit,
        };
        let changes = stream::unfold(watch, |mut watch| async {
            let status = watch.next().await?;
            Some((Ok(answer(status)), watch))
        });
        Ok(Response::new(Box::pin(changes)))
    }
}

/// A client that watches.
struct Watch {
    app: Arc<App>,
    /// Whether there is a service of the name that it watches.
    is_known: bool,
    /// The status that it knows.
    last: Option<ServingStatus>,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    /// Waits for another status; `None` once the server ends and the client knows it.
    async fn next(&mut self) -> Option<ServingStatus> {
        loop {
            let now = if self.is_known {
                serving(&self.app)
            } else {
                ServingStatus::ServiceUnknown
            };
            if self.last != Some(now) {
                self.last = Some(now);
                return Some(now);
            }
            if has_ended(&self.app) {
                return None;
            }
            sleep(INTERVAL).await;
        }
    }
}

/// Whether no more requests will be accepted.
fn has_ended(app: &App) -> bool {
    !matches!(
        app.engine.health().state,
        HealthState::Ready | HealthState::Busy | HealthState::Recovering { .. }
    )
}
