//! `cargo xtask gpu-check`: a check of MLX for CUDA that travels to a machine with a GPU and without a
//! network, in parts of limited size.
//!
//! | file | idea |
//! |---|---|
//! | `parts.rs` | an archive in parts, and their digests |
//! | `../../gpu_check/run.sh` | joins the parts there, and runs each section with a time limit |
//! | `../../gpu_check/speed_torch.py` | torch's speed on the same weights |
//!
//! The sections are tests of `tests/parity` and `tests/mlx_gpu`, and `measure speed`.

mod parts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::parts::{PART_BYTES_MAX, Part};
use crate::cache::{Cache, remove};
use crate::model::Model;
use crate::setup::Variant;
use crate::{bundle, checksum, process, setup, ui, workspace};

const FOLDER: &str = "xtask/gpu_check";
const SCRIPT: &str = "run.sh";
/// The archives, as `run.sh` calls them.
const BASE: &str = "base";
const LIBRARIES: &str = "libraries";
/// The folder of what the archives hold, while they are written.
const STAGED: &str = "staged";
const TORCH: &str = "speed_torch.py";
const REPORT: &str = "report.json";
const FIXTURES: &str = "tests/parity";
/// The files of a family that the tests read.
const FIXTURE_FILES: [&str; 2] = ["config.json", "expected.json"];
/// Programs, as cargo's targets are called.
const PROGRAMS: [&str; 3] = ["measure", "mlx_gpu", "parity"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Build everything with MLX for CUDA, and write it as parts of at most 60 MB, with their digests
    /// and a script
    ///
    /// `bash run.sh` beside the parts unpacks and runs all there, in at most ten minutes.
    Pack {
        /// The version of CUDA
        #[arg(long, value_name = "12|13", default_value = "13")]
        cuda: String,
        /// The folder for the parts, which replace those of an earlier pack
        #[arg(long, value_name = "FOLDER")]
        output: Option<PathBuf>,
        /// Add NVIDIA's libraries, gigabytes in parts of their own. Without these parts the script uses
        /// those of the machine's own Python packages and CUDA
        #[arg(long)]
        libraries: bool,
    },
    /// Pack everything with MLX for the CPU, unpack it in an empty folder, and run it there
    DryRun,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    match &arguments.action {
        Action::Pack {
            cuda,
            output,
            libraries,
        } => {
            let variant: Variant = format!("cuda-{cuda}").parse()?;
            let output = match output {
                Some(output) => output.clone(),
                None => workspace::reports()?.join("gpu-check"),
            };
            pack(variant, &output, *libraries)
        }
        Action::DryRun => dry_run(),
    }
}

/// Builds, bundles and writes the parts. The checkout keeps its own variant of MLX.
fn pack(variant: Variant, output: &Path, libraries: bool) -> Result<()> {
    parts::remove_earlier(output, &[BASE, LIBRARIES, SCRIPT, STAGED])?;
    let cache = Cache::open()?;
    let own = setup::configured();
    let built = setup::install(&cache, Some(variant)).and_then(|_| build(variant));
    if let Some(own) = own.filter(|own| *own != variant) {
        setup::install(&cache, Some(own))?;
    }
    let model = Model::SmolLm2.ensure(&cache)?;
    ui::heading(&format!("parts in {}", output.display()));
    let staged = output.join(STAGED);
    let is_left_out = |file: &Path| !libraries && is_nvidias(file);
    bundle::bundle_all(&built?, &staged, &is_left_out)?;
    stage(&model, &staged)?;

    let files = checksum::files_below(&staged)?;
    let files = files.iter().map(|file| file.strip_prefix(&staged));
    let files: Vec<&Path> = files.collect::<Result<_, _>>()?;
    let (nvidias, base): (Vec<&Path>, _) = files.iter().partition(|file| is_nvidias(file));
    let mut parts = parts::write(&staged, &base, BASE, output)?;
    if libraries {
        parts.append(&mut parts::write(&staged, &nvidias, LIBRARIES, output)?);
    }
    remove(&staged)?;
    parts::write_sums(&parts, output)?;
    let script = workspace::root().join(FOLDER).join(SCRIPT);
    let script =
        fs::read_to_string(&script).with_context(|| format!("cannot read {}", script.display()))?;
    fs::write(
        output.join(SCRIPT),
        script.replace("@VARIANT@", &variant.to_string()),
    )?;
    show(&parts, output);
    Ok(())
}

/// The programs' paths, in release mode. They choose their kernels on a machine that is not this one.
fn build(variant: Variant) -> Result<Vec<(&'static str, PathBuf)>> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "--package", "motet"]);
    cargo.args(["--package", "motet-benches"]);
    cargo.args(["--features", "motet/mlx,motet-benches/mlx"]);
    cargo.args([
        "--bin",
        PROGRAMS[0],
        "--test",
        PROGRAMS[1],
        "--test",
        PROGRAMS[2],
    ]);
    if variant != Variant::Cpu {
        cargo.env("MOTET_INSTRUCTION_SETS", "all");
    }
    workspace::built_all(&mut cargo, &PROGRAMS)
}

/// Adds the model, the fixtures and torch's script to the programs and their libraries.
fn stage(model: &Path, staged: &Path) -> Result<()> {
    let copy = |from: &Path, to: &Path| -> Result<()> {
        let copied = fs::copy(from, to);
        copied.with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    };
    let root = workspace::root();
    copy(model, &staged.join("model.gguf"))?;
    copy(&root.join(FOLDER).join(TORCH), &staged.join(TORCH))?;
    for family in fs::read_dir(root.join(FIXTURES))? {
        let family = family?;
        let to = staged.join("fixtures").join(family.file_name());
        for name in FIXTURE_FILES {
            let file = family.path().join(name);
            if file.exists() {
                fs::create_dir_all(&to)?;
                copy(&file, &to.join(name))?;
            }
        }
    }
    Ok(())
}

/// Whether a file of a bundle is NVIDIA's: libraries, and the headers that MLX compiles kernels with,
/// which must be of the same version.
fn is_nvidias(file: &Path) -> bool {
    file.components().any(|part| part.as_os_str() == "nvidia")
}

fn show(parts: &[Part], output: &Path) {
    for part in parts {
        println!("{} {}", part.name, ui::shown_bytes(part.bytes));
    }
    let bytes = parts.iter().map(|part| part.bytes).sum();
    let (count, most) = (parts.len(), ui::shown_bytes(PART_BYTES_MAX));
    ui::note(&format!(
        "{count} parts of at most {most}, {} in all; `bash {SCRIPT}` runs them where they lie beside {}",
        ui::shown_bytes(bytes),
        output.join(SCRIPT).display()
    ));
}

/// Packs for the CPU, and runs the script as the other machine does: from the parts alone, without the
/// variables of cargo and of this shell.
fn dry_run() -> Result<()> {
    let folder = workspace::reports()?.join("gpu-check-dry-run");
    pack(Variant::Cpu, &folder, false)?;
    let results = folder.join("results");
    let mut script = Command::new("bash");
    script.arg(folder.join(SCRIPT)).arg(&results).env_clear();
    for name in ["PATH", "HOME"] {
        script.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    let run = process::run(&mut script);
    let report = results.join(REPORT);
    let text =
        fs::read_to_string(&report).with_context(|| format!("no {}; {run:?}", report.display()))?;
    let failed = failed(&serde_json::from_str(&text).context("the report is no JSON")?)?;
    if !failed.is_empty() {
        bail!("failed: {}; see {}", failed.join(", "), results.display());
    }
    run
}

/// The sections of a report that neither passed nor had a reason to be skipped.
fn failed(report: &Value) -> Result<Vec<String>> {
    let sections = report["sections"].as_array();
    let sections = sections.context("the report has no sections")?;
    ensure!(!sections.is_empty(), "the report has no section");
    let failed = sections
        .iter()
        .filter(|section| section["state"] != "passed" && section["state"] != "skipped");
    Ok(failed
        .map(|section| section["section"].to_string())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_what_failed() {
        let report =
            |state: &str| serde_json::json!({ "sections": [{ "section": "a", "state": state }] });
        for (state, count) in [
            ("passed", 0),
            ("skipped", 0),
            ("failed", 1),
            ("out of time", 1),
        ] {
            assert_eq!(failed(&report(state)).unwrap().len(), count, "{state}");
        }
        assert!(failed(&serde_json::json!({ "sections": [] })).is_err());
    }

    /// The runner of tests succeeds where no test has the name.
    #[test]
    fn the_script_names_tests_that_exist() {
        let root = workspace::root();
        let script = fs::read_to_string(root.join(FOLDER).join(SCRIPT)).unwrap();
        let checks = script.lines().filter_map(|line| {
            let (before, words) = line.split_once("check ")?;
            let is_check = before.is_empty() || before.ends_with("|| ");
            is_check.then(|| words.split(' ').collect::<Vec<_>>())
        });
        let checks: Vec<Vec<&str>> = checks.collect();
        assert!(checks.len() == 10);
        for check in checks {
            let (program, test) = (check[2], check[3]);
            let (module, name) = test.split_once("::").unwrap_or(("main", test));
            let file = root.join(format!("tests/{program}/{module}.rs"));
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains(&format!("fn {name}()")), "{test}");
        }
    }
}
