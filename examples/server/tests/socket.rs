//! The server at a real socket, to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use motet_server::app::App;
use motet_server::arguments::Arguments;
use motet_server::keys::Keys;
use motet_server::{serve, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

struct Running {
    address: SocketAddr,
    end: oneshot::Sender<()>,
    server: JoinHandle<anyhow::Result<()>>,
}

async fn run(arguments: &str) -> Running {
    let words = ["server", "--oracle"].into_iter();
    let arguments = Arguments::parse_from(words.chain(arguments.split_whitespace()));
    let engine = start::engine(&arguments).await.expect("the oracle starts");
    let app = App::new(engine, "oracle".into(), Keys::default(), arguments.conduct);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let (end, ended) = oneshot::channel();
    let server = tokio::spawn(serve::serve(Arc::new(app), listener, async {
        ended.await.ok();
    }));
    Running {
        address,
        end,
        server,
    }
}

/// Asks for a stream, and reads until it has begun.
async fn begin(address: SocketAddr, tokens: usize) -> TcpStream {
    let body = format!(
        "{{\"prompt\": \"x\", \"stream\": true, \"ignore_eos\": true, \"max_tokens\": {tokens}}}"
    );
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let mut socket = TcpStream::connect(address).await.expect("it listens");
    let sent = socket.write_all(request.as_bytes()).await;
    sent.expect("it reads");
    let mut first = [0; 15];
    let read = socket.read_exact(&mut first).await;
    read.expect("it answers");
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    socket
}

/// What comes until the other side closes.
async fn rest(mut socket: TcpStream) -> String {
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.ok();
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn those_inside_finish_and_nobody_else_comes_in() {
    let running = run("").await;
    let inside = begin(running.address, 2000).await;
    running.end.send(()).expect("it serves");
    let said = timeout(Duration::from_secs(60), rest(inside)).await;
    let said = said.expect("the connection is closed behind the last");
    assert!(said.contains("data: [DONE]"), "all of it came");
    let served = timeout(Duration::from_secs(60), running.server).await;
    served
        .expect("in time")
        .expect("no panic")
        .expect("no error");
    let late = TcpStream::connect(running.address).await;
    assert!(late.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_take_too_long_are_left() {
    let running = run("--grace-seconds 0").await;
    // Nobody reads this one: it never ends by itself.
    let _stuck = begin(running.address, 8000).await;
    running.end.send(()).expect("it serves");
    let served = timeout(Duration::from_secs(60), running.server).await;
    served
        .expect("in time")
        .expect("no panic")
        .expect("no error");
}
