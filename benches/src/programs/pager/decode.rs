//! Sequences that decode while segments are offloaded and loaded, beside sequences that decode
//! without transfers.
//!
//! Two engines take turns with the same load: sequences that decode, and *visits*. A visit is a
//! prompt that begins with one of several prefixes, in turn, and gets one token. One engine has
//! memory for all prefixes. In the other one every visit loads its prefix from the host,
//! another prefix is evicted, and new state is offloaded. Both therefore compute the same, and
//! only one moves bytes. Offloads are limited by the computed tokens, which are slow beside a
//! copy. Loads have no such limit, so the measurement moves those.
//!
//! The remaining contention is measured beside that: the same decoding without visits, while a
//! thread copies out and in without a pause, faster than any pager needs to.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use motet::config::EngineConfig;
use motet::model::oracle::Oracle;
use motet::model::{ModelError, ModelSpec, SegmentSize};
use motet::{Engine, Shutdown, TokenId};
use motet_model::Packer;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::{Records, median, percentile};
use crate::programs::Result;
use crate::programs::arrivals::prompt;
use crate::programs::engine::{
    load, on_model, request, runtime, slow_oracle, submit_all, wait_for_tokens,
};
use crate::programs::pages::{ask, config, spec, start_with_packer, wait_until_idle};
use crate::protocol::Size;

const DECODING: usize = 4;
/// With at least so many visits, half of them must have loaded copies, or nothing is measured.
const VISITS_MIN: usize = 8;
/// Tokens of a decoding sequence's prompt: few, since the first sequence decodes while the prompts
/// of the others are computed, a token in each step at worst.
const DECODING_PROMPT_TOKENS: usize = 16;
/// Tokens that all decode before the measurement starts.
const WARM_TOKENS: usize = 8;
/// Tokens by which one decoding sequence may be ahead of another.
const AHEAD_TOKENS: usize = DECODING * DECODING_PROMPT_TOKENS;
/// Tokens of a visit after its prefix.
const FRESH_TOKENS: usize = 16;
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Pairs of turns.
    rounds: u64,
    /// Tokens of each decoding sequence in a turn.
    tokens: usize,
    /// Prefixes, and the tokens of each.
    prefixes: usize,
    prefix_tokens: usize,
    /// Decoded tokens between two visits.
    visit_every_tokens: usize,
}

/// The gaps of the decoding sequences, in seconds.
#[derive(Debug)]
struct Turn {
    gaps: Vec<f64>,
    seconds: f64,
    visits: usize,
    loaded: u64,
    offloaded: u64,
    copied_bytes: usize,
}

/// An engine and the prefixes of visits.
struct Side {
    engine: Engine,
    prefixes: Vec<Vec<TokenId>>,
    visits: usize,
    numbers: ChaCha8Rng,
}

/// Copies as many bytes as `prefix_tokens` out and in, again and again.
type Copier = Box<dyn FnMut() -> std::result::Result<usize, ModelError> + Send>;

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        rounds: size.pick(5, 1),
        tokens: size.pick(300, 12),
        prefixes: size.pick(8, 4),
        prefix_tokens: size.pick(1_024, 64),
        visit_every_tokens: 6,
    };
    let spec = spec(model)?;
    runtime(2)?.block_on(async {
        let (high_memory, copier) = measure.start_high_memory(model, &spec).await?;
        let mut high_memory = Side::new(measure, high_memory).await?;
        let low_memory = on_model(model, measure.low_memory(&spec)).await?;
        let mut low_memory = Side::new(measure, low_memory).await?;
        let records = measure
            .take_turns(&mut high_memory, &mut low_memory, copier, &spec)
            .await;
        high_memory.engine.shutdown(Shutdown::Abort).await;
        low_memory.engine.shutdown(Shutdown::Abort).await;
        records
    })
}

impl Measure {
    fn prefix_bytes(self, spec: &ModelSpec) -> usize {
        spec.tail_bytes(self.prefix_tokens + 2 * FRESH_TOKENS)
    }

    fn decoding_bytes(self, spec: &ModelSpec) -> usize {
        DECODING * spec.tail_bytes(DECODING_PROMPT_TOKENS + self.output_tokens())
    }

    fn output_tokens(self) -> usize {
        WARM_TOKENS + AHEAD_TOKENS + self.tokens
    }

    /// Starts an engine with memory for everything, and no pager.
    async fn start_high_memory(
        self,
        model: Option<&Path>,
        spec: &ModelSpec,
    ) -> Result<(Engine, Copier)> {
        let turns = 2 * (self.rounds as usize + 1);
        let visits = turns * (self.tokens / self.visit_every_tokens + 1);
        let bytes = 2 * self.prefixes * self.prefix_bytes(spec)
            + turns * self.decoding_bytes(spec)
            + visits * spec.tail_bytes(2 * FRESH_TOKENS);
        let config = config(spec, bytes, 0);
        if let Some(path) = model.map(Path::to_path_buf) {
            let (engine, packer) = start_with_packer(move || load(&path, false), config).await?;
            return Ok((engine, self.copier(packer)?));
        }
        let build = || Ok(Oracle::new(slow_oracle())?);
        let (engine, packer) = start_with_packer(build, config).await?;
        Ok((engine, self.copier(packer)?))
    }

    /// Memory for the decoding sequences, and two prefixes; the rest is in host memory.
    fn low_memory(self, spec: &ModelSpec) -> EngineConfig {
        let prefix_bytes = self.prefix_bytes(spec);
        let device_bytes = self.decoding_bytes(spec) + 2 * prefix_bytes + prefix_bytes / 2;
        let turns = self.rounds as usize + 2;
        let host_bytes = 4 * (self.prefixes * prefix_bytes + turns * self.decoding_bytes(spec));
        config(spec, device_bytes, host_bytes)
    }

    fn copier<K: Packer>(self, packer: K) -> Result<Copier> {
        let segment_size = SegmentSize::whole(self.prefix_tokens);
        let mut bytes = vec![0; packer.packed_bytes(segment_size)];
        // The copying thread allocates and drops its copies, as the pager's does.
        Ok(Box::new(move || {
            let detached_state = packer.unpack(segment_size, &bytes)?;
            packer.pack(&detached_state, &mut bytes)?;
            Ok(2 * bytes.len())
        }))
    }

    async fn take_turns(
        self,
        high_memory: &mut Side,
        low_memory: &mut Side,
        copier: Copier,
        spec: &ModelSpec,
    ) -> Result<Records> {
        let mut records = Records::default();
        let mut beside = Beside::new(copier);
        let (mut still, mut paging, mut baseline, mut copying) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.rounds {
            still.push(high_memory.turn(self, round, true).await?);
            paging.push(low_memory.turn(self, round, true).await?);
            baseline.push(
                high_memory
                    .turn(self, self.rounds + 2 * round, false)
                    .await?,
            );
            beside.start();
            let busy = high_memory
                .turn(self, self.rounds + 2 * round + 1, false)
                .await;
            let copied_bytes = beside.stop()?;
            copying.push(Turn {
                copied_bytes,
                ..busy?
            });
            records.sample(
                "pager.itl_beside_paging",
                last(&paging).p99() / last(&still).p99(),
            );
            records.sample(
                "pager.itl_beside_copying",
                last(&copying).p99() / last(&baseline).p99(),
            );
        }
        let loaded: u64 = paging.iter().map(|turn| turn.loaded).sum();
        let visits: usize = paging.iter().map(|turn| turn.visits).sum();
        // In a quick run, a few visits of short prefixes may be faster to compute.
        if visits >= VISITS_MIN && loaded < visits as u64 / 2 {
            return Err(format!("{visits} visits loaded only {loaded} copies").into());
        }
        let offloaded: u64 = paging.iter().map(|turn| turn.offloaded).sum();
        let bytes =
            loaded as f64 * spec.segment_bytes(SegmentSize::whole(self.prefix_tokens)) as f64;
        records.remark(
            "pager.itl_beside_paging",
            format!("without: {}", summary(&still)),
        );
        records.remark(
            "pager.itl_beside_paging",
            format!("with: {}", summary(&paging)),
        );
        records.remark(
            "pager.itl_beside_paging",
            format!(
                "{visits} visits, {loaded} copies loaded, {offloaded} offloaded; about {:.0} MB/s",
                bytes / 1e6 / seconds(&paging)
            ),
        );
        let copied: usize = copying.iter().map(|turn| turn.copied_bytes).sum();
        records.remark(
            "pager.itl_beside_copying",
            format!("alone: {}", summary(&baseline)),
        );
        records.remark(
            "pager.itl_beside_copying",
            format!(
                "beside a thread that copies {:.1} GB/s: {}",
                copied as f64 / 1e9 / seconds(&copying),
                summary(&copying)
            ),
        );
        Ok(records)
    }
}

impl Side {
    /// Computes all prefixes, so that they are cached in the tiers that have memory for them.
    async fn new(measure: Measure, engine: Engine) -> Result<Self> {
        let mut numbers = ChaCha8Rng::seed_from_u64(7);
        let mut prefixes = Vec::new();
        for _ in 0..measure.prefixes {
            let prefix = prompt(&mut numbers, measure.prefix_tokens);
            ask(&engine, prefix.clone()).await?;
            prefixes.push(prefix);
            wait_until_idle(&engine, false).await?;
        }
        Ok(Self {
            engine,
            prefixes,
            visits: 0,
            numbers,
        })
    }

    /// Lets sequences decode, with visits or without.
    async fn turn(&mut self, measure: Measure, seed: u64, visited: bool) -> Result<Turn> {
        wait_until_idle(&self.engine, false).await?;
        let mut numbers = ChaCha8Rng::seed_from_u64(1_000 + seed);
        let requests = (0..DECODING).map(|_| {
            let prompt = prompt(&mut numbers, DECODING_PROMPT_TOKENS);
            request(prompt, measure.output_tokens())
        });
        let decoding = submit_all(&self.engine, requests.collect()).await?;
        wait_for_tokens(&decoding, WARM_TOKENS).await?;
        let (started_at, before) = (Instant::now(), self.engine.stats().pager);
        let from: Vec<usize> = decoding
            .iter()
            .map(|timed_reader| timed_reader.times().len())
            .collect();
        let until = from[0] + measure.tokens;
        let (mut visits, mut next) = (0, from[0]);
        loop {
            let so_far = decoding[0].times().len();
            if so_far >= until {
                break;
            }
            if decoding[0].is_finished() {
                return Err(format!("a decoding sequence ended after {so_far} tokens").into());
            }
            // Late visits are made up for, so that both sides have as many.
            if visited && so_far >= next {
                self.visit(measure).await?;
                visits += 1;
                next += measure.visit_every_tokens;
            } else {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        let seconds = started_at.elapsed().as_secs_f64();
        let after = self.engine.stats().pager;
        let mut gaps = Vec::new();
        for (timed_reader, from) in decoding.into_iter().zip(from) {
            let times = timed_reader.times();
            let counted = times[from - 1..].windows(2).take(measure.tokens);
            gaps.extend(counted.map(|pair| (pair[1] - pair[0]).as_secs_f64()));
            timed_reader.leave().await;
        }
        Ok(Turn {
            gaps,
            seconds,
            visits,
            loaded: after.unpacked - before.unpacked,
            offloaded: after.packed - before.packed,
            copied_bytes: 0,
        })
    }

    async fn visit(&mut self, measure: Measure) -> Result<()> {
        let prefix = &self.prefixes[self.visits % self.prefixes.len()];
        let tokens = [&prefix[..], &prompt(&mut self.numbers, FRESH_TOKENS)].concat();
        self.visits += 1;
        let asked = ask(&self.engine, tokens).await?;
        if asked.cached_tokens >= measure.prefix_tokens {
            Ok(())
        } else {
            Err(format!(
                "only {} of {} tokens were cached: {:?}",
                asked.cached_tokens,
                measure.prefix_tokens,
                self.engine.stats().pager
            )
            .into())
        }
    }
}

impl Turn {
    fn p99(&self) -> f64 {
        percentile(&self.gaps, 0.99)
    }
}

/// A thread that copies on request.
struct Beside {
    copier: Option<Copier>,
    goes_on: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Copier, std::result::Result<usize, ModelError>)>>,
}

impl Beside {
    fn new(copier: Copier) -> Self {
        Self {
            copier: Some(copier),
            goes_on: Arc::default(),
            thread: None,
        }
    }

    fn start(&mut self) {
        self.goes_on.store(true, Ordering::Relaxed);
        let goes_on = Arc::clone(&self.goes_on);
        let mut copier = self.copier.take().expect("it was returned");
        self.thread = Some(std::thread::spawn(move || {
            let mut bytes = 0;
            while goes_on.load(Ordering::Relaxed) {
                match copier() {
                    Ok(copied) => bytes += copied,
                    Err(error) => return (copier, Err(error)),
                }
            }
            (copier, Ok(bytes))
        }));
    }

    /// Returns how many bytes it has copied.
    fn stop(&mut self) -> Result<usize> {
        self.goes_on.store(false, Ordering::Relaxed);
        let thread = self.thread.take().expect("it was started");
        let (copier, copied) = thread.join().map_err(|_| "the copying thread panicked")?;
        self.copier = Some(copier);
        Ok(copied?)
    }
}

fn last(turns: &[Turn]) -> &Turn {
    turns.last().expect("there was a turn")
}

fn seconds(turns: &[Turn]) -> f64 {
    turns.iter().map(|turn| turn.seconds).sum()
}

fn summary(turns: &[Turn]) -> String {
    let of = |part: f64| {
        let each = turns.iter().map(|turn| percentile(&turn.gaps, part));
        1e3 * median(&each.collect::<Vec<f64>>())
    };
    format!(
        "gaps have p50 {:.1}, p90 {:.1}, p99 {:.1}, most {:.1} ms",
        of(0.5),
        of(0.9),
        of(0.99),
        of(1.0)
    )
}
