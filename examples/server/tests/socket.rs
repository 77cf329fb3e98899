//! The server at a real socket, up to its shutdown.

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use motet_server::app::App;
use motet_server::serve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

struct Running {
    address: SocketAddr,
    end: oneshot::Sender<()>,
    server: JoinHandle<anyhow::Result<()>>,
    app: Weak<App>,
}

impl Running {
    /// Shuts the server down, and checks that no other task held the engine.
    async fn end(self) {
        self.end.send(()).expect("it serves");
        let served = timeout(TIMEOUT, self.server).await;
        served
            .expect("in time")
            .expect("no panic")
            .expect("no error");
        assert!(
            self.app.upgrade().is_none(),
            "a task still holds the engine"
        );
    }
}

/// A test that waits longer has failed.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn run(arguments: &str) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let (end, ended) = oneshot::channel();
    let app = Arc::new(common::app(arguments, "").await);
    let weak = Arc::downgrade(&app);
    let server = tokio::spawn(serve::serve(app, listener, async {
        ended.await.ok();
    }));
    Running {
        address,
        end,
        server,
        app: weak,
    }
}

/// A request for a stream of this many tokens.
fn stream(tokens: usize) -> String {
    let body = format!(
        "{{\"prompt\": \"x\", \"stream\": true, \"ignore_eos\": true, \"max_tokens\": {tokens}}}"
    );
    post(&body)
}

fn post(body: &str) -> String {
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("it listens")
}

/// Sends a request, and reads the first line of the answer.
async fn ask(socket: &mut TcpStream, request: &str) -> String {
    let sent = socket.write_all(request.as_bytes()).await;
    sent.expect("it reads");
    let mut line = String::new();
    while !line.ends_with("\r\n") {
        let byte = timeout(TIMEOUT, socket.read_u8()).await;
        line.push(byte.expect("in time").expect("it answers") as char);
    }
    line.trim_end().to_owned()
}

/// Requests a stream, and reads until it has started.
async fn start_stream(address: SocketAddr, tokens: usize) -> TcpStream {
    let mut socket = connect(address).await;
    let status = ask(&mut socket, &stream(tokens)).await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    socket
}

/// Reads until the other side closes.
async fn rest(mut socket: TcpStream) -> String {
    let mut rest = Vec::new();
    let read = timeout(TIMEOUT, socket.read_to_end(&mut rest)).await;
    read.expect("the connection is closed behind the last").ok();
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn running_requests_finish_and_no_connection_is_accepted() {
    let running = run("--grace-seconds 600").await;
    let address = running.address;
    let inside = start_stream(address, 200).await;
    let received = tokio::spawn(rest(inside));
    running.end().await;
    let received = received.await.expect("no panic");
    assert!(
        received.contains("data: [DONE]"),
        "all of it came: {received}"
    );
    let late = TcpStream::connect(address).await;
    assert!(late.is_err(), "the socket is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn late_requests_get_a_draining_error() {
    let running = run("--grace-seconds 0").await;
    let late = start_stream(running.address, 8000).await;
    let _stuck = start_stream(running.address, 8000).await;
    let received = tokio::spawn(rest(late));
    running.end().await;
    let received = received.await.expect("no panic");
    assert!(
        received.contains(r#""code":"draining""#),
        "the error has the reason"
    );
    assert!(!received.contains("[DONE]"), "the stream is incomplete");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_outlives_its_errors() {
    let running = run("").await;
    let mut socket = connect(running.address).await;
    for (body, status) in [
        ("{", "HTTP/1.1 400 Bad Request"),
        ("{}", "HTTP/1.1 400 Bad Request"),
        (
            r#"{"prompt": "x", "suffix": "y"}"#,
            "HTTP/1.1 422 Unprocessable Entity",
        ),
    ] {
        assert_eq!(ask(&mut socket, &post(body)).await, status, "{body}");
        // The error has no line break at its end.
        let mut error = vec![0; 4096];
        let read = timeout(TIMEOUT, socket.read(&mut error)).await;
        assert!(read.expect("in time").expect("an error") > 0);
    }
    let answered = ask(&mut socket, &post(r#"{"prompt": "x"}"#)).await;
    assert_eq!(answered, "HTTP/1.1 200 OK");
    drop(socket);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_request_is_timed_out() {
    let running = run("--arrival-seconds 1").await;
    let mut headless = connect(running.address).await;
    let sent = headless.write_all(b"POST /v1/completions HTTP/1.1\r\nhost:");
    sent.await.expect("it reads");
    assert_eq!(rest(headless).await, "", "it is closed");

    let mut bodiless = connect(running.address).await;
    let whole = post(r#"{"prompt": "x"}"#);
    let status = ask(&mut bodiless, &whole[..whole.len() - 3]).await;
    assert_eq!(status, "HTTP/1.1 408 Request Timeout");
    running.end().await;
}

/// The largest times are as good as none, for the timers of hyper and of the sockets as well.
#[tokio::test(flavor = "multi_thread")]
async fn times_that_no_clock_counts_are_no_limits() {
    let most = u64::MAX;
    let limits = format!(
        "--arrival-seconds {most} --unread-seconds {most} --grace-seconds {most} --compile-seconds {most}"
    );
    let running = run(&limits).await;
    let mut socket = connect(running.address).await;
    for _ in 0..2 {
        let answered = ask(&mut socket, &post(r#"{"prompt": "x", "max_tokens": 1}"#)).await;
        assert_eq!(answered, "HTTP/1.1 200 OK");
        socket = connect(running.address).await;
    }
    drop(socket);
    running.end().await;
}

/// The server accepts one connection at a time: the next is served when the other is closed.
#[tokio::test(flavor = "multi_thread")]
async fn unread_response_is_closed() {
    let limits = "--connections-max 1 --unread-seconds 2 --arrival-seconds 5";
    let running = run(limits).await;
    let unread = TcpSocket::new_v4().expect("a socket");
    // With default buffers, the system would buffer the whole answer.
    unread.set_recv_buffer_size(4096).expect("a small buffer");
    let mut unread = unread.connect(running.address).await.expect("it listens");
    // Log probabilities make the answer large.
    let body = r#"{"prompt": "x", "stream": true, "ignore_eos": true, "max_tokens": 8000, "n": 4,
                   "logprobs": 20}"#;
    assert_eq!(ask(&mut unread, &post(body)).await, "HTTP/1.1 200 OK");
    let next = start_stream(running.address, 10).await;
    drop((unread, next));
    running.end().await;
}
