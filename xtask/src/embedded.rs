//! `cargo xtask embedded`: a crate outside the workspace is set up, built, run, bundled and run
//! again without the cache, as those who embed Motet do it; and what does not fit is refused.
//!
//! The crate is `examples/embedded`, copied to a folder that no configuration of this checkout
//! reaches. It shares the target folder and the lock file of the checkout, so that nothing is
//! fetched and little is built twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cache::{Cache, remove};
use crate::model::Model;
use crate::ui::Timings;
use crate::{bundle, checksum, process, setup, ui, workspace};

const EXAMPLE: &str = "examples/embedded";
const PROMPT: &str = "The capital of France is";
const ANSWER: &str = "Paris";
/// A version that no bridge has.
const OTHER_VERSION: u32 = 999;
/// What the program has to have opened, in the bundle.
const LIBRARIES: [&str; 3] = ["libmlxc.so", "libmlx.so", "libscipy_openblas.so"];

pub(crate) fn command() -> Result<()> {
    let mut timings = Timings::default();
    let cache = Cache::open()?;
    let model = timings.time("fetch the model", || Model::SmolLm2.ensure(&cache))?;
    let place = place(&cache)?;
    let krate = place.join("crate");

    ui::heading(&format!("a crate in {}", krate.display()));
    copy_example(&krate)?;
    timings.time("set the crate up", || set_up(&cache, &krate))?;
    let program = timings.time("build", || build(&krate))?;
    timings.time("run", || run(&mut Command::new(&program), &model))?;

    ui::heading("the same program, bundled, without the cache");
    let folder = place.join("bundle");
    let bundled = timings.time("bundle", || bundle::bundle(&program, &folder))?;
    timings.time("run bundled", || {
        run_hidden(&cache, &place, &bundled, &model)
    })?;

    ui::heading("libraries of another version");
    timings.time("refused at load", || {
        refused_at_load(&place, &bundled, &model)
    })?;
    timings.time("refused at build", || refused_at_build(&krate))?;

    println!("\n{}", timings.table());
    remove(&place)
}

/// A folder outside this checkout and the cache; the same each time, for cargo calls a program
/// after the folder of its crate.
fn place(cache: &Cache) -> Result<PathBuf> {
    let checkout = workspace::root();
    let key = checksum::Key::default()
        .add("checkout", checkout.as_os_str().as_encoded_bytes())
        .finish();
    let place = std::env::temp_dir().join(format!("motet-embedded-{key}"));
    for reaches in [&checkout, cache.root()] {
        ensure!(
            !place.starts_with(reaches),
            "the temporary folder is inside {}: set TMPDIR to another",
            reaches.display()
        );
    }
    remove(&place)?;
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    fs::canonicalize(&place).with_context(|| format!("cannot enter {}", place.display()))
}

fn copy_example(to: &Path) -> Result<()> {
    let checkout = workspace::root();
    let example = checkout.join(EXAMPLE);
    fs::create_dir_all(to.join("src"))?;
    fs::copy(example.join("src/main.rs"), to.join("src/main.rs"))?;
    fs::copy(checkout.join("Cargo.lock"), to.join("Cargo.lock"))?;
    let manifest = fs::read_to_string(example.join("Cargo.toml"))?;
    let here = "path = \"../..\"";
    ensure!(
        manifest.contains(here),
        "{EXAMPLE} does not name Motet's folder"
    );
    let there = format!(
        "path = {}",
        toml_edit::Value::from(checkout.display().to_string())
    );
    fs::write(to.join("Cargo.toml"), manifest.replace(here, there.trim()))?;
    Ok(())
}

/// Sets the crate up, twice: the second time nothing is left to write.
fn set_up(cache: &Cache, krate: &Path) -> Result<()> {
    let config = krate.join(".cargo/config.toml");
    let theirs = "# Theirs.\n[net]\noffline = true\n";
    fs::create_dir_all(krate.join(".cargo"))?;
    fs::write(&config, theirs)?;
    ensure!(setup::reach(cache, krate)?, "nothing was written");
    ensure!(
        !setup::reach(cache, krate)?,
        "the second set-up wrote something"
    );
    let merged = fs::read_to_string(&config)?;
    ensure!(
        merged.ends_with(theirs),
        "what was there is not kept: {merged}"
    );
    Ok(())
}

fn cargo(krate: &Path) -> Command {
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(krate)
        .args(["build", "--offline"])
        .stdin(Stdio::null());
    // Cargo has set it for this program, and takes what is set for what its user wants.
    cargo.env_remove("MOTET_SETUP_COMMAND");
    cargo
}

/// Where the checkout's own builds go.
fn target_folder() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    workspace::root().join(named.unwrap_or_else(|| "target".into()))
}

fn build(krate: &Path) -> Result<PathBuf> {
    let mut cargo = cargo(krate);
    cargo
        .args(["--message-format", "json-render-diagnostics"])
        .env("CARGO_TARGET_DIR", target_folder())
        .stderr(Stdio::inherit());
    let built = process::capture(&mut cargo)?;
    let messages = built
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let program = messages
        .filter_map(|message: Value| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    program.context("cargo did not say where the program is")
}

/// Runs the program, and checks what the model says.
fn run(program: &mut Command, model: &Path) -> Result<Output> {
    program.arg(model).arg(PROMPT);
    let output = process::output(program)?;
    if !output.status.success() {
        return Err(process::failed(program, &output));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    ui::note(&format!("{PROMPT}{}", said.trim_end()));
    ensure!(said.contains(ANSWER), "the model should have said {ANSWER}");
    Ok(output)
}

/// Runs the bundle where nothing names the cache, and looks at what the loader opens.
fn run_hidden(cache: &Cache, place: &Path, program: &Path, model: &Path) -> Result<()> {
    let home = place.join("home");
    fs::create_dir_all(&home)?;
    // The model is in the cache as well.
    let copy = place.join("model.gguf");
    if fs::hard_link(model, &copy).is_err() {
        fs::copy(model, &copy).context("cannot copy the model")?;
    }
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("HOME", &home)
        .env("XDG_CACHE_HOME", &home)
        .env("LD_DEBUG", "libs")
        .current_dir(&home);
    let output = run(&mut command, &copy)?;
    let opened = opened(&String::from_utf8_lossy(&output.stderr));
    let folder = program.parent().context("a bundle has a folder")?;
    if let Some(wrong) = opened.iter().find(|path| path.starts_with(cache.root())) {
        bail!("{} comes from the cache", wrong.display());
    }
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

/// The libraries whose initialisation the loader tells of under `LD_DEBUG=libs`.
fn opened(told: &str) -> Vec<PathBuf> {
    let paths = told
        .lines()
        .filter_map(|line| line.split_once("calling init: "));
    paths.map(|(_, path)| PathBuf::from(path.trim())).collect()
}

/// A library that says another version of the bridge, before the bundled one: the engine does
/// not start, and says both.
fn refused_at_load(place: &Path, program: &Path, model: &Path) -> Result<()> {
    let (source, library) = (place.join("other.c"), place.join("libother.so"));
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
    ensure!(!output.status.success(), "the program took another bridge");
    is_refusal(&String::from_utf8_lossy(&output.stderr))
}

/// A configuration that was written for another version of the bridge: the crate does not
/// build, and is told both.
fn refused_at_build(krate: &Path) -> Result<()> {
    let generated = krate.join(".cargo/motet-mlx.toml");
    let text = fs::read_to_string(&generated)?;
    let other = text.lines().map(|line| match line.split_once(" = ") {
        Some(("motet-bridge", _)) => format!("motet-bridge = \"{OTHER_VERSION}\"\n"),
        _ => format!("{line}\n"),
    });
    fs::write(&generated, other.collect::<String>())?;
    // In a folder of its own: what is built for another configuration would replace the rest.
    let mut cargo = cargo(krate);
    cargo.env("CARGO_TARGET_DIR", target_folder().join("motet/refused"));
    let output = process::output(&mut cargo)?;
    ensure!(!output.status.success(), "the crate was built");
    let said = String::from_utf8_lossy(&output.stderr);
    is_refusal(&said)?;
    let command = format!("cargo xtask setup --for {}", krate.display());
    ensure!(said.contains(&command), "`{command}` is not in: {said}");
    Ok(())
}

/// Whether both versions are named, and what to do.
fn is_refusal(said: &str) -> Result<()> {
    let line = said.lines().find(|line| line.contains("cargo xtask setup"));
    let line = line.with_context(|| format!("no command that mends it in: {said}"))?;
    ui::note(line.trim());
    let other = format!("their bridge is version {OTHER_VERSION}, expected ");
    ensure!(line.contains(&other), "no {other:?} in: {line}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loader_has_opened() {
        let told = "\
             7:\tfind library=libm.so.6 [0]; searching\n\
             7:\t  trying file=/root/.cache/motet/libm.so.6\n\
             7:\tcalling init: /lib/libm.so.6\n\
             \n\
             7:\tcalling init: /srv/lib/libmlxc.so\n\
             7:\tcalling fini: /lib/libc.so.6 [0]\n";
        assert_eq!(
            opened(told),
            ["/lib/libm.so.6", "/srv/lib/libmlxc.so"].map(PathBuf::from)
        );
    }
}
