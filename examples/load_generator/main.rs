//! Many users talk to one engine at once, and what that was like is measured.
//!
//! ```sh
//! cargo xtask setup --model smollm2-135m-instruct   # once
//! cargo run --release --features mlx --example load_generator
//! cargo run --release --example load_generator -- --oracle   # no MLX needed
//! ```
//!
//! | file | what happens there |
//! |---|---|
//! | `arguments.rs` | the command line |
//! | `texts.rs` | what the users say, and the system prompt |
//! | `script.rs` | who says what, and when: fixed by the seed before anything runs |
//! | `start.rs`, `model_path.rs` | the engine: a model on MLX, or the oracle |
//! | `conversation.rs` | a conversation as chat messages, or as tokens for the oracle |
//! | `user.rs` | one user: asks, waits, takes the time |
//! | `crowd.rs` | all users at once, and the end by CTRL-C |
//! | `progress.rs` | the bars while it runs |
//! | `distinct.rs` | how many tokens had to be computed at least |
//! | `report/` | the figures; as a table, as JSON; conversations |

mod arguments;
mod arrivals;
mod byte_size;
mod conversation;
mod crowd;
mod distinct;
#[cfg(any(feature = "mlx", test))]
mod model_path;
mod progress;
mod report;
mod script;
mod start;
#[cfg(test)]
mod tests;
mod texts;
mod user;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;

use arguments::Arguments;
use progress::Progress;
use report::Report;

/// What a shell gives a program that CTRL-C ended.
const EXIT_INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
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

async fn run(arguments: &Arguments) -> Result<Report> {
    // A path that cannot be written is better known before the run.
    let json = match &arguments.json {
        Some(path) => Some((path, create(path)?)),
        None => None,
    };
    let progress = Progress::new(arguments.quiet);
    let scripts = script::write(&arguments.load);
    let started = start::engine(arguments, &progress).await?;
    let engine = Arc::new(started.engine);
    // Only now: while the model is loaded, CTRL-C ends the program at once.
    let stop = crowd::stop_at_ctrl_c();
    let crowd = crowd::run(&engine, scripts, &progress, stop).await;
    let report = Report::new(arguments, &engine, started.load_time, &crowd)?;

    if !arguments.quiet {
        show(&report::transcripts(
            &crowd.visits,
            arguments.show,
            arguments.oracle,
        ))?;
    }
    show(&report::table(&report))?;
    if let Some((path, file)) = json {
        serde_json::to_writer_pretty(file, &report)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(engine) = Arc::into_inner(engine) {
        engine.shutdown(motet::Shutdown::Abort).await;
    }
    Ok(report)
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Prints to standard output. A reader that has gone, such as `head`, is no error.
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
