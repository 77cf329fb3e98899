//! Access to the server and to the operator's routes: raw requests at a real socket.

use crate::common::client::{self, CHAT, Server, chat, post};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use motet_server::serve;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A test that waits longer has failed.
const TIMEOUT: Duration = Duration::from_secs(60);
const GETS: [&str; 8] = [
    "/",
    "/page/main.js",
    "/watch",
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
    "/nothing",
];
const POSTS: [(&str, &str); 3] = [
    ("/v1/completions", r#"{"prompt": "x"}"#),
    (
        "/v1/chat/completions",
        r#"{"messages": [{"role": "user", "content": "x"}]}"#,
    ),
    ("/tokenize", r#"{"prompt": "x"}"#),
];

/// A server that runs until this is dropped.
struct Running {
    address: SocketAddr,
    _end: oneshot::Sender<()>,
}

/// An answer's head, and the connection for its body.
struct Answer {
    status: u16,
    rest: BufReader<TcpStream>,
}

impl Running {
    async fn start(arguments: &str, keys: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = listener.local_addr().expect("an address");
        let (end, ended) = oneshot::channel();
        let app = Arc::new(crate::common::app(arguments, keys).await);
        tokio::spawn(serve::serve(app, listener, async {
            ended.await.ok();
        }));
        Self { address, _end: end }
    }

    fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sends the first line, these headers, and a body if there is one.
    async fn send(&self, first: &str, headers: &str, body: Option<&str>) -> Answer {
        let mut socket = TcpStream::connect(self.address).await.expect("it listens");
        let mut head = format!("{first} HTTP/1.1\r\nconnection: close\r\n");
        for header in headers.lines().map(str::trim).filter(|h| !h.is_empty()) {
            head += &format!("{header}\r\n");
        }
        if let Some(body) = body {
            head += "content-type: application/json\r\n";
            head += &format!("content-length: {}\r\n", body.len());
        }
        head += "\r\n";
        head += body.unwrap_or_default();
        // A server that rejects the connection may not read all of it.
        socket.write_all(head.as_bytes()).await.ok();
        Answer::of(socket).await
    }

    async fn get(&self, path: &str, headers: &str) -> Answer {
        self.send(&format!("GET {path}"), headers, None).await
    }

    /// The status of each route.
    async fn all(&self, headers: &str) -> Vec<(String, u16)> {
        let mut statuses = Vec::new();
        for path in GETS {
            let status = self.get(path, headers).await.status;
            statuses.push((path.to_owned(), status));
        }
        for (path, body) in POSTS {
            let first = format!("POST {path}");
            let status = self.send(&first, headers, Some(body)).await.status;
            statuses.push((path.to_owned(), status));
        }
        statuses
    }
}

impl Answer {
    async fn of(socket: TcpStream) -> Self {
        let mut rest = BufReader::new(socket);
        let mut status = None;
        loop {
            let mut line = String::new();
            let read = timeout(TIMEOUT, rest.read_line(&mut line)).await;
            read.expect("in time").expect("it answers");
            assert!(!line.is_empty(), "the answer has a head");
            if line == "\r\n" {
                break;
            }
            let word = line.split(' ').nth(1).and_then(|word| word.parse().ok());
            status = status.or(word);
        }
        let status = status.expect("a status");
        Self { status, rest }
    }

    /// The status and the error's message.
    async fn error(mut self) -> (u16, Value) {
        let mut body = String::new();
        let read = timeout(TIMEOUT, self.rest.read_to_string(&mut body)).await;
        read.expect("in time").expect("a whole body");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        (self.status, body["error"].clone())
    }
}

/// A page was loaded from `evil.example`, and its name then resolves to this machine. For the
/// browser, page and server are one site, and the server needs no key.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_host_names_reach_no_route() {
    let server = Running::start("", "").await;
    let port = server.port();
    let rebound = format!(
        "Host: evil.example:{port}
         Origin: http://evil.example:{port}
         Sec-Fetch-Site: same-origin"
    );
    for (path, status) in server.all(&rebound).await {
        assert_eq!(status, 421, "{path}");
    }
    let (_, error) = server.get("/health", &rebound).await.error().await;
    assert_eq!(error["code"], "unknown_host");
    assert_eq!(error["param"], "Host");
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("evil.example"), "{message}");
    assert!(message.contains("localhost"), "{message}");

    for host in [
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example",
        "192.168.0.1",
        "0.0.0.0",
        "user@localhost",
        "localhost:80:80",
        "",
    ] {
        let status = server.get("/health", &format!("Host: {host}")).await.status;
        assert_eq!(status, 421, "{host:?}");
    }
    // The request target names the host, or a second header line does.
    let first = "GET http://evil.example/health";
    let status = server.send(first, "Host: localhost", None).await.status;
    assert_eq!(status, 421);
    let twice = "Host: localhost\nHost: evil.example";
    assert_eq!(server.get("/health", twice).await.status, 421);

    for host in [
        "localhost".to_owned(),
        format!("LOCALHOST:{port}"),
        format!("127.0.0.1:{port}"),
        "127.0.0.1:9".to_owned(),
        format!("[::1]:{port}"),
    ] {
        for (path, status) in server.all(&format!("Host: {host}")).await {
            let expected = match path.as_str() {
                // No recorder is installed.
                "/nothing" | "/metrics" => 404,
                _ => 200,
            };
            assert_eq!(status, expected, "{host} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_pages_reach_no_route() {
    let server = Running::start("", "").await;
    let port = server.port();
    let host = format!("Host: 127.0.0.1:{port}\n");
    for (foreign, param) in [
        ("Origin: https://evil.example".to_owned(), "Origin"),
        ("Origin: null".to_owned(), "Origin"),
        // Another program on this machine, and another name of the machine.
        ("Origin: http://127.0.0.1:1".to_owned(), "Origin"),
        (format!("Origin: http://localhost:{port}"), "Origin"),
        (
            format!("Origin: http://127.0.0.1:{port}\nOrigin: http://evil.example"),
            "Origin",
        ),
        (
            "Sec-Fetch-Site: cross-site\nSec-Fetch-Mode: no-cors".to_owned(),
            "Sec-Fetch-Site",
        ),
        (
            "Sec-Fetch-Site: same-site\nSec-Fetch-Mode: no-cors".to_owned(),
            "Sec-Fetch-Site",
        ),
    ] {
        let headers = format!("{host}{foreign}");
        for (path, status) in server.all(&headers).await {
            assert_eq!(status, 403, "{foreign} {path}");
        }
        let (_, error) = server.get("/watch", &headers).await.error().await;
        assert_eq!(
            (&error["code"], &error["param"]),
            (&"foreign_origin".into(), &param.into())
        );
    }
    for ours in [
        format!("Origin: http://127.0.0.1:{port}"),
        "Sec-Fetch-Site: same-origin".to_owned(),
        "Sec-Fetch-Site: none".to_owned(),
    ] {
        let status = server.get("/health", &format!("{host}{ours}")).await.status;
        assert_eq!(status, 200, "{ours}");
    }
}

/// For example images of another site's page: it sees no answer, but could use up the permits.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_pages_take_no_watcher_permits() {
    let server = Running::start("", "").await;
    let foreign = "Host: localhost\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: no-cors";
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(server.get("/watch", foreign).await);
    }
    let own = "Host: localhost\nSec-Fetch-Site: same-origin";
    assert_eq!(server.get("/watch", own).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_origins_can_be_given() {
    let named = "--host-name motet.example --origin https://chat.example";
    for arguments in [named.to_owned(), format!("--host 0.0.0.0 {named}")] {
        let server = Running::start(&arguments, "").await;
        for (headers, expected) in [
            ("Host: Motet.Example:1234", 200),
            ("Host: localhost", 200),
            ("Host: other.example", 421),
            ("Host: motet.example\nOrigin: https://CHAT.example:443", 200),
            (
                "Host: motet.example\nOrigin: https://chat.example\nSec-Fetch-Site: cross-site",
                200,
            ),
            ("Host: motet.example\nOrigin: http://chat.example", 403),
            ("Host: motet.example\nOrigin: https://motet.example", 200),
            ("Host: motet.example\nOrigin: https://evil.example", 403),
        ] {
            let status = server.get("/health", headers).await.status;
            assert_eq!(status, expected, "{arguments} {headers}");
        }
    }
    // Off loopback a server does not know its names, but other sites' pages are rejected too.
    let server = Running::start("--host 0.0.0.0", "").await;
    for (headers, expected) in [
        ("Host: any.example", 200),
        ("Host: any.example\nOrigin: https://any.example", 200),
        ("Host: any.example\nOrigin: https://evil.example", 403),
        ("Host: any.example\nSec-Fetch-Site: cross-site", 403),
    ] {
        let status = server.get("/health", headers).await.status;
        assert_eq!(status, expected, "{headers}");
    }
}

/// Access to the routes that show figures of all tenants.
#[tokio::test(flavor = "multi_thread")]
async fn all_tenant_routes_need_the_operator_key() {
    const KEYS: &str = "ann secret-a\nbob secret-b\ncarol secret-c";
    let operator = "--api-keys unread --operator-key ann --page-key carol";
    // Statuses for no key, ann's, bob's and carol's. 404 means access: no recorder is installed.
    for (arguments, keys, metrics, watch) in [
        ("", "", [404; 4], [200; 4]),
        ("--host 0.0.0.0", "", [403; 4], [403; 4]),
        ("--host 0.0.0.0 --operator-open", "", [404; 4], [200; 4]),
        // A proxy may pass on requests to that name or from that origin.
        ("--host-name motet.example", "", [403; 4], [403; 4]),
        ("--origin https://chat.example", "", [403; 4], [403; 4]),
        (
            "--host-name motet.example --operator-open",
            "",
            [404; 4],
            [200; 4],
        ),
        ("", KEYS, [401, 403, 403, 403], [401, 403, 403, 403]),
        (operator, KEYS, [401, 404, 403, 403], [401, 200, 403, 200]),
        ("--operator-open", KEYS, [404; 4], [200; 4]),
    ] {
        let server = Running::start(arguments, keys).await;
        let sent = ["", "a", "b", "c"];
        for ((key, metrics), watch) in sent.into_iter().zip(metrics).zip(watch) {
            let headers = match key {
                "" => "Host: localhost".to_owned(),
                key => format!("Host: localhost\nAuthorization: Bearer secret-{key}"),
            };
            let status = async |path| server.get(path, &headers).await.status;
            let described = if metrics == 404 { 200 } else { metrics };
            assert_eq!(status("/metrics").await, metrics, "{arguments} {key}");
            assert_eq!(
                status("/openapi.json").await,
                described,
                "{arguments} {key}"
            );
            assert_eq!(status("/watch").await, watch, "{arguments} {key}");
            // The page's files and the bare state are for all callers; details are not.
            assert_eq!(status("/").await, 200, "{arguments} {key}");
            for path in ["/health", "/ready"] {
                let mut answer = server.get(path, &headers).await;
                assert_eq!(answer.status, 200, "{arguments} {key}");
                let mut body = String::new();
                let read = answer.rest.read_to_string(&mut body).await;
                read.expect("a whole body");
                let body: Value = serde_json::from_str(&body).expect("JSON");
                assert!(body["state"].is_string(), "{body}");
                let fields = body.as_object().expect("an object").len();
                let expected = if metrics == 404 { 8 } else { 1 };
                assert_eq!(fields, expected, "{arguments} {key} {path} {body}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_see_whether_others_run() {
    let keys = "ann secret-a\nbob secret-b";
    let server = Running::start("--api-keys unread --operator-key ann", keys).await;
    let stream = r#"{"prompt": "x", "stream": true, "ignore_eos": true, "max_tokens": 7000}"#;
    let tenant = "Host: localhost\nAuthorization: Bearer secret-b";
    let first = "POST /v1/completions";
    let _inside = server.send(first, tenant, Some(stream)).await;
    let state = async |key: &str| {
        let headers = format!("Host: localhost\nAuthorization: Bearer secret-{key}");
        let mut answer = server.get("/health", &headers).await;
        let mut body = String::new();
        let read = answer.rest.read_to_string(&mut body).await;
        read.expect("a whole body");
        serde_json::from_str::<Value>(&body).expect("JSON")
    };
    let all = state("a").await;
    assert_eq!(all["state"], "busy");
    assert!(all["running"].is_u64(), "{all}");
    assert_eq!(state("b").await, serde_json::json!({"state": "ready"}));
}

/// Bodies that are announced but never sent.
#[tokio::test(flavor = "multi_thread")]
async fn one_caller_leaves_budget_for_the_bodies_of_others() {
    let limits = "--body-bytes-max 1048576 --receiving-bytes-max 4194304 --arrival-seconds 600";
    let keys = "ann secret-a\nbob secret-b";
    let server = Running::start(&format!("--api-keys unread {limits}"), keys).await;
    let announce = async || {
        let mut socket = TcpStream::connect(server.address)
            .await
            .expect("it listens");
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\
                    Authorization: Bearer secret-a\r\nContent-Type: application/json\r\n\
                    Content-Length: 1048576\r\nExpect: 100-continue\r\n\r\n";
        socket.write_all(head.as_bytes()).await.expect("it reads");
        socket
    };
    let mut held = Vec::new();
    for _ in 0..2 {
        // The server asks for the bytes once they fit in its budget.
        let answer = Answer::of(announce().await).await;
        assert_eq!(answer.status, 100);
        held.push(answer);
    }
    let mut waiting = Vec::new();
    for _ in 0..8 {
        waiting.push(announce().await);
    }
    let body = format!(r#"{{"prompt": "x", "unknown": "{}"}}"#, "x".repeat(1 << 19));
    let bob = "Host: localhost\nAuthorization: Bearer secret-b";
    let answer = server.send("POST /v1/completions", bob, Some(&body)).await;
    assert_eq!(answer.status, 200);
    drop((held, waiting));
}

/// On loopback, one address may have all connections unless a setting limits it.
#[tokio::test(flavor = "multi_thread")]
async fn connections_per_address_are_limited() {
    let limits = "--connections-max 4 --address-connections-max 2";
    let server = Running::start(limits, "").await;
    let connect = async || {
        TcpStream::connect(server.address)
            .await
            .expect("it listens")
    };
    let (first, second) = (connect().await, connect().await);
    let third = Answer::of(connect().await).await;
    let (status, error) = third.error().await;
    assert_eq!(status, 429);
    assert_eq!(error["type"], "rate_limit_error");
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("2 connections"), "{message}");
    drop(first);
    // The closed connection is noticed in time.
    let retry = async { while server.get("/health", "Host: localhost").await.status != 200 {} };
    timeout(TIMEOUT, retry).await.expect("there is a place");
    drop(second);
}

/// Cached tokens of a conversation with this salt, of a client with a key.
async fn cached_with_salt(server: &Server, salt: Value) -> u64 {
    let mut request = post(CHAT, &chat(json!({"cache_salt": salt})));
    let key = "secret".parse().expect("a header");
    request.headers_mut().insert("x-api-key", key);
    let answer = client::Answer::of(server.send(request).await).await.ok();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().expect("a number")
}

#[tokio::test]
async fn empty_salt_of_a_key_is_a_salt_of_its_own() {
    let server = Server::with("", "bob secret").await;
    assert_eq!(cached_with_salt(&server, json!("")).await, 0);
    assert_eq!(cached_with_salt(&server, Value::Null).await, 0);
    assert!(cached_with_salt(&server, json!("")).await > 0);
    assert!(cached_with_salt(&server, Value::Null).await > 0);
}
