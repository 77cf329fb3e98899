//! `cargo xtask scale-out`: compares two servers behind a router with one that has all the
//! memory, on the oracle.

use anyhow::Result;

use crate::cache::Cache;
use crate::{clients, packages, process};

pub(crate) const REQUIREMENTS: &str = "crates/server/clients/scale_out_requirements.txt";
const FLEET: &str = "crates/server/clients/scale_out.py";

pub(crate) fn command() -> Result<()> {
    let cache = Cache::open()?;
    let packages = packages::install(&cache, "scale-out", REQUIREMENTS)?;
    let server = clients::build_server(&cache)?;
    let mut fleet = packages.program(FLEET);
    process::run(fleet.arg(server).arg(packages.folder()))
}
