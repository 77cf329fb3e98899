//! `cargo xtask embedded`: sets up a crate outside the workspace, as an embedder does. Builds,
//! runs and bundles it, and runs it again without the cache. Checks that libraries of another
//! version are rejected.
//!
//! The crate is `examples/embedded`, copied to a folder that no configuration of this checkout
//! reaches. It depends on Motet's packages as a registry would serve them, unpacked there. It
//! shares the target folder, the lock file, the profiles and the dependencies of the checkout.
//! Nothing is fetched, and only Motet itself is built again.

mod edits;
mod hidden;
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use toml_edit::DocumentMut;

use self::hidden::Hidden;
use self::packages::Package;
use crate::cache::{Cache, remove};
use crate::model::Model;
use crate::ui::Timings;
use crate::{bundle, checksum, process, setup, ui, workspace};

const EXAMPLE: &str = "examples/embedded";
const PROMPT: &str = "The capital of France is";
const ANSWER: &str = "Paris";
/// A version that no bridge has.
const OTHER_VERSION: u32 = 999;
/// Makes the program use OpenBLAS, which is opened at the first product only.
const ON_BLAS: &str = "blas";
/// Libraries of the bundle that the program has opened by then.
const LIBRARIES: [&str; 3] = ["libmlxc.so", "libmlx.so", "libscipy_openblas.so"];
/// Crates that the checkout's profiles optimise, that are built again here whatever their profile,
/// and that one answer does not need to be fast. Only the kernels are.
const BUILT_AGAIN: [&str; 6] = [
    "llguidance",
    "motet-core",
    "motet-model",
    "motet-protocol",
    "motet-sync",
    "motet-testkit",
];
/// A crate with Motet's build script.
const STUB: &str = r#"[package]
name = "stub"
version = "0.1.0"
edition = "2024"

[workspace]

[dependencies]
mlx-sys = { version = "*", default-features = false }

[build-dependencies]
cc = "1"
"#;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Measure the time from an edit of a dependent crate to its run instead
    #[arg(long)]
    edits: bool,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let cache = Cache::open()?;
    if arguments.edits {
        edits::measure(&cache)
    } else {
        check(&cache)
    }
}

fn check(cache: &Cache) -> Result<()> {
    let mut timings = Timings::default();
    let model = timings.time("fetch the model", || Model::SmolLm2.ensure(cache))?;
    let scratch = scratch(cache)?;
    let krate = scratch.join("crate");

    ui::heading(&format!("a crate in {}", krate.display()));
    let packages = timings.time("package", || {
        packages::unpack(&target_folder(), &scratch.join("packages"))
    })?;
    copy_example(&krate, &packages)?;
    timings.time("set the crate up", || set_up(cache, &krate))?;
    let program = timings.time("build", || build(&krate))?;
    timings.time("run", || run(&mut Command::new(&program), &model))?;
    if cfg!(not(target_os = "linux")) {
        ui::note("mlx-sys has built MLX into the program: nothing is bundled here");
        println!("\n{}", timings.table());
        return remove(&scratch);
    }

    ui::heading("the same program, bundled, without the cache");
    let folder = scratch.join("bundle");
    let bundled = timings.time("bundle", || bundle::bundle(&program, &folder))?;
    timings.time("run bundled", || {
        let hidden = Hidden::new(cache, &scratch)?;
        run_hidden(&hidden, &scratch, [&program, &bundled], &model)
    })?;

    ui::heading("libraries of another version");
    timings.time("rejected at load", || {
        check_rejected_at_load(&scratch, &bundled, &model)
    })?;
    timings.time("rejected at build", || {
        check_rejected_at_build(&scratch, &krate)
    })?;

    println!("\n{}", timings.table());
    remove(&scratch)
}

/// A folder outside this checkout and the cache. It is the same each time, because cargo names a
/// program after the folder of its crate.
fn scratch(cache: &Cache) -> Result<PathBuf> {
    let checkout = workspace::root();
    let key = checksum::Key::default()
        .add("checkout", checkout.as_os_str().as_encoded_bytes())
        .finish();
    let scratch = std::env::temp_dir().join(format!("motet-embedded-{key}"));
    for reaches in [&checkout, cache.root()] {
        ensure!(
            !scratch.starts_with(reaches),
            "the temporary folder is inside {}: set TMPDIR to another",
            reaches.display()
        );
    }
    remove(&scratch)?;
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    fs::canonicalize(&scratch).with_context(|| format!("cannot enter {}", scratch.display()))
}

/// Copies the example, with dependencies on these packages in place of the checkout.
fn copy_example(to: &Path, packages: &[Package]) -> Result<()> {
    let checkout = workspace::root();
    let example = checkout.join(EXAMPLE);
    copy(&example, to, "src/main.rs")?;
    copy(&checkout, to, "Cargo.lock")?;
    let manifest = fs::read_to_string(example.join("Cargo.toml"))?;
    let mut manifest: DocumentMut = manifest.parse().context("the example's Cargo.toml")?;
    let motet = manifest["dependencies"]["motet"].as_inline_table_mut();
    let motet = motet.with_context(|| format!("{EXAMPLE} does not depend on Motet"))?;
    motet.remove("path");
    motet.insert("version", "*".into());
    for Package { name, folder } in packages {
        let path = toml_edit::value(folder.display().to_string());
        manifest["patch"]["crates-io"][name]["path"] = path;
    }
    // With the checkout's profiles, most dependencies are built already.
    let own = fs::read_to_string(checkout.join("Cargo.toml"))?;
    let mut own: DocumentMut = own.parse().context("the checkout's Cargo.toml")?;
    manifest["profile"] = own
        .remove("profile")
        .context("the checkout has no profiles")?;
    // Cargo chooses features by all dependencies of a crate.
    let more = own["dev-dependencies"].as_table_mut();
    for (name, dependency) in more.context("the checkout has no tests")?.iter() {
        if dependency.get("path").is_none() {
            manifest["dependencies"][name] = dependency.clone();
        }
    }
    let config = fs::read_to_string(checkout.join(".cargo/config.toml"))?;
    let config: DocumentMut = config.parse().context("the checkout's configuration")?;
    if let Some(packages) = config["profile"]["dev"]["package"].as_table() {
        for (name, profile) in packages {
            manifest["profile"]["dev"]["package"][name] = profile.clone();
        }
    }
    if let Some(packages) = manifest["profile"]["dev"]["package"].as_table_mut() {
        packages.retain(|name, _| BUILT_AGAIN.iter().all(|again| *again != name));
    }
    fs::write(to.join("Cargo.toml"), manifest.to_string())?;
    Ok(())
}

/// Sets the crate up twice: the second time writes nothing.
fn set_up(cache: &Cache, krate: &Path) -> Result<()> {
    let config = krate.join(".cargo/config.toml");
    let existing = "# Ours.\n[net]\noffline = true\n";
    fs::create_dir_all(krate.join(".cargo"))?;
    fs::write(&config, existing)?;
    ensure!(setup::reach(cache, krate)?, "nothing was written");
    ensure!(
        !setup::reach(cache, krate)?,
        "the second set-up wrote something"
    );
    let merged = fs::read_to_string(&config)?;
    ensure!(
        merged.ends_with(existing),
        "an existing entry was not kept: {merged}"
    );
    Ok(())
}

fn cargo(krate: &Path) -> Command {
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(krate)
        .args(["build", "--offline"])
        .stdin(Stdio::null());
    // Cargo has set it for this program, and would take it for the user's own setting.
    cargo.env_remove("MOTET_SETUP_COMMAND");
    cargo
}

/// The target folder of the checkout's own builds.
fn target_folder() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    workspace::root().join(named.unwrap_or_else(|| "target".into()))
}

fn build(krate: &Path) -> Result<PathBuf> {
    workspace::built(cargo(krate).env("CARGO_TARGET_DIR", target_folder()), None)
}

/// Runs the program, and checks the model's answer.
fn run(program: &mut Command, model: &Path) -> Result<Output> {
    run_with(program, model, &[])
}

fn run_with(program: &mut Command, model: &Path, more: &[&str]) -> Result<Output> {
    program.arg(model).arg(PROMPT).args(more);
    let output = process::output(program)?;
    if !output.status.success() {
        return Err(process::failed(program, &output));
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    ui::note(&format!("{PROMPT}{}", printed.trim_end()));
    ensure!(
        printed.contains(ANSWER),
        "the model's answer should contain {ANSWER}"
    );
    Ok(output)
}

/// Runs the bundle with an empty cache folder, with Motet's kernels and without, and checks which
/// files the loader opens. The program that cargo built must not run there.
fn run_hidden(hidden: &Hidden, scratch: &Path, programs: [&Path; 2], model: &Path) -> Result<()> {
    let [built, bundled] = programs;
    // The model is in the cache too.
    let copy = scratch.join("model.gguf");
    if fs::hard_link(model, &copy).is_err() {
        fs::copy(model, &copy).context("cannot copy the model")?;
    }
    let possible = hidden.is_possible();
    let start = || {
        if possible {
            hidden.empty_for(bundled)
        } else {
            hidden.unnamed_for(bundled)
        }
    };
    if possible {
        let output = process::output(hidden.empty_for(built).arg(&copy).arg(PROMPT))?;
        let printed = String::from_utf8_lossy(&output.stderr);
        let is_missing = !output.status.success() && printed.contains(setup::LIBRARY);
        ensure!(
            is_missing,
            "the cache is not hidden: a program that needs it printed {printed}"
        );
    } else {
        ui::note(
            "a program cannot have mounts of its own here: the cache stays visible, and the loader's log shows the libraries that are used",
        );
    }
    run(&mut start(), &copy)?;
    let output = run_with(start().env("LD_DEBUG", "libs"), &copy, &[ON_BLAS])?;
    let opened = opened(&String::from_utf8_lossy(&output.stderr));
    if let Some(wrong) = opened.iter().find(|path| hidden.hides(path)) {
        bail!("{} comes from the cache", wrong.display());
    }
    let folder = bundled.parent().context("a bundle has a folder")?;
    for library in LIBRARIES {
        let found = opened
            .iter()
            .any(|path| path.starts_with(folder) && path.ends_with(library));
        ensure!(
            found,
            "{library} does not come from {}: {opened:?}",
            folder.display()
        );
    }
    Ok(())
}

/// The libraries whose initialisation the loader logs under `LD_DEBUG=libs`.
fn opened(trace: &str) -> Vec<PathBuf> {
    let paths = trace
        .lines()
        .filter_map(|line| line.split_once("calling init: "));
    paths.map(|(_, path)| PathBuf::from(path.trim())).collect()
}

/// Puts a library with another version of the bridge before the bundled one. The engine does not
/// start, and its error names both versions.
fn check_rejected_at_load(scratch: &Path, program: &Path, model: &Path) -> Result<()> {
    let (source, library) = (scratch.join("other.c"), scratch.join("libother.so"));
    let version = format!("int motet_bridge_version(void) {{ return {OTHER_VERSION}; }}\n");
    fs::write(&source, version)?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    process::capture(&mut compiler)?;
    let mut command = Command::new(program);
    command.arg(model).arg(PROMPT).env("LD_PRELOAD", &library);
    let output = process::output(&mut command)?;
    ensure!(
        !output.status.success(),
        "the program accepted another bridge"
    );
    check_rejection(&String::from_utf8_lossy(&output.stderr))
}

/// Uses a configuration that was written for another version of the bridge. Cargo stops, and the
/// error names both versions. A crate with nothing of Motet but its build script shows that in
/// seconds.
fn check_rejected_at_build(scratch: &Path, krate: &Path) -> Result<()> {
    let stub = scratch.join("stub");
    copy_build_script(&stub)?;
    for file in ["config.toml", "motet-mlx.toml"] {
        copy(&krate.join(".cargo"), &stub.join(".cargo"), file)?;
    }
    // A target folder of its own: a build for another configuration would replace the rest.
    let target = target_folder().join("motet/rejected");
    process::capture(cargo(&stub).env("CARGO_TARGET_DIR", &target))?;

    let generated = stub.join(".cargo/motet-mlx.toml");
    let text = fs::read_to_string(&generated)?;
    let other = text.lines().map(|line| match line.split_once(" = ") {
        Some(("motet-bridge", _)) => format!("motet-bridge = \"{OTHER_VERSION}\"\n"),
        _ => format!("{line}\n"),
    });
    fs::write(&generated, other.collect::<String>())?;
    let output = process::output(cargo(&stub).env("CARGO_TARGET_DIR", &target))?;
    ensure!(!output.status.success(), "the crate was built");
    let printed = String::from_utf8_lossy(&output.stderr);
    check_rejection(&printed)?;
    let command = format!("cargo xtask setup --for {}", krate.display());
    ensure!(
        printed.contains(&command),
        "`{command}` is not in: {printed}"
    );
    Ok(())
}

fn copy_build_script(to: &Path) -> Result<()> {
    let checkout = workspace::root();
    let krate = checkout.join("crates/mlx");
    for file in [
        "build.rs",
        "build/prepared.rs",
        "src/device/bridge/bridge.cpp",
    ] {
        copy(&krate, to, file)?;
    }
    copy(&checkout, to, "Cargo.lock")?;
    fs::write(to.join("src/lib.rs"), "")?;
    fs::write(to.join("Cargo.toml"), STUB)?;
    Ok(())
}

fn copy(from: &Path, to: &Path, file: &str) -> Result<()> {
    let copied = to.join(file);
    fs::create_dir_all(copied.parent().unwrap_or(to))?;
    fs::copy(from.join(file), &copied).with_context(|| format!("cannot copy {file}"))?;
    Ok(())
}

/// Whether the output names both versions and the command that corrects the mismatch.
fn check_rejection(printed: &str) -> Result<()> {
    let line = printed
        .lines()
        .find(|line| line.contains("cargo xtask setup"));
    let line = line.with_context(|| format!("no command that corrects it in: {printed}"))?;
    ui::note(line.trim());
    let other = format!("their bridge is version {OTHER_VERSION}, expected ");
    ensure!(line.contains(&other), "no {other:?} in: {line}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opened_libraries_are_parsed() {
        let trace = "\
             7:\tfind library=libm.so.6 [0]; searching\n\
             7:\t  trying file=/home/me/.cache/motet/libm.so.6\n\
             7:\tcalling init: /lib/libm.so.6\n\
             \n\
             7:\tcalling init: /srv/lib/libmlxc.so\n\
             7:\tcalling fini: /lib/libc.so.6 [0]\n";
        assert_eq!(
            opened(trace),
            ["/lib/libm.so.6", "/srv/lib/libmlxc.so"].map(PathBuf::from)
        );
    }
}
