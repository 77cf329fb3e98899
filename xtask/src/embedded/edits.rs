//! `--edits`: time from an edit of a dependent crate to its run. The crate has default features
//! and profiles, and its one file starts an engine on the oracle.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{cargo, copy, scratch, target_folder};
use crate::cache::{Cache, remove};
use crate::{process, ui, workspace};

const EDITS: usize = 5;

const PROGRAM: &str = r#"use motet::model::oracle::{Oracle, OracleConfig};
use motet::{Engine, Request, Shutdown};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let build = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
    let engine = Engine::builder(build).start().await?;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(OUTPUT);
    let completion = engine.submit(request).await?.collect().await?;
    println!("{}", completion.tokens.len());
    engine.shutdown(Shutdown::Finish).await;
    Ok(())
}
"#;

/// Edits, builds and runs the crate several times, and prints the shortest time.
pub(super) fn measure(cache: &Cache) -> Result<()> {
    let scratch = scratch(cache)?;
    let krate = scratch.join("edited");
    write_manifest(&krate)?;
    // A target folder of its own: the checkout's profiles do not apply to other crates.
    let target = target_folder().join("motet/edited");
    ui::heading(&format!("a crate in {}", krate.display()));
    run_edited(&krate, &target, 1)?;
    let mut times = Vec::new();
    for edit in 1..=EDITS {
        times.push(run_edited(&krate, &target, 1 + edit)?);
    }
    let shown: Vec<String> = times.iter().map(|time| ui::duration(*time)).collect();
    let shortest = times.iter().min().context("nothing was run")?;
    println!(
        "edit to run: {} (of {})",
        ui::duration(*shortest),
        shown.join(", ")
    );
    remove(&scratch)
}

fn write_manifest(krate: &Path) -> Result<()> {
    let checkout = workspace::root();
    copy(&checkout, krate, "Cargo.lock")?;
    let manifest = format!(
        "[package]\nname = \"edited\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nmotet = {{ path = {:?} }}\n\
         tokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\", \"time\"] }}\n",
        checkout.display().to_string()
    );
    fs::write(krate.join("Cargo.toml"), manifest)?;
    fs::create_dir_all(krate.join("src"))?;
    Ok(())
}

/// Makes the program ask for `tokens` tokens, builds it and runs it.
fn run_edited(krate: &Path, target: &Path, tokens: usize) -> Result<Duration> {
    let program = PROGRAM.replace("OUTPUT", &tokens.to_string());
    fs::write(krate.join("src/main.rs"), program)?;
    let started = Instant::now();
    let program = workspace::built(cargo(krate).env("CARGO_TARGET_DIR", target), None)?;
    let printed = process::capture(&mut std::process::Command::new(program))?;
    let time = started.elapsed();
    ensure!(printed.trim() == tokens.to_string(), "it printed {printed}");
    Ok(time)
}
