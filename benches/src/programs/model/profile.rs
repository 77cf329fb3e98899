//! The time of a step, operation by operation: composed of MLX's operations, and by this
//! crate's kernels.
//!
//! Both ways take turns. The fastest step of each way is shown as a whole, so that its lines
//! add up.

use std::time::{Duration, Instant};

use motet::TokenId;
use motet::model::mlx::profile::{Cost, Op, Timed, record};
use motet::model::mlx::{MlxModel, kernels};

use crate::programs::Result;
use crate::programs::model::decoder::{Batch, prefill};
use crate::programs::model::memory::Memory;
use crate::programs::model::profile_table::table;

/// The profiled steps, and their number.
#[derive(Clone, Copy)]
pub(crate) struct ProfileSize {
    context_tokens: usize,
    chunk_tokens: usize,
    rounds: usize,
    /// Steps in a round, clocked and not.
    steps: usize,
    memory_bytes: usize,
}

impl ProfileSize {
    pub(crate) const FULL: Self = Self {
        context_tokens: 512,
        chunk_tokens: 512,
        rounds: 9,
        steps: 4,
        memory_bytes: 1 << 30,
    };

    /// Only shows that it works.
    pub(crate) const QUICK: Self = Self {
        context_tokens: 16,
        chunk_tokens: 32,
        rounds: 1,
        steps: 1,
        memory_bytes: 1 << 24,
    };
}

/// Prints the profiles of the same model, run both ways.
pub(crate) fn print(
    composed: MlxModel,
    by_kernels: MlxModel,
    profile_size: ProfileSize,
) -> Result<()> {
    let mut models = [composed, by_kernels];
    println!("{LEGEND}");
    print_bandwidth(profile_size);
    for sequences in [1, 16] {
        let context_tokens = profile_size.context_tokens;
        println!("\n## a decode step, batch {sequences}, contexts of {context_tokens} tokens\n");
        println!("{}", table(&decode(&mut models, sequences, profile_size)?));
    }
    let prompt = prompt(0, profile_size.chunk_tokens);
    let prefilled = fastest_of(profile_size, |way| {
        prefill(&mut models[way], &prompt).map(drop)
    })?;
    println!(
        "\n## the first {} tokens of a prompt\n",
        profile_size.chunk_tokens
    );
    println!("{}", table(&prefilled));
    Ok(())
}

fn decode(
    models: &mut [MlxModel; 2],
    sequences: usize,
    profile_size: ProfileSize,
) -> Result<[Profile; 2]> {
    let prompts = (0..sequences).map(|sequence| prompt(sequence, profile_size.context_tokens));
    let prompts: Vec<Vec<TokenId>> = prompts.collect();
    let [composed, by_kernels] = models;
    let mut batches = [
        Batch::open(composed, None, &prompts)?,
        Batch::open(by_kernels, None, &prompts)?,
    ];
    fastest_of(profile_size, |way| {
        batches[way].run(&mut models[way], 1).map(drop)
    })
}

const LEGEND: &str = "\
before  composed of MLX's operations: each is evaluated alone and waited for
after   by Motet's kernels: each has a clock inside, and the step runs as always
of all steps, taken in turns, the fastest; MB are what one must read, each byte once";

fn print_bandwidth(profile_size: ProfileSize) {
    let (memory, threads) = (Memory::new(profile_size.memory_bytes), kernels::threads());
    let seconds = (0..profile_size.rounds).map(|_| memory.read_seconds(threads));
    let seconds = seconds.fold(f64::INFINITY, f64::min);
    println!(
        "reading {:.0} MB of memory with as many threads as a step has ({threads}): {:.1} GB/s",
        memory.bytes() as f64 / 1e6,
        memory.bytes() as f64 / 1e9 / seconds,
    );
}

/// The fastest of one way's steps.
pub(crate) struct Profile {
    pub(crate) clocked: Duration,
    /// The fastest step without clocks in it.
    pub(crate) plain: Duration,
    pub(crate) lines: Vec<Line>,
    /// Until the first operation, between two, and after the last.
    pub(crate) idle: [Duration; 3],
}

/// All operations of one kind.
pub(crate) struct Line {
    pub(crate) op: Op,
    pub(crate) count: usize,
    pub(crate) total: Duration,
    pub(crate) cost: Cost,
}

/// Alternates between both ways, and keeps the fastest step of each.
fn fastest_of(
    profile_size: ProfileSize,
    mut step: impl FnMut(usize) -> Result<()>,
) -> Result<[Profile; 2]> {
    let mut profiles = [Vec::new(), Vec::new()];
    for _ in 0..profile_size.rounds {
        for (way, profiles) in profiles.iter_mut().enumerate() {
            for _ in 0..profile_size.steps {
                let started = Instant::now();
                step(way)?;
                let plain = started.elapsed();
                profiles.push(clocked(plain, || step(way))?);
            }
        }
    }
    Ok(profiles.map(fastest))
}

fn fastest(profiles: Vec<Profile>) -> Profile {
    let plain = profiles.iter().map(|profile| profile.plain).min();
    let fastest = profiles.into_iter().min_by_key(|profile| profile.clocked);
    let (fastest, plain) = fastest.zip(plain).expect("a step was run");
    Profile { plain, ..fastest }
}

/// The profile of one step, beside the time of the same step without clocks.
fn clocked(plain: Duration, step: impl FnOnce() -> Result<()>) -> Result<Profile> {
    let started = Instant::now();
    let (done, timed) = record(step);
    let ended = Instant::now();
    done?;
    let (Some(first), Some(last)) = (timed.first(), timed.last()) else {
        return Err("a step of no operations".into());
    };
    let between = timed.windows(2).map(|pair| pair[1].started - pair[0].ended);
    Ok(Profile {
        clocked: ended - started,
        plain,
        lines: lines(&timed),
        idle: [first.started - started, between.sum(), ended - last.ended],
    })
}

/// Kinds of operations, in the order of their first occurrence.
fn lines(timed: &[Timed]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for timed in timed {
        let took = timed.ended - timed.started;
        match lines.iter_mut().find(|line| line.op == timed.op) {
            Some(line) => {
                line.count += 1;
                line.total += took;
                line.cost.read_bytes += timed.cost.read_bytes;
                line.cost.flops += timed.cost.flops;
            }
            None => lines.push(Line {
                op: timed.op,
                count: 1,
                total: took,
                cost: timed.cost,
            }),
        }
    }
    lines
}

fn prompt(sequence: usize, tokens: usize) -> Vec<TokenId> {
    (0..tokens)
        .map(|at| (100 + sequence * 31 + at * 7) as TokenId)
        .collect()
}
