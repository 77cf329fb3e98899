//! `cargo xtask fuzz`: libFuzzer on the targets in `fuzz/`.
//!
//! libFuzzer comes with `libfuzzer-sys`, which needs a C++ compiler. The coverage that guides it
//! is an LLVM pass, which a stable compiler can run. Neither a nightly nor `cargo-fuzz` is
//! needed, and there is no address sanitizer.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::ui::Timings;
use crate::{ui, workspace};

/// Flags of the compiler, as `cargo fuzz` sets them.
const FLAGS: [&str; 6] = [
    "--cfg fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Longest time for a single input.
const TIMEOUT_SECONDS: u32 = 20;
const INPUT_BYTES_MAX: u32 = 8192;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A target of fuzz/fuzz_targets; without it, all run one after the other
    target: Option<String>,
    /// Seconds to run each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let folder = workspace::root().join("fuzz");
    let targets = targets(&folder)?;
    let chosen: Vec<&String> = match &arguments.target {
        Some(name) => targets.iter().filter(|target| *target == name).collect(),
        None => targets.iter().collect(),
    };
    ensure!(
        !chosen.is_empty(),
        "there is no such target; expected one of {}",
        targets.join(", ")
    );
    let mut timings = Timings::default();
    let triple = host_triple()?;
    timings.time("build", || build(&folder, &triple, &chosen))?;
    for target in chosen {
        ui::heading(&format!("{target}: {} s", arguments.seconds));
        timings.time("fuzz", || run(&folder, &triple, target, arguments.seconds))?;
    }
    println!("\n{}", timings.table());
    Ok(())
}

/// The names of all targets.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let files = std::fs::read_dir(folder.join("fuzz_targets")).context("no fuzz targets")?;
    let mut names = Vec::new();
    for file in files {
        let path = file.context("cannot list the fuzz targets")?.path();
        let stem = path.file_stem().map(|stem| stem.to_string_lossy());
        names.extend(stem.map(|stem| stem.into_owned()));
    }
    names.sort();
    Ok(names)
}

/// With a target triple, cargo builds build scripts and macros without the coverage.
fn build(folder: &Path, triple: &str, targets: &[&String]) -> Result<()> {
    let status = workspace::cargo()
        .current_dir(folder)
        .args(["build", "--release", "--target", triple])
        .args(targets.iter().flat_map(|target| ["--bin", target]))
        .env("RUSTFLAGS", FLAGS.join(" "))
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the fuzz targets do not build");
    Ok(())
}

/// New inputs go to target/fuzz/, and failing inputs to fuzz/artifacts/.
fn run(folder: &Path, triple: &str, target: &str, seconds: u32) -> Result<()> {
    let found = workspace::root().join("target/fuzz").join(target);
    let scratch = workspace::root().join("target/fuzz/scratch");
    let artifacts = folder.join("artifacts").join(target);
    for made in [&found, &scratch, &artifacts] {
        std::fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    let built = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| folder.join("target"), |target| target.into());
    let program = built.join(triple).join("release").join(target);
    let status = Command::new(&program)
        .current_dir(folder)
        .env("TMPDIR", &scratch)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={TIMEOUT_SECONDS}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .args(["-rss_limit_mb=4096", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(&found)
        .arg(folder.join("corpus").join(target))
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    // Temporary folders of inputs that did not finish.
    std::fs::remove_dir_all(&scratch).ok();
    if !status.success() {
        bail!(
            "{target} fails: the input is in {}; make it a file of fuzz/corpus/{target} when it \
             is mended",
            artifacts.display()
        );
    }
    Ok(())
}

fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output();
    let output = output.context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("rustc does not say what machine this is")
}
