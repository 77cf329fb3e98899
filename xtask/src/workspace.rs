//! The checkout that `cargo xtask` runs in.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The root of the checkout: the folder above this crate's.
///
/// cargo says at run time where the crate is, so a checkout may be moved after it was built.
pub(crate) fn root() -> PathBuf {
    let crate_dir = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    crate_dir.parent().map(PathBuf::from).unwrap_or(crate_dir)
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
