//! Peers that are Python packages: inference engines that read the GGUF files that we run.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use xtask::bench::{IK_REQUIREMENTS, MISTRALRS_REQUIREMENTS, OPENVINO_REQUIREMENTS};
use xtask::cache::Cache;
use xtask::packages;

use super::workbench::Unavailable;

/// The program that measures any of them.
const PEER: &str = "benches/peers/engines_peer.py";

/// An engine, by its name in [`PEER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Engine {
    /// ik_llama.cpp.
    Ik,
    /// OpenVINO GenAI.
    OpenVino,
    /// mistral.rs.
    MistralRs,
}

impl Engine {
    /// The command that answers requests, with as many threads as there are processors. Installs the
    /// packages unless the cache has them.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when they cannot be installed.
    pub(super) fn command(self, cache: &Cache, model: Option<&Path>) -> Result<Command> {
        let requirements = match self {
            Engine::Ik => IK_REQUIREMENTS,
            Engine::OpenVino => OPENVINO_REQUIREMENTS,
            Engine::MistralRs => MISTRALRS_REQUIREMENTS,
        };
        let packages = packages::install(cache, &self.to_string(), requirements)
            .map_err(|error| Unavailable(format!("{self} cannot be installed: {error:#}")))?;
        let threads = thread::available_parallelism().context("cannot count the processors")?;
        let mut command = packages.program(PEER);
        command
            .arg(packages.folder())
            .args([self.to_string(), threads.to_string()])
            .args(model);
        Ok(command)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Ik => "ik",
            Engine::OpenVino => "openvino",
            Engine::MistralRs => "mistralrs",
        })
    }
}
