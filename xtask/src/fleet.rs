//! `cargo xtask fleet`: servers in existing fleets, Dynamo, vllm-router and smg, on the oracle.

use anyhow::Result;
use clap::ValueEnum;

use crate::cache::Cache;
use crate::{clients, packages, process};

/// The Python packages of existing fleets.
pub const REQUIREMENTS: &str = "crates/server/clients/fleet/requirements.txt";
const FLEET: &str = "crates/server/clients/fleet/main.py";

/// A part of the checks.
#[derive(Clone, Copy, Debug, ValueEnum)]
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
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The parts to run; all by default, in about four minutes
    #[arg(value_name = "PART", value_enum)]
    parts: Vec<Part>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let cache = Cache::open()?;
    let packages = packages::install(&cache, "fleet", REQUIREMENTS)?;
    let server = clients::build_server(&cache)?;
    let mut fleet = packages.program(FLEET);
    fleet.arg(server).arg(packages.folder());
    for part in &arguments.parts {
        let part = part.to_possible_value().expect("no part is hidden");
        fleet.arg(part.get_name());
    }
    process::run(&mut fleet)
}
