//! A server that is measured under load.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process;

/// Longest time until a server is ready.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// Longest time for an answer whether it is ready.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A server with a port of its own. It is ended when this is dropped.
pub(crate) struct Serving {
    name: &'static str,
    child: Child,
    port: u16,
    /// Name of the model in the load generator's requests.
    model: &'static str,
}

/// Program and arguments of our server, which can be started several times.
#[derive(Clone, Debug)]
pub(super) struct OurServer {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// Name of the model in the load generator's requests.
    pub(super) model: &'static str,
}

/// Result of a load.
#[derive(Clone, Copy)]
pub(super) struct LoadResult {
    pub(super) seconds: f64,
    pub(super) output_tokens: f64,
}

impl OurServer {
    /// Starts the server; its output goes to the log.
    pub(super) fn start(&self, log: &Path) -> Result<Serving> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        Serving::start("our server", self.model, &mut command, log)
    }

    /// This server, with at most so many bytes of address space. A server that asks for more than
    /// that ends.
    pub(super) fn with_address_space(self, bytes: u64) -> Self {
        const LIMITED: &str = r#"ulimit -v "$0" && exec "$@""#;
        let kibibytes = (bytes >> 10).to_string();
        let mut arguments: Vec<OsString> = ["-c", LIMITED, &kibibytes].map(OsString::from).into();
        arguments.push(self.program.into());
        arguments.extend(self.arguments);
        Self {
            program: "sh".into(),
            arguments,
            ..self
        }
    }
}

impl Serving {
    /// Starts the program, which takes `--port` and answers `GET /health`, and waits until it is
    /// ready. Its output goes to the log.
    pub(crate) fn start(
        name: &'static str,
        model: &'static str,
        command: &mut Command,
        log: &Path,
    ) -> Result<Self> {
        let log_file =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let port = free_port()?;
        let child = command
            .args(["--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(log_file.try_clone().context("cannot share the log")?)
            .stderr(log_file)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let mut serving = Self {
            name,
            child,
            port,
            model,
        };
        let started_at = Instant::now();
        while !is_ready(port) {
            let ended = serving
                .child
                .try_wait()
                .context("cannot ask for its exit status")?;
            if ended.is_some() || started_at.elapsed() > START_TIME_MAX {
                bail!(
                    "{name} did not become ready; its log {} says why",
                    log.display()
                );
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(serving)
    }

    /// Name of the server.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Port of this machine on which the server listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Id of the server's process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Exit status of the server, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .context("cannot ask for its exit status")
    }

    /// Runs the load generator, at `program`, against this server.
    ///
    /// # Errors
    ///
    /// When a request was not answered.
    pub(super) fn load(
        &self,
        program: &Path,
        arguments: &[String],
        json: &Path,
    ) -> Result<LoadResult> {
        let url = format!("http://127.0.0.1:{}", self.port);
        let mut command = Command::new(program);
        command
            .args(["--quiet", "--url", &url, "--model-name", self.model])
            .args(arguments)
            .arg("--json")
            .arg(json);
        process::capture(&mut command).with_context(|| format!("a load on {}", self.name))?;
        let text = std::fs::read_to_string(json)
            .with_context(|| format!("cannot read {}", json.display()))?;
        let report: Value = serde_json::from_str(&text).context("the load generator's report")?;
        let requests = &report["requests"];
        if requests["finished"] != requests["planned"] {
            bail!("{} did not answer all requests: {requests}", self.name);
        }
        let number = |value: &Value| value.as_f64().context("a report without a number");
        Ok(LoadResult {
            seconds: number(&report["wall_seconds"])?,
            output_tokens: number(&report["tokens"]["output"])?,
        })
    }

    /// Posts JSON and returns the JSON of the answer, whatever its status is.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let asked = || -> io::Result<String> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            let head = format!(
                "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes())?;
            stream.write_all(body.as_bytes())?;
            io::read_to_string(stream)
        };
        let answer = asked().with_context(|| format!("{} does not answer", self.name))?;
        let (_, answer) = answer
            .split_once("\r\n\r\n")
            .context("an answer without a body")?;
        serde_json::from_str(answer).context("an answer that is not JSON")
    }

    /// Processor seconds of the threads whose names begin with `name`.
    ///
    /// # Errors
    ///
    /// Where the system does not report them as Linux does.
    pub(super) fn thread_seconds(&self, name: &str) -> Result<f64> {
        let threads = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let listed = std::fs::read_dir(&threads)
            .with_context(|| format!("cannot list {}", threads.display()))?;
        let mut seconds = 0.0;
        for thread in listed {
            let thread = thread.context("cannot list threads")?.path();
            // A thread may have ended since it was listed.
            let (Ok(named), Ok(spent)) = (
                std::fs::read_to_string(thread.join("comm")),
                std::fs::read_to_string(thread.join("schedstat")),
            ) else {
                continue;
            };
            if named.starts_with(name) {
                seconds += on_processor_seconds(&spent).context("`schedstat` is no number")?;
            }
        }
        Ok(seconds)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The first number of `schedstat`: nanoseconds on a processor.
fn on_processor_seconds(schedstat: &str) -> Option<f64> {
    let nanoseconds: f64 = schedstat.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

/// Whether the server at this port answers that it is ready. A server that is still loading its
/// model answers 503. One that does not listen yet does not answer.
fn is_ready(port: u16) -> bool {
    let asked = || -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        stream
            .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status)?;
        Ok(status)
    };
    asked().is_ok_and(|status| status.split(' ').nth(1) == Some("200"))
}

/// A port without a listener. If another process takes it first, the server reports that.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr().context("no free port")?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that gives this answer to one request.
    fn answers(answer: &'static str) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let asked = BufReader::new(&stream).lines().next();
            assert_eq!(asked.unwrap().unwrap(), "GET /health HTTP/1.1");
            stream.write_all(answer.as_bytes()).unwrap();
        });
        port
    }

    #[test]
    fn a_server_that_loads_its_model_is_not_ready() {
        assert!(is_ready(answers("HTTP/1.1 200 OK\r\n\r\n")));
        assert!(is_ready(answers("HTTP/1.0 200 OK\r\n\r\n")));
        assert!(!is_ready(answers(
            "HTTP/1.1 503 Service Unavailable\r\n\r\n"
        )));
        assert!(!is_ready(answers("")));
        assert!(!is_ready(free_port().unwrap()));
    }

    #[test]
    fn time_on_a_processor_is_read() {
        assert_eq!(on_processor_seconds("1500000000 23 7\n"), Some(1.5));
        assert_eq!(on_processor_seconds(""), None);
    }
}
