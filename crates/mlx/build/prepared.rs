//! Whether the prepared MLX libraries are the ones that this version needs.
//!
//! `cargo xtask setup` writes a cargo configuration that stands in for mlx-sys' build script.
//! Cargo passes the configuration's additional keys to the build scripts of crates that depend
//! on mlx-sys, as `DEP_MLX_*`. A configuration written by hand lacks these keys, and then
//! nothing is checked.

use std::path::{Path, PathBuf};

/// The mlx-sys that `Cargo.toml` pins: bindings and mlx-c fit only this version.
pub(crate) const MLX_SYS: &str = "0.7.0";

/// The libraries' main file.
const LIBRARY: &str = "libmlxc.so";

/// The versions that this crate needs.
#[derive(Debug)]
pub(crate) struct Needed<'a> {
    /// The version of this crate, to name it.
    pub(crate) motet: &'a str,
    /// The version of the bridge between Rust kernels and MLX.
    pub(crate) bridge: &'a str,
    /// The version of mlx-sys.
    pub(crate) mlx_sys: &'a str,
}

/// The record of a set-up; `None` where it has no entry.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    motet: Option<String>,
    bridge: Option<String>,
    mlx_sys: Option<String>,
    libraries: Option<PathBuf>,
    /// The command that prepares the libraries again.
    command: Option<String>,
}

impl Prepared {
    /// Reads the record from the environment of a build script.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            motet: variable("DEP_MLX_MOTET_VERSION"),
            bridge: variable("DEP_MLX_MOTET_BRIDGE"),
            mlx_sys: variable("DEP_MLX_MOTET_MLX_SYS"),
            libraries: variable("DEP_MLX_MOTET_LIBRARIES").map(PathBuf::from),
            command: variable("MOTET_SETUP_COMMAND"),
        }
    }

    /// The library whose absence makes a new set-up necessary.
    pub(crate) fn library(&self) -> Option<PathBuf> {
        self.libraries.as_ref().map(|folder| folder.join(LIBRARY))
    }

    /// Why the libraries cannot be used, on one line, with the command that fixes it.
    pub(crate) fn mismatch(
        &self,
        needed: &Needed<'_>,
        exists: impl Fn(&Path) -> bool,
    ) -> Option<String> {
        let differs =
            |found: &Option<String>, needed: &str| found.clone().filter(|found| found != needed);
        let mut reasons = Vec::new();
        if let Some(found) = differs(&self.bridge, needed.bridge) {
            let expected = needed.bridge;
            reasons.push(format!(
                "their bridge is version {found}, expected {expected}"
            ));
        }
        if let Some(found) = differs(&self.mlx_sys, needed.mlx_sys) {
            let expected = needed.mlx_sys;
            reasons.push(format!("they are for mlx-sys {found}, expected {expected}"));
        }
        if let Some(library) = self.library().filter(|library| !exists(library)) {
            reasons.push(format!("{} is not there", library.display()));
        }
        if reasons.is_empty() {
            return None;
        }
        let by = self.motet.as_deref().unwrap_or("an unknown version");
        let command = self.command.as_deref().unwrap_or("cargo xtask setup");
        Some(format!(
            "the MLX libraries that motet {by} prepared do not fit motet {motet}: {reasons}. Run \
             `{command}` in a checkout of motet {motet} and build again",
            motet = needed.motet,
            reasons = reasons.join("; "),
        ))
    }
}

/// The version that the source of the bridge's C++ half returns.
pub(crate) fn bridge_version(source: &str) -> Option<&str> {
    let (_, function) = source.split_once("int motet_bridge_version(void)")?;
    let (_, value) = function.split_once("return ")?;
    let (value, _) = value.split_once(';')?;
    Some(value.trim()).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()))
}
