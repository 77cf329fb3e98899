//! Whole loads over HTTP: on the server of `crates/server`, and on scripted servers that
//! misbehave.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use motet_server::app::App;
use motet_server::keys::Keys;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use crate::arguments::Arguments;
use crate::load_target::LoadTarget;
use crate::progress::Progress;
use crate::report::{self, Report};
use crate::user::Stop;
use crate::{load_run, script};

/// Runs a load on a server.
async fn load(address: SocketAddr, words: &str) -> Report {
    let url = format!("http://{address}");
    let words = ["load_generator", "--url", &url]
        .into_iter()
        .chain(words.split_whitespace());
    let arguments = Arguments::parse_from(words);
    let progress = Progress::new(true);
    let (load_target, _) = LoadTarget::find(&arguments, &progress)
        .await
        .expect("a server");
    let (_sender, pressed) = watch::channel(false);
    let scripts = script::write(&arguments.load);
    let load_run = load_run::run(&load_target, scripts, &progress, Stop(pressed)).await;
    let report = Report::new(&arguments, &load_target, 0.0, &load_run).expect("a report");
    for line in report::table(&report).lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let page = report::page(&report, &load_run, "load_generator");
    assert!(page.contains("Prompt tokens from cache"));
    report
}

/// Runs Motet's server on the oracle for as long as the sender is kept.
async fn motet(words: &str) -> (SocketAddr, oneshot::Sender<()>) {
    let words = ["server", "--oracle"]
        .into_iter()
        .chain(words.split_whitespace());
    let arguments = motet_server::arguments::Arguments::parse_from(words);
    let engine = motet_server::start::engine(&arguments).await;
    let engine = engine.expect("the oracle starts");
    let app = App::new(engine, "oracle".into(), Keys::default(), arguments.access);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let (end, ended) = oneshot::channel();
    tokio::spawn(motet_server::serve::serve(
        Arc::new(app),
        listener,
        async move {
            ended.await.ok();
        },
    ));
    (address, end)
}

/// Runs a server that gives each connection the next of these answers, and repeats the
/// last one. It closes every connection after its answer.
async fn scripted(answers: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut answers = answers.into_iter().peekable();
        let mut answer = String::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            answer = answers.next().unwrap_or(answer);
            // The whole request is read before the answer is sent, or closing would reset the connection.
            let mut request = [0; 64 << 10];
            tokio::time::sleep(Duration::from_millis(20)).await;
            if socket
                .read(&mut request)
                .await
                .is_ok_and(|bytes| bytes == 0)
            {
                continue;
            }
            socket.write_all(answer.as_bytes()).await.ok();
        }
    });
    address
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n{body}")
}

const ONE: &str = "--model-name x --users 1 --turns 1 --system-words 0";

#[tokio::test(flavor = "multi_thread")]
async fn load_is_served_by_an_http_server() {
    let (address, _end) = motet("").await;
    let report = load(
        address,
        "--users 6 --turns 2 --system-words 60 --ignore-end",
    )
    .await;
    assert_eq!(report.requests.finished, 12, "{:?}", report.requests);
    assert_eq!(report.tokens.output, 12 * 48);
    assert!(report.tokens.prompt_from_cache_share > 0.2);
    assert_eq!(report.model.name, "oracle");
    assert!(report.latency.first_token.is_some() && report.memory.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_server_is_retried() {
    let (address, _end) = motet("--sequences-max 1 --queue-max 1").await;
    let report = load(
        address,
        "--users 3 --turns 1 --system-words 0 --reply-tokens 4",
    )
    .await;
    assert_eq!(report.requests.finished, 3, "{:?}", report.requests);

    let busy = answer("429 Too Many Requests", "retry-after: 0\r\n", "");
    let events = "data: {\"choices\": [{\"delta\": {\"content\": \"Hi\"}}]}\n\ndata: [DONE]\n\n";
    let address = scripted(vec![busy.clone(), busy, answer("200 OK", "", events)]).await;
    let report = load(address, ONE).await;
    assert_eq!(report.requests.finished, 1, "{:?}", report.requests);
    assert_eq!((report.requests.rejections, report.tokens.output), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_counted_by_name() {
    let check = async |answer: String, expected: &str| {
        let report = load(scripted(vec![answer]).await, ONE).await;
        let errors: Vec<_> = report.requests.errors.keys().collect();
        assert_eq!((report.requests.failed, errors.len()), (1, 1));
        assert!(errors[0].contains(expected), "{errors:?}");
    };
    let events = "data: {\"choices\": [{\"delta\": {\"content\": \"Hi\"}}]}\n\n";
    let message = "{\"error\": {\"message\": \"no such model\"}}";
    check(
        answer("404 Not Found", "", message),
        "404 Not Found: no such model",
    )
    .await;
    check(answer("500 Internal Server Error", "", "<p>"), "500").await;
    check(answer("200 OK", "", events), "closed the connection").await;
    check(
        answer("200 OK", "content-length: 900\r\n", events),
        "closed the connection",
    )
    .await;
    check(
        answer("200 OK", "", "data: what?\n\n"),
        "not an event of the API: what?",
    )
    .await;
    let failed = format!("{events}data: {{\"error\": {{\"message\": \"out of memory\"}}}}\n\n");
    check(
        answer("200 OK", "", &failed),
        "gave the reply up: out of memory",
    )
    .await;
    check(String::new(), "cannot reach the server").await;
}
