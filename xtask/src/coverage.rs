//! `cargo xtask coverage`: lines and branches of the three cores that the tests reach.
//!
//! Only this package is built with LLVM's counters: for it, cargo calls this program in the place
//! of the compiler ([`compile`]). Everything else is shared with other builds. Counting branches
//! is not stable yet; the compiler is told to allow it for this package only. The files' own
//! tests, below `#[cfg(test)]`, are not counted.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::cache::{Cache, remove};
use crate::setup::Llvm;
use crate::{process, ui, workspace};

/// Set where cargo calls this program as the compiler.
const AS_COMPILER: &str = "MOTET_COVERAGE_COMPILER";
const FLAGS: [&str; 3] = [
    "-Cinstrument-coverage",
    "-Zcoverage-options=branch",
    // The recovery and the simulation need it.
    "--cfg=motet_injected",
];
const CORES: [&str; 3] = [
    "crates/core/src/scheduler",
    "crates/core/src/cache",
    "crates/core/src/pager",
];
/// Tests of the cores. Tests of whole models and servers are left out.
const TESTS: &[&str] = &[
    "cache_machine",
    "fuzz",
    "core_histories",
    "engine",
    "orders",
    "pager_tiers",
    "recovery",
    "simulation",
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also list the lines that no test has reached
    #[arg(long)]
    lines: bool,
    /// Print the coverage of the last run, without running the tests
    #[arg(long)]
    again: bool,
}

/// Reached items among all items of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    reached: usize,
    all: usize,
}

/// Coverage of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reach {
    /// Times that each line was reached.
    lines: BTreeMap<usize, u64>,
    /// Lines of branches, and whether each branch was taken.
    branches: Vec<(usize, bool)>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let llvm = Llvm::find(&Cache::open()?)?;
    let folder = workspace::root().join("target/coverage");
    if !arguments.again {
        remove(&folder)?;
        fs::create_dir_all(&folder).context("cannot make target/coverage")?;
        ui::heading("tests, counted");
        process::run(cargo_test(&folder)?.arg("--no-fail-fast"))?;
    }
    let programs = programs(&process::capture(
        cargo_test(&folder)?.args(["--no-run", "--message-format=json"]),
    )?);
    ensure!(!programs.is_empty(), "cargo names no test program");

    let profile = folder.join("all.profdata");
    process::run(
        llvm.tool("llvm-profdata")
            .args(["merge", "--sparse", "--output"])
            .arg(&profile)
            .arg(folder.join("raw")),
    )?;
    let mut export = llvm.tool("llvm-cov");
    export
        .current_dir(workspace::root())
        .args(["export", "--format=lcov", "--instr-profile"])
        .arg(&profile);
    for program in &programs {
        export.arg("--object").arg(program);
    }
    export.arg("--sources").args(CORES);
    let files = parse(&process::capture(&mut export)?)?;
    print!("{}", table(&files));
    if arguments.lines {
        for (file, reach) in &files {
            let missed = reach.lines.iter().filter(|(_, times)| **times == 0);
            let missed: Vec<String> = missed.map(|(line, _)| line.to_string()).collect();
            println!("{file}: {}", missed.join(" "));
        }
    }
    Ok(())
}

/// Compiles a file and returns the exit code, if cargo has called this program as the compiler.
pub(crate) fn compile() -> Option<ExitCode> {
    env::var_os(AS_COMPILER)?;
    let mut arguments = env::args_os().skip(1);
    let mut compiler = Command::new(arguments.next()?);
    let is_asked = env::args_os().any(|argument| argument == "-vV" || argument == "-");
    compiler.args(arguments);
    if !is_asked {
        compiler.args(FLAGS).env("RUSTC_BOOTSTRAP", "1");
    }
    let ended = compiler.status();
    let code = ended.ok().and_then(|status| status.code()).unwrap_or(1);
    Some(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn cargo_test(folder: &Path) -> Result<Command> {
    let mut cargo = workspace::cargo();
    cargo
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            env::current_exe().context("cannot find the path of this program")?,
        )
        .env(AS_COMPILER, "1")
        .env("LLVM_PROFILE_FILE", folder.join("raw/%p-%m.profraw"))
        .args(["test", "--package", "motet", "--package", "motet-storage"])
        .args(["--package", "motet-testkit", "--lib"]);
    for test in TESTS {
        cargo.args(["--test", test]);
    }
    Ok(cargo)
}

/// The test programs that cargo has built, by its messages.
fn programs(messages: &str) -> Vec<PathBuf> {
    let messages = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let program = message["executable"].as_str().filter(|_| is_test)?;
        Some(PathBuf::from(program))
    });
    messages.collect()
}

/// Coverage of each file of the cores, without the file's own tests.
fn parse(lcov: &str) -> Result<BTreeMap<String, Reach>> {
    let root = workspace::root();
    let mut files = BTreeMap::new();
    for record in lcov.split("end_of_record") {
        let Some(path) = record.lines().find_map(|line| line.strip_prefix("SF:")) else {
            continue;
        };
        let path = Path::new(path);
        let source =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let tests = source.lines().position(|line| line == "#[cfg(test)]");
        let name = path.strip_prefix(&root).unwrap_or(path);
        files.insert(
            name.display().to_string(),
            reach(record, tests.unwrap_or(usize::MAX)),
        );
    }
    Ok(files)
}

/// Coverage of one file in llvm-cov's output, up to line `lines_max`.
fn reach(record: &str, lines_max: usize) -> Reach {
    let mut reach = Reach::default();
    for line in record.lines() {
        let Some((kind, numbers)) = line.split_once(':') else {
            continue;
        };
        let numbers: Vec<&str> = numbers.split(',').collect();
        let at = numbers[0].parse().unwrap_or(usize::MAX);
        match (kind, numbers.last()) {
            _ if at > lines_max => {}
            ("DA", Some(times)) => {
                let times = times.parse().unwrap_or(0);
                reach.lines.insert(at, times);
            }
            // `-` where the line itself was never reached.
            ("BRDA", Some(times)) => reach.branches.push((at, !matches!(*times, "-" | "0"))),
            _ => {}
        }
    }
    reach
}

/// One line for each folder, and the totals.
fn table(files: &BTreeMap<String, Reach>) -> String {
    let mut folders: BTreeMap<&str, [Share; 2]> = BTreeMap::new();
    let mut all = [Share::default(); 2];
    for (file, reach) in files {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        for shares in [folders.entry(folder).or_default(), &mut all] {
            shares[0].count(reach.lines.values().map(|times| *times > 0));
            shares[1].count(reach.branches.iter().map(|(_, taken)| *taken));
        }
    }
    let mut text = String::from("| folder | lines | branches |\n|---|--:|--:|\n");
    for (folder, [lines, branches]) in folders.into_iter().chain([("all", all)]) {
        text += &format!("| {folder} | {lines} | {branches} |\n");
    }
    text
}

impl Share {
    fn count(&mut self, of: impl Iterator<Item = bool>) {
        for reached in of {
            self.all += 1;
            self.reached += usize::from(reached);
        }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.all == 0 {
            return f.write_str("none");
        }
        let percent = 100.0 * self.reached as f64 / self.all as f64;
        write!(f, "{percent:.1} % of {}", self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_above_the_tests_are_counted() {
        let record = "SF:src/a.rs\nDA:1,3\nDA:2,0\nDA:9,1\nBRDA:1,0,0,2\nBRDA:1,0,1,0\n\
                      BRDA:2,0,0,-\nBRDA:9,0,0,1\nLF:3\n";
        let reached = reach(record, 5);
        assert_eq!(reached.lines, BTreeMap::from([(1, 3), (2, 0)]));
        assert_eq!(reached.branches, [(1, true), (1, false), (2, false)]);
        let table = table(&BTreeMap::from([(
            "crates/core/src/cache/a.rs".into(),
            reached,
        )]));
        assert!(table.contains("| crates/core/src/cache | 50.0 % of 2 | 33.3 % of 3 |"));
        assert!(table.ends_with("| all | 50.0 % of 2 | 33.3 % of 3 |\n"));
    }

    #[test]
    fn only_test_programs_are_asked() {
        let printed = r#"{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/a"}
{"reason":"compiler-artifact","profile":{"test":false},"executable":"/t/b"}
{"reason":"compiler-artifact","profile":{"test":true},"executable":null}
not JSON"#;
        assert_eq!(programs(printed), [PathBuf::from("/t/a")]);
    }
}
