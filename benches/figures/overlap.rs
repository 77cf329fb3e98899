//! The gain of two steps in flight: decode steps through the device's table, one and two at a
//! time.

use std::time::{Duration, Instant};

use motet::device::Table;
use motet::model::sampling::{Sampling, TokenSampling};
use motet::model::{Model, OutputKind, SpanOutput};
use motet::{SlotId, TokenId};
use motet_protocol::{Edit, PlannedSpan, PlannedTokens, Work};

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
    /// Time in which the host builds and queues forward passes, or samples.
    submit_time: Duration,
    sample_time: Duration,
    /// Times from a step's finish to the end of the next submit, if that came later.
    gaps: Duration,
    /// Samplings that came after the end of their forward pass: the device waited.
    late_samples: usize,
}

/// Prints both ways' figures, measured in turns.
pub(crate) fn print<M: Model>(model: &mut M) -> Result<()> {
    println!("{SEQUENCES} sequences, {STEPS} decode steps, {ROUNDS} rounds; per step:");
    for round in 0..ROUNDS {
        let runs = [run(model, 1)?, run(model, 2)?];
        if runs[0].tokens != runs[1].tokens {
            return Err("two steps in flight change tokens".into());
        }
        for (depth, run) in (1..).zip(&runs) {
            let per_step = |time: Duration| time.as_secs_f64() * 1e3 / STEPS as f64;
            println!(
                "round {round}, depth {depth}: {:.3} ms, {:.0} tokens/s; submit {:.3} ms, \
                 sample {:.3} ms, gap {:.3} ms ({:.2} %), late samples {}",
                per_step(run.wall),
                (SEQUENCES as usize * STEPS) as f64 / run.wall.as_secs_f64(),
                per_step(run.submit_time),
                per_step(run.sample_time),
                per_step(run.gaps),
                100.0 * run.gaps.as_secs_f64() / run.wall.as_secs_f64(),
                run.late_samples,
            );
        }
    }
    Ok(())
}

/// Prefills all sequences, then decodes with `depth` steps in flight.
fn run<M: Model>(model: &mut M, depth: usize) -> Result<Run> {
    let mut table = Table::new();
    table
        .run_work(model, begin())
        .map_err(|failure| format!("{failure:?}"))?;
    let mut run = Run::default();
    let mut started_at = Instant::now();
    let mut finished_at = started_at;
    submit(&mut run, &mut table, model);
    sample(&mut run, &mut table, model);
    for step in 0..WARM_STEPS + STEPS {
        if step == WARM_STEPS {
            run = Run::default();
            started_at = Instant::now();
        }
        if depth == 2 {
            submit(&mut run, &mut table, model);
        }
        let span_outputs = table
            .finish(model)
            .map_err(|failure| format!("{failure:?}"))?;
        run.tokens
            .extend(span_outputs.iter().filter_map(SpanOutput::token));
        finished_at = Instant::now();
        if depth == 1 {
            submit(&mut run, &mut table, model);
            run.gaps += finished_at.elapsed();
        }
        sample(&mut run, &mut table, model);
    }
    run.wall = finished_at - started_at;
    // Sequences continue for a step that is not requested.
    table
        .finish(model)
        .map_err(|failure| format!("{failure:?}"))?;
    Ok(run)
}

fn submit<M: Model>(run: &mut Run, table: &mut Table<M>, model: &mut M) {
    let started = Instant::now();
    table.submit(model, decode());
    run.submit_time += started.elapsed();
}

fn sample<M: Model>(run: &mut Run, table: &mut Table<M>, model: &mut M) {
    run.late_samples += usize::from(table.is_ready(model));
    let started = Instant::now();
    table.sample(model);
    run.sample_time += started.elapsed();
}

fn begin() -> Work {
    let slots = || (0..SEQUENCES).map(SlotId);
    let edits = slots().map(|slot| Edit::Open {
        slot,
        path: vec![],
        expected_tokens: 0,
    });
    let spans = slots().map(|slot| PlannedSpan {
        slot,
        token_source: PlannedTokens::Known(
            (0..PROMPT_TOKENS)
                .map(|at| 100 + at * 7 + slot.0 as TokenId)
                .collect(),
        ),
        output_kind: OutputKind::Token(GREEDY),
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
        token_source: PlannedTokens::Sampled,
        output_kind: OutputKind::Token(GREEDY),
    });
    Work {
        spans: spans.collect(),
        ..Work::default()
    }
}

const GREEDY: TokenSampling = TokenSampling {
    sampling: Sampling::GREEDY,
    index: 0,
};
