//! `grpc.health.v1.Health`: whether requests are accepted. Like `/ready`, it needs no key.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream;
use motet::HealthState;
use tokio::time::sleep;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};
use vllm_proto::{control_server, inference_server};

use crate::app::App;

/// Time between two looks at the engine's health.
const INTERVAL: Duration = Duration::from_millis(250);

/// The service.
#[derive(Debug)]
pub(super) struct Health(Arc<App>);

impl Health {
    pub(super) fn new(app: &Arc<App>) -> Self {
        Self(Arc::clone(app))
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
        Ok(Response::new(answer(serving(&self.0))))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let app = Arc::clone(&self.0);
        let is_known = is_known(&request.get_ref().service);
        let changes = stream::unfold(None, move |last: Option<ServingStatus>| {
            let app = Arc::clone(&app);
            async move {
                loop {
                    let now = if is_known {
                        serving(&app)
                    } else {
                        ServingStatus::ServiceUnknown
                    };
                    if last != Some(now) {
                        return Some((Ok(answer(now)), Some(now)));
                    }
                    sleep(INTERVAL).await;
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
