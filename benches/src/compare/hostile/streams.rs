//! Honest clients: streamed chats, and the arrival time of each token.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use serde_json::{Value, json};

use crate::compare::exchange;

/// The model's special tokens. They have no text, and the server sends no event for a token
/// without text. A gap would look twice as long as it is.
const SPECIAL_TOKENS: [&str; 3] = ["0", "1", "2"];
const DATA: &str = "data: ";

/// Running chats. They end when this is dropped.
pub(super) struct Streams {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    is_finished: AtomicBool,
    received: Vec<Mutex<Received>>,
}

/// Progress of one chat.
#[derive(Debug, Default)]
struct Received {
    /// Arrival times of tokens. A chat that has come to its end starts over, with a list of its
    /// own.
    answers: Vec<Vec<Instant>>,
    failure: Option<String>,
}

/// A window of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) from: Instant,
    pub(super) to: Instant,
}

impl Streams {
    /// Opens `count` chats. No two begin alike, within this `round` and across rounds.
    pub(super) fn open(port: u16, count: usize, tokens: usize, round: usize) -> Self {
        let shared = Arc::new(Shared {
            is_finished: AtomicBool::new(false),
            received: (0..count).map(|_| Mutex::default()).collect(),
        });
        let threads = (0..count).map(|number| {
            let shared = Arc::clone(&shared);
            let body = body(round * count + number, tokens);
            thread::spawn(move || shared.listen(number, port, &body))
        });
        Self {
            threads: threads.collect(),
            shared,
        }
    }

    /// Fewest tokens that any chat has received.
    pub(super) fn tokens_least(&self) -> usize {
        let received = self.received().map(|received| received.tokens());
        received.min().unwrap_or(0)
    }

    /// Whether all chats have received a token since `then`.
    pub(super) fn all_received_since(&self, then: Instant) -> bool {
        self.received()
            .all(|received| received.last().is_some_and(|last| last >= then))
    }

    /// Why a chat ended early, if one did.
    pub(super) fn failure(&self) -> Option<String> {
        self.received()
            .find_map(|received| received.failure.clone())
    }

    /// Seconds between two successive tokens, for all pairs within the window.
    pub(super) fn gaps(&self, window: Window) -> Vec<f64> {
        let mut gaps = Vec::new();
        for received in self.received() {
            let pairs = received.answers.iter().flat_map(|times| times.windows(2));
            gaps.extend(
                pairs
                    .filter(|pair| window.from <= pair[0] && pair[1] <= window.to)
                    .map(|pair| (pair[1] - pair[0]).as_secs_f64()),
            );
        }
        gaps
    }

    /// The longest gap that touches the window, in seconds. A gap that has not ended counts up to
    /// now.
    pub(super) fn longest_gap(&self, window: Window) -> f64 {
        let mut longest: f64 = 0.0;
        for received in self.received() {
            let pairs = received.answers.iter().flat_map(|times| times.windows(2));
            let gaps = pairs
                .map(|pair| (pair[0], pair[1]))
                .chain(received.last().map(|last| (last, Instant::now())));
            let touching = gaps.filter(|(from, to)| *from <= window.to && window.from <= *to);
            longest = touching
                .map(|(from, to)| (to - from).as_secs_f64())
                .fold(longest, f64::max);
        }
        longest
    }

    /// Number of tokens within the window.
    pub(super) fn tokens(&self, window: Window) -> usize {
        let within = |received: MutexGuard<'_, Received>| {
            let times = received.answers.iter().flatten();
            let within = times.filter(|time| window.from <= **time && **time <= window.to);
            within.count()
        };
        self.received().map(within).sum()
    }

    fn received(&self) -> impl Iterator<Item = MutexGuard<'_, Received>> {
        self.shared.received.iter().map(locked)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.shared.is_finished.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            thread.join().ok();
        }
    }
}

impl Shared {
    /// Sends the chat again and again, until the streams are dropped or a request fails.
    fn listen(&self, number: usize, port: u16, body: &[u8]) {
        let is_finished = || self.is_finished.load(Ordering::Relaxed);
        while !is_finished() {
            locked(&self.received[number]).answers.push(Vec::new());
            let mut is_whole = false;
            let on_line = |line: &str| match parse_line(line) {
                Line::Token => {
                    locked(&self.received[number]).record_token(Instant::now());
                    true
                }
                Line::Nothing => true,
                Line::End => {
                    is_whole = true;
                    false
                }
                Line::Failure(what) => {
                    locked(&self.received[number]).failure = Some(what);
                    false
                }
            };
            let asked =
                exchange::post_for_lines(port, "/v1/chat/completions", body, is_finished, on_line);
            let mut received = locked(&self.received[number]);
            if let Err(error) = asked {
                received.failure.get_or_insert(error.to_string());
            } else if !is_whole && !is_finished() {
                received
                    .failure
                    .get_or_insert("the stream broke off before its end".into());
            }
            if received.failure.is_some() {
                return;
            }
        }
    }
}

impl Received {
    fn record_token(&mut self, now: Instant) {
        let answer = self.answers.last_mut();
        answer.expect("an answer was started").push(now);
    }

    fn tokens(&self) -> usize {
        self.answers.iter().map(Vec::len).sum()
    }

    fn last(&self) -> Option<Instant> {
        self.answers.iter().flatten().next_back().copied()
    }
}

/// Content of a line of an answer.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Token,
    Nothing,
    End,
    Failure(String),
}

fn parse_line(line: &str) -> Line {
    if let Some(status) = line.strip_prefix("HTTP/") {
        return match status.split_whitespace().nth(1) {
            Some("200") => Line::Nothing,
            _ => Line::Failure(format!("the server answered {line}")),
        };
    }
    let Some(data) = line.strip_prefix(DATA) else {
        return Line::Nothing;
    };
    if data == "[DONE]" {
        return Line::End;
    }
    match serde_json::from_str::<Value>(data) {
        Ok(part) if !part["error"].is_null() => Line::Failure(part["error"].to_string()),
        Ok(part) => match part["choices"][0]["delta"]["content"].as_str() {
            None | Some("") => Line::Nothing,
            Some(_) => Line::Token,
        },
        Err(error) => Line::Failure(format!("an event is not JSON: {error}")),
    }
}

fn body(number: usize, tokens: usize) -> Vec<u8> {
    let banned = SPECIAL_TOKENS.map(|token| (token.to_owned(), json!(-100)));
    let body = json!({
        "messages": [{
            "role": "user",
            "content": format!("Tell me the long story of traveller number {number}."),
        }],
        "stream": true,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": true,
        "logit_bias": serde_json::Map::from_iter(banned),
        "user": format!("honest-{number}"),
    });
    body.to_string().into_bytes()
}

/// A list of times is complete after each addition, also if a thread has panicked.
fn locked(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn stream_lines_are_classified() {
        let check = |line: &str, expected: Line| assert_eq!(parse_line(line), expected, "{line}");
        check("HTTP/1.0 200 OK", Line::Nothing);
        check("content-type: text/event-stream", Line::Nothing);
        check(
            r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            Line::Nothing,
        );
        check(
            r#"data: {"choices":[{"delta":{"content":" a"}}]}"#,
            Line::Token,
        );
        check(r#"data: {"choices":[{"delta":{}}]}"#, Line::Nothing);
        check("data: [DONE]", Line::End);
        for line in [
            "HTTP/1.0 429 Too Many Requests",
            r#"data: {"error":{"code":"out_of_memory"}}"#,
            "data: {",
        ] {
            assert!(matches!(parse_line(line), Line::Failure(_)), "{line}");
        }
    }

    #[test]
    fn gaps_are_those_between_tokens_of_one_answer() {
        let start = Instant::now() - Duration::from_secs(60);
        let at = |seconds: &[u64]| -> Vec<Instant> {
            let times = seconds.iter();
            times.map(|s| start + Duration::from_secs(*s)).collect()
        };
        let received = |answers| {
            Mutex::new(Received {
                answers,
                failure: None,
            })
        };
        let streams = Streams {
            threads: Vec::new(),
            shared: Arc::new(Shared {
                is_finished: AtomicBool::new(true),
                received: vec![
                    received(vec![at(&[1, 2, 4]), at(&[20, 21])]),
                    received(vec![at(&[1, 3, 19, 22])]),
                ],
            }),
        };
        let window = |from, to| Window {
            from: at(&[from])[0],
            to: at(&[to])[0],
        };
        assert_eq!(streams.gaps(window(0, 21)), [1.0, 2.0, 1.0, 2.0, 16.0]);
        assert_eq!(streams.gaps(window(2, 18)), [2.0]);
        assert_eq!(streams.longest_gap(window(1, 2)), 2.0);
        assert_eq!(streams.longest_gap(window(10, 11)), 16.0);
        // The gaps after the last tokens have not ended.
        assert!(streams.longest_gap(window(30, 31)) >= 39.0);
        assert_eq!(streams.tokens(window(0, 3)), 4);
        assert_eq!(streams.tokens_least(), 4);
        assert!(streams.all_received_since(at(&[21])[0]));
        assert!(!streams.all_received_since(at(&[22])[0]));
        assert_eq!(streams.failure(), None);
    }
}
