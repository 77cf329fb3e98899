//! A server that ends hands its streams over, and another continues them.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use vllm_proto::{GenerateRequest, RandomSampling};

use super::{Running, ask, ended, read, stream};

/// Enough that a stream which is not read cannot end: see `WINDOW_BYTES`.
const OUTPUT: u32 = 6_000;

fn prompt(number: u32) -> Vec<u32> {
    "Tell me of the sea. "
        .bytes()
        .map(u32::from)
        .chain([65 + number])
        .collect()
}

/// Greedy and seeded by turns.
fn request(number: u32, prompt: &[u32], tokens: u32) -> GenerateRequest {
    GenerateRequest {
        temperature: Some(if number.is_multiple_of(2) { 0.0 } else { 0.8 }),
        sampling: Some(RandomSampling {
            seed: Some(i64::from(number)),
            ..RandomSampling::default()
        }),
        ..ask(prompt, tokens)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_unavailable_after_all_their_tokens_and_go_on_elsewhere() {
    let (first, second) = (Running::start("", "").await, Running::start("", "").await);
    let mut client = first.inference().await;
    let mut streams = Vec::new();
    for number in 0..8 {
        let one = client
            .generate_stream(request(number, &prompt(number), OUTPUT))
            .await;
        streams.push(one.expect("it is accepted").into_inner());
    }
    first.until_inside(8).await;
    first.end.send(()).expect("it runs");
    let mut client = second.inference().await;
    for (number, one) in (0..).zip(streams) {
        let got = read(one).await;
        assert_eq!(got.code(), Some(Code::Unavailable), "{:?}", got.error);
        let delivered = u32::try_from(got.tokens.len()).expect("few");
        let message = got.error.expect("set").message().to_owned();
        assert!(
            message.contains(&format!("after {delivered} tokens")),
            "{message}"
        );
        assert!(delivered < OUTPUT);
        let so_far = [prompt(number), got.tokens.clone()].concat();
        let rest = stream(&mut client, request(number, &so_far, OUTPUT - delivered)).await;
        let whole = stream(&mut client, request(number, &prompt(number), OUTPUT)).await;
        assert_eq!([got.tokens, rest.tokens].concat(), whole.tokens, "{number}");
        assert_eq!(got.text + &rest.text, whole.text, "{number}");
    }
    ended(first.server).await;
    second.stop().await;
}

#[tokio::test]
async fn a_second_signal_ends_requests_at_once() {
    let server = Running::start("--grace-seconds 600", "").await;
    let mut client = server.inference().await;
    let running = client.generate_stream(ask(&prompt(0), OUTPUT)).await;
    let running = running.expect("it is accepted").into_inner();
    server.until_inside(1).await;
    server.end.send(()).expect("it runs");
    server.now.send(()).expect("it runs");
    let got = read(running).await;
    assert_eq!(got.code(), Some(Code::Unavailable), "{:?}", got.error);
    ended(server.server).await;
}

#[tokio::test]
async fn clients_that_connect_and_do_not_speak_delay_no_end() {
    let server = Running::start("--grace-seconds 600", "").await;
    let silent = TcpStream::connect(server.address).await;
    let _silent = silent.expect("it listens");
    let mut half = TcpStream::connect(server.address)
        .await
        .expect("it listens");
    half.write_all(b"PRI * HTTP/2.0\r\n")
        .await
        .expect("it reads");
    let mut health = HealthClient::new(server.channel().await);
    let watched = health.watch(HealthCheckRequest::default()).await;
    let mut watched = watched.expect("it answers").into_inner();
    watched.message().await.expect("no error").expect("a state");
    server.end.send(()).expect("it runs");
    let last = watched.message().await.expect("no error").expect("a state");
    assert_eq!(last.status(), ServingStatus::NotServing);
    assert!(
        watched.message().await.expect("no error").is_none(),
        "it ends"
    );
    // Far sooner than the grace.
    ended(server.server).await;
}
