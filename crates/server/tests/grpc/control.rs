//! Facts about server and model, and health.

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use vllm_proto::{
    GetKvEventSourcesRequest, GetModelInfoRequest, GetServerInfoRequest, ListLorasRequest,
    ShutdownRequest,
};

use super::{Running, ask, ended};

#[tokio::test]
async fn facts_are_those_that_a_sidecar_needs() {
    let server = Running::start("--sequences-max 3 --name first --name second", "").await;
    let mut control = server.control().await;
    let info = control.get_server_info(GetServerInfoRequest {}).await;
    let info = info.expect("it answers").into_inner();
    assert_eq!(info.api_version, "vllm");
    assert_eq!(info.proto_version, vllm_proto::VERSION);
    assert_eq!(info.max_running_requests, 3);
    assert_eq!(info.max_model_len, 8192);
    assert!(
        info.kv_block_size > 0 && info.total_kv_blocks > 0,
        "{info:?}"
    );
    assert_eq!(info.parallelism.expect("set").world_size, 1);
    let model = control.get_model_info(GetModelInfoRequest {}).await;
    let model = model.expect("it answers").into_inner();
    assert_eq!(model.model_id, "some/folder");
    assert_eq!(model.served_model_name, "first");
    assert_eq!(model.served_model_aliases, ["second"]);
    assert!(model.supports_text_input && model.supports_token_ids_input);
    let sources = control
        .get_kv_event_sources(GetKvEventSourcesRequest {})
        .await;
    let sources = sources.expect("it answers").into_inner().sources;
    assert_eq!(sources.len(), 1);
    assert_eq!(
        (&*sources[0].transport, &*sources[0].encoding),
        ("zmq", "msgpack")
    );
    assert_eq!(
        (&*sources[0].endpoint, &*sources[0].topic),
        ("tcp://127.0.0.1:5557", "kv")
    );

    let error = control.list_loras(ListLorasRequest {}).await;
    assert_eq!(
        error.expect_err("there are none").code(),
        Code::Unimplemented
    );
    let error = control.shutdown(ShutdownRequest {}).await;
    assert_eq!(
        error.expect_err("a signal does").code(),
        Code::FailedPrecondition
    );
    server.stop().await;
}

#[tokio::test]
async fn health_needs_no_key_and_changes_at_the_end() {
    let server = Running::start("--grace-seconds 60", "ann secret-a").await;
    let mut health = HealthClient::new(server.channel().await);
    let of = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    for service in ["", "vllm.Inference", "vllm.Control"] {
        let answer = health.check(of(service)).await.expect("it is known");
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
    }
    let unknown = health.check(of("vllm.Other")).await.expect_err("unknown");
    assert_eq!(unknown.code(), Code::NotFound);
    let mut watched = health
        .watch(of(""))
        .await
        .expect("it is known")
        .into_inner();
    let first = watched.message().await.expect("no error").expect("a state");
    assert_eq!(first.status(), ServingStatus::Serving);
    let mut unread = tonic::Request::new(ask(&[1], 8_000));
    unread
        .metadata_mut()
        .insert("authorization", "Bearer secret-a".parse().expect("ASCII"));
    let mut client = server.inference().await;
    let running = client
        .generate_stream(unread)
        .await
        .expect("it is accepted");
    server.end.send(()).expect("it runs");
    let next = watched.message().await.expect("no error").expect("a state");
    assert_eq!(next.status(), ServingStatus::NotServing);
    drop((running, watched, client, health));
    ended(server.server).await;
}
