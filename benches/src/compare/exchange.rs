//! One request over a connection of its own, which its client can leave at any moment.
//!
//! It uses HTTP/1.0, so that an answer is not chunked and ends with its connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// Interval at which a waiting client checks whether it has to leave.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes that are written or read at once.
const PORTION_BYTES: usize = 256 << 10;
/// First bytes of an answer that are kept: they hold its status.
const HEAD_BYTES: usize = 64;

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// JSON, or nothing.
    pub(crate) body: &'a [u8],
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The answer came to its end, with this status.
    Status(u16),
    /// The client left before that.
    Left,
    /// The server closed the connection without a status.
    CutOff(io::ErrorKind),
}

/// Sends a request and reads the answer to its end, unless `is_to_leave` returns true first.
pub(crate) fn ask(port: u16, request: Request<'_>, is_to_leave: impl Fn() -> bool) -> Answer {
    let answered = open(port, request, &is_to_leave).and_then(|stream| match stream {
        Some(stream) => status(stream, &is_to_leave),
        None => Ok(None),
    });
    outcome(answered)
}

/// Sends a request and reads the answer until `is_enough` returns true for a line of it. Then the
/// connection stays open and unread until `is_to_leave` returns true.
pub(crate) fn ask_and_stall(
    port: u16,
    request: Request<'_>,
    is_to_leave: impl Fn() -> bool,
    mut is_enough: impl FnMut(&str) -> bool,
) -> Answer {
    let mut status = None;
    let read = for_lines(port, request, &is_to_leave, |line| {
        status.get_or_insert_with(|| status_of(line));
        let is_enough = is_enough(line);
        while is_enough && !is_to_leave() {
            thread::sleep(POLL_INTERVAL);
        }
        !is_enough
    });
    outcome(read.and_then(|()| match status {
        _ if is_to_leave() => Ok(None),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(status) => status.map(Some),
    }))
}

fn outcome(answered: io::Result<Option<u16>>) -> Answer {
    match answered {
        Ok(Some(status)) => Answer::Status(status),
        Ok(None) => Answer::Left,
        Err(error) => Answer::CutOff(error.kind()),
    }
}

/// Posts JSON and passes each line of the answer to `on_line`, until the answer ends, `on_line`
/// returns false, or `is_to_leave` returns true.
///
/// # Errors
///
/// When the connection breaks.
pub(crate) fn post_for_lines(
    port: u16,
    path: &str,
    body: &[u8],
    is_to_leave: impl Fn() -> bool,
    on_line: impl FnMut(&str) -> bool,
) -> io::Result<()> {
    let method = "POST";
    for_lines(port, Request { method, path, body }, &is_to_leave, on_line)
}

/// Posts JSON and returns the JSON of the answer, whatever its status is.
pub(crate) fn post_json(port: u16, path: &str, body: &Value) -> Result<Value> {
    let mut answer = String::new();
    post_for_lines(
        port,
        path,
        body.to_string().as_bytes(),
        || false,
        |line| {
            line.clone_into(&mut answer);
            true
        },
    )
    .context("the server ended the connection")?;
    serde_json::from_str(&answer).with_context(|| format!("an answer that is no JSON: {answer}"))
}

fn for_lines(
    port: u16,
    request: Request<'_>,
    is_to_leave: &impl Fn() -> bool,
    mut on_line: impl FnMut(&str) -> bool,
) -> io::Result<()> {
    let Some(stream) = open(port, request, is_to_leave)? else {
        return Ok(());
    };
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    while !is_to_leave() {
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                if !on_line(String::from_utf8_lossy(&line).trim_end()) {
                    return Ok(());
                }
                line.clear();
            }
            // The part of the line that has arrived stays in `line`.
            Err(error) if is_only_late(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens a connection and writes the request. Returns none if the client left meanwhile.
fn open(
    port: u16,
    request: Request<'_>,
    is_to_leave: &impl Fn() -> bool,
) -> io::Result<Option<TcpStream>> {
    let Request { method, path, body } = request;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    stream.set_write_timeout(Some(POLL_INTERVAL))?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    for mut rest in [head.as_bytes(), body] {
        while !rest.is_empty() {
            if is_to_leave() {
                return Ok(None);
            }
            match stream.write(&rest[..rest.len().min(PORTION_BYTES)]) {
                Ok(written) => rest = &rest[written..],
                Err(error) if is_only_late(&error) => {}
                // A server may reject a request before it has read all of it: its answer is
                // there.
                Err(error) if is_closed(&error) => return Ok(Some(stream)),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Some(stream))
}

/// Reads an answer to its end and returns its status, or none if the client left before.
fn status(mut stream: TcpStream, is_to_leave: &impl Fn() -> bool) -> io::Result<Option<u16>> {
    let mut head = Vec::new();
    let mut portion = vec![0; PORTION_BYTES];
    loop {
        if is_to_leave() {
            return Ok(None);
        }
        match stream.read(&mut portion) {
            Ok(0) => break,
            Ok(read) => {
                let missing_bytes = HEAD_BYTES.saturating_sub(head.len());
                head.extend_from_slice(&portion[..read.min(missing_bytes)]);
            }
            Err(error) if is_only_late(&error) => {}
            // The server left a part of the request unread: the end of the answer looks like this
            // then.
            Err(error) if is_closed(&error) && !head.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    status_of(&String::from_utf8_lossy(&head)).map(Some)
}

/// The status in an answer's first line.
fn status_of(head: &str) -> io::Result<u16> {
    let code = head.split_whitespace().nth(1);
    let code = code.and_then(|code| code.parse().ok());
    code.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn is_only_late(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const REQUEST: Request<'_> = Request {
        method: "POST",
        path: "/x",
        body: b"{}",
    };

    /// A server that reads one request with a body of two bytes, and then calls `then`.
    fn server(then: impl FnOnce(TcpStream) + Send + 'static) -> (u16, thread::JoinHandle<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = Vec::new();
            let mut byte = [0];
            while !read.ends_with(b"\r\n\r\n{}") {
                stream.read_exact(&mut byte).unwrap();
                read.push(byte[0]);
            }
            then(stream);
        });
        (port, server)
    }

    fn answers(answer: &'static str) -> (u16, thread::JoinHandle<()>) {
        server(move |mut stream| stream.write_all(answer.as_bytes()).unwrap())
    }

    #[test]
    fn an_answer_has_a_status_or_is_cut_off() {
        let check = |answer, expected| {
            let (port, server) = answers(answer);
            assert_eq!(ask(port, REQUEST, || false), expected, "{answer}");
            server.join().unwrap();
        };
        check("HTTP/1.0 422 No\r\n\r\n{\"error\":1}", Answer::Status(422));
        check("", Answer::CutOff(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn client_leaves_on_request() {
        let is_finished = Arc::new(AtomicBool::new(false));
        let copy = Arc::clone(&is_finished);
        let (port, server) = server(move |mut stream| {
            copy.store(true, Ordering::Relaxed);
            assert_eq!(
                stream.read(&mut [0]).unwrap(),
                0,
                "the client closes the connection"
            );
        });
        let answer = ask(port, REQUEST, || is_finished.load(Ordering::Relaxed));
        assert_eq!(answer, Answer::Left);
        server.join().unwrap();
    }

    #[test]
    fn lines_come_one_by_one() {
        let (port, server) = answers("HTTP/1.0 200 OK\r\n\r\ndata: 1\n\ndata: 2\n");
        let mut lines = Vec::new();
        let on_line = |line: &str| {
            lines.push(line.to_owned());
            line != "data: 2"
        };
        post_for_lines(port, "/x", b"{}", || false, on_line).unwrap();
        assert_eq!(
            lines,
            ["HTTP/1.0 200 OK", "", "data: 1", "", "data: 2"].map(str::to_owned)
        );
        server.join().unwrap();
    }

    #[test]
    fn stalled_client_stays_until_it_has_to_leave() {
        let enough = |line: &str| line == "2";
        let (port, server) = answers("HTTP/1.0 200 OK\r\n\r\n1\n2\n3\n");
        let leaves = Arc::new(AtomicBool::new(false));
        let asked = thread::spawn({
            let leaves = Arc::clone(&leaves);
            move || ask_and_stall(port, REQUEST, || leaves.load(Ordering::Relaxed), enough)
        });
        server.join().unwrap();
        assert!(!asked.is_finished(), "it does not read to the end");
        leaves.store(true, Ordering::Relaxed);
        assert_eq!(asked.join().unwrap(), Answer::Left);

        let (port, server) = answers("HTTP/1.0 429 No\r\n\r\n1\n");
        let answer = ask_and_stall(port, REQUEST, || false, enough);
        assert_eq!(answer, Answer::Status(429));
        server.join().unwrap();
    }
}
