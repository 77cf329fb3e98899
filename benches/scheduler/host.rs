//! The engine's cost for each sequence and step, from submit to the token in the caller's
//! stream, on an oracle that costs next to nothing.
//!
//! The figure is the time on the clock. Beside it stand the processor's time of the runtime's
//! workers and of the device thread, where the system tells it. The time of the cores alone is
//! measured in the virtual engine with the same load.

use std::time::{Duration, Instant};

use motet::config::{AdmissionConfig, ChunkingConfig, EngineConfig, SchedulerConfig};
use motet::model::Model;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::Priority;
use motet::{Engine, Request, Shutdown, UserId};
use motet_core::scheduler::policy::step_cost::StepCost;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::Result;
use crate::arrivals::{Kind, prompt};
use crate::engine::{on_oracle, request, runtime};
use crate::harness::{CoreHarness, Pace};
use crate::report::{Report, median};

/// The number of sequences whose cost is the figure.
const SIZE: usize = 256;
const PROMPT_TOKENS: usize = 16;

/// The amount of work to measure.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Measure {
    rounds: usize,
    /// Sequences that run at once, from few to many; the growth is from first to last.
    sequences: Vec<usize>,
    /// Tokens that each samples.
    tokens: usize,
}

/// The cost of one turn, in microseconds for each sequence and step.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    clock: f64,
    workers: f64,
    device: f64,
}

pub(crate) fn run(measure: &Measure) -> Result<Report> {
    let mut report = Report::default();
    let sizes = &measure.sequences;
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); sizes.len()];
    for _ in 0..measure.rounds {
        for (size, costs) in sizes.iter().zip(&mut costs) {
            costs.push(measure.turn(*size, 2)?);
        }
        let last = |of: usize| costs[of].last().copied().unwrap_or_default();
        report.sample("growth", last(sizes.len() - 1).clock / last(0).clock);
        if let Some(index) = sizes.iter().position(|size| *size == SIZE) {
            report.sample("cost", last(index).clock);
        }
    }
    for (size, costs) in sizes.iter().zip(&costs) {
        let middle = |of: fn(&Cost) -> f64| median(&costs.iter().map(of).collect::<Vec<f64>>());
        let remark = format!(
            "{size} sequences: {:.2} µs on the clock, {:.2} of the workers' processor time, {:.2} \
             of the device thread's; {}",
            middle(|cost| cost.clock),
            middle(|cost| cost.workers),
            middle(|cost| cost.device),
            measure.cores(*size)?,
        );
        report.remark(if *size == SIZE { "cost" } else { "growth" }, remark);
    }
    let one_thread: Vec<f64> = (0..measure.rounds)
        .map(|_| Ok(measure.turn(SIZE, 0)?.clock))
        .collect::<Result<_>>()?;
    let remark = format!(
        "{:.2} µs with all actors on one thread",
        median(&one_thread)
    );
    report.remark("cost", remark);
    Ok(report)
}

impl Measure {
    /// The cost of so many sequences at once on a runtime of so many workers.
    fn turn(&self, sequences: usize, workers: usize) -> Result<Cost> {
        runtime(workers)?.block_on(async {
            let engine = on_oracle(oracle(), engine_config(sequences)).await?;
            // Warms up threads and allocators.
            self.serve(&engine, sequences, 8, 1).await?;
            let before = ProcessorTime::now();
            let started_at = Instant::now();
            self.serve(&engine, sequences, self.tokens, 2).await?;
            let clock = started_at.elapsed();
            let after = ProcessorTime::now();
            engine.shutdown(Shutdown::Abort).await;
            let shares = (sequences * self.tokens) as f64;
            let micros = |time: Duration| time.as_secs_f64() * 1e6 / shares;
            Ok(Cost {
                clock: micros(clock),
                workers: micros(after.workers.saturating_sub(before.workers)),
                device: micros(after.device.saturating_sub(before.device)),
            })
        })
    }

    /// Each caller is a task that submits its request and reads its stream.
    async fn serve(
        &self,
        engine: &Engine,
        sequences: usize,
        tokens: usize,
        seed: u64,
    ) -> Result<()> {
        let mut numbers = ChaCha8Rng::seed_from_u64(seed);
        let requests: Vec<Request> = (0..sequences)
            .map(|_| request(prompt(&mut numbers, PROMPT_TOKENS), tokens))
            .collect();
        let mut callers = JoinSet::new();
        for request in requests {
            let mut stream = engine.submit(request).await?;
            callers.spawn(async move {
                let mut read = 0;
                while let Some(piece) = stream.next().await {
                    // The last item has the finish, and no token.
                    read += usize::from(piece?.token.is_some());
                }
                Ok::<usize, motet::error::GenerateError>(read)
            });
        }
        while let Some(read) = callers.join_next().await {
            let read = read??;
            if read != tokens {
                return Err(format!("a caller got {read} tokens of {tokens}").into());
            }
        }
        Ok(())
    }

    /// The cores' own cost of the same load, without actors, threads or callers: the least of
    /// several runs, by the clock.
    fn cores(&self, sequences: usize) -> Result<String> {
        let mut least = [Duration::MAX; 3];
        for _ in 0..self.rounds {
            let parts = self.cores_only(sequences)?;
            for (least, part) in least.iter_mut().zip(parts) {
                *least = part.min(*least);
            }
        }
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / (sequences * self.tokens) as f64;
        let [scheduler, cache, device] = least.map(micros);
        Ok(format!(
            "alone the scheduler's core takes {scheduler:.2}, the cache's {cache:.2}, table and \
             oracle {device:.2}"
        ))
    }

    fn cores_only(&self, sequences: usize) -> Result<[Duration; 3]> {
        let mut model = Oracle::new(oracle())?;
        let config = engine_config(sequences);
        let instant = Pace::Virtual(StepCost::default());
        let mut harness = CoreHarness::new(model.spec(), config.scheduler, config.cache, instant);
        let kind = Kind {
            user: UserId(1),
            class: Priority::Normal,
            prompt_tokens: PROMPT_TOKENS,
            output_tokens: self.tokens,
        };
        let mut arrivals = kind.arrivals(sequences, Duration::ZERO, 3);
        for arrival in &mut arrivals {
            arrival.output_tokens = self.tokens;
        }
        harness.serve(&mut model, arrivals);
        Ok(harness.host_time())
    }
}

fn oracle() -> OracleConfig {
    OracleConfig {
        vocab_size: 50_000,
        verify: false,
        ..OracleConfig::default()
    }
}

fn engine_config(sequences: usize) -> EngineConfig {
    EngineConfig {
        scheduler: SchedulerConfig {
            sequences_max: sequences,
            admission: AdmissionConfig {
                queue_max: sequences,
                ..AdmissionConfig::default()
            },
            chunking: ChunkingConfig {
                step_tokens_max: sequences.max(1_024),
                ..ChunkingConfig::default()
            },
            ..SchedulerConfig::default()
        },
        ..EngineConfig::default()
    }
}

/// Processor time of the threads of this process.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessorTime {
    workers: Duration,
    device: Duration,
}

impl ProcessorTime {
    /// Zero where the system does not tell (Linux does).
    fn now() -> Self {
        let mut time = Self::default();
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
            return time;
        };
        for thread in threads.flatten() {
            let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let nanoseconds = read("schedstat");
            let nanoseconds = nanoseconds
                .split(' ')
                .next()
                .and_then(|first| first.parse().ok());
            let ran = Duration::from_nanos(nanoseconds.unwrap_or_default());
            match read("comm").trim() {
                "motet-device" => time.device += ran,
                _ => time.workers += ran,
            }
        }
        time
    }
}
