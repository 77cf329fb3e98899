//! `cargo xtask uninjected`: nothing that only tests need is in a build of the library.
//!
//! Simulations, failpoints and the choice of an injected bug exist under `--cfg motet_injected` only.
//! A library's metadata names every item of it, and a program's symbols and texts name everything
//! that was linked, so that a search in both finds every slip. The effect of a cfg does not depend on
//! the profile: the check shares the build of the other stages of `cargo xtask test`. `--release` builds what is shipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{process, workspace};

/// A program that links the whole engine.
const PROGRAM: &str = "motet-load-generator";
/// The library whose metadata is searched.
const LIBRARY: &str = "motet";
/// Texts that no build without the cfg holds. Each begins with an F, an M or an S.
const INJECTED: [&str; 5] = [
    "MOTET_INJECTED",
    "FaultSchedule",
    "Failpoint",
    "Simulation",
    "SimulatedDevice",
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build in release mode
    #[arg(long)]
    release: bool,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--message-format=json"]);
    if arguments.release {
        cargo.args(["--package", PROGRAM, "--release"]);
    } else {
        cargo.args(workspace::WHOLE).args(["--bin", PROGRAM]);
    }
    let built = artifacts(&process::capture(&mut cargo)?);
    ensure!(
        built.len() == 2,
        "cargo names a library and a program: {built:?}"
    );
    for path in built {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let found = found(&bytes);
        if !found.is_empty() {
            let found: Vec<&str> = found.into_iter().collect();
            bail!(
                "{} holds {}: it is needed by tests only, and belongs below `src/runtime/injected`",
                path.display(),
                found.join(", ")
            );
        }
        println!("{}: {} bytes, no injection", path.display(), bytes.len());
    }
    Ok(())
}

/// The library and the program among cargo's messages.
fn artifacts(messages: &str) -> Vec<PathBuf> {
    let artifacts = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_library = message["target"]["name"] == LIBRARY;
        let path = if is_library {
            let files = message["filenames"].as_array()?;
            let mut files = files.iter().filter_map(Value::as_str);
            files.find(|file| file.ends_with(".rlib"))?
        } else {
            let program = message["executable"].as_str();
            program.filter(|_| message["target"]["name"] == PROGRAM)?
        };
        Some(PathBuf::from(path))
    });
    artifacts.collect()
}

/// The texts of [`INJECTED`] that a file holds. One pass, since programs are large.
fn found(bytes: &[u8]) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(byte, b'F' | b'M' | b'S') {
            let begins = |text: &&str| bytes[at..].starts_with(text.as_bytes());
            found.extend(INJECTED.into_iter().find(begins));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_within_other_bytes() {
        for text in INJECTED {
            let bytes = format!("\0_RNvNtCs_5motet9{text}4trip\u{1}F");
            assert_eq!(found(bytes.as_bytes()), BTreeSet::from([text]));
        }
        assert!(found(b"the engine's failpoint").is_empty());
    }

    #[test]
    fn library_and_program_are_read_from_cargo() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"motet"},"filenames":["/t/libmotet.rlib","/t/libmotet.rmeta"],"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"other"},"filenames":["/t/libother.rlib"],"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"motet-load-generator"},"filenames":["/t/program"],"executable":"/t/program"}"#,
            "\n",
        );
        let expected = ["/t/libmotet.rlib", "/t/program"].map(PathBuf::from);
        assert_eq!(artifacts(messages), expected);
    }
}
