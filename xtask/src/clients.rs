//! `cargo xtask clients`: clients of others against the server, on the oracle.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cache::Cache;
use crate::{packages, process, workspace};

const REQUIREMENTS: &str = "examples/server/clients/requirements.txt";
const CLIENT: &str = "examples/server/clients/openai_client.py";

pub(crate) fn command() -> Result<()> {
    let packages = packages::install(&Cache::open()?, "openai", REQUIREMENTS)?;
    let server = Server::start(&[])?;
    let mut client = packages.program(CLIENT);
    process::run(client.arg(&server.url).arg(packages.folder()))
}

/// A server with a port of its own. Ends when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) url: String,
}

impl Server {
    /// Builds it, and starts it on the oracle with these arguments beside.
    pub(crate) fn start(more: &[&str]) -> Result<Self> {
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
            .filter_map(|message: Value| message["executable"].as_str().map(str::to_owned))
            .next_back()
            .context("cargo did not say where the server is")?;
        let mut process = std::process::Command::new(program)
            .args(["--oracle", "--port", "0"])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let log = process.stderr.take().context("the server has no log")?;
        let mut server = Self {
            process,
            url: String::new(),
        };
        let mut said = BufReader::new(log).lines();
        for line in &mut said {
            let line = line.context("cannot read the server's log")?;
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(address) = event["address"].as_str() {
                server.url = format!("http://{address}");
                // Read on, or the server would wait for a reader one day.
                std::thread::spawn(move || said.for_each(drop));
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
