//! What two steps under way are worth: decode steps through the device's table, one
//! and two at a time.

use std::time::{Duration, Instant};

use motet::device::Table;
use motet::model::sampling::{Draw, Sampling};
use motet::model::{Model, Readout, Want};
use motet::{SlotId, TokenId};
use motet_core::protocol::{Edit, Input, PlannedSpan, Work};

use crate::Result;

const SEQUENCES: u64 = 16;
const PROMPT_TOKENS: u32 = 64;
const WARM_STEPS: usize = 8;
const STEPS: usize = 64;
const ROUNDS: usize = 4;

/// One way to run the steps.
#[derive(Default)]
struct Run {
    tokens: Vec<TokenId>,
    wall: Duration,
    /// The host builds and queues forward passes, or draws.
    launching: Duration,
    drawing: Duration,
    /// From a landing to the end of the next launch, where that came later.
    gaps: Duration,
    /// Draws that came when their forward pass was over already: the device waited.
    late_draws: usize,
}

/// Prints both ways' figures, measured in turns.
pub(crate) fn print<M: Model>(model: &mut M) -> Result<()> {
    println!("{SEQUENCES} sequences, {STEPS} decode steps, {ROUNDS} rounds; per step:");
    for round in 0..ROUNDS {
        let runs = [run(model, 1)?, run(model, 2)?];
        if runs[0].tokens != runs[1].tokens {
            return Err("two steps under way change tokens".into());
        }
        for (depth, run) in (1..).zip(&runs) {
            let per_step = |time: Duration| time.as_secs_f64() * 1e3 / STEPS as f64;
            println!(
                "round {round}, depth {depth}: {:.3} ms, {:.0} tokens/s; launch {:.3} ms, \
                 draw {:.3} ms, gap {:.3} ms ({:.2} %), late draws {}",
                per_step(run.wall),
                (SEQUENCES as usize * STEPS) as f64 / run.wall.as_secs_f64(),
                per_step(run.launching),
                per_step(run.drawing),
                per_step(run.gaps),
                100.0 * run.gaps.as_secs_f64() / run.wall.as_secs_f64(),
                run.late_draws,
            );
        }
    }
    Ok(())
}

/// Prefills all sequences, then decodes with `depth` steps under way.
fn run<M: Model>(model: &mut M, depth: usize) -> Result<Run> {
    let mut table = Table::new();
    table
        .carry_out(model, begin())
        .map_err(|failure| format!("{failure:?}"))?;
    let mut run = Run::default();
    let mut begun = Instant::now();
    let mut landed = begun;
    launch(&mut run, &mut table, model);
    draw(&mut run, &mut table, model);
    for step in 0..WARM_STEPS + STEPS {
        if step == WARM_STEPS {
            run = Run::default();
            begun = Instant::now();
        }
        if depth == 2 {
            launch(&mut run, &mut table, model);
        }
        let readouts = table
            .land(model)
            .map_err(|failure| format!("{failure:?}"))?;
        run.tokens
            .extend(readouts.iter().filter_map(Readout::token));
        landed = Instant::now();
        if depth == 1 {
            launch(&mut run, &mut table, model);
            run.gaps += landed.elapsed();
        }
        draw(&mut run, &mut table, model);
    }
    run.wall = landed - begun;
    // Sequences go on for a step that nobody asks for.
    table
        .land(model)
        .map_err(|failure| format!("{failure:?}"))?;
    Ok(run)
}

fn launch<M: Model>(run: &mut Run, table: &mut Table<M>, model: &mut M) {
    let started = Instant::now();
    table.launch(model, decode());
    run.launching += started.elapsed();
}

fn draw<M: Model>(run: &mut Run, table: &mut Table<M>, model: &mut M) {
    run.late_draws += usize::from(table.is_ready(model));
    let started = Instant::now();
    table.draw(model);
    run.drawing += started.elapsed();
}

fn begin() -> Work {
    let slots = || (0..SEQUENCES).map(SlotId);
    let edits = slots().map(|slot| Edit::Open {
        slot,
        path: vec![],
        room: 0,
    });
    let spans = slots().map(|slot| PlannedSpan {
        slot,
        input: Input::Known(
            (0..PROMPT_TOKENS)
                .map(|at| 100 + at * 7 + slot.0 as TokenId)
                .collect(),
        ),
        want: Want::Token(GREEDY),
    });
    Work {
        edits: edits.collect(),
        spans: spans.collect(),
        ..Work::default()
    }
}

fn decode() -> Work {
    let spans = (0..SEQUENCES).map(|slot| PlannedSpan {
        slot: SlotId(slot),
        input: Input::Drawn,
        want: Want::Token(GREEDY),
    });
    Work {
        spans: spans.collect(),
        ..Work::default()
    }
}

const GREEDY: Draw = Draw {
    sampling: Sampling::GREEDY,
    index: 0,
};
