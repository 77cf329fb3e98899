//! How far each family is from its reference, as a table in docs/models.md.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::{setup, workspace};

const PAGE: &str = "docs/models.md";
const BEGIN: &str = "<!-- parity: `cargo xtask parity` writes this table -->\n";
const END: &str = "<!-- end of parity -->\n";

/// Measures the table, and writes it into the page unless it is only to be printed.
pub(super) fn command(print_only: bool) -> Result<()> {
    setup::install(&Cache::open()?, None)?;
    let table = measured()?;
    if print_only {
        return Ok(());
    }
    let page = workspace::root().join(PAGE);
    let text = std::fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
    let text = with_table(&text, &table)?;
    std::fs::write(&page, text).with_context(|| format!("cannot write {PAGE}"))?;
    println!("written into {PAGE}");
    Ok(())
}

/// Runs the tests that print the table, row by row.
fn measured() -> Result<String> {
    let mut cargo = workspace::cargo();
    cargo
        .args(["test", "--package", "motet", "--package", "motet-mlx"])
        .args(["--features", "motet/mlx,motet/tower", "--test", "parity"])
        .args(["--", "--ignored", "--exact", "table::table", "--nocapture"])
        .env("OPENBLAS_NUM_THREADS", "1")
        // The device thread is killed in every row.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = cargo.spawn().context("cannot start cargo")?;
    let stdout = child
        .stdout
        .take()
        .context("cargo has no standard output")?;
    let mut table = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read cargo's output")?;
        if line.starts_with('|') {
            println!("{line}");
            std::io::stdout().flush().ok();
            table.push_str(&line);
            table.push('\n');
        }
    }
    if !child.wait().context("cannot wait for cargo")?.success() {
        bail!("a family differs from its reference by more than ten times the noise");
    }
    Ok(table)
}

/// The page with this table between its marks.
fn with_table(page: &str, table: &str) -> Result<String> {
    let marks = page
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = marks else {
        bail!("{PAGE} has no place for the table; expected `{BEGIN}` and `{END}`");
    };
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_is_replaced() {
        let page = format!("before\n{BEGIN}| old |\n{END}after\n");
        let written = with_table(&page, "| new |\n").unwrap();
        assert_eq!(written, format!("before\n{BEGIN}| new |\n{END}after\n"));
        assert!(with_table("no place", "").is_err());
    }

    #[test]
    fn the_page_has_a_place_for_the_table() {
        let page = std::fs::read_to_string(workspace::root().join(PAGE)).unwrap();
        with_table(&page, "").unwrap();
    }
}
