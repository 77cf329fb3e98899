//! The figures by which the project is judged; `cargo xtask bench` runs the report.
//!
//! A figure is a ratio, a count or a share, taken in one run. Both sides of a comparison are
//! loaded and take turns, so that a noisy machine slows both. No threshold fails a run; goals are
//! only printed beside the measurements.
//!
//! ```text
//!  figures/ ─┬─ compare/: workbench ──┬─ programs/model, ours         ┐
//!  (tables)  │  (prepares, asks)      ├─ peers/mlx_lm_peer.py         │ protocol.rs:
//!            │                        ├─ peers/llama_peer.py          │ requests and
//!            │                        ├─ peers/engines_peer.py        │ answers
//!            └─ a run of a program ───┼─ programs/{scheduler,pager}   │
//!                                     ├─ programs/recovery            │
//!                                     ├─ benches/cache, kvbm-logical  │
//!                                     ├─ benches/fleet, Dynamo's router
//!                                     ├─ the load generator           ┘
//!                                     └─ motet-server, mlx_lm.server, llama-server, over HTTP
//!  measured.rs: samples and remarks ── report.rs: table and target/motet/bench.json
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `figures/` | the tables: each area's figures, their goals, and where each is measured |
//! | `compare/` | comparisons of programs and servers |
//! | `programs/` | our programs that measure on request: feature `programs` |
//! | `replay/` | `trace_replay`: the cache's hit rates on traces; `benches/traces` reads them |
//! | `protocol.rs`, `measured.rs` | the protocol of all programs, and the records of figures |
//! | `report.rs` | all measurements, for people and for programs |
//! | `mode.rs`, `system.rs` | numeric modes of our model; the system's counters and its cache of files |
//!
//! To add a figure, add a row to its area's table. A figure of one engine is a run of a program, which
//! writes a record under the figure's name. A figure of two sides is a function of `compare/`. To
//! add a peer, write a program that answers the requests of `protocol.rs`, and a name in
//! `compare/sides.rs`.

mod compare;
mod figures;
pub mod measured;
mod mode;
#[cfg(feature = "programs")]
mod programs;
pub mod protocol;
#[cfg(feature = "programs")]
mod replay;
mod report;
mod system;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use xtask::ui;

use self::compare::workbench::{Unavailable, Workbench, profile};
use self::figures::{Figure, Needs};
use self::protocol::Size;
use self::report::{Outcome, Row};

#[cfg(feature = "programs")]
pub use self::{programs::main as measure, replay::main as trace_replay};

/// Measures the figures and writes them to target/motet/bench.json.
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Arguments {
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

/// Measures and reports the figures that the command line chooses.
#[must_use]
pub fn main() -> ExitCode {
    match command(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ui::failure(&error);
            ExitCode::FAILURE
        }
    }
}

fn command(arguments: &Arguments) -> Result<()> {
    let size = if arguments.quick {
        Size::Quick
    } else {
        Size::Full
    };
    if arguments.profile {
        return profile(size);
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
    let needs_mlx =
        |figure: &&Figure| matches!(figure.needs, Needs::Mlx | Needs::Model | Needs::AgentTrace);
    let mut workbench = Workbench::open(size, chosen.iter().any(needs_mlx))?;
    let rows: Vec<Row<'_>> = chosen
        .into_iter()
        .map(|figure| measure_one(figure, &mut workbench))
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

fn measure_one<'a>(figure: &'a Figure, workbench: &mut Workbench) -> Row<'a> {
    ui::heading(figure.name);
    let started_at = Instant::now();
    let outcome = match workbench.measure(figure) {
        Ok(measured) => Outcome::Measured(measured),
        Err(error) if error.is::<Unavailable>() => Outcome::Skipped(format!("{error:#}")),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    let row = Row { figure, outcome };
    ui::note(&report::line(&row));
    ui::note(&format!("in {}", ui::duration(started_at.elapsed())));
    row
}
