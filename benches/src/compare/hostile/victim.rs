//! The server under attack. It is watched, and ended before it takes the machine's memory. Where
//! it does not come to rest, another server is started.

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;
use xtask::serving::Serving;
use xtask::workspace;

use crate::compare::exchange;
use crate::compare::servers::OurServer;
use crate::system::Process;

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time within which a process that is about to end has ended.
const END_TIME: Duration = Duration::from_secs(5);
/// The log of the last server that ended by itself; the next one has the usual log.
const DEATH_LOG: &str = "hostile-server-ended.log";
/// A server rests if it computes less than [`REST_SECONDS`] for this time.
const REST_INTERVAL: Duration = Duration::from_millis(300);
const REST_SECONDS: f64 = 0.03;

/// Our server, and the way to start another.
pub(super) struct Victim {
    recipe: OurServer,
    log: PathBuf,
    serving: Serving,
    process: Process,
    /// The server is ended if it grows by more.
    growth_bytes_max: u64,
    resident_at_start: u64,
    was_ended: bool,
}

/// The server ended by itself; the text says how.
#[derive(Clone, Debug)]
pub(super) struct Death(String);

/// Outcome of watching a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchOutcome {
    Well,
    /// The server grew beyond its limit and was ended.
    TooLarge,
}

impl Victim {
    /// Starts a server that may grow by `growth_bytes_max` bytes.
    pub(super) fn start(recipe: OurServer, growth_bytes_max: u64) -> Result<Self> {
        let log = workspace::reports()?.join("hostile-server.log");
        let serving = recipe.start(&log)?;
        let process = Process::new(serving.id())?;
        Ok(Self {
            resident_at_start: process.resident_bytes()?,
            recipe,
            log,
            serving,
            process,
            growth_bytes_max,
            was_ended: false,
        })
    }

    /// Ends this server and starts another.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.serving.kill();
        let fresh = Self::start(self.recipe.clone(), self.growth_bytes_max)?;
        *self = fresh;
        Ok(())
    }

    pub(super) fn port(&self) -> u16 {
        self.serving.port()
    }

    /// Posts JSON and returns the JSON of the answer, whatever its status is.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        exchange::post_json(self.port(), path, body)
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Resident bytes at which the server is ended.
    pub(super) fn resident_bytes_max(&self) -> u64 {
        self.resident_at_start + self.growth_bytes_max
    }

    /// Whether the server grew beyond its limit.
    pub(super) fn was_ended(&self) -> bool {
        self.was_ended
    }

    /// Watches the server until `is_finished` returns true.
    ///
    /// # Errors
    ///
    /// [`Death`] when the server has ended by itself.
    pub(super) fn watch(&mut self, mut is_finished: impl FnMut() -> bool) -> Result<WatchOutcome> {
        while !is_finished() {
            let resident = self.process.resident_bytes();
            if resident.is_err() {
                // A process that is ending reports no memory.
                thread::sleep(END_TIME);
            }
            if let Some(status) = self.serving.ended()? {
                let log_copy = self.log.with_file_name(DEATH_LOG);
                std::fs::copy(&self.log, &log_copy)?;
                let words = last_words(&log_copy);
                return Err(Death(format!("our server ended ({status}): {words}")).into());
            }
            if resident? > self.resident_bytes_max() {
                self.serving.kill();
                self.was_ended = true;
                return Ok(WatchOutcome::TooLarge);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(WatchOutcome::Well)
    }

    /// Watches the server for `time`.
    pub(super) fn watch_for(&mut self, time: Duration) -> Result<WatchOutcome> {
        let started_at = Instant::now();
        self.watch(|| started_at.elapsed() >= time)
    }

    /// Waits until the server computes nothing, for at most `time_max`. Returns false if it does
    /// not stop.
    pub(super) fn comes_to_rest(&mut self, time_max: Duration) -> Result<bool> {
        let started_at = Instant::now();
        loop {
            let before = self.process.processor_seconds()?;
            if self.watch_for(REST_INTERVAL)? == WatchOutcome::TooLarge {
                return Ok(false);
            }
            if self.process.processor_seconds()? - before < REST_SECONDS {
                return Ok(true);
            }
            if started_at.elapsed() >= time_max {
                return Ok(false);
            }
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Death {}

/// The last lines of a log that are not its usual JSON lines: the output of a process that can no
/// longer log.
fn last_words(log: &Path) -> String {
    const LINES_MAX: usize = 4;
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let unusual = text.lines().filter(|line| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('{')
    });
    let lines: Vec<&str> = unusual.collect();
    let last = &lines[lines.len().saturating_sub(LINES_MAX)..];
    match last {
        [] => format!("nothing; {} has its log", log.display()),
        _ => last.join(" / "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_those_that_are_no_json() {
        let log = std::env::temp_dir().join(format!("motet-last-words-{}", std::process::id()));
        std::fs::write(
            &log,
            "{\"level\":\"INFO\"}\nthread 'x' panicked\n\nabort\n{}\n",
        )
        .unwrap();
        assert_eq!(last_words(&log), "thread 'x' panicked / abort");
        std::fs::write(&log, "{}\n").unwrap();
        assert!(last_words(&log).starts_with("nothing"));
        std::fs::remove_file(&log).unwrap();
    }
}
