//! `cargo xtask bench`: the figures by which the project is judged.
//!
//! A figure is a ratio, a count or a share, taken in one run. Both sides of a comparison are
//! loaded and take turns, so that a noisy machine slows both. No threshold fails a run; goals are
//! only printed beside the measurements.
//!
//! ```text
//!  figures ── workbench ──┬─ side: benches/figures/, ours
//!  (table)     (prepares) ├─ side: xtask/bench/mlx_lm_peer.py, mlx-lm
//!     │                   ├─ side: benches/cache/, the cache core and kvbm-logical
//!     │                   ├─ side: benches/scheduler/, a virtual engine and whole engines
//!     │                   ├─ side: benches/pager/, engines with little memory
//!     │                   ├─ side: benches/recovery/, engines whose device is killed
//!     │                   ├─ side: xtask/bench/llama_peer.py, llama-server with the same file
//!     │                   ├─ serving: motet-server, mlx_lm.server and llama-server, over HTTP
//!     │                   ├─ hostile: motet-server beside clients that want to stall it
//!     │                   └─ examples: load_generator, trace_replay
//!     └─ turns, statistics ── report: table and target/motet/bench.json
//! ```
//!
//! To add a figure, add a row to its area in [`figures`]. To add a peer, write a program that
//! answers the requests of `benches/figures/protocol.rs`, and a method of
//! [`workbench::Workbench`] that starts it.

mod cache_core;
mod counters;
mod demo;
mod figures;
mod forced;
mod hostile;
pub(crate) mod llama_server;
pub(crate) mod mlx_lm;
mod mode;
mod model;
mod pager;
mod programs;
mod prompts;
mod recovery;
mod report;
mod scheduler;
mod scores;
mod server;
mod serving;
mod side;
mod statistics;
mod trace;
mod turns;
mod weights;
mod workbench;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};

use self::figures::{Figure, Needs};
pub(crate) use self::report::folder as report_folder;
use self::report::{Outcome, Row};
pub(crate) use self::serving::Serving;
use self::workbench::{Unavailable, Workbench};
use crate::ui;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Measure only the figures whose names start with this prefix
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,

    /// Only check that measuring works: small sizes, one round
    #[arg(long)]
    quick: bool,

    /// Show where a step's time goes, operation by operation, in place of figures
    #[arg(long, conflicts_with = "prefix")]
    profile: bool,
}

/// Builds the server in release mode with MLX, and returns the program's path.
pub(crate) fn release_server() -> Result<PathBuf> {
    programs::package(
        "motet-server",
        programs::Build {
            with_mlx: true,
            quick: false,
        },
    )
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    if arguments.profile {
        return workbench::profile(arguments.quick);
    }
    let chosen: Vec<&Figure> = figures::all()
        .filter(|figure| figure.name.starts_with(&arguments.prefix))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = figures::all().map(|figure| figure.name).collect();
        bail!(
            "no figure's name starts with `{}`; there are {}",
            arguments.prefix,
            names.join(", ")
        );
    }
    let with_mlx = chosen.iter().any(|figure| figure.needs != Needs::Nothing);
    let mut workbench = Workbench::open(arguments.quick, with_mlx)?;
    let rows: Vec<Row<'_>> = chosen
        .into_iter()
        .map(|figure| measure(figure, &mut workbench))
        .collect();

    let path = report::write(&rows)?;
    println!("\n{}", report::table(&rows));
    println!("written to {}", path.display());
    if arguments.quick {
        println!("--quick: these values only show that the figures can be measured");
    }
    let failed: Vec<&str> = rows
        .iter()
        .filter(|row| matches!(row.outcome, Outcome::Failed(_)))
        .map(|row| row.figure.name)
        .collect();
    if !failed.is_empty() {
        bail!("could not measure {}", failed.join(", "));
    }
    Ok(())
}

fn measure<'a>(figure: &'a Figure, workbench: &mut Workbench) -> Row<'a> {
    ui::heading(figure.name);
    let started_at = Instant::now();
    let outcome = match workbench
        .check(figure)
        .and_then(|()| (figure.measure)(workbench))
    {
        Ok(measured) => Outcome::Measured(measured),
        Err(error) if error.is::<Unavailable>() => Outcome::Skipped(format!("{error:#}")),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    let row = Row { figure, outcome };
    ui::note(&report::line(&row));
    ui::note(&format!("in {}", ui::duration(started_at.elapsed())));
    row
}
