//! `cargo xtask test`: everything that CI checks, in the order in which mistakes are
//! cheapest to find.

mod programs;

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::model::Model;
use crate::ui::Timings;
use crate::{setup, ui, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave out the checks that take minutes: loom, the documentation, the examples
    #[arg(long)]
    quick: bool,
    /// Run only the stages whose names contain this, as `tests` or `loom`
    #[arg(long, value_name = "STAGE")]
    only: Option<String>,
}

impl Arguments {
    fn choose(&self, stage: &Stage) -> bool {
        match &self.only {
            Some(part) => stage.name.contains(part.as_str()),
            None => stage.quick || !self.quick,
        }
    }
}

/// Lines of a test program's failures that are printed again at the end.
const FAILURE_LINES_MAX: usize = 100;

/// One command that has to succeed.
struct Stage {
    name: &'static str,
    /// Whether `--quick` runs it too.
    quick: bool,
    runs: Runs,
    environment: &'static [(&'static str, &'static str)],
}

enum Runs {
    /// Cargo, with these arguments.
    Cargo(&'static [&'static str]),
    /// `cargo test` with these arguments: its programs side by side, then the examples in
    /// documentation.
    Tests(&'static [&'static str]),
    /// The program of this package, with these arguments.
    Program(&'static str, &'static [&'static str]),
    /// This example.
    Example(&'static str),
}

use Runs::{Cargo, Example, Program, Tests};

const FEATURES: &str = workspace::FEATURES;
const FEATURES_NO_MLX: &str = workspace::FEATURES_NO_MLX;

/// To add a check, add a line. Stages share their builds as long as they select the whole workspace,
/// with the same features and the same flags of the compiler. A stage that needs other flags for
/// this workspace names a program of `xtask/compilers/`. Cargo calls it for the packages of the
/// workspace only, so that their dependencies stay shared.
#[rustfmt::skip] // a table
const STAGES: &[Stage] = &[
    Stage { name: "format", quick: true, environment: &[],
        runs: Cargo(&["fmt", "--all", "--check"]) },
    Stage { name: "clippy", quick: true, environment: &[],
        runs: Cargo(&["clippy", "--workspace", "--exclude", "motet-mlx", "--all-targets", "--", "-D", "warnings"]) },
    Stage { name: "clippy, mlx and injection", quick: true, environment: &[],
        runs: Cargo(&["clippy", "--workspace", "--all-targets", "--features", FEATURES, "--", "-D", "warnings", "--cfg", "motet_injected"]) },
    Stage { name: "dependencies", quick: false, environment: &[],
        runs: Cargo(&["run", "--package", "xtask", "--", "deny"]) },
    // An embedder may leave text and grammars out, or grammars alone, or have the hub alone.
    Stage { name: "without text", quick: true, environment: &[],
        runs: Cargo(&["clippy", "--package", "motet", "--lib", "--no-default-features", "--", "-D", "warnings"]) },
    Stage { name: "without grammars", quick: true, environment: &[],
        runs: Cargo(&["clippy", "--package", "motet", "--lib", "--no-default-features", "--features", "text,hub", "--", "-D", "warnings"]) },
    Stage { name: "grammars named alone", quick: true, environment: &[],
        runs: Cargo(&["clippy", "--package", "motet", "--lib", "--no-default-features", "--features", "grammar", "--", "-D", "warnings"]) },
    Stage { name: "documentation", quick: false, environment: &[("RUSTDOCFLAGS", "-D warnings")],
        runs: Cargo(&["doc", "--no-deps", "-p", "motet", "-p", "motet-sync", "-p", "motet-protocol", "-p", "motet-core", "-p", "motet-model", "-p", "motet-device", "-p", "motet-storage", "-p", "motet-text", "-p", "motet-formats", "-p", "motet-weights", "-p", "motet-kernels", "-p", "motet-testkit"]) },
    Stage { name: "documentation, mlx", quick: false, environment: &[("RUSTDOCFLAGS", "-D warnings")],
        runs: Cargo(&["doc", "--no-deps", "--package", "motet", "--package", "motet-mlx", "--features", "motet/mlx,motet/tower,motet/hub"]) },
    Stage { name: "public names", quick: false, environment: &[],
        runs: Cargo(&["run", "--package", "xtask", "--", "api"]) },
    // One BLAS thread: tests run side by side, and two threads that wait for each other
    // on a busy machine were measured 20 times slower than one. All random cases of the cores run.
    Stage { name: "tests", quick: true, environment: &[("OPENBLAS_NUM_THREADS", "1"), ("MOTET_EVERY_CASE", "1")],
        runs: Tests(&["--workspace", "--exclude", "motet-formats", "--exclude", "motet-kernels", "--features", FEATURES]) },
    // All other stages have the kernels without these checks, which make a model's step slow.
    Stage { name: "kernels, with checks of unsafe code", quick: true, environment: &[],
        runs: Cargo(&["test", "--package", "motet-formats", "--package", "motet-kernels", "--config", "profile.dev.package.motet-formats.debug-assertions=true", "--config", "profile.dev.package.motet-kernels.debug-assertions=true"]) },
    // The other stages build for this machine. Unoptimised, since nothing runs.
    Stage { name: "kernels of every instruction set", quick: false, environment: &[("MOTET_INSTRUCTION_SETS", "all")],
        runs: Cargo(&["build", "--package", "motet-kernels", "--config", "profile.dev.package.motet-formats.opt-level=0", "--config", "profile.dev.package.motet-kernels.opt-level=0"]) },
    // One small test: its crates, which have other features here, are built unoptimised.
    Stage { name: "tests without text", quick: false, environment: &[],
        runs: Cargo(&["test", "--package", "motet", "--no-default-features", "--test", "tokens_only", "--config", "profile.dev.package.motet-core.opt-level=0", "--config", "profile.dev.package.motet-model.opt-level=0", "--config", "profile.dev.package.motet-testkit.opt-level=0"]) },
    Stage { name: "loom", quick: false, environment: &[("RUSTC_WORKSPACE_WRAPPER", "xtask/compilers/loom"), ("LOOM_MAX_PREEMPTIONS", "3")],
        runs: Cargo(&["test", "--workspace", "--exclude", "motet-mlx", "--features", FEATURES_NO_MLX, "--test", "loom"]) },
    Stage { name: "loom, injected bugs", quick: false, environment: &[("RUSTC_WORKSPACE_WRAPPER", "xtask/compilers/loom-injected"), ("LOOM_MAX_PREEMPTIONS", "3"), ("RUST_BACKTRACE", "0")],
        runs: Cargo(&["test", "--workspace", "--exclude", "motet-mlx", "--features", FEATURES_NO_MLX, "--test", "loom"]) },
    Stage { name: "tests that inject faults", quick: true, environment: &[("RUSTC_WORKSPACE_WRAPPER", workspace::INJECTED_COMPILER)],
        runs: Cargo(&["test", "--workspace", "--exclude", "motet-mlx", "--features", FEATURES_NO_MLX, "--test", "simulation", "--test", "recovery", "--test", "grammars", "--test", "unmentioned"]) },
    Stage { name: "every order, injected bugs", quick: false, environment: &[("RUSTC_WORKSPACE_WRAPPER", workspace::INJECTED_COMPILER)],
        runs: Cargo(&["test", "--workspace", "--exclude", "motet-mlx", "--features", FEATURES_NO_MLX, "--test", "orders", "--test", "core_histories", "injected"]) },
    Stage { name: "simulation, injected mistakes", quick: false, environment: &[],
        runs: Cargo(&["run", "--package", "xtask", "--", "simulate", "--injected"]) },
    Stage { name: "a build without injection", quick: false, environment: &[],
        runs: Cargo(&["run", "--package", "xtask", "--", "uninjected"]) },
    Stage { name: "clients of the server", quick: false, environment: &[],
        runs: Cargo(&["run", "--package", "xtask", "--", "clients"]) },
    Stage { name: "quickstart", quick: false, environment: &[],
        runs: Example("quickstart") },
    Stage { name: "outside the workspace", quick: false, environment: &[],
        runs: Cargo(&["run", "--package", "xtask", "--", "embedded"]) },
    // A workspace of its own, for Dynamo's router: a minute of a processor.
    Stage { name: "fleet, simulated", quick: false, environment: &[],
        runs: Cargo(&["test", "--manifest-path", "benches/fleet/Cargo.toml", "--config", "build.target-dir='target'"]) },
    Stage { name: "load generator, oracle", quick: false, environment: &[],
        runs: Program("motet-load-generator", &["--oracle"]) },
    // Whether the figures can be measured, never their values.
    Stage { name: "figures, smoke", quick: false, environment: &[],
        runs: Cargo(&["run", "--package", "xtask", "--", "bench", "--quick"]) },
    Stage { name: "profile, smoke", quick: false, environment: &[],
        runs: Cargo(&["run", "--package", "xtask", "--", "bench", "--profile", "--quick"]) },
];

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    if !STAGES.iter().any(|stage| arguments.choose(stage)) {
        let names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        bail!("no such stage; there are: {}", names.join("; "));
    }
    let mut timings = Timings::default();
    let cache = Cache::open()?;
    timings.time("set MLX up", || setup::install(&cache, None))?;
    timings.time("fetch the model", || Model::SmolLm2.ensure(&cache))?;

    let mut summaries = Vec::new();
    let mut result = Ok(());
    for stage in STAGES.iter().filter(|stage| arguments.choose(stage)) {
        ui::heading(&format!("{}: {}", stage.name, stage.runs));
        result = timings.time(stage.name, || run(stage, &mut summaries));
        if result.is_err() {
            break;
        }
    }

    println!("\n{}", timings.table());
    for summary in &summaries {
        println!("{summary}");
    }
    result
}

/// Runs a stage and shows all its output. Keeps the test runner's summaries and its output about
/// failed tests.
fn run(stage: &Stage, summaries: &mut Vec<String>) -> Result<()> {
    let mut kept = Kept::of(stage, summaries);
    let environment = stage.environment.iter();
    let mut environment: Vec<(&str, String)> = environment
        .map(|(name, value)| (*name, extended(name, value)))
        .collect();
    let mut succeeded = true;
    if let Tests(arguments) = stage.runs {
        // As cargo sets it after a set-up.
        let models = Cache::open()?.models();
        environment.push(("MOTET_MODEL_DIR", models.display().to_string()));
        succeeded = side_by_side(arguments, &environment, &mut kept)?;
    }
    let mut command = stage.runs.command()?;
    command.envs(environment);
    succeeded = succeeded && show_lines(&mut command, |line| kept.line(line))?;
    if !succeeded {
        bail!("stage `{}` failed: {}", stage.name, repeat_alone(stage));
    }
    Ok(())
}

/// Runs the test programs of `cargo test` with these arguments. Whether all succeeded.
fn side_by_side(
    arguments: &[&str],
    environment: &[(&str, String)],
    kept: &mut Kept<'_>,
) -> Result<bool> {
    let mut succeeded = true;
    programs::run(programs::build(arguments)?, environment, |run| {
        println!("\n{} ({})", run.program.name, ui::duration(run.time));
        show(&run.output)?;
        for line in String::from_utf8_lossy(&run.output).lines() {
            kept.line(line.trim_end());
        }
        if !run.status.success() {
            succeeded = false;
            kept.failed(&format!("{} failed: {}", run.program.name, run.status));
        }
        Ok(())
    })?;
    Ok(succeeded)
}

/// Lines of a stage's output that are printed again at the end.
struct Kept<'a> {
    summaries: &'a mut Vec<String>,
    heading: Option<String>,
    failures: VecDeque<String>,
}

impl<'a> Kept<'a> {
    fn of(stage: &Stage, summaries: &'a mut Vec<String>) -> Self {
        Self {
            summaries,
            heading: Some(format!("\n{}:", stage.name)),
            failures: VecDeque::new(),
        }
    }

    /// Keeps what a program wrote about failures, and how it ended.
    fn failed(&mut self, how: &str) {
        println!("{how}");
        self.summaries.extend(self.heading.take());
        self.summaries.extend(self.failures.drain(..));
        self.summaries.push(how.to_owned());
    }

    fn line(&mut self, line: &str) {
        if is_summary(line) {
            self.summaries.extend(self.heading.take());
            self.summaries.extend(self.failures.drain(..));
            self.summaries.push(line.to_owned());
        } else if !self.failures.is_empty() || line == "failures:" {
            collect_failure(&mut self.failures, line);
        }
    }
}

impl Runs {
    /// Builds the program, if it is one.
    fn command(&self) -> Result<Command> {
        match self {
            Cargo(arguments) => {
                let mut cargo = workspace::cargo();
                cargo.args(*arguments);
                Ok(cargo)
            }
            // The programs have run before.
            Tests(arguments) => {
                let mut cargo = workspace::cargo();
                cargo.args(["test", "--doc"]).args(*arguments);
                Ok(cargo)
            }
            Program(package, arguments) => {
                let mut program = Command::new(workspace::build(package)?);
                program.args(*arguments).current_dir(workspace::root());
                Ok(program)
            }
            Example(name) => {
                let mut program = Command::new(workspace::example(name)?);
                // As cargo sets it after a set-up.
                program.env("MOTET_MODEL_DIR", Cache::open()?.models());
                program.current_dir(workspace::root());
                Ok(program)
            }
        }
    }
}

/// As a shell command that builds what other stages do not have to share.
impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cargo(arguments) => write!(f, "cargo {}", arguments.join(" ")),
            Tests(arguments) => write!(f, "cargo test {}", arguments.join(" ")),
            Program(package, arguments) => {
                let arguments = arguments.join(" ");
                write!(
                    f,
                    "cargo run --package {package} --features mlx -- {arguments}"
                )
            }
            Example(name) => write!(f, "cargo run --features mlx --example {name}"),
        }
    }
}

/// The new value of a variable: flags are appended to the user's, other values are replaced.
fn extended(name: &str, value: &str) -> String {
    match std::env::var(name) {
        Ok(set) if name.ends_with("FLAGS") && !set.is_empty() => format!("{set} {value}"),
        _ => value.to_owned(),
    }
}

/// Runs the command. Shows each line of its standard output as it comes, and passes it to
/// `line_seen`.
fn show_lines(command: &mut Command, mut line_seen: impl FnMut(&str)) -> Result<bool> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo")?;
    let stdout = child
        .stdout
        .take()
        .context("cargo has no standard output")?;
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new(); // a test may print bytes that are not UTF-8
    while reader
        .read_until(b'\n', &mut line)
        .context("cannot read cargo's output")?
        > 0
    {
        show(&line)?;
        line_seen(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(child.wait().context("cannot wait for cargo")?.success())
}

fn show(output: &[u8]) -> Result<()> {
    let written = std::io::stdout().write_all(output);
    written.context("cannot write to standard output")
}

/// Keeps the last lines that libtest prints about failed tests, without stack frames, so that
/// they can be printed again at the end.
fn collect_failure(failures: &mut VecDeque<String>, line: &str) {
    let begins = line.trim_start();
    let is_frame = begins.starts_with("at /")
        || begins.starts_with("at ./")
        || begins
            .split_once(": ")
            .is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    if is_frame {
        return;
    }
    failures.push_back(line.to_owned());
    if failures.len() > FAILURE_LINES_MAX {
        failures.pop_front();
    }
}

/// Whether a line is a summary of libtest, of a program with at least one test.
fn is_summary(line: &str) -> bool {
    line.starts_with("test result: ") && !line.contains(" 0 passed; 0 failed; 0 ignored;")
}

/// The shell command that repeats the stage.
fn repeat_alone(stage: &Stage) -> String {
    let environment = stage
        .environment
        .iter()
        .map(|(name, value)| format!("{name}='{value}' "));
    format!("{}{}", environment.collect::<String>(), stage.runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_summaries_with_tests_are_collected() {
        for (line, expected) in [
            (
                "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
                true,
            ),
            (
                "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
                true,
            ),
            (
                "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
                false,
            ),
            ("test cache::tests::lookup ... ok", false),
        ] {
            assert_eq!(is_summary(line), expected, "{line}");
        }
    }

    #[test]
    fn failures_are_collected_without_stacks() {
        let mut failures = VecDeque::new();
        for line in [
            "failures:",
            "---- a::b stdout ----",
            "thread 'a::b' (7) panicked at tests/a.rs:131:5:",
            "left: 1",
            "stack backtrace:",
            "   0: __rustc::rust_begin_unwind",
            "             at /rustc/library/std/src/panicking.rs:689:5",
        ] {
            collect_failure(&mut failures, line);
        }
        assert_eq!(failures.len(), 5, "{failures:?}");
        for _ in 0..2 * FAILURE_LINES_MAX {
            collect_failure(&mut failures, "more");
        }
        collect_failure(&mut failures, "the last");
        assert_eq!(failures.len(), FAILURE_LINES_MAX);
        assert_eq!(failures.back().map(String::as_str), Some("the last"));
    }

    #[test]
    fn a_failed_stage_can_be_repeated_alone() {
        let loom = STAGES.iter().find(|stage| stage.name == "loom").unwrap();
        let command = repeat_alone(loom);
        assert!(command.starts_with(
            "RUSTC_WORKSPACE_WRAPPER='xtask/compilers/loom' LOOM_MAX_PREEMPTIONS='3' cargo test"
        ));
    }
}
