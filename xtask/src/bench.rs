//! `cargo xtask bench`: the figures by which the project is judged. `benches/` measures them.

use std::ffi::OsString;

use anyhow::Result;

use crate::{process, workspace};

/// The Python packages of mlx-lm, the peer.
pub const REQUIREMENTS: &str = "benches/peers/requirements.txt";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Arguments of the report; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    report: Vec<OsString>,
}

/// Runs the report, without the programs that it builds itself when a figure needs them.
pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["run", "--quiet", "--package", "motet-benches"]);
    cargo.args(["--no-default-features", "--bin", "motet-benches", "--"]);
    process::replace(cargo.args(&arguments.report))
}
