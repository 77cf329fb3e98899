//! The server at a real socket, up to its shutdown.

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use motet::monitor::{EngineEvent, Events};
use motet::request::FinishReason;
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

const HEAD: &str =
    "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

fn post(body: &str) -> String {
    format!("{HEAD}content-length: {}\r\n\r\n{body}", body.len())
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

/// Reads events until `find` returns something.
async fn next<T>(events: &mut Events, find: impl Fn(&EngineEvent) -> Option<T>) -> T {
    loop {
        let event = timeout(TIMEOUT, events.next()).await.expect("in time");
        if let Some(found) = find(&event.expect("the engine is there")) {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_leaves_is_noticed_whatever_it_sent_after_its_request() {
    let running = run("").await;
    let app = running.app.upgrade().expect("it serves");
    let mut events = app.engine().events();
    let whole = post(r#"{"prompt": "x", "ignore_eos": true, "max_tokens": 8000}"#);
    let behind = ["", "G", "\r\n", "GET /health HTTP/1.1\r\n\r\n", &whole];
    for request in [&whole, &stream(8000)] {
        for behind in behind {
            let mut socket = connect(running.address).await;
            let sent = format!("{request}{behind}");
            socket.write_all(sent.as_bytes()).await.expect("it reads");
            next(&mut events, |event| {
                matches!(event, EngineEvent::FirstToken { .. }).then_some(())
            })
            .await;
            drop(socket);
            let end = next(&mut events, |event| match event {
                EngineEvent::Finished { reason, .. } => Some(*reason),
                _ => None,
            });
            assert_eq!(end.await, FinishReason::Cancelled, "behind it: {behind:?}");
        }
    }
    drop(app);
    running.end().await;
}

/// Such a client has disconnected, but an answer that is ready is sent all the same.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_only_stops_sending_gets_what_is_ready() {
    let running = run("").await;
    for (request, status) in [
        (post("{"), "HTTP/1.1 400 Bad Request"),
        ("GET /ready HTTP/1.1\r\n\r\n".to_owned(), "HTTP/1.1 200 OK"),
    ] {
        let mut socket = connect(running.address).await;
        let sent = format!("{request}\r\n");
        socket.write_all(sent.as_bytes()).await.expect("it reads");
        socket.shutdown().await.expect("it is open");
        let answer = rest(socket).await;
        assert!(answer.starts_with(status), "{answer}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_long_heads_are_answered() {
    let running = run("--header-bytes-max 9000").await;
    let header = |bytes: usize| format!("x: {}\r\n", "x".repeat(bytes));
    for (head, status) in [
        (header(8_900), "400 Bad Request"),
        (header(10_000), "431 Request Header Fields Too Large"),
        (header(20_000), "431 Request Header Fields Too Large"),
        (header(900_000), "431 Request Header Fields Too Large"),
        (header(1).repeat(200), "431 Request Header Fields Too Large"),
    ] {
        let mut socket = connect(running.address).await;
        let request = format!("{HEAD}{head}connection: close\r\ncontent-length: 1\r\n\r\n{{");
        // The server may close before it has read all.
        socket.write_all(request.as_bytes()).await.ok();
        let answer = rest(socket).await;
        let shown = &answer[..answer.len().min(60)];
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{} bytes: {shown:?}",
            head.len()
        );
    }
    let mut socket = connect(running.address).await;
    let path = "x".repeat(100_000);
    let status = ask(&mut socket, &format!("GET /{path} HTTP/1.1\r\n\r\n")).await;
    assert_eq!(status, "HTTP/1.1 431 Request Header Fields Too Large");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_come_in_every_form_of_http() {
    let running = run("").await;
    let long = format!(r#"{{"prompt": "x", "unknown": "{}"}}"#, "x".repeat(300_000));
    let chunks: String = long
        .as_bytes()
        .chunks(7_000)
        .map(|chunk| {
            let chunk = str::from_utf8(chunk).expect("it is ASCII");
            format!("{:x};a=b\r\n{chunk}\r\n", chunk.len())
        })
        .collect();
    let chunked = format!("{HEAD}transfer-encoding: chunked\r\n\r\n{chunks}0\r\n");
    let continued = post(&long).replacen("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n", 1);
    let trailer = "x".repeat(30_000);
    for (request, status) in [
        (post(&long), "200 OK"),
        (post(&long).repeat(2), "200 OK"),
        (format!("{chunked}\r\n"), "200 OK"),
        (format!("{chunked}x: y\r\n\r\n"), "200 OK"),
        (format!("{chunked}x: {trailer}\r\n\r\n"), "400 Bad Request"),
        (continued, "100 Continue"),
    ] {
        let mut socket = connect(running.address).await;
        let answered = ask(&mut socket, &request).await;
        let shown = &request[..request.len().min(200)];
        assert_eq!(answered, format!("HTTP/1.1 {status}"), "{shown}");
    }
    running.end().await;
}
