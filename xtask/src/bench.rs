//! `cargo xtask bench`: the figures by which the project is judged. `benches/` measures them.

use std::ffi::OsString;

use anyhow::Result;

use crate::{process, workspace};

/// The Python packages of mlx-lm, the peer.
pub const REQUIREMENTS: &str = "benches/peers/requirements.txt";
/// The Python packages of ik_llama.cpp.
pub const IK_REQUIREMENTS: &str = "benches/peers/requirements-ik.txt";
/// The Python packages of OpenVINO GenAI.
pub const OPENVINO_REQUIREMENTS: &str = "benches/peers/requirements-openvino.txt";
/// The Python packages of mistral.rs.
pub const MISTRALRS_REQUIREMENTS: &str = "benches/peers/requirements-mistralrs.txt";

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
