//! Runs the examples that need no model.

use std::time::Duration;

use motet::config::EngineConfig;
use motet::model::oracle::{OracleConfig, StepCost};
use motet::{Engine, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::common::until;

#[path = "../../examples/http.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the example is a program of its own"
)]
mod http;
#[path = "../../examples/own_model.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the example is a program of its own"
)]
mod own_model;

/// The example on the oracle. It ends when `end` is dropped.
struct Front {
    engine: Engine,
    address: String,
    end: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Front {
    async fn start(config: EngineConfig) -> Self {
        let oracle = OracleConfig {
            cost: StepCost {
                base: Duration::from_millis(1),
                ..StepCost::default()
            },
            end_tokens: vec![],
            ..OracleConfig::default()
        };
        let builder = http::oracle(oracle).expect("the oracle's tokens");
        let builder = builder.config(config);
        let engine = builder.start().await.expect("it starts");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = listener.local_addr().expect("an address").to_string();
        let (end, ended) = oneshot::channel();
        let ended = async { ended.await.unwrap_or_default() };
        let served = tokio::spawn(http::serve(listener, engine.clone(), ended));
        Self {
            engine,
            address,
            end,
            served,
        }
    }

    /// Sends a body, and leaves the answer to be read.
    async fn post(&self, body: &str) -> TcpStream {
        let mut client = TcpStream::connect(&self.address).await.expect("a server");
        let request = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let sent = client.write_all(request.as_bytes()).await;
        sent.expect("it reads");
        client
    }

    async fn answer(&self, body: &str) -> String {
        let mut answer = String::new();
        let mut client = self.post(body).await;
        let read = client.read_to_string(&mut answer).await;
        read.expect("an answer");
        answer
    }
}

#[test]
fn the_http_front_has_less_than_100_lines() {
    let lines = include_str!("../../examples/http.rs").lines().count();
    assert!(lines < 100, "{lines} lines");
}

#[tokio::test]
async fn http_front_answers_prompts_and_conversations_with_events() {
    let front = Front::start(crate::common::small()).await;
    let conversation =
        r#"{"messages": [{"role": "user", "content": "hi"}], "output_tokens_max": 5}"#;
    for body in [r#"{"prompt": "hi", "output_tokens_max": 5}"#, conversation] {
        let answer = front.answer(body).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\ndata: \""), "{answer}");
    }
    assert_eq!(front.engine.stats().output_tokens, 10);
    let empty = front.answer("{}").await;
    assert!(empty.starts_with("HTTP/1.1 400"), "{empty}");
}

#[tokio::test]
async fn http_front_cancels_the_sequence_of_a_client_that_leaves() {
    let front = Front::start(crate::common::small()).await;
    let client = front
        .post(r#"{"prompt": "hi", "output_tokens_max": 4000}"#)
        .await;
    until("it runs", || front.engine.stats().running == 1).await;
    drop(client);
    until("it is cancelled", || front.engine.stats().running == 0).await;
    let sampled = front.engine.stats().output_tokens;
    assert!(sampled < 4000, "{sampled} tokens");
}

#[tokio::test]
async fn http_front_tells_when_to_try_again() {
    let mut config = crate::common::small();
    config.scheduler.sequences_max = 1;
    config.scheduler.admission.queue_max = 0;
    let front = Front::start(config).await;
    // Its stream is not read, so it stays inside the engine.
    let long = Request::tokens([1]).output_tokens_max(900);
    let _stream = front.engine.submit(long).await.expect("it is accepted");
    let full = front.answer(r#"{"prompt": "hi"}"#).await;
    assert!(full.starts_with("HTTP/1.1 429"), "{full}");
    assert!(full.contains("\nretry-after: 1\r"), "{full}");
}

#[tokio::test]
async fn http_front_finishes_its_answers_before_it_ends() {
    let front = Front::start(crate::common::small()).await;
    let mut client = front
        .post(r#"{"prompt": "hi", "output_tokens_max": 300}"#)
        .await;
    until("it runs", || front.engine.stats().running == 1).await;
    drop(front.end);
    let mut answer = String::new();
    let read = client.read_to_string(&mut answer).await;
    read.expect("a whole answer");
    let served = front.served.await.expect("no panic");
    served.expect("it ends");
    assert_eq!(front.engine.stats().finished, 1);
}

#[tokio::test]
async fn own_model_passes_the_checks_and_answers_its_users() {
    own_model::check();
    let answers = own_model::answers(&[&[3], &[8, 9]]).await;
    let answers = answers.expect("an engine");
    assert_eq!(
        answers,
        [[4, 5, 6, 7, 8, 9, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7]]
    );
}
