//! The longest gap of live streams when the device thread is killed, and its parts.
//!
//! Two engines take turns, one with host memory for copies and one without. In each round
//! streams with prompts that have nothing in common decode, and the device thread is killed.
//! The longest time between two tokens of any stream is measured. After that the engine without
//! host memory computes as many prompts of as many tokens as had to be computed again, with
//! nothing beside them. A pause is compared with that time plus the time to load the model.

use std::path::Path;
use std::time::{Duration, Instant};

use motet::Shutdown;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::{Records, median, median_of};
use crate::programs::Result;
use crate::programs::engine::{TimedReader, request, runtime, submit_all};
use crate::programs::pages::{spec, wait_until_idle};
use crate::programs::recovery::killed::{
    DECODED_TOKENS, Killable, Load, Mode, config, prompts, side_by_side,
};
use crate::protocol::Size;

/// Tokens of each stream after a kill that end the round.
const AFTER_TOKENS: usize = 3;
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// A stream without a token for so long is an error.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Kills of each engine.
    rounds: u64,
    streams: usize,
    prompt_tokens: usize,
}

/// The cost of one kill, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    /// The longest gap.
    gap: f64,
    /// From the kill until the scheduler knew of it.
    detect: f64,
    /// From then until another thread had the model.
    load: f64,
    /// From then until the last copy was loaded that was loaded before any token came.
    restore: f64,
    /// From the later of these to the first token of any stream.
    first: f64,
    /// From then until each stream had one.
    last: f64,
    /// Tokens that were evaluated beyond one for each token that came.
    recomputed: f64,
    copies: f64,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        rounds: size.pick(7, 1),
        streams: size.pick(16, 4),
        prompt_tokens: size.pick(256, 96),
    };
    let spec = spec(model)?;
    let load = Load::new(model)?;
    runtime(2)?.block_on(async {
        let tokens = measure.tokens_max();
        let start = |is_paged| {
            let config = config(&spec, measure.streams, tokens, is_paged);
            Killable::start(model, config, Mode::Fast, true)
        };
        let (loaded, paged) = (start(false).await?, start(true).await?);
        let records = measure.take_turns(&loaded, &paged, &load).await;
        loaded.engine.shutdown(Shutdown::Abort).await;
        paged.engine.shutdown(Shutdown::Abort).await;
        records
    })
}

impl Measure {
    fn tokens_max(self) -> usize {
        self.prompt_tokens + 8 * DECODED_TOKENS
    }

    async fn take_turns(self, loaded: &Killable, paged: &Killable, load: &Load) -> Result<Records> {
        let mut records = Records::default();
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let (mut loads, mut computed) = (Vec::new(), Vec::new());
        // The learned cost of steps counts for both.
        self.compute(loaded, 1).await?;
        self.compute(paged, 1).await?;
        for round in 0..self.rounds {
            let bare = self.kill(loaded, 2 * round).await?;
            let backed = self.kill(paged, 2 * round + 1).await?;
            let (read, compute) = (load.seconds()?, self.compute(loaded, 2 + round).await?);
            records.sample("recovery.pause_loaded", bare.gap / (read + compute));
            records.sample("recovery.pause_paged", backed.gap / bare.gap);
            records.sample("recovery.pause_paged_seconds", backed.gap);
            records.sample("recovery.tokens_again", backed.recomputed);
            without.push(bare);
            with.push(backed);
            loads.push(read);
            computed.push(compute);
        }
        let copies: f64 = with.iter().map(|pause| pause.copies).sum();
        if copies == 0.0 {
            return Err("nothing was loaded from host memory".into());
        }
        let contexts = self.streams * (self.prompt_tokens + DECODED_TOKENS);
        records.remark("recovery.pause_loaded", Pause::summary(&without));
        records.remark(
            "recovery.pause_loaded",
            format!(
                "against {:.3} s to load the model and {:.3} s to compute {contexts} tokens",
                median(&loads),
                median(&computed),
            ),
        );
        records.remark("recovery.pause_paged", Pause::summary(&with));
        records.remark(
            "recovery.tokens_again",
            format!("of about {contexts} tokens of {} streams", self.streams),
        );
        Ok(records)
    }

    /// Seconds from submitting as many prompts as streams are killed, with as many tokens,
    /// until the last has its first token.
    async fn compute(self, killable: &Killable, seed: u64) -> Result<f64> {
        wait_until_idle(&killable.engine, false).await?;
        let mut numbers = ChaCha8Rng::seed_from_u64(1_000_000 + seed);
        let tokens = self.prompt_tokens + DECODED_TOKENS;
        let prompts = prompts(&mut numbers, self.streams, tokens);
        let started_at = Instant::now();
        let requests = prompts.into_iter().map(|prompt| request(prompt, 1));
        for timed_reader in submit_all(&killable.engine, requests.collect()).await? {
            timed_reader.end().await?;
        }
        Ok(started_at.elapsed().as_secs_f64())
    }

    async fn kill(self, killable: &Killable, seed: u64) -> Result<Pause> {
        let engine = &killable.engine;
        wait_until_idle(engine, false).await?;
        let mut numbers = ChaCha8Rng::seed_from_u64(seed);
        let prompts = prompts(&mut numbers, self.streams, self.prompt_tokens);
        let output_tokens = self.tokens_max() - self.prompt_tokens;
        let requests = prompts
            .into_iter()
            .map(|prompt| request(prompt, output_tokens));
        let timed_readers = side_by_side(engine, requests.collect()).await?;
        let before = engine.stats();
        let tokens_before: Vec<usize> = timed_readers
            .iter()
            .map(|timed_reader| timed_reader.times().len())
            .collect();
        let killed_at = killable.kill().await?;
        let mut marks = Marks::default();
        while !timed_readers
            .iter()
            .zip(&tokens_before)
            .all(|(timed_reader, tokens_before)| {
                tokens_since(timed_reader, *tokens_before, killed_at) >= AFTER_TOKENS
            })
        {
            // A finished stream does not continue.
            if killed_at.elapsed() > TIMEOUT || engine.stats().finished > before.finished {
                return Err(format!("a stream does not continue: {:?}", engine.stats()).into());
            }
            let stats = engine.stats();
            let now = killed_at.elapsed().as_secs_f64();
            if stats.rebuilds > before.rebuilds {
                marks.detected.get_or_insert(now);
            }
            if marks.detected.is_some() && stats.device_alive {
                marks.loaded.get_or_insert(now);
            }
            if marks.first.is_none() && stats.pager.unpacked > marks.unpacked {
                marks.restored = Some(now);
            }
            marks.unpacked = stats.pager.unpacked;
            if timed_readers
                .iter()
                .zip(&tokens_before)
                .any(|(timed_reader, tokens_before)| {
                    tokens_since(timed_reader, *tokens_before, killed_at) > 0
                })
            {
                marks.first.get_or_insert(now);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let after = engine.stats();
        let firsts = timed_readers.iter().map(|timed_reader| {
            let next = timed_reader.times().into_iter().find(|at| *at > killed_at);
            next.map_or(0.0, |at| (at - killed_at).as_secs_f64())
        });
        let last = firsts.fold(0.0, f64::max);
        let gaps = timed_readers
            .iter()
            .zip(&tokens_before)
            .map(|(timed_reader, tokens_before)| longest(&timed_reader.times(), *tokens_before));
        let gap = gaps.fold(0.0, f64::max);
        for timed_reader in timed_readers {
            timed_reader.leave().await;
        }
        let evaluated = after.evaluated_tokens - before.evaluated_tokens;
        let output = after.output_tokens - before.output_tokens;
        let copies = after.pager.unpacked - before.pager.unpacked;
        Ok(marks.pause(gap, last, evaluated as f64 - output as f64, copies as f64))
    }
}

/// Times of first observations, in seconds since the kill.
#[derive(Debug, Default)]
struct Marks {
    detected: Option<f64>,
    loaded: Option<f64>,
    restored: Option<f64>,
    first: Option<f64>,
    unpacked: u64,
}

impl Marks {
    fn pause(&self, gap: f64, last: f64, recomputed: f64, copies: f64) -> Pause {
        let detected = self.detected.unwrap_or_default();
        let loaded = self.loaded.unwrap_or(detected);
        let restored = self.restored.unwrap_or(loaded).max(loaded);
        let first = self.first.unwrap_or(restored);
        Pause {
            gap,
            detect: detected,
            load: loaded - detected,
            restore: restored - loaded,
            first: first - restored,
            last: last - first,
            recomputed,
            copies,
        }
    }
}

impl Pause {
    fn summary(pauses: &[Self]) -> String {
        let of = |part: fn(&Self) -> f64| median_of(pauses, part);
        let longest = pauses.iter().map(|pause| pause.gap).fold(0.0, f64::max);
        format!(
            "{:.3} s (at most {longest:.3}): noticed after {:.4}, model loaded after {:.3} \
             more, {} copies loaded in {:.3}, first token after {:.3}, all have one after \
             {:.3}; {} tokens computed again",
            of(|pause| pause.gap),
            of(|pause| pause.detect),
            of(|pause| pause.load),
            of(|pause| pause.copies),
            of(|pause| pause.restore),
            of(|pause| pause.first),
            of(|pause| pause.last),
            of(|pause| pause.recomputed),
        )
    }
}

/// Tokens since then, of a stream that had so many before.
fn tokens_since(timed_reader: &TimedReader, tokens_before: usize, since: Instant) -> usize {
    let times = timed_reader.times();
    times[tokens_before.min(times.len())..]
        .iter()
        .filter(|at| **at > since)
        .count()
}

/// The longest time between two tokens, starting with the last of the tokens before.
fn longest(times: &[Instant], tokens_before: usize) -> f64 {
    let pairs = times[tokens_before.saturating_sub(1)..].windows(2);
    pairs
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .fold(0.0, f64::max)
}
