//! Long prompts beside decoding sequences: the longest gap, and the cost of bounding it.
//!
//! Two engines take turns under load, one with the default bound on a step's time and one
//! without a bound.

use std::path::Path;
use std::time::Instant;

use motet::config::{CacheConfig, ChunkingConfig, EngineConfig, InterToken, SchedulerConfig};
use motet::{Engine, Shutdown};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::{Records, largest, median, median_of, percentile};
use crate::programs::Result;
use crate::programs::arrivals::prompt;
use crate::programs::engine::{
    TimedReader, on_model, request, runtime, submit_all, wait_for_tokens,
};
use crate::protocol::Size;

const DECODING: usize = 4;
/// Tokens of a decoding sequence's prompt.
const DECODING_PROMPT_TOKENS: usize = 64;
/// Tokens that they decode before the prompts arrive.
const WARM_TOKENS: usize = 32;
const DEVICE_BYTES: usize = 4 << 30;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Pairs of turns.
    rounds: u64,
    /// Tokens of a long prompt; a short one has a quarter.
    prompt_tokens: usize,
    /// Long prompts that arrive at once.
    prompts: usize,
}

/// Prompts that arrived at once beside decoding sequences.
#[derive(Clone, Debug)]
struct Stall {
    /// The median gap between two tokens before.
    before: f64,
    /// Gaps from the arrival of the prompts until each had its first token, in seconds.
    gaps: Vec<f64>,
    /// Duration of that period.
    seconds: f64,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        rounds: size.pick(5, 1),
        prompt_tokens: size.pick(2_048, 64),
        prompts: size.pick(8, 2),
    };
    runtime(2)?.block_on(async {
        let bounded = start(model, ChunkingConfig::default().inter_token, 256).await?;
        let unbounded = start(model, InterToken::Unbounded, 2 * measure.prompt_tokens).await?;
        let records = measure.take_turns(&bounded, &unbounded).await;
        bounded.shutdown(Shutdown::Abort).await;
        unbounded.shutdown(Shutdown::Abort).await;
        records
    })
}

async fn start(
    model: Option<&Path>,
    inter_token: InterToken,
    step_tokens_max: usize,
) -> Result<Engine> {
    let config = EngineConfig {
        scheduler: SchedulerConfig {
            chunking: ChunkingConfig {
                inter_token,
                step_tokens_max,
                ..ChunkingConfig::default()
            },
            unread_tokens_max: 1 << 16,
            ..SchedulerConfig::default()
        },
        cache: CacheConfig {
            device_bytes_max: DEVICE_BYTES,
            ..CacheConfig::default()
        },
        ..EngineConfig::default()
    };
    on_model(model, config).await
}

impl Measure {
    async fn take_turns(self, bounded: &Engine, unbounded: &Engine) -> Result<Records> {
        let mut records = Records::default();
        let (mut longs, mut frees) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            let short = self
                .stall(bounded, 1, self.prompt_tokens / 4, 3 * round)
                .await?;
            let one = self
                .stall(bounded, 1, self.prompt_tokens, 3 * round + 1)
                .await?;
            let seed = 3 * round + 2;
            let long = self
                .stall(bounded, self.prompts, self.prompt_tokens, seed)
                .await?;
            let free = self
                .stall(unbounded, self.prompts, self.prompt_tokens, seed)
                .await?;
            records.sample("scheduler.stall_512", short.longest());
            records.sample("scheduler.stall_2048", one.longest());
            records.sample("scheduler.stall_8x2048", long.longest());
            records.sample("scheduler.prefill_cost", long.seconds / free.seconds);
            longs.push(long);
            frees.push(free);
        }
        let remark = |stalls: &[Stall]| {
            let of = |value: fn(&Stall) -> f64| median_of(stalls, value);
            format!(
                "a step takes {:.1} ms before; then gaps have p50 {:.1}, p99 {:.1}, most {:.1} ms, \
                 and prefill takes {:.2} s",
                1e3 * of(|stall| stall.before),
                1e3 * of(|stall| median(&stall.gaps)),
                1e3 * of(|stall| percentile(&stall.gaps, 0.99)),
                1e3 * of(|stall| largest(&stall.gaps)),
                of(|stall| stall.seconds),
            )
        };
        records.remark("scheduler.stall_8x2048", remark(&longs));
        records.remark(
            "scheduler.prefill_cost",
            format!("bounded: {}", remark(&longs)),
        );
        records.remark(
            "scheduler.prefill_cost",
            format!("unbounded: {}", remark(&frees)),
        );
        Ok(records)
    }

    /// Submits prompts while others decode.
    async fn stall(
        self,
        engine: &Engine,
        prompts: usize,
        prompt_tokens: usize,
        seed: u64,
    ) -> Result<Stall> {
        let mut numbers = ChaCha8Rng::seed_from_u64(seed);
        let context = engine.model().context_tokens_max;
        let decoding = (0..DECODING).map(|_| {
            let prompt = prompt(&mut numbers, DECODING_PROMPT_TOKENS);
            request(prompt, context - DECODING_PROMPT_TOKENS)
        });
        let decoding = submit_all(engine, decoding.collect()).await?;
        wait_for_tokens(&decoding, 2 * WARM_TOKENS).await?;
        let came = Instant::now();
        let short_requests = (0..prompts).map(|_| request(prompt(&mut numbers, prompt_tokens), 1));
        for stream in submit_all(engine, short_requests.collect()).await? {
            stream.end().await?;
        }
        let seconds = came.elapsed().as_secs_f64();
        // The gap that the last prompt has caused has ended.
        let so_far = decoding
            .iter()
            .map(|timed_reader| timed_reader.times().len())
            .max();
        wait_for_tokens(&decoding, so_far.unwrap_or_default() + 2).await?;
        let ended = came.elapsed().as_secs_f64();
        let stall = Stall {
            before: median(&gaps(
                &decoding,
                came,
                |at| (-1e9..0.0).contains(&at),
                WARM_TOKENS,
            )),
            gaps: gaps(&decoding, came, |at| (0.0..ended).contains(&at), usize::MAX),
            seconds,
        };
        for timed_reader in decoding {
            timed_reader.leave().await;
        }
        Ok(stall)
    }
}

impl Stall {
    /// The longest gap, in steps before.
    fn longest(&self) -> f64 {
        largest(&self.gaps) / self.before
    }
}

/// The last gaps of each sequence that ended at such a time, in seconds from `origin`.
fn gaps(
    timed_readers: &[TimedReader],
    origin: Instant,
    selected: impl Fn(f64) -> bool,
    most: usize,
) -> Vec<f64> {
    let from_origin = |time: &Instant| {
        let after = time.saturating_duration_since(origin).as_secs_f64();
        after - origin.saturating_duration_since(*time).as_secs_f64()
    };
    let own = |timed_reader: &TimedReader| -> Vec<f64> {
        let times: Vec<f64> = timed_reader.times().iter().map(from_origin).collect();
        let pairs = times.windows(2).rev().filter(|pair| selected(pair[1]));
        pairs.map(|pair| pair[1] - pair[0]).take(most).collect()
    };
    timed_readers.iter().flat_map(own).collect()
}
