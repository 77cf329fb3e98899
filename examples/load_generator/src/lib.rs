//! Lets many users talk to one engine or one server at once, and measures latency and
//! throughput.
//!
//! ```sh
//! cargo xtask setup --model smollm2-135m-instruct   # once
//! cargo run --release --package motet-load-generator --features mlx
//! cargo run --release --package motet-load-generator -- --oracle   # no MLX needed
//! cargo run --release --package motet-load-generator -- --url http://127.0.0.1:8080
//! ```
//!
//! | file | content |
//! |---|---|
//! | `arguments.rs` | the command line |
//! | `texts.rs` | the users' questions, and the system prompt |
//! | `mix.rs` | kinds of users |
//! | `script.rs`, `traced.rs` | each user's questions and their times, fixed before the run by the seed or a trace |
//! | `load_target.rs` | the engine in this process, or the server, that the users talk to |
//! | `server/` | a client of an OpenAI-compatible server |
//! | `start.rs`, `model_path.rs` | the engine: a model on MLX, or the oracle |
//! | `conversation.rs` | a conversation as chat messages, or as tokens for the oracle |
//! | `user.rs` | one user: asks, waits, measures the time |
//! | `load_run.rs` | runs all users at once, and ends at CTRL-C |
//! | `progress.rs` | progress bars during the run |
//! | `distinct.rs` | the smallest number of tokens that had to be computed |
//! | `report/` | the figures; as a table, as JSON, as HTML with plots; conversations |

mod arguments;
mod arrivals;
mod byte_size;
mod conversation;
mod distinct;
mod load_run;
mod load_target;
mod mix;
#[cfg(any(feature = "mlx", test))]
mod model_path;
mod progress;
mod report;
mod script;
mod server;
mod start;
#[cfg(test)]
mod tests;
mod texts;
mod traced;
mod user;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::Value;

use arguments::Arguments;
use load_run::LoadRun;
use load_target::LoadTarget;
use progress::Progress;
use report::Report;

/// The exit status that shells report for a program that CTRL-C ended.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs the load that the command line describes.
pub async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(report) if report.interrupted => ExitCode::from(EXIT_INTERRUPTED),
        Ok(report) if report.requests.failed > 0 => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The figures of the load that these arguments of the command line describe, as `--json` writes
/// them. Prints nothing.
///
/// # Errors
///
/// When an argument is not valid, or the engine or the server cannot be reached.
pub async fn figures(arguments: impl IntoIterator<Item = String>) -> Result<Value> {
    let words = ["load_generator", "--quiet"].map(str::to_owned);
    let arguments = Arguments::try_parse_from(words.into_iter().chain(arguments))?;
    let (load_target, report, _) = measure(&arguments).await?;
    load_target.shut_down().await;
    Ok(serde_json::to_value(report)?)
}

async fn run(arguments: &Arguments) -> Result<Report> {
    // A path that cannot be written is an error before the run, not after it.
    let json = arguments.json.as_deref().map(create).transpose()?;
    let html = arguments.report.as_deref().map(create).transpose()?;
    let (load_target, report, load_run) = measure(arguments).await?;

    if !arguments.quiet {
        show(&report::transcripts(
            &load_run.visits,
            arguments.show,
            arguments.oracle,
        ))?;
    }
    show(&report::table(&report))?;
    if let Some((mut file, path)) = json {
        serde_json::to_writer_pretty(&mut file, &report)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some((mut file, path)) = html {
        let page = report::page(&report, &load_run, &command_line(std::env::args()));
        file.write_all(page.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    load_target.shut_down().await;
    Ok(report)
}

async fn measure(arguments: &Arguments) -> Result<(LoadTarget, Report, LoadRun)> {
    let progress = Progress::new(arguments.quiet);
    let scripts = match traced::read(&arguments.load)? {
        Some(scripts) => scripts,
        None => script::write(&arguments.load),
    };
    let (load_target, load_seconds) = LoadTarget::find(arguments, &progress).await?;
    // The handler starts only now: while the model loads, CTRL-C ends the program at once.
    let stop = load_run::stop_at_ctrl_c();
    let load_run = load_run::run(&load_target, scripts, &progress, stop).await;
    let report = Report::new(arguments, &load_target, load_seconds, &load_run)?;
    Ok((load_target, report, load_run))
}

fn create(path: &Path) -> Result<(File, &Path)> {
    let file = File::create(path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    Ok((file, path))
}

/// The command that runs the same load again, with the API key blanked out.
fn command_line(words: impl Iterator<Item = String>) -> String {
    let mut shown = Vec::new();
    let mut hides_next = false;
    for word in words {
        shown.push(match (hides_next, word.starts_with("--api-key=")) {
            (true, _) => "KEY".to_owned(),
            (false, true) => "--api-key=KEY".to_owned(),
            (false, false) => word.clone(),
        });
        hides_next = word == "--api-key";
    }
    shown.join(" ")
}

/// Prints to standard output. A closed pipe, such as that of `head`, is not an error.
fn show(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    match output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
