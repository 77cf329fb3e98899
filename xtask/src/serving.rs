//! A server that runs while others ask it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Longest time until a server is ready.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// Longest time for an answer whether it is ready.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A server with a port of its own. It is ended when this is dropped.
#[derive(Debug)]
pub struct Serving {
    name: &'static str,
    child: Child,
    port: u16,
}

impl Serving {
    /// Starts the program, which takes `--port` and answers `GET /health`, and waits until it is
    /// ready. Its output goes to the log.
    ///
    /// # Errors
    ///
    /// When the program cannot be started, or is not ready in time.
    pub fn start(name: &'static str, command: &mut Command, log: &Path) -> Result<Self> {
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
        let mut serving = Self { name, child, port };
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
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Port of this machine on which the server listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Id of the server's process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Exit status of the server, if it has ended.
    ///
    /// # Errors
    ///
    /// When the system does not tell.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .context("cannot ask for its exit status")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.kill();
    }
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
}
