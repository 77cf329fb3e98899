//! vLLM's gRPC, by which existing fleets drive a server: Dynamo's sidecar, vllm-router and others.
//!
//! | service | content |
//! |---|---|
//! | `vllm.Inference` | tokens or text in, tokens and text out, whole or streamed |
//! | `vllm.Control` | facts about server and model, the sources of KV events, `Abort` |
//! | `grpc.health.v1.Health` | whether requests are accepted |
//!
//! A request passes the same layers as over HTTP: its log line, its key, and the memory budget of
//! bodies. The messages are those of the crate `vllm-proto`, which the vLLM project publishes.
//!
//! | file | content |
//! |---|---|
//! | `layers.rs` | a request's key, and the memory of its message |
//! | `fields.rs` | the bounds of a message, checked before it is decoded |
//! | `inference.rs` | the service of requests |
//! | `request.rs` | from a message to the engine's request |
//! | `answer.rs` | from the engine's pieces to messages |
//! | `control.rs` | the service of facts |
//! | `running.rs` | requests that can be aborted by their ids |
//! | `health.rs` | the service of health |
//! | `status.rs` | errors in gRPC's form |
//! | `listener.rs` | the socket, and TLS |

mod answer;
mod control;
mod fields;
mod health;
mod inference;
mod layers;
mod listener;
mod request;
mod running;
mod status;

use std::sync::Arc;

use axum::{Router, middleware};
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use vllm_proto::control_server::ControlServer;
use vllm_proto::inference_server::InferenceServer;

use crate::app::App;
use crate::routes;
use control::Control;
use health::Health;
use inference::Inference;
use running::RunningRequests;

pub use control::{FleetFacts, KvEventsFacts};
pub(crate) use listener::GrpcListener;

/// Longest message to services other than `vllm.Inference`, in bytes.
const SMALL_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The services without their socket.
pub fn router(app: Arc<App>, facts: FleetFacts) -> Router {
    let running = Arc::new(RunningRequests::default());
    let inference = InferenceServer::new(Inference::new(&app, &running))
        .max_decoding_message_size(app.access.body_bytes_max);
    let control = ControlServer::new(Control::new(&app, running, facts))
        .max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX);
    let health =
        HealthServer::new(Health::new(&app)).max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX);
    let routes = Routes::new(inference)
        .add_service(control)
        .add_service(health);
    routes
        .into_axum_router()
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            layers::receive,
        ))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            layers::authorize,
        ))
        .layer(middleware::from_fn_with_state(app, routes::log_request))
}
