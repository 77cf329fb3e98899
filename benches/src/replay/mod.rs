//! Replays a trace of requests through the real cache core and reports the hit rate for
//! each eviction policy and each capacity.
//!
//! ```sh
//! cargo run --release --package motet-benches --bin trace_replay -- --trace requests.jsonl --plot hits.svg
//! cargo run --release --package motet-benches --bin trace_replay -- --synthetic all
//! ```
//!
//! Each request opens its slot, is computed at once, and closes before the next one. The
//! hit rate is the number of tokens found as a contiguous prefix, divided by the number
//! asked for, over the whole trace. Capacity is in tokens; percentages are of the trace's
//! distinct tokens. It holds the cache and the tail of the running sequence.
//!
//! | file | content |
//! |---|---|
//! | `arguments.rs` | the command line |
//! | `trace.rs` | a trace as tokens; `benches/traces` reads the files |
//! | `synthetic/` | synthetic traces that test a policy's weaknesses |
//! | `cache.rs` | replays a trace through the cache core |
//! | `optimum.rs` | the best hit rate of any policy: Bélády's rule |
//! | `report.rs`, `plot.rs` | the figures as a table, as JSON and as a plot |

mod arguments;
mod cache;
mod optimum;
mod plot;
mod report;
mod synthetic;
#[cfg(test)]
mod tests;
mod trace;

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use arguments::{Arguments, Policy};
use report::{Report, Row, TraceReport};
use trace::Trace;

/// Runs `trace_replay`.
#[must_use]
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let traces = traces(arguments)?;
    let report = replay_all(&traces, arguments);
    match write!(io::stdout().lock(), "{report}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        result => result.context("cannot write to standard output")?,
    }
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&report).expect("a report is plain data");
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &arguments.plot {
        std::fs::write(path, plot::svg(&report))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Replays the trace at this path with all policies, at the capacities that are the default.
pub(crate) fn of_file(path: &Path) -> Result<TraceReport> {
    let arguments = [
        OsStr::new("trace_replay"),
        "--quiet".as_ref(),
        "--trace".as_ref(),
    ];
    let arguments = Arguments::try_parse_from(arguments.into_iter().chain([path.as_os_str()]))?;
    Ok(replay_one(
        &trace::read(path)?,
        &arguments,
        &ProgressBar::hidden(),
    ))
}

fn traces(arguments: &Arguments) -> Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for path in &arguments.trace {
        traces.push(trace::read(path)?);
    }
    for name in &arguments.synthetic {
        let made = synthetic::named(name);
        if made.is_empty() {
            bail!(
                "no synthetic trace is named {name}; there are: all, {}",
                synthetic::names().join(", ")
            );
        }
        traces.extend(made);
    }
    Ok(traces)
}

fn replay_all(traces: &[Trace], arguments: &Arguments) -> Report {
    let runs = traces.len() * arguments.policy.len() * arguments.capacities();
    let requests: usize = traces.iter().map(|trace| trace.requests.len()).sum();
    let bar = if arguments.quiet {
        ProgressBar::hidden()
    } else {
        ProgressBar::new((requests * runs / traces.len().max(1)) as u64)
    };
    let style = "{msg:28} {wide_bar} {human_pos}/{human_len} requests, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is well formed"));
    let reports = traces
        .iter()
        .map(|trace| replay_one(trace, arguments, &bar))
        .collect();
    bar.finish_and_clear();
    Report { traces: reports }
}

fn replay_one(trace: &Trace, arguments: &Arguments, bar: &ProgressBar) -> TraceReport {
    let paths = optimum::Paths::new(trace);
    let mut rows = Vec::new();
    for (capacity_percent, capacity_tokens) in arguments.of(paths.distinct_tokens()) {
        for policy in &arguments.policy {
            bar.set_message(format!("{} {}", trace.name, policy.name()));
            let on_request = || bar.inc(1);
            let outcome = match policy {
                Policy::Optimum => paths.optimum(capacity_tokens, on_request),
                Policy::Lru => cache::replay(trace, capacity_tokens, policy.eviction(), on_request),
                Policy::Foresight => {
                    cache::replay(trace, capacity_tokens, policy.eviction(), on_request)
                }
            };
            rows.push(Row {
                policy: policy.name(),
                capacity_percent,
                capacity_tokens,
                hit_percent: outcome.hit_percent(),
                request_micros: outcome.request_micros(),
            });
        }
    }
    TraceReport {
        name: trace.name.clone(),
        requests: trace.requests.len(),
        asked_tokens: trace.requests.iter().map(|request| request.asked).sum(),
        distinct_tokens: paths.distinct_tokens(),
        unbounded_hit_percent: paths.unbounded_hit_percent(),
        rows,
    }
}
