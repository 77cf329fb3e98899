//! `cargo xtask clients`: third-party clients against the server, on the oracle.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cache::Cache;
use crate::packages::{self, Packages};
use crate::{process, ui, workspace};

pub(crate) const REQUIREMENTS: &str = "examples/server/clients/requirements.txt";
const CLIENTS: [&str; 2] = ["openai_client.py", "langchain_client.py"];
/// Sends requests that the server's schema allows, and requests that it forbids.
const SCHEMATHESIS: &str = "examples/server/clients/schemathesis_client.py";
/// Disconnects from some streams, and reads the others to their end.
const STREAM_CHURN: &str = "examples/server/clients/stream_churn.py";
const KEY: &str = "a-key-of-the-checks";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Cases that schemathesis generates for each operation, besides the edge cases of each field
    #[arg(long, value_name = "N", default_value_t = 20)]
    cases: u32,
    /// Seconds for which 200 streams connect and disconnect
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    churn_seconds: u32,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let cache = Cache::open()?;
    let packages = packages::install(&cache, "clients", REQUIREMENTS)?;
    let program = build_server()?;
    let server = Server::start(&program, &[])?;
    for client in CLIENTS {
        ui::heading(client);
        run(
            &packages,
            &format!("examples/server/clients/{client}"),
            &server,
            &[],
        )?;
    }

    ui::heading("200 streams; one in ten disconnects");
    let seconds = arguments.churn_seconds.to_string();
    run(
        &packages,
        STREAM_CHURN,
        &server,
        &["200", &seconds, &server.process.id().to_string()],
    )?;

    ui::heading("schemathesis");
    // The server has a key, so that schemathesis can also try requests without it.
    let keys = workspace::root().join("target/motet/clients.keys");
    fs::create_dir_all(keys.parent().unwrap_or(&keys)).context("cannot make target/motet")?;
    fs::write(&keys, format!("checks {KEY}\n")).context("cannot write the keys")?;
    let keys = keys.to_string_lossy();
    let operator = ["--api-keys", &keys, "--operator-key", "checks"];
    let server = Server::start(&program, &operator)?;
    let cases = arguments.cases.to_string();
    run(&packages, SCHEMATHESIS, &server, &[KEY, &cases])
}

fn run(packages: &Packages, client: &str, server: &Server, words: &[&str]) -> Result<()> {
    let mut command = packages.program(client);
    command.arg(&server.url).arg(packages.folder()).args(words);
    process::run(&mut command)
}

/// Builds the server, and returns its path.
///
/// # Errors
///
/// When it does not compile.
pub(crate) fn build_server() -> Result<PathBuf> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--package", "motet-server", "--message-format"]);
    cargo
        .args(["json-render-diagnostics"])
        .stderr(Stdio::inherit());
    let built = process::capture(&mut cargo)?;
    let messages = built
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let program = messages
        .filter_map(|message: Value| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    program.context("cargo did not say where the server is")
}

/// A server with a port of its own. It is ended when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) url: String,
}

impl Server {
    /// Starts the server on the oracle, with these additional arguments.
    pub(crate) fn start(program: &PathBuf, arguments: &[&str]) -> Result<Self> {
        let mut process = Command::new(program)
            .args(["--oracle", "--port", "0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let log = process.stderr.take().context("the server has no log")?;
        let mut server = Self {
            process,
            url: String::new(),
        };
        let mut printed = BufReader::new(log).lines();
        for line in &mut printed {
            let line = line.context("cannot read the server's log")?;
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(address) = event["address"].as_str() {
                server.url = format!("http://{address}");
                // The log is read on; otherwise the server would block on a full pipe.
                std::thread::spawn(move || printed.for_each(drop));
                return Ok(server);
            }
            eprintln!("{line}");
        }
        bail!("the server ended before it served");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
