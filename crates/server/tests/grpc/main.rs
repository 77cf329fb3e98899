//! vLLM's gRPC at a real socket, with the clients that the vLLM project publishes.

#[path = "../common/mod.rs"]
mod common;

mod control;
mod hand_over;
mod inference;
mod tls;

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use clap::Parser;
use motet_server::app::App;
use motet_server::arguments::Arguments;
use motet_server::grpc::{FleetFacts, KvEventsFacts};
use motet_server::serve::{self, Ends, Listeners};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use vllm_proto::control_client::ControlClient;
use vllm_proto::generate_request::Prompt;
use vllm_proto::inference_client::InferenceClient;
use vllm_proto::{
    FinishInfo, GenerateRequest, GenerateResponse, ResponseOptions, StoppingCriteria, TokenIds,
};

/// Bytes that the server may send ahead of what a client reads of a stream: less than a long output has.
const WINDOW_BYTES: u32 = 64 << 10;
/// A test that waits longer has failed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running server.
struct Running {
    address: SocketAddr,
    app: Weak<App>,
    end: oneshot::Sender<()>,
    now: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Running {
    async fn start(arguments: &str, keys: &str) -> Self {
        let app = Arc::new(common::app(&format!("{arguments} --grpc 127.0.0.1:0"), keys).await);
        let http = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let words = format!("server --oracle --grpc 127.0.0.1:0 {arguments}");
        let settings = Arguments::parse_from(words.split_whitespace()).grpc;
        let facts = FleetFacts {
            tokenizer: Some("some/folder".into()),
            kv_events: Some(KvEventsFacts {
                address: "tcp://127.0.0.1:5557".to_owned(),
                replay_address: None,
                topic: "kv".to_owned(),
            }),
        };
        let listeners = Listeners::from(http).grpc(&settings, facts).await;
        let listeners = listeners.expect("the settings are fine");
        let address = listeners.grpc_address().expect("gRPC is set");
        let (end, ended) = oneshot::channel::<()>();
        let (now, second) = oneshot::channel::<()>();
        let ends = Ends {
            end: async {
                ended.await.ok();
            },
            now: async {
                if second.await.is_err() {
                    std::future::pending().await
                }
            },
        };
        Self {
            address,
            app: Arc::downgrade(&app),
            end,
            now,
            server: tokio::spawn(serve::serve_until(app, listeners, ends)),
        }
    }

    async fn channel(&self) -> Channel {
        let channel = Channel::from_shared(format!("http://{}", self.address));
        // Few bytes are sent ahead of a client that does not read.
        let channel = channel.map(|channel| channel.initial_stream_window_size(WINDOW_BYTES));
        channel
            .expect("an address")
            .connect()
            .await
            .expect("it listens")
    }

    async fn inference(&self) -> InferenceClient<Channel> {
        InferenceClient::new(self.channel().await)
    }

    async fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel().await)
    }

    /// Requests inside the engine.
    fn inside(&self) -> usize {
        let app = self.app.upgrade().expect("it runs");
        let stats = app.engine().stats();
        stats.running + stats.waiting
    }

    async fn until_inside(&self, count: usize) {
        let met = async {
            while self.inside() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIMEOUT, met).await.expect("in time");
    }

    /// Ends the server, and waits until it has.
    async fn stop(self) {
        self.end.send(()).expect("it runs");
        ended(self.server).await;
        assert!(
            self.app.upgrade().is_none(),
            "a task still holds the engine"
        );
    }
}

async fn ended(server: JoinHandle<()>) {
    timeout(TIMEOUT, server)
        .await
        .expect("in time")
        .expect("no panic");
}

/// A greedy request for so many tokens after these, which come back as tokens and text.
fn ask(prompt: &[u32], tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds {
            ids: prompt.to_vec(),
        })),
        stopping: Some(StoppingCriteria {
            max_new_tokens: tokens,
            ignore_eos: true,
            ..StoppingCriteria::default()
        }),
        response: Some(ResponseOptions {
            output_token_ids: true,
            ..ResponseOptions::default()
        }),
        ..GenerateRequest::default()
    }
}

/// The messages of a stream, together.
#[derive(Debug, Default)]
struct Received {
    tokens: Vec<u32>,
    text: String,
    messages: Vec<GenerateResponse>,
    finish: Option<FinishInfo>,
    error: Option<Status>,
}

impl Received {
    fn code(&self) -> Option<Code> {
        self.error.as_ref().map(Status::code)
    }
}

/// Reads a stream to its end.
async fn read(mut stream: Streaming<GenerateResponse>) -> Received {
    let mut all = Received::default();
    loop {
        let message = timeout(TIMEOUT, stream.message()).await.expect("in time");
        match message {
            Ok(Some(message)) => {
                let outputs = message.outputs.clone().expect("an output");
                assert_eq!(outputs.num_tokens as usize, outputs.token_ids.len());
                all.tokens.extend(outputs.token_ids);
                all.text.push_str(&outputs.text);
                assert!(all.finish.is_none(), "nothing comes after the end");
                all.finish = outputs.finish_info;
                all.messages.push(message);
            }
            Ok(None) => return all,
            Err(error) => {
                all.error = Some(error);
                return all;
            }
        }
    }
}

async fn stream(client: &mut InferenceClient<Channel>, request: GenerateRequest) -> Received {
    let stream = client.generate_stream(request).await;
    read(stream.expect("it is accepted").into_inner()).await
}
