//! Ends the build where `cargo xtask setup` has not run. On macOS mlx-sys builds MLX itself.

use std::env;

/// Every set-up writes it into cargo's configuration.
const COMMAND: &str = "MOTET_SETUP_COMMAND";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={COMMAND}");
    if env::var_os("CARGO_FEATURE_MLX").is_none() {
        return;
    }
    let is_macos = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "macos");
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    if is_macos || is_set(COMMAND) || is_set("DOCS_RS") {
        return;
    }
    println!(
        "cargo::error=MLX is not set up for this build. In a checkout of motet {}, run `cargo \
         xtask serve --model MODEL`, which sets it up, builds and serves, or `cargo xtask setup` \
         alone; for a crate elsewhere, `cargo xtask setup --for FOLDER` with the crate's folder. \
         If your own configuration stands in for mlx-sys' build script, set {COMMAND} in its \
         [env]",
        env!("CARGO_PKG_VERSION")
    );
}
