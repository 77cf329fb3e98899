//! Runs other programs. Errors name the program and hold its output.

use std::io;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, anyhow, bail};

/// Runs the command with its output shown.
///
/// # Errors
///
/// When it cannot be started, or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .map_err(|error| not_started(command, &error))?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs the command in the place of this process: it gets its signals, and its exit status is this
/// one's. Returns only if it cannot be started.
#[cfg(unix)]
pub(crate) fn replace(command: &mut Command) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(not_started(command, &error))
}

/// Runs the command; other systems cannot run it in the place of this process.
#[cfg(not(unix))]
pub(crate) fn replace(command: &mut Command) -> Result<()> {
    run(command)
}

/// Runs the command and returns what it wrote to standard output.
///
/// # Errors
///
/// When it cannot be started, or fails. The error holds its output.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        return Err(failed(command, &output));
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{} wrote something that is not UTF-8", shown(command)))
}

/// Runs the command and returns its output, without showing it.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| not_started(command, &error))
}

/// Whether the command can be started and succeeds. Shows nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    output(command).is_ok_and(|output| output.status.success())
}

/// The error for a command that ran and failed, with its output.
pub(crate) fn failed(command: &Command, output: &Output) -> anyhow::Error {
    let printed = String::from_utf8_lossy(&output.stderr);
    anyhow!(
        "{} failed ({}):\n{}",
        shown(command),
        output.status,
        printed.trim_end()
    )
}

fn not_started(command: &Command, error: &io::Error) -> anyhow::Error {
    anyhow!(
        "cannot start {}: {error}",
        command.get_program().to_string_lossy()
    )
}

/// The program and its first arguments: enough to recognise the command.
fn shown(command: &Command) -> String {
    const WORDS_MAX: usize = 6;
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(
        command
            .get_args()
            .take(WORDS_MAX)
            .map(|word| word.to_string_lossy()),
    );
    let more = if command.get_args().count() > WORDS_MAX {
        " …"
    } else {
        ""
    };
    format!("`{}{more}`", words.join(" "))
}
