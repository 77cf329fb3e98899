//! `cargo xtask deny`: licences, second versions, sources and known faults of all dependencies, by
//! cargo-deny and `deny.toml`.
//!
//! The database of known faults is a git repository on the network. Where it cannot be fetched, as on
//! a machine that reaches only package registries, the faults are checked against the copy of an
//! earlier fetch, or a note says that they were not checked.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Cache;
use crate::{process, setup, ui, workspace};

/// Checks that need no network but that of cargo.
const ALWAYS: [&str; 3] = ["bans", "licenses", "sources"];
/// Warnings that fail: entries of `deny.toml` for versions that are gone.
const STALE: [&str; 2] = ["unmatched-skip", "unnecessary-skip"];
/// Time for the database to arrive. It has a few megabytes.
const FETCH_TIME_MAX: Duration = Duration::from_secs(60);
/// Interval at which the fetch is checked.
const POLL: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Fail where the database of known faults cannot be fetched
    #[arg(long)]
    fetch: bool,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let program = setup::cargo_deny(&Cache::open()?)?;
    ensure!(
        process::succeeds(Command::new(&program).arg("--version")),
        "cargo-deny is missing: run `cargo install --locked cargo-deny`"
    );
    let deny = |arguments: &[&str]| {
        let mut deny = Command::new(&program);
        deny.current_dir(workspace::root()).args(arguments);
        deny
    };
    let mut check = deny(&["--workspace", "--locked", "check"]);
    check.args(STALE.iter().flat_map(|warning| ["--deny", warning]));
    process::run(check.args(ALWAYS))?;

    let fetched = fetch(&mut deny(&["--workspace", "--locked", "fetch", "db"]));
    if let Err(error) = fetched {
        if arguments.fetch {
            return Err(error);
        }
        if !is_database_there() {
            ui::note(&format!(
                "known faults of dependencies were NOT checked: {error:#}"
            ));
            return Ok(());
        }
        ui::note(&format!(
            "known faults are those of an earlier fetch: {error:#}"
        ));
    }
    process::run(&mut deny(&[
        "--workspace",
        "--offline",
        "check",
        "advisories",
    ]))
}

/// Fetches the database, and gives up after a while. git neither asks for a password nor waits for a
/// server that sends nothing.
fn fetch(command: &mut Command) -> Result<()> {
    command
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_HTTP_LOW_SPEED_LIMIT", "1000")
        .env("GIT_HTTP_LOW_SPEED_TIME", "20")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start cargo-deny")?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for cargo-deny")? {
            ensure!(
                status.success(),
                "their database cannot be fetched ({status})"
            );
            return Ok(());
        }
        if started.elapsed() > FETCH_TIME_MAX {
            child.kill().context("cannot end cargo-deny")?;
            child.wait().context("cannot wait for cargo-deny")?;
            bail!("their database did not arrive within {FETCH_TIME_MAX:?}");
        }
        thread::sleep(POLL);
    }
}

/// Whether an earlier fetch has left the database in the folder that cargo-deny uses.
fn is_database_there() -> bool {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let folder = home.and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    let entries = folder.into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| entry.path().join(".git").exists())
}

#[cfg(test)]
mod tests {
    use toml_edit::{DocumentMut, Item};

    use super::*;

    /// The reasons beside the entries of a list in `deny.toml`.
    fn reasons<'a>(settings: &'a DocumentMut, table: &str, list: &str) -> Vec<Option<&'a str>> {
        let entries = settings[table][list].as_array().expect(list);
        let reason = |entry: &'a toml_edit::Value| entry.as_inline_table()?.get("reason")?.as_str();
        entries.iter().map(reason).collect()
    }

    #[test]
    fn every_exception_has_a_reason_and_nothing_else_is_let_through() {
        let settings = fs::read_to_string(workspace::root().join("deny.toml")).unwrap();
        let settings: DocumentMut = settings.parse().unwrap();
        for (table, list) in [("bans", "skip"), ("advisories", "ignore")] {
            let reasons = reasons(&settings, table, list);
            let is_given = |reason: &Option<&str>| reason.is_some_and(|reason| !reason.is_empty());
            assert!(reasons.iter().all(is_given), "{table}.{list}: {reasons:?}");
        }
        for (table, setting) in [
            ("bans", "multiple-versions"),
            ("bans", "wildcards"),
            ("sources", "unknown-registry"),
            ("sources", "unknown-git"),
        ] {
            let found = settings.get(table).and_then(|table| table.get(setting));
            assert_eq!(
                found.and_then(Item::as_str),
                Some("deny"),
                "{table}.{setting}"
            );
        }
    }
}
