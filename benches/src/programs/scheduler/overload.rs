//! Many times more requests than can be served: goodput, rejections, memory.
//!
//! Requests arrive at random moments at a multiple of the best rate at which they can be
//! served, whatever the outcome of those before. The best rate is that of callers that send the
//! next request when the one before has finished; it is measured before and after.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use motet::config::{CacheConfig, EngineConfig};
use motet::error::SubmitError;
use motet::model::oracle::{OracleConfig, StepCost};
use motet::{Engine, Request};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;

use crate::measured::{Records, median};
use crate::programs::Result;
use crate::programs::arrivals::prompt;
use crate::programs::engine::{free_oracle, on_oracle, request, runtime};
use crate::protocol::Size;
use crate::system::Process;

const PROMPT_TOKENS: usize = 64;
const OUTPUT_TOKENS: usize = 32;
const COST: StepCost = StepCost {
    base: Duration::from_millis(1),
    per_token: Duration::from_micros(20),
    per_cached_token: Duration::ZERO,
};
/// Windows in which goodput is counted.
const WINDOWS: usize = 6;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    seconds: f64,
    /// Arriving requests ÷ requests that can be served at best.
    times: f64,
}

/// Counters so far; callers update them.
#[derive(Debug, Default)]
struct Counts {
    /// Tokens of requests that were served in full.
    good_tokens: AtomicU64,
    /// Callers so far: each has prompts of its own.
    callers: AtomicU64,
    admitted: AtomicUsize,
    served: AtomicUsize,
}

/// The results of an overload.
struct Overload {
    /// Good tokens in a second, by window.
    goodput: Vec<f64>,
    /// Resident bytes at the end of each window.
    resident: Vec<f64>,
    /// Nanoseconds until each rejection; of constant size, however many there are.
    rejections: Histogram<u64>,
    sent: usize,
}

pub(crate) fn run(size: Size) -> Result<Records> {
    let measure = Measure {
        seconds: size.pick(60.0, 2.0),
        times: 10.0,
    };
    runtime(2)?.block_on(async {
        let oracle = OracleConfig {
            cost: COST,
            ..free_oracle()
        };
        let config = EngineConfig {
            cache: CacheConfig {
                // Full after a few seconds, so that its bookkeeping grows no more.
                device_bytes_max: 1 << 20,
                ..CacheConfig::default()
            },
            ..EngineConfig::default()
        };
        let inside_max = config.scheduler.sequences_max + config.scheduler.admission.queue_max;
        let engine = Arc::new(on_oracle(oracle, config).await?);
        let counts = Arc::new(Counts::default());
        // Warms up threads, allocators and the cache.
        let part = measure.seconds / 6.0;
        closed(&engine, &counts, inside_max, part).await;
        let mut best = closed(&engine, &counts, inside_max, part).await;
        let rate = median(&best) / OUTPUT_TOKENS as f64 * measure.times;
        if rate == 0.0 {
            return Err("no request was served while nothing disturbed it".into());
        }
        let overload = measure.overload(&engine, &counts, rate).await?;
        best.extend(closed(&engine, &counts, inside_max, part).await);
        engine.drain().await;
        // The readers of the last streams count them.
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(report(&overload, &best, rate, &counts))
    })
}

fn report(overload: &Overload, best: &[f64], rate: f64, counts: &Counts) -> Records {
    let mut records = Records::default();
    let best = median(best);
    // While the first window fills, the requests inside were not sent in it.
    for goodput in overload.goodput.iter().skip(1) {
        records.sample("scheduler.overload_goodput", goodput / best);
    }
    let first = overload.resident.first().copied().unwrap_or(1.0);
    for resident in overload.resident.iter().skip(1) {
        records.sample("scheduler.overload_rss_growth", resident / first);
    }
    records.sample(
        "scheduler.overload_reject_ms",
        overload.rejections.max() as f64 / 1e6,
    );
    records.sample("scheduler.overload_lost", counts.lost() as f64);
    let rejected = overload.rejections.len();
    let milliseconds = |part| overload.rejections.value_at_quantile(part) as f64 / 1e6;
    records.remark(
        "scheduler.overload_goodput",
        format!(
            "{best:.0} tok/s at best; {rate:.0} requests a second came, {} in all, \
             {rejected} were rejected, {} served",
            overload.sent,
            counts.served.load(Ordering::Relaxed),
        ),
    );
    records.remark(
        "scheduler.overload_reject_ms",
        format!(
            "p50 {:.4} ms, p99 {:.4}, p99.9 {:.4}, of {rejected} rejections",
            milliseconds(0.5),
            milliseconds(0.99),
            milliseconds(0.999),
        ),
    );
    records.remark(
        "scheduler.overload_rss_growth",
        format!("{:.0} MB", first / 1e6),
    );
    records
}

/// Callers that always have a request inside: good tokens in a second, by window.
async fn closed(
    engine: &Arc<Engine>,
    counts: &Arc<Counts>,
    callers: usize,
    seconds: f64,
) -> Vec<f64> {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (engine, counts) = (Arc::clone(engine), Arc::clone(counts));
        tasks.spawn(async move {
            let mut numbers = counts.numbers();
            while Instant::now() < until {
                let request = any_request(&mut numbers);
                match engine.submit(request).await {
                    Ok(stream) => counts.serve(stream).await,
                    // Its place is not free yet.
                    Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        });
    }
    let part = Duration::from_secs_f64(seconds / WINDOWS as f64);
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        windows.push(counts.goodput(part).await);
    }
    tasks.join_all().await;
    // While it fills, few requests finish.
    windows.split_off(1)
}

impl Measure {
    /// Sends requests at this rate, whatever their outcome.
    async fn overload(
        self,
        engine: &Arc<Engine>,
        counts: &Arc<Counts>,
        rate: f64,
    ) -> Result<Overload> {
        let (sent_to, sender_counts) = (Arc::clone(engine), Arc::clone(counts));
        let until = Instant::now() + Duration::from_secs_f64(self.seconds);
        let sender = tokio::spawn(async move { send(&sent_to, &sender_counts, rate, until).await });
        let part = Duration::from_secs_f64(self.seconds / WINDOWS as f64);
        let (mut goodput, mut resident) = (Vec::new(), Vec::new());
        for _ in 0..WINDOWS {
            goodput.push(counts.goodput(part).await);
            resident.push(resident_bytes());
        }
        let (sent, rejections) = sender.await??;
        Ok(Overload {
            goodput,
            resident,
            rejections,
            sent,
        })
    }
}

/// Sends requests until then. Returns their number, and the nanoseconds of each rejection.
async fn send(
    engine: &Arc<Engine>,
    counts: &Arc<Counts>,
    rate: f64,
    until: Instant,
) -> Result<(usize, Histogram<u64>)> {
    let mut numbers = counts.numbers();
    let mut next = Instant::now();
    let (mut sent, mut rejections) = (0, Histogram::new(3)?);
    while next < until {
        let uniform: f64 = numbers.random_range(f64::EPSILON..1.0);
        next += Duration::from_secs_f64(-uniform.ln() / rate);
        if next > Instant::now() {
            tokio::time::sleep_until(next.into()).await;
        }
        let request = any_request(&mut numbers);
        sent += 1;
        let asked = Instant::now();
        match engine.submit(request).await {
            Ok(stream) => {
                let counts = Arc::clone(counts);
                tokio::spawn(async move { counts.serve(stream).await });
            }
            Err(SubmitError::QueueFull { .. }) => {
                rejections.saturating_record(asked.elapsed().as_nanos() as u64);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((sent, rejections))
}

fn any_request(numbers: &mut ChaCha8Rng) -> Request {
    request(prompt(numbers, PROMPT_TOKENS), OUTPUT_TOKENS)
}

impl Counts {
    /// Random numbers for another caller's prompts.
    fn numbers(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.callers.fetch_add(1, Ordering::Relaxed))
    }

    /// Reads a stream to its end.
    async fn serve(&self, mut stream: motet::TokenStream) {
        self.admitted.fetch_add(1, Ordering::Relaxed);
        let (mut tokens, mut is_complete) = (0, false);
        while let Some(Ok(piece)) = stream.next().await {
            tokens += usize::from(piece.token.is_some());
            is_complete = piece.finish.is_some();
        }
        if tokens == OUTPUT_TOKENS && is_complete {
            self.good_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
            self.served.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Good tokens in a second, from now for so long.
    async fn goodput(&self, time: Duration) -> f64 {
        let (started_at, before) = (Instant::now(), self.good_tokens.load(Ordering::Relaxed));
        tokio::time::sleep(time).await;
        let tokens = self.good_tokens.load(Ordering::Relaxed) - before;
        tokens as f64 / started_at.elapsed().as_secs_f64()
    }

    /// Requests that were admitted and not served.
    fn lost(&self) -> usize {
        let served = self.served.load(Ordering::Relaxed);
        self.admitted.load(Ordering::Relaxed) - served
    }
}

/// Resident bytes of this process; 0 where the system does not tell (Linux does).
fn resident_bytes() -> f64 {
    let bytes = Process::own().and_then(|process| process.resident_bytes());
    bytes.unwrap_or_default() as f64
}
