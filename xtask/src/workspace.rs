//! The checkout that `cargo xtask` runs in.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// A compiler for the packages of the workspace that adds `--cfg motet_injected`: an engine can
/// then be simulated, its parts can be made to panic, and its cores can have injected bugs. A path
/// in the checkout: stages of `cargo xtask test` name the same, and share the build.
pub(crate) const INJECTED_COMPILER: &str = "xtask/compilers/injected";

/// The root of the checkout: the folder above this crate's.
///
/// cargo says at run time where the crate is, so a checkout may be moved after it was built.
pub(crate) fn root() -> PathBuf {
    let crate_dir = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    crate_dir.parent().map(PathBuf::from).unwrap_or(crate_dir)
}

/// A cargo command that builds the packages of the workspace with [`INJECTED_COMPILER`].
pub(crate) fn cargo_injected() -> Command {
    let mut command = cargo();
    command.env("RUSTC_WORKSPACE_WRAPPER", INJECTED_COMPILER);
    command
}

/// A cargo command in the root of the checkout.
///
/// Variables that cargo set for xtask itself are removed from the environment: build scripts that
/// watch them would see a change and build again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}
