//! The checkout that `cargo xtask` runs in, and builds of its programs.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process;

/// Features of the whole workspace with MLX. Stages of `cargo xtask test` and all programs that are
/// not built in release mode have them, and select the whole workspace: cargo would build a package
/// again for each other choice of packages and features.
pub(crate) const FEATURES: &str = "mlx,motet/tower,otel,grpc,remote";
/// [`FEATURES`] without MLX, for [`INJECTED_COMPILER`] and other compilers: the kernels would take
/// each of them minutes.
pub const FEATURES_NO_MLX: &str = "motet/tower,otel,grpc,remote";

/// A compiler for the packages of the workspace that adds `--cfg motet_injected`: an engine can
/// then be simulated, its parts can be made to panic, and its cores can have injected bugs. A path
/// in the checkout: stages of `cargo xtask test` name the same, and share the build.
pub const INJECTED_COMPILER: &str = "xtask/compilers/injected";

/// The root of the checkout: the folder above this crate's.
///
/// cargo says at run time where the crate is, so a checkout may be moved after it was built.
#[must_use]
pub fn root() -> PathBuf {
    let crate_dir = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    crate_dir.parent().map(PathBuf::from).unwrap_or(crate_dir)
}

/// The folder for reports and logs, created.
///
/// # Errors
///
/// When it cannot be created.
pub fn reports() -> Result<PathBuf> {
    let folder = root().join("target/motet");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Arguments of `cargo build` that share the build of `cargo test --workspace` with [`FEATURES`].
/// Tests have dependencies of their own, whose features cargo adds where an example is built too.
pub const WHOLE: [&str; 5] = [
    "--workspace",
    "--features",
    FEATURES,
    "--example",
    "quickstart",
];

/// The profile of a newcomer's first builds.
pub(crate) const QUICK: &str = "quick";

/// Packages of the programs that users build. Each is built with the features that all of them need:
/// once one is built, the next takes its own code only.
const PROGRAMS: [&str; 4] = [
    "--package",
    "motet-load-generator",
    "--package",
    "motet-server",
];

/// Builds the program of one of [`PROGRAMS`] in release mode with MLX, and returns its path.
pub(crate) fn release(package: &str) -> Result<PathBuf> {
    program(package, "release", true)
}

/// Builds the program of one of [`PROGRAMS`], and returns its path.
pub(crate) fn program(package: &str, profile: &str, with_mlx: bool) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.arg("build").args(PROGRAMS).args(["--bin", package]);
    cargo.args(["--profile", profile]);
    if with_mlx {
        cargo.args(["--features", "mlx"]);
    }
    built(&mut cargo, Some(package))
}

/// Builds the program of a package as the stages of `cargo xtask test` do, and returns its path.
pub(crate) fn build(package: &str) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.arg("build").args(WHOLE).args(["--bin", package]);
    built(&mut cargo, Some(package))
}

/// Builds an example of [`WHOLE`], and returns its path.
pub(crate) fn example(name: &str) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.arg("build").args(WHOLE);
    built(&mut cargo, Some(name))
}

/// Runs a command of cargo that builds programs, with its progress shown. Returns the path of the
/// program with this name, or of the last.
///
/// # Errors
///
/// When the build fails.
pub fn built(cargo: &mut Command, name: Option<&str>) -> Result<PathBuf> {
    executable(&messages(cargo)?, name).context("cargo names no program that it has built")
}

/// As [`built`], with several programs: their names and paths.
pub(crate) fn built_all(
    cargo: &mut Command,
    names: &[&'static str],
) -> Result<Vec<(&'static str, PathBuf)>> {
    let messages = messages(cargo)?;
    let path = |name: &&'static str| {
        let path = executable(&messages, Some(name));
        Ok((
            *name,
            path.with_context(|| format!("cargo has built no {name}"))?,
        ))
    };
    names.iter().map(path).collect()
}

/// Runs a command of cargo that builds, with its progress shown. Returns its messages, a line of JSON each.
pub(crate) fn messages(cargo: &mut Command) -> Result<String> {
    cargo.arg("--message-format=json-render-diagnostics");
    process::capture(cargo.stderr(Stdio::inherit()))
}

/// The program of that name, or the last, among cargo's messages.
fn executable(messages: &str, name: Option<&str>) -> Option<PathBuf> {
    let mut programs = messages.lines().rev().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let program = message.get("executable")?.as_str()?;
        let is_named = name.is_none_or(|name| message["target"]["name"] == name);
        is_named.then(|| PathBuf::from(program))
    });
    programs.next()
}

/// A cargo command that runs one ignored test of `tests/simulation`, with [`INJECTED_COMPILER`].
/// An optimised engine takes a minute more to build.
pub(crate) fn simulation(test: &str, is_optimised: bool) -> Command {
    let mut cargo = cargo();
    cargo
        .env("RUSTC_WORKSPACE_WRAPPER", INJECTED_COMPILER)
        .args(["test", "--workspace", "--exclude", "motet-mlx"])
        .args(["--features", FEATURES_NO_MLX, "--test", "simulation"]);
    if is_optimised {
        cargo.args(["--config", "profile.dev.package.motet.opt-level=2"]);
    }
    cargo.args(["--", "--ignored", "--exact", "--nocapture", test]);
    cargo
}

/// A cargo command in the root of the checkout.
///
/// Variables that cargo set for xtask itself are removed from the environment: build scripts that
/// watch them would see a change and build again.
#[must_use]
pub fn cargo() -> Command {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_path_is_read_from_cargo() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"motet"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"figures"},"executable":"/t/figures-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\n",
        );
        let figures = Some(PathBuf::from("/t/figures-1"));
        assert_eq!(executable(messages, None), figures);
        assert_eq!(executable(messages, Some("figures")), figures);
        assert_eq!(executable(messages, Some("motet")), None);
        assert_eq!(executable("", None), None);
    }
}
