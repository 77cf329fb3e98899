//! The engine's cost for each sequence and step, from submit to the token in the caller's
//! stream, on an oracle that costs next to nothing.
//!
//! The figure is the time on the clock. Beside it stand the processor's time of the runtime's
//! workers and of the device thread, where the system tells it. The time of the cores alone is
//! measured in the virtual engine with the same load.

use std::time::{Duration, Instant};

use motet::config::{AdmissionConfig, ChunkingConfig, EngineConfig, SchedulerConfig};
use motet::model::Model;
use motet::model::oracle::Oracle;
use motet::request::Priority;
use motet::{Engine, Request, Shutdown, UserId};
use motet_core::scheduler::policy::step_cost::StepCost;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;

use crate::measured::{Records, median, median_of};
use crate::programs::Result;
use crate::programs::arrivals::{Kind, prompt};
use crate::programs::engine::{free_oracle, on_oracle, request, runtime};
use crate::programs::scheduler::harness::{CoreHarness, Pace};
use crate::protocol::Size;
use crate::system::Process;

/// The number of sequences whose cost is the figure.
const SIZE: usize = 256;
const PROMPT_TOKENS: usize = 16;

/// The amount of work to measure.
#[derive(Clone, Debug)]
struct Measure {
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

pub(crate) fn run(size: Size) -> Result<Records> {
    let measure = Measure {
        rounds: size.rounds(),
        sequences: size.pick(vec![64, SIZE, 1_024, 4_096], vec![64, SIZE, 512]),
        tokens: size.pick(200, 16),
    };
    let mut records = Records::default();
    let sizes = &measure.sequences;
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); sizes.len()];
    for _ in 0..measure.rounds {
        for (size, costs) in sizes.iter().zip(&mut costs) {
            costs.push(measure.turn(*size, 2)?);
        }
        let last = |of: usize| costs[of].last().copied().unwrap_or_default();
        records.sample(
            "scheduler.host_growth",
            last(sizes.len() - 1).clock / last(0).clock,
        );
        if let Some(index) = sizes.iter().position(|size| *size == SIZE) {
            records.sample("scheduler.host_us_per_seq_256", last(index).clock);
        }
    }
    for (size, costs) in sizes.iter().zip(&costs) {
        let middle = |of: fn(&Cost) -> f64| median_of(costs, of);
        let remark = format!(
            "{size} sequences: {:.2} µs on the clock, {:.2} of the workers' processor time, {:.2} \
             of the device thread's; {}",
            middle(|cost| cost.clock),
            middle(|cost| cost.workers),
            middle(|cost| cost.device),
            measure.cores(*size)?,
        );
        records.remark(
            if *size == SIZE {
                "scheduler.host_us_per_seq_256"
            } else {
                "scheduler.host_growth"
            },
            remark,
        );
    }
    let one_thread: Vec<f64> = (0..measure.rounds)
        .map(|_| Ok(measure.turn(SIZE, 0)?.clock))
        .collect::<Result<_>>()?;
    let remark = format!(
        "{:.2} µs with all actors on one thread",
        median(&one_thread)
    );
    records.remark("scheduler.host_us_per_seq_256", remark);
    Ok(records)
}

impl Measure {
    /// The cost of so many sequences at once on a runtime of so many workers.
    fn turn(&self, sequences: usize, workers: usize) -> Result<Cost> {
        runtime(workers)?.block_on(async {
            let engine = on_oracle(free_oracle(), engine_config(sequences)).await?;
            // Warms up threads and allocators.
            self.serve(&engine, sequences, 8, 1).await?;
            let before = ProcessorTime::now();
            let started_at = Instant::now();
            self.serve(&engine, sequences, self.tokens, 2).await?;
            let clock = started_at.elapsed();
            let after = ProcessorTime::now();
            engine.shutdown(Shutdown::Abort).await;
            let shares = (sequences * self.tokens) as f64;
            let micros = |seconds: f64| seconds * 1e6 / shares;
            Ok(Cost {
                clock: micros(clock.as_secs_f64()),
                workers: micros(after.workers - before.workers),
                device: micros(after.device - before.device),
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
        let mut model = Oracle::new(free_oracle())?;
        let config = engine_config(sequences);
        let instant = Pace::Virtual(StepCost::default());
        let mut harness = CoreHarness::new(model.spec(), config.scheduler, config.cache, instant);
        let kind = Kind {
            user: UserId(1),
            priority: Priority::Normal,
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

/// Processor seconds of this process' threads.
#[derive(Clone, Copy, Debug)]
struct ProcessorTime {
    workers: f64,
    device: f64,
}

impl ProcessorTime {
    /// Zero where the system does not tell (Linux does).
    fn now() -> Self {
        let seconds = |name| Process::own().and_then(|process| process.thread_seconds(name));
        let device = seconds("motet-device").unwrap_or_default();
        Self {
            workers: seconds("").unwrap_or_default() - device,
            device,
        }
    }
}
