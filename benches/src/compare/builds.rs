//! Builds of the checkout's own programs.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use xtask::{process, workspace};

use super::workbench::Unavailable;
use crate::protocol::Size;

/// Workspaces of their own, so that no other package depends on their peers' dependencies.
const CACHE_MANIFEST: &str = "benches/cache/Cargo.toml";
const FLEET_MANIFEST: &str = "benches/fleet/Cargo.toml";

/// How programs are built. Programs that need no MLX are built with it too where others need it, so
/// that one build serves all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Builds {
    pub(crate) with_mlx: bool,
    /// A smoke run is not in release mode: it shares the build of the stages of `cargo xtask test`.
    pub(crate) size: Size,
}

impl Builds {
    /// Path of `measure`, our program that measures.
    pub(crate) fn measure(self) -> Result<PathBuf> {
        self.built("motet-benches", "measure")
    }

    /// Path of our server.
    pub(crate) fn server(self) -> Result<PathBuf> {
        self.built("motet-server", "motet-server")
    }

    /// Path of `recovery`. It kills device threads, for which the library is built with `--cfg
    /// motet_injected`. For a smoke run, the other checks have built that without MLX.
    pub(crate) fn recovery(self) -> Result<PathBuf> {
        let with_mlx = self.with_mlx && self.size == Size::Full;
        let mut cargo = Self { with_mlx, ..self }.cargo("motet-benches", "recovery");
        cargo.env("RUSTC_WORKSPACE_WRAPPER", workspace::INJECTED_COMPILER);
        workspace::built(&mut cargo, Some("recovery"))
    }

    /// Path of the program in `benches/cache`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when its dependencies are not available.
    pub(crate) fn cache(self) -> Result<PathBuf> {
        self.apart(CACHE_MANIFEST, "kvbm-logical")
    }

    /// Path of the program in `benches/fleet`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when its dependencies are not available.
    pub(crate) fn fleet(self) -> Result<PathBuf> {
        self.apart(FLEET_MANIFEST, "dynamo-kv-router")
    }

    /// The program of a workspace of its own, which depends on this peer.
    fn apart(self, manifest: &str, peer: &str) -> Result<PathBuf> {
        let mut download = workspace::cargo();
        download.args(["fetch", "--manifest-path", manifest]);
        process::capture(&mut download)
            .map_err(|error| Unavailable(format!("no {peer}: {error:#}")))?;
        let mut cargo = workspace::cargo();
        cargo.args(["build", "--manifest-path", manifest]);
        if self.size == Size::Full {
            cargo.arg("--release");
        }
        if env::var_os("CARGO_TARGET_DIR").is_none() {
            cargo.env("CARGO_TARGET_DIR", workspace::root().join("target"));
        }
        workspace::built(&mut cargo, None)
    }

    fn built(self, package: &str, program: &str) -> Result<PathBuf> {
        workspace::built(&mut self.cargo(package, program), Some(program))
    }

    fn cargo(self, package: &str, program: &str) -> Command {
        let mut cargo = workspace::cargo();
        cargo.args(["build", "--bin", program]);
        match (self.size, self.with_mlx) {
            (Size::Quick, true) => cargo.args(workspace::WHOLE),
            (Size::Quick, false) => cargo
                .args(["--workspace", "--exclude", "motet-mlx"])
                .args(["--features", workspace::FEATURES_NO_MLX]),
            (Size::Full, true) => {
                cargo.args(["--release", "--package", package, "--features", "mlx"])
            }
            (Size::Full, false) => cargo.args(["--release", "--package", package]),
        };
        cargo
    }
}
