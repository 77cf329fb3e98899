//! `cargo xtask clients`: third-party clients against the server, on the oracle, on a tiny model and
//! on a real one.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cache::Cache;
use crate::model::Model;
use crate::packages::{self, Packages};
use crate::ui::Timings;
use crate::{process, setup, ui, workspace};

pub(crate) const REQUIREMENTS: &str = "crates/server/clients/requirements.txt";
/// lm-eval has a folder of its own, as its packages are many.
pub(crate) const LM_EVAL_REQUIREMENTS: &str = "crates/server/clients/lm_eval_requirements.txt";
/// Each checks one client of one API.
const CLIENTS: [&str; 5] = [
    "openai_client.py",
    "responses_client.py",
    "anthropic_client.py",
    "langchain_client.py",
    "llm_comply_client.py",
];
/// The APIs that LangChain's standard tests are run through.
const DIALECTS: [&str; 2] = ["openai", "anthropic"];
/// Runs LangChain's standard tests of chat models.
const STANDARD: &str = "langchain_standard.py";
/// Forces calls of random tools.
const FORCED: &str = "forced_calls.py";
/// Random tools on the oracle, in the short form and in the long one; and on a model.
const FORCED_TOOLS: [&str; 2] = ["200", "1000"];
const MODEL_TOOLS: &str = "50";
/// Runs the tests of OpenAI's client, which its source has, against the server.
const RESOURCES: &str = "openai_resources.py";
/// Sends requests that the server's schema allows, and requests that it forbids.
const SCHEMATHESIS: &str = "schemathesis_client.py";
/// Kills a server of its own, and reads on at the next.
const RESTART: &str = "restart_client.py";
/// Disconnects from some streams, and reads the others to their end.
const STREAM_CHURN: &str = "stream_churn.py";
/// Compares lm-eval's results with those that it has with transformers.
const LM_EVAL: &str = "lm_eval_client.py";
/// Writes the tiny model for that, whose weights are a formula.
const LM_EVAL_MODEL: &str = "crates/server/clients/lm_eval_model.py";
const LM_EVAL_NAME: &str = "lm-eval, a tiny model";
const KEY: &str = "a-key-of-the-checks";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Cases that schemathesis generates for each operation, besides the edge cases of each field
    #[arg(long, value_name = "N", default_value_t = 20)]
    cases: u32,
    /// Seconds for which 200 streams connect and disconnect
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    churn_seconds: u32,
    /// Also run all that takes minutes: more random tools, the tests of OpenAI's client, and the
    /// clients on a real model
    #[arg(long)]
    long: bool,
    /// The real model of the long form; it is fetched unless the cache has it
    #[arg(long, value_name = "NAME", value_enum, requires = "long")]
    #[arg(default_value_t = Model::SmolLm2)]
    model: Model,
    /// Run only the checks whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// Runs checks, and keeps the time that each takes.
struct Checks<'a> {
    packages: &'a Packages,
    only: &'a str,
    timings: Timings,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let cache = Cache::open()?;
    let mut checks = Checks {
        packages: &packages::install(&cache, "clients", REQUIREMENTS)?,
        only: &arguments.only,
        timings: Timings::default(),
    };
    let result = on_oracle(&cache, arguments, &mut checks)
        .and_then(|()| on_tiny_model(&cache, &mut checks))
        .and_then(|()| {
            if arguments.long {
                on_model(&cache, arguments.model, &mut checks)?;
            }
            Ok(())
        });
    println!("\n{}", checks.timings.table());
    result
}

fn on_oracle(cache: &Cache, arguments: &Arguments, checks: &mut Checks<'_>) -> Result<()> {
    let program = build_server(cache)?;
    let server = Server::start(&program, &[])?;
    clients(checks, &server, "oracle")?;
    let tools = FORCED_TOOLS[usize::from(arguments.long)];
    checks.run("forced calls, oracle", FORCED, &server, &[tools])?;
    if arguments.long {
        checks.run("OpenAI's own tests", RESOURCES, &server, &[])?;
    }
    let path = program.to_string_lossy();
    checks.run("a restart, oracle", RESTART, &server, &[&path])?;
    let seconds = arguments.churn_seconds.to_string();
    let process = server.process.id().to_string();
    let words = ["200", &*seconds, &*process];
    checks.run(
        "200 streams; one in ten disconnects",
        STREAM_CHURN,
        &server,
        &words,
    )?;

    // The server has a key, so that schemathesis can also try requests without it.
    let keys = workspace::root().join("target/motet/clients.keys");
    fs::create_dir_all(keys.parent().unwrap_or(&keys)).context("cannot make target/motet")?;
    fs::write(&keys, format!("checks {KEY}\n")).context("cannot write the keys")?;
    let keys = keys.to_string_lossy();
    let operator = ["--api-keys", &keys, "--operator-key", "checks"];
    let server = Server::start(&program, &operator)?;
    let cases = arguments.cases.to_string();
    checks.run("schemathesis", SCHEMATHESIS, &server, &[KEY, &cases])
}

/// lm-eval on a model whose weights any machine can make, so that transformers' numbers are known.
fn on_tiny_model(cache: &Cache, checks: &mut Checks<'_>) -> Result<()> {
    if !LM_EVAL_NAME.contains(checks.only) {
        return Ok(());
    }
    let packages = packages::install(cache, "lm-eval", LM_EVAL_REQUIREMENTS)?;
    let path = workspace::root().join("target/motet/lm-eval-model");
    let mut writer = packages.program(LM_EVAL_MODEL);
    process::run(writer.arg(packages.folder()).arg(&path))?;
    let program = build_server(cache)?;
    let server = Server::start_on_model(&program, &path)?;
    let folder = path.to_string_lossy();
    checks.run_with(&packages, LM_EVAL_NAME, LM_EVAL, &server, &[&folder])
}

fn on_model(cache: &Cache, model: Model, checks: &mut Checks<'_>) -> Result<()> {
    let path = model.ensure(cache)?;
    let program = build_server(cache)?;
    let server = Server::start_on_model(&program, &path)?;
    clients(checks, &server, "model")?;
    checks.run("forced calls, model", FORCED, &server, &[MODEL_TOOLS])
}

/// Checks each client, and LangChain's standard tests through each API.
fn clients(checks: &mut Checks<'_>, server: &Server, kind: &str) -> Result<()> {
    for client in CLIENTS {
        checks.run(&format!("{client}, {kind}"), client, server, &[])?;
    }
    for dialect in DIALECTS {
        let name = format!("langchain-tests, {dialect}, {kind}");
        checks.run(&name, STANDARD, server, &[dialect])?;
    }
    Ok(())
}

impl Checks<'_> {
    fn run(&mut self, name: &str, client: &str, server: &Server, words: &[&str]) -> Result<()> {
        self.run_with(self.packages, name, client, server, words)
    }

    fn run_with(
        &mut self,
        packages: &Packages,
        name: &str,
        client: &str,
        server: &Server,
        words: &[&str],
    ) -> Result<()> {
        if !name.contains(self.only) {
            return Ok(());
        }
        ui::heading(name);
        let mut command = packages.program(&format!("crates/server/clients/{client}"));
        command.arg(&server.url).arg(packages.folder()).args(words);
        self.timings.time(name, || process::run(&mut command))
    }
}

/// Sets MLX up, builds the server, and returns its path.
///
/// # Errors
///
/// When it does not compile.
pub(crate) fn build_server(cache: &Cache) -> Result<PathBuf> {
    setup::install(cache, None)?;
    workspace::build("motet-server")
}

/// A server with a port of its own. It is ended when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) url: String,
}

impl Server {
    /// Starts the server on the oracle, with these additional arguments.
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("--oracle").args(arguments);
        Self::spawn(command)
    }

    /// Starts the server on a model, whose answers do not depend on other requests.
    fn start_on_model(program: &Path, model: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("--model").arg(model).arg("--deterministic");
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let mut process = command
            .args(["--port", "0"])
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
