//! `cargo xtask fleet`: servers and workers in existing fleets, Dynamo, vllm-router and smg.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::cache::Cache;
use crate::model::Model;
use crate::{packages, process, setup, ui, workspace};

/// The Python packages of existing fleets.
pub const REQUIREMENTS: &str = "crates/server/clients/fleet/requirements.txt";
const FLEET: &str = "crates/server/clients/fleet/main.py";

/// The worker: a workspace of its own.
const WORKER: &str = "examples/dynamo_worker";

/// A part of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, ValueEnum)]
enum Part {
    /// The cached share of two servers behind each router, beside that of one
    Routing,
    /// Dynamo's index of cached blocks, held to what each server finds
    Indexer,
    /// A server that is told to end under 200 streams
    Drain,
    /// A worker that is killed under 200 streams
    Kill,
    /// A server that ends behind a router that cannot send streams on
    Grace,
    /// A store that servers share: found state, and a store that fails, lies or is gone
    Remote,
    /// The own tests of the worker in process, the conformance kit of Dynamo's SDK among them
    WorkerContract,
    /// The cached share of two workers in process, of tenants with a cache each
    WorkerRouting,
    /// A worker in process that is told to end under 200 streams
    WorkerDrain,
    /// A worker in process that is killed under 200 streams
    WorkerKill,
    /// A worker in process that rejects requests, which another takes
    WorkerFull,
    /// A worker in process that is killed under 16 streams of SmolLM2
    WorkerModel,
}

impl Part {
    /// Whether it needs a worker with the engine in process.
    fn has_worker(self) -> bool {
        self >= Self::WorkerContract
    }
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The parts to run; all by default
    ///
    /// The parts of servers take four minutes on two cores, and those of workers in process two. These first build
    /// 800 crates, most of them Dynamo's: ten minutes.
    #[arg(value_name = "PART", value_enum)]
    parts: Vec<Part>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let parts = match &arguments.parts[..] {
        [] => Part::value_variants(),
        parts => parts,
    };
    let cache = Cache::open()?;
    setup::install(&cache, None)?;
    let needs_worker = parts.iter().any(|part| part.has_worker());
    let tools = needs_worker
        .then(|| setup::build_tools(&cache))
        .transpose()?;
    let tools = tools.unwrap_or_default();
    if parts.contains(&Part::WorkerContract) {
        ui::heading("the worker's own tests");
        process::run(&mut worker_cargo(&tools, "test"))?;
    }
    let parts = parts.iter().filter(|part| **part != Part::WorkerContract);
    let (of_workers, of_servers): (Vec<Part>, Vec<Part>) =
        parts.copied().partition(|part| part.has_worker());
    if of_workers.is_empty() && of_servers.is_empty() {
        return Ok(());
    }
    let packages = packages::install(&cache, "fleet", REQUIREMENTS)?;
    let mut fleet = packages.program(FLEET);
    fleet.arg("--packages").arg(packages.folder());
    if !of_servers.is_empty() {
        fleet.arg("--server").arg(workspace::build("motet-server")?);
    }
    if !of_workers.is_empty() {
        ui::heading("build the worker");
        let worker = workspace::built(&mut worker_cargo(&tools, "build"), Some("dynamo-worker"))?;
        fleet.arg("--worker").arg(worker);
    }
    if of_workers.contains(&Part::WorkerModel) {
        fleet.arg("--model").arg(Model::SmolLm2.ensure(&cache)?);
    }
    for part in of_servers.iter().chain(&of_workers) {
        let part = part.to_possible_value().expect("no part is hidden");
        fleet.arg(part.get_name());
    }
    process::run(&mut fleet)
}

/// A command of cargo for the worker, in its folder: there is its own configuration.
fn worker_cargo(tools: &[(&'static str, OsString)], command: &str) -> Command {
    let mut cargo = workspace::cargo();
    cargo.current_dir(workspace::root().join(WORKER));
    cargo.args([command, "--locked", "--features", "mlx"]);
    cargo.envs(tools.iter().map(|(name, value)| (name, value)));
    cargo
}
