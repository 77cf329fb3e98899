//! Test programs, run side by side. Cargo runs them one after another, and those that hold one model
//! leave most cores idle.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::workspace;

/// Programs that take longest: none of them is to be left for the end.
const LONGEST: [&str; 4] = ["mlx_model", "parity", "mlx_sequences", "motet_mlx"];

/// A test program that cargo has built.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TestProgram {
    pub(super) name: String,
    executable: PathBuf,
    /// The folder of its package, in which its tests run.
    folder: PathBuf,
}

/// The result of a program.
pub(super) struct Run {
    pub(super) program: TestProgram,
    /// Everything that it wrote, first to standard output.
    pub(super) output: Vec<u8>,
    pub(super) status: ExitStatus,
    pub(super) time: Duration,
}

/// Builds the programs that `cargo test` with these arguments runs.
pub(super) fn build(arguments: &[&str]) -> Result<Vec<TestProgram>> {
    let mut cargo = workspace::cargo();
    cargo.arg("test").args(arguments).arg("--no-run");
    let messages = workspace::messages(&mut cargo)?;
    let mut programs = programs(&messages);
    let place = |program: &TestProgram| LONGEST.iter().position(|name| *name == program.name);
    programs.sort_by_key(|program| place(program).unwrap_or(LONGEST.len()));
    Ok(programs)
}

/// The test programs among cargo's messages.
fn programs(messages: &str) -> Vec<TestProgram> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let manifest = PathBuf::from(message["manifest_path"].as_str()?);
        is_test.then_some(())?;
        Some(TestProgram {
            name: message["target"]["name"].as_str()?.to_owned(),
            executable: message["executable"].as_str()?.into(),
            folder: manifest.parent()?.to_owned(),
        })
    };
    messages.lines().filter_map(program).collect()
}

/// Runs the programs, as many at a time as there are cores, each with one thread for its tests.
/// Calls `ended` after each. Starts no more once one has failed.
pub(super) fn run(
    programs: Vec<TestProgram>,
    environment: &[(&str, String)],
    mut ended: impl FnMut(Run) -> Result<()>,
) -> Result<()> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let waiting = Mutex::new(VecDeque::from(programs));
    let (results, received) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..cores {
            let (waiting, results) = (&waiting, results.clone());
            scope.spawn(move || {
                loop {
                    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    let Some(program) = next().pop_front() else {
                        break;
                    };
                    let run = run_one(program, environment);
                    if !run.as_ref().is_ok_and(|run| run.status.success()) {
                        next().clear();
                    }
                    if results.send(run).is_err() {
                        break;
                    }
                }
            });
        }
        drop(results);
        let mut result = Ok(());
        for run in received {
            if let Err(error) = run.and_then(&mut ended) {
                waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clear();
                result = result.and(Err(error));
            }
        }
        result
    })
}

fn run_one(program: TestProgram, environment: &[(&str, String)]) -> Result<Run> {
    let started = Instant::now();
    eprintln!("started {}", program.name);
    let mut command = Command::new(&program.executable);
    // As cargo sets it; xtask's own is another.
    command.env("CARGO_MANIFEST_DIR", &program.folder);
    command.current_dir(&program.folder).stdin(Stdio::null());
    command.env("RUST_TEST_THREADS", "1");
    for (name, value) in environment {
        command.env(name, value);
    }
    let run = command.output();
    let run = run.with_context(|| format!("cannot start {}", program.executable.display()))?;
    Ok(Run {
        program,
        output: [run.stdout, run.stderr].concat(),
        status: run.status,
        time: started.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_run() {
        let line = |name: &str, is_test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/{name}/Cargo.toml","target":{{"name":"{name}"}},"profile":{{"test":{is_test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            line("a", true, r#""/t/a-1""#),
            line("b", false, r#""/t/b""#),
            line("c", true, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let expected = TestProgram {
            name: "a".into(),
            executable: "/t/a-1".into(),
            folder: "/w/a".into(),
        };
        assert_eq!(programs(&messages.join("\n")), [expected]);
    }

    #[test]
    fn a_failure_ends_the_run_and_its_output_is_kept() {
        let program = |name: &str, executable: &str| TestProgram {
            name: name.into(),
            executable: executable.into(),
            folder: "/".into(),
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (pwd, fails) = ("/bin/pwd", "/usr/bin/false");
        let mut programs = vec![program(pwd, pwd)];
        programs.extend(vec![program(fails, fails); 10 * cores]);
        let mut runs = Vec::new();
        let result = run(programs, &[], |run| {
            runs.push((run.program.name, run.status.success(), run.output));
            Ok(())
        });
        assert!(
            result.is_ok() && runs.len() < 10 * cores,
            "{} runs",
            runs.len()
        );
        assert!(runs.contains(&(pwd.to_owned(), true, b"/\n".to_vec())));
        assert!(runs.contains(&(fails.to_owned(), false, Vec::new())));
    }
}
