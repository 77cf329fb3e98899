//! Responses in the background that a restarted server goes on with.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use motet::Shutdown;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::common::app;
use crate::common::client::{Answer, Server, whole};
use crate::common::folder::Folder;
use crate::common::responses::{RESPONSES, ask, clock, id, parsed, text};

/// A test that waits longer has failed.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes before the content of a journal's frame.
const FRAME_BYTES: usize = 12;

async fn server(folder: &Folder, keys: &str) -> Server {
    let disk = folder.0.join("disk");
    Server::with(&format!("--disk {}", disk.display()), keys).await
}

fn journals(folder: &Folder) -> PathBuf {
    folder.0.join("disk/responses")
}

fn journal(folder: &Folder, response: &str) -> PathBuf {
    let random = response.strip_prefix("resp_").expect("an id");
    journals(folder).join(format!("{random}.response"))
}

/// The journals in a folder.
fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(journals(folder)).expect("it is there");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("text"));
    names.filter(|name| name != "lock").collect()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, waiting).await.expect(what);
}

fn with_key(method: &str, path: &str, key: &str, body: &Value) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    let request = request
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {key}"));
    request
        .body(Body::from(body.to_string()))
        .expect("a request")
}

async fn send(server: &Server, method: &str, path: &str, key: &str) -> Answer {
    Answer::of(server.send(with_key(method, path, key, &json!({}))).await).await
}

/// All events of a response, those to come too.
async fn events(server: &Server, response: &str) -> Vec<Value> {
    let path = format!("{RESPONSES}/{response}?stream=true");
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let answer = server.send(request).await;
    assert_eq!(answer.status(), StatusCode::OK);
    parsed(&timeout(TIMEOUT, whole(answer)).await.expect("in time"))
}

/// An event without what another run may have otherwise: times, and what was cached.
fn comparable(event: &Value) -> Value {
    let mut event = event.clone();
    if let Some(response) = event.get_mut("response") {
        response["completed_at"] = Value::Null;
        if !response["usage"].is_null() {
            response["usage"]["input_tokens_details"] = Value::Null;
        }
    }
    event
}

/// Ends a server as SIGTERM does after the grace, and waits until its journals are written.
async fn hand_over(server: Server) {
    server.app.engine().shutdown(Shutdown::HandOver).await;
    let Server { app, router } = server;
    drop(router);
    until("nothing holds the app", || Arc::strong_count(&app) == 1).await;
    let app = Arc::into_inner(app).expect("it is the last");
    app.into_engine().shutdown(Shutdown::Abort).await;
}

fn letters(count: usize) -> Value {
    let schema = json!({"type": "string", "pattern": format!("^[a-z]{{{count}}}$")});
    json!({"format": {"type": "json_schema", "name": "letters", "schema": schema}})
}

/// A tool with a long argument, which the answer calls after it has reasoned.
fn long_call() -> Value {
    let zone = json!({"type": "string", "pattern": "^[a-z]{300}$"});
    let mut tool = clock();
    tool["parameters"]["properties"]["zone"] = zone;
    json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
           "reasoning": {"effort": "low", "summary": "auto"}, "thinking_token_budget": 60,
           "chat_template_kwargs": {"enable_thinking": true}, "temperature": 1,
           "max_output_tokens": 1_000})
}

/// The ends of a journal's frames.
fn frames(journal: &[u8]) -> Vec<usize> {
    let mut ends = vec![8];
    while let Some(rest) = journal.get(ends[ends.len() - 1]..)
        && let Some(length) = rest.first_chunk()
    {
        let end = journal.len() - rest.len() + FRAME_BYTES;
        ends.push(end + u32::from_le_bytes(*length) as usize);
    }
    ends
}

/// A journal with the end of its answer.
async fn written(path: &Path) -> Vec<u8> {
    let read = || fs::read(path).unwrap_or_default();
    until("its end is written", || {
        let bytes = read();
        let is_whole = frames(&bytes).last() == Some(&bytes.len());
        is_whole && bytes.windows(5).any(|word| word == b"Ended")
    })
    .await;
    read()
}

/// Journals that a server may have left: cut off after the request, after any entry and within a frame,
/// and with the end.
fn left(journal: &[u8]) -> Vec<Vec<u8>> {
    let ends = frames(journal);
    let last = ends.len() - 1;
    let mut left = vec![
        journal[..ends[1]].to_vec(),
        journal[..ends[last - 1] - 1].to_vec(),
        journal[..ends[last - 1]].to_vec(),
        journal.to_vec(),
    ];
    let content = |frame: usize| {
        let content = &journal[ends[frame - 1] + FRAME_BYTES..ends[frame]];
        rmp_serde::from_slice::<Value>(content).expect("a frame")
    };
    let entries = (2..last).map(|frame| content(frame)["Entries"][1].clone());
    let entries = entries.flat_map(|entries| entries.as_array().expect("a list").clone());
    let entries: Vec<Value> = entries.collect();
    for number in (0..entries.len()).step_by(entries.len() / 7 + 1) {
        let content = json!({"Entries": [0, &entries[..number]]});
        let content = rmp_serde::to_vec(&content).expect("a frame");
        let mut cut = journal[..ends[1]].to_vec();
        cut.extend((content.len() as u32).to_le_bytes());
        cut.extend(&Sha256::digest(&content)[..8]);
        cut.extend(content);
        left.push(cut);
    }
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_killed_goes_on_with_the_same_events() {
    for more in [
        json!({"temperature": 1, "max_output_tokens": 700, "text": letters(600)}),
        json!({"temperature": 0.7, "top_logprobs": 2, "max_output_tokens": 300, "text": letters(600)}),
        json!({"metadata": {"a": "b"}, "user": "u", "priority": "background"}),
        long_call(),
    ] {
        let folder = Folder::new();
        let first = server(&folder, "").await;
        let earlier = first.post(RESPONSES, &ask(json!({}))).await.ok();
        let mut body = ask(more.clone());
        body["background"] = true.into();
        body["previous_response_id"] = id(&earlier).into();
        let begun = first.post(RESPONSES, &body).await.ok();
        let response = id(&begun);
        let undisturbed = events(&first, response).await;
        let written = written(&journal(&folder, response)).await;
        let expected: Vec<Value> = undisturbed.iter().map(comparable).collect();
        for left in left(&written) {
            let folder = Folder::new();
            fs::create_dir_all(journals(&folder)).expect("a folder");
            fs::write(journal(&folder, response), &left).expect("a file");
            let second = server(&folder, "").await;
            let again = events(&second, response).await;
            let again: Vec<Value> = again.iter().map(comparable).collect();
            assert_eq!(
                again,
                expected,
                "{more}: {} of {}",
                left.len(),
                written.len()
            );
            // It is in the store, with the conversation before it.
            let next = ask(json!({"previous_response_id": response, "input": "And?"}));
            let continued = second.post(RESPONSES, &next).await.ok();
            let undisturbed = first.post(RESPONSES, &next).await.ok();
            assert_eq!(
                continued["usage"]["input_tokens"],
                undisturbed["usage"]["input_tokens"]
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_hands_its_responses_to_the_next() {
    let folder = Folder::new();
    let keys = "ann secret-a 1\nbob secret-b";
    let first = server(&folder, keys).await;
    let (length, key) = (4_000, "secret-a");
    let body = json!({"background": true, "stream": true, "temperature": 1, "seed": 7,
                      "max_output_tokens": 2 * length, "text": letters(length)});
    let mut stream = first
        .send(with_key("POST", RESPONSES, key, &ask(body.clone())))
        .await;
    let mut seen = Vec::new();
    while seen.windows(2).filter(|end| end == b"\n\n").count() < 40 {
        let frame = timeout(TIMEOUT, stream.body_mut().frame())
            .await
            .expect("in time");
        let data = frame.expect("more").expect("no error").into_data();
        seen.extend(data.expect("data"));
    }
    // The client reads on until its connection breaks.
    let reading = async {
        loop {
            match stream.body_mut().frame().await.expect("an error ends it") {
                Ok(data) => seen.extend(data.into_data().expect("data")),
                Err(error) => return error,
            }
        }
    };
    let (error, ()) = tokio::join!(reading, hand_over(first));
    assert!(error.to_string().contains("goes on"), "{error}");
    let mut all = parsed(str::from_utf8(&seen).expect("text"));
    let response = id(&all[0]["response"]).to_owned();
    assert_ne!(all.last().expect("one")["type"], "response.completed");
    let mode = fs::metadata(journal(&folder, &response)).expect("a journal");
    assert!(mode.is_file());
    #[cfg(unix)]
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777,
        0o600
    );

    // A server that ends before it goes on with the answer leaves it to the next.
    let disk = format!("--disk {}", folder.0.join("disk").display());
    let between = app(&disk, keys).await;
    between.engine().shutdown(Shutdown::HandOver).await;
    hand_over(Server::of(Arc::new(between))).await;

    let second = server(&folder, keys).await;
    let path = format!("{RESPONSES}/{response}");
    let foreign = send(&second, "GET", &path, "secret-b").await;
    assert_eq!(foreign.status, StatusCode::NOT_FOUND);
    // It has its key's one place.
    let busy = with_key("POST", RESPONSES, key, &ask(json!({})));
    assert_eq!(
        second.send(busy).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    let after = all.len() - 1;
    let rest = format!("{path}?stream=true&starting_after={after}");
    let rest = second.send(with_key("GET", &rest, key, &Value::Null)).await;
    let rest = timeout(TIMEOUT, whole(rest)).await.expect("in time");
    let rest = rest.lines().filter_map(|line| line.strip_prefix("data: "));
    all.extend(rest.map(|data| serde_json::from_str::<Value>(data).expect("JSON")));
    for (number, event) in all.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let deltas = all.iter().filter_map(|event| event["delta"].as_str());
    let joined: String = deltas.collect();
    let last = &all.last().expect("one")["response"];
    assert_eq!(last["status"], "completed");
    assert_eq!(joined, text(last));
    let mut direct = body;
    direct["background"] = false.into();
    direct["stream"] = false.into();
    let direct = second
        .send(with_key("POST", RESPONSES, "secret-b", &ask(direct)))
        .await;
    assert_eq!(text(&Answer::of(direct).await.ok()), joined);
    send(&second, "DELETE", &path, key).await.ok();
    until("its journal is removed", || names(&folder).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_over_leaves_no_journal() {
    let folder = Folder::new();
    let first = server(&folder, "ann secret-a\nbob secret-b").await;
    let long = ask(json!({"background": true, "max_output_tokens": 8_000, "text": letters(7_000)}));
    let begin = async |key| {
        let begun = first.send(with_key("POST", RESPONSES, key, &long)).await;
        let begun = Answer::of(begun).await.ok();
        format!("{RESPONSES}/{}", id(&begun))
    };
    let deleted = begin("secret-a").await;
    assert_eq!(names(&folder).len(), 1);
    send(&first, "DELETE", &deleted, "secret-a").await.ok();
    let cancelled = begin("secret-b").await;
    let path = format!("{cancelled}/cancel");
    let cancelled_body = send(&first, "POST", &path, "secret-b").await.ok();
    assert_eq!(cancelled_body["status"], "cancelled");
    until("the deleted one is gone", || names(&folder).len() == 1).await;
    let file = journals(&folder).join(&names(&folder)[0]);
    written(&file).await;
    hand_over(first).await;

    // One that is cancelled stays cancelled, and is another key's to read.
    let next = server(&folder, "bob secret-b").await;
    let read = send(&next, "GET", &cancelled, "secret-b").await.ok();
    assert_eq!(read, cancelled_body);
    hand_over(next).await;

    let without = server(&folder, "ann secret-a").await;
    until("no key may read it", || names(&folder).is_empty()).await;
    let gone = send(&without, "GET", &cancelled, "secret-a").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_no_journals_stop_no_server() {
    let folder = Folder::new();
    let first = server(&folder, "").await;
    let body = ask(json!({"background": true, "max_output_tokens": 8}));
    let begun = first.post(RESPONSES, &body).await.ok();
    let path = journal(&folder, id(&begun));
    let good = written(&path).await;
    let undisturbed = events(&first, id(&begun)).await;
    hand_over(first).await;
    let other = |name: &str| journals(&folder).join(name);
    fs::write(other("damaged.response"), &good[..40]).expect("a file");
    fs::write(other("empty.response"), "").expect("a file");
    fs::write(other("renamed.response"), &good).expect("a file");
    fs::write(other("old.response"), [b"MOTETRS0", &good[8..]].concat()).expect("a file");
    fs::write(other("foreign.response"), "a letter").expect("a file");
    fs::write(other("notes.txt"), "notes").expect("a file");
    fs::create_dir(other("folder.response")).expect("a folder");
    #[cfg(unix)]
    {
        let outside = folder.0.join("outside");
        fs::write(&outside, &good).expect("a file");
        std::os::unix::fs::symlink(&outside, other("link.response")).expect("a link");
    }
    let second = server(&folder, "").await;
    assert_eq!(events(&second, id(&begun)).await, undisturbed);
    let mut names = names(&folder);
    names.sort();
    names.retain(|name| !path.ends_with(name));
    let mut expected = vec!["folder.response", "foreign.response", "notes.txt"];
    if cfg!(unix) {
        expected.insert(2, "link.response");
    }
    assert_eq!(names, expected);
    // A server that uses the same folder at the same time has no journals.
    let router = motet_server::routes::router(Arc::clone(&second.app));
    let third = Server {
        app: Arc::clone(&second.app),
        router,
    };
    third.post(RESPONSES, &body).await.ok();
    assert_eq!(
        third
            .get(&format!("{RESPONSES}/{}", id(&begun)))
            .await
            .status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_without_space_for_its_journal_is_answered() {
    let folder = Folder::new();
    let first = server(&folder, "").await;
    let direct = first.post(RESPONSES, &ask(json!({}))).await.ok();
    let asked = ask(json!({"background": true}));
    let before = first.post(RESPONSES, &asked).await.ok();
    events(&first, id(&before)).await;
    // A file takes the folder's place.
    fs::remove_dir_all(journals(&folder)).expect("it is there");
    fs::write(journals(&folder), "not a folder").expect("a file");
    let begun = first.post(RESPONSES, &asked).await.ok();
    let answered = events(&first, id(&begun)).await;
    let answered = &answered.last().expect("one")["response"];
    assert_eq!(text(answered), text(&direct));
    hand_over(first).await;

    // The next server starts without journals, and forgets the responses.
    let second = server(&folder, "").await;
    for response in [&before, &begun] {
        let path = format!("{RESPONSES}/{}", id(response));
        assert_eq!(second.get(&path).await.status, StatusCode::NOT_FOUND);
    }
    let again = second.post(RESPONSES, &asked).await.ok();
    let again = events(&second, id(&again)).await;
    assert_eq!(text(&again.last().expect("one")["response"]), text(&direct));
}
