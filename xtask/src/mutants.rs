//! `cargo xtask mutants`: makes mistakes in the three cores, and checks that the tests notice
//! them.
//!
//! cargo-mutants makes the mistakes in a copy of the tree, and is installed into the cache. There
//! are about three thousand, half a minute each; by default, one in forty is tried. The first
//! round runs the quick tests. Survivors are tried again with all tests of the cores.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::{component, process, ui, workspace};

const VERSION: &str = "27.1.0";
const CORES: [&str; 3] = [
    "crates/core/src/scheduler/**",
    "crates/core/src/cache/**",
    "crates/core/src/pager/**",
];
/// Code for tests and readers only.
const NOT_MUTATED: &str = "check_integrity|/integrity.rs|impl Debug|impl fmt::Debug";
const QUICK: [&str; 3] = ["--lib", "--test=core_histories", "--test=orders"];
const QUICK_PACKAGES: &str = "motet-core,motet-testkit";
const MORE: [&str; 6] = [
    "--test=cache_machine",
    "--test=engine",
    "--test=fuzz",
    "--test=pager_tiers",
    "--test=recovery",
    "--test=simulation",
];
const MORE_PACKAGES: &str = "motet,motet-storage,motet-testkit";
/// Time after which a mistake that makes a test hang is noticed.
const TIMEOUT_SECONDS: &str = "120";
/// Exit codes of `cargo mutants` when mistakes have survived or have hung.
const SURVIVORS: [i32; 2] = [2, 3];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Part of all mistakes, as K/N: every N-th, from number K on
    #[arg(long, default_value = "0/40", value_name = "K/N")]
    shard: String,
    /// Only mistakes in matching files, e.g. `crates/core/src/cache/budget.rs` or
    /// `crates/core/src/pager/**`
    #[arg(long, value_name = "GLOB")]
    file: Option<String>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let program = install(&Cache::open()?)?;
    ui::heading("the quick tests");
    round(&program, arguments, QUICK_PACKAGES, &QUICK, &[])?;
    ui::heading("survivors, with all tests of the cores");
    round(&program, arguments, MORE_PACKAGES, &MORE, &["--iterate"])?;
    println!("\nsurvivors are listed in target/mutants.out/missed.txt");
    Ok(())
}

/// Path of cargo-mutants, which is built unless the cache has it.
fn install(cache: &Cache) -> Result<PathBuf> {
    let folder = cache.tools().join(format!("cargo-mutants-{VERSION}"));
    let _lock = cache.lock()?;
    component::ensure(&folder, |fresh| {
        let task = ui::Task::start(format!("build cargo-mutants {VERSION} (some minutes)"));
        let mut cargo = workspace::cargo();
        cargo
            .args(["install", "cargo-mutants", "--locked", "--version", VERSION])
            .arg("--root")
            .arg(fresh);
        process::capture(&mut cargo)?;
        task.done();
        Ok(())
    })?;
    Ok(folder.join("bin/cargo-mutants"))
}

fn round(
    program: &PathBuf,
    arguments: &Arguments,
    packages: &str,
    tests: &[&str],
    how: &[&str],
) -> Result<()> {
    let target = workspace::root().join("target");
    let mut command = Command::new(program);
    command
        .current_dir(workspace::root())
        .args(["mutants", "--package=motet-core", "--profile=mutants"])
        .args(["--test-package", packages])
        .args(["--baseline=skip", "--build-timeout=600", "--timeout"])
        .arg(TIMEOUT_SECONDS)
        .args(["--exclude-re", NOT_MUTATED, "--sharding=round-robin"])
        .args(["--shard", &arguments.shard])
        .arg("--output")
        .arg(&target)
        .args(how)
        // One at a time, so that the dependencies are built once.
        .env("CARGO_TARGET_DIR", target.join("mutants"))
        // The recovery and the simulation need it.
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            workspace::root().join(workspace::INJECTED_COMPILER),
        )
        // Fewer histories than a proof needs, but enough to notice a mistake.
        .env("MOTET_HISTORIES", "200")
        .env("MOTET_ORDERS_STATES", "3000");
    match &arguments.file {
        Some(file) => drop(command.args(["--file", file])),
        None => drop(command.args(CORES.iter().flat_map(|file| ["--file", file]))),
    }
    for test in tests {
        command.arg(format!("--cargo-arg={test}"));
    }
    let status = command.status().context("cannot start cargo-mutants")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) if SURVIVORS.contains(&code) => Ok(()),
        _ => bail!("cargo-mutants failed ({status})"),
    }
}
