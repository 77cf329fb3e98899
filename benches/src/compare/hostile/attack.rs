//! Hostile clients: a fixed number at once, for a bounded time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::compare::exchange::{self, Answer, Request};

/// Three hundred clients are three hundred threads; none of them needs a large stack.
const STACK_BYTES: usize = 256 << 10;

/// A field that an answer has once for each token with log probabilities.
const TOKEN_LOGPROBS: &str = r#""top_logprobs":"#;

/// One request of a hostile client.
#[derive(Clone, Debug)]
pub(super) struct Shot {
    pub(super) method: &'static str,
    pub(super) path: Cow<'static, str>,
    pub(super) body: Arc<[u8]>,
    /// Time that its client waits for the answer before it leaves.
    pub(super) timeout: Duration,
    /// How much of the answer its client reads before it stops to read.
    pub(super) reads: Reads,
}

/// The part of an answer that a client reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reads {
    All,
    /// The first line only.
    Status,
    /// Log probabilities of this many tokens.
    Logprobs(usize),
}

impl Shot {
    /// A posted body whose answer is read to its end.
    pub(super) fn post(path: &'static str, body: impl Into<Arc<[u8]>>, timeout: Duration) -> Self {
        Self {
            method: "POST",
            path: path.into(),
            body: body.into(),
            timeout,
            reads: Reads::All,
        }
    }

    fn send(&self, port: u16, is_to_leave: impl Fn() -> bool) -> Answer {
        let request = Request {
            method: self.method,
            path: &self.path,
            body: &self.body,
        };
        let mut logprobs = 0;
        match self.reads {
            Reads::All => exchange::ask(port, request, is_to_leave),
            Reads::Status => exchange::ask_and_stall(port, request, is_to_leave, |_| true),
            Reads::Logprobs(most) => exchange::ask_and_stall(port, request, is_to_leave, |line| {
                logprobs += line.matches(TOKEN_LOGPROBS).count();
                logprobs >= most
            }),
        }
    }
}

/// Clients that send a list of shots. They leave when this is dropped.
pub(super) struct Attack {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    port: u16,
    shots: Vec<Shot>,
    /// Shots that were started. The list is repeated once all have been started.
    started: AtomicUsize,
    /// The list is not repeated after this time.
    enough: Instant,
    is_finished: AtomicBool,
    tally: Mutex<Tally>,
}

/// Number of requests for each outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally(BTreeMap<String, usize>);

impl Attack {
    /// Sends every shot once, from `clients` clients, and repeats all shots until `time_least`
    /// has passed.
    pub(super) fn start(port: u16, clients: usize, shots: Vec<Shot>, time_least: Duration) -> Self {
        let shared = Arc::new(Shared {
            port,
            shots,
            started: AtomicUsize::new(0),
            enough: Instant::now() + time_least,
            is_finished: AtomicBool::new(false),
            tally: Mutex::default(),
        });
        let threads = (0..clients).map(|_| {
            let shared = Arc::clone(&shared);
            let client = thread::Builder::new().stack_size(STACK_BYTES);
            let client = client.spawn(move || {
                lower_thread_priority();
                shared.send();
            });
            client.expect("the system can start another thread")
        });
        Self {
            threads: threads.collect(),
            shared,
        }
    }

    /// Whether every request was answered, or its client left.
    pub(super) fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Text with the number of started shots and the number of all shots.
    pub(super) fn progress(&self) -> String {
        let started = self.shared.started.load(Ordering::Relaxed);
        format!(
            "{started} requests started, of at least {}",
            self.shared.shots.len()
        )
    }

    /// Makes all clients leave, and returns the outcomes of their requests.
    pub(super) fn end(mut self) -> Tally {
        self.leave();
        let tally = self.shared.tally.lock();
        tally.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn leave(&mut self) {
        self.shared.is_finished.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            thread.join().ok();
        }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Shared {
    fn send(&self) {
        while !self.is_finished.load(Ordering::Relaxed) {
            let number = self.started.fetch_add(1, Ordering::Relaxed);
            if number >= self.shots.len() && Instant::now() >= self.enough {
                self.started.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let shot = &self.shots[number % self.shots.len()];
            let started = Instant::now();
            let is_to_leave =
                || self.is_finished.load(Ordering::Relaxed) || started.elapsed() >= shot.timeout;
            let answer = shot.send(self.port, is_to_leave);
            let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.count(&answer);
        }
    }
}

/// Hostile clients run at the lowest priority, since in practice they have machines of their own.
fn lower_thread_priority() {
    // Without permission they keep their priority.
    #[cfg(target_os = "linux")]
    rustix::process::nice(19).ok();
}

impl Tally {
    pub(super) fn count(&mut self, answer: &Answer) {
        let kind = match answer {
            Answer::Status(status) => format!("status {status}"),
            Answer::Left => "left".to_owned(),
            Answer::CutOff(kind) => format!("cut off ({kind})"),
        };
        *self.0.entry(kind).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (kind, count) in &other.0 {
            *self.0.entry(kind.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.iter().map(|(kind, count)| format!("{count} {kind}"));
        f.write_str(&parts.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// A server that answers `answers` requests with 200 and then none.
    fn server(answers: usize) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut held = Vec::new();
            for number in 0.. {
                let (mut stream, _) = listener.accept().unwrap();
                if number < answers {
                    let mut read = Vec::new();
                    let mut byte = [0];
                    while !read.ends_with(b"{}") {
                        stream.read_exact(&mut byte).unwrap();
                        read.push(byte[0]);
                    }
                    stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
                } else {
                    held.push(stream);
                }
            }
        });
        port
    }

    fn shots(count: usize, timeout: Duration) -> Vec<Shot> {
        vec![Shot::post("/x", *b"{}", timeout); count]
    }

    #[test]
    fn every_shot_is_sent_once_and_counted() {
        let for_ever = Duration::from_secs(3600);
        let attack = Attack::start(server(100), 3, shots(7, for_ever), Duration::ZERO);
        while !attack.is_finished() {
            thread::yield_now();
        }
        assert_eq!(attack.end().to_string(), "7 status 200");
    }

    #[test]
    fn clients_leave_on_timeout_or_on_request() {
        let attack = Attack::start(server(0), 1, shots(2, Duration::ZERO), Duration::ZERO);
        while !attack.is_finished() {
            thread::yield_now();
        }
        assert_eq!(attack.end().to_string(), "2 left");
        let for_ever = Duration::from_secs(3600);
        let attack = Attack::start(server(0), 2, shots(2, for_ever), for_ever);
        while attack.shared.started.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        assert_eq!(attack.end().to_string(), "2 left");
    }
}
