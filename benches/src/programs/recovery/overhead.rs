//! Decoding with everything that a recovery needs, and without.
//!
//! Two engines with the same host memory take turns with the same load. One can be rebuilt
//! after any failure: it keeps the history of each sequence, catches panics, and copies live
//! sequences to host memory while they run. The other does none of it, and would not survive a
//! failure.

use std::path::Path;

use motet::{Engine, Shutdown};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::{Records, median, median_of};
use crate::programs::Result;
use crate::programs::engine::{request, runtime, wait_for_tokens};
use crate::programs::pages::{spec, wait_until_idle};
use crate::programs::recovery::killed::{
    DECODED_TOKENS, Killable, Mode, config, prompts, side_by_side,
};
use crate::protocol::Size;
use crate::system::Process;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Pairs of turns.
    rounds: u64,
    streams: usize,
    prompt_tokens: usize,
    /// Tokens that each stream gets in a turn.
    tokens: usize,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        rounds: size.rounds() as u64,
        streams: size.pick(16, 4),
        prompt_tokens: size.pick(128, 80),
        tokens: size.pick(160, 24),
    };
    let spec = spec(model)?;
    runtime(2)?.block_on(async {
        let tokens = measure.prompt_tokens + DECODED_TOKENS + measure.tokens;
        let mut on = config(&spec, measure.streams, tokens, true);
        // Only copies of live sequences move.
        on.pager.clean_part = 0.0;
        let mut off = on.clone();
        off.pager.backup_tokens = 0;
        let on = Killable::start(model, on, Mode::Fast, true).await?;
        let off = Killable::start(model, off, Mode::Fast, false).await?;
        let records = measure.take_turns(&on.engine, &off.engine).await;
        on.engine.shutdown(Shutdown::Abort).await;
        off.engine.shutdown(Shutdown::Abort).await;
        records
    })
}

impl Measure {
    async fn take_turns(self, on: &Engine, off: &Engine) -> Result<Records> {
        let mut records = Records::default();
        let (mut with, mut without, mut processor) = (Vec::new(), Vec::new(), Vec::new());
        self.turn(on, 0).await?;
        self.turn(off, 0).await?;
        let packed = on.stats().pager.packed;
        for round in 0..self.rounds {
            // The side that goes first has the warmer caches, or the colder.
            let (first, second) = match round % 2 {
                0 => (on, off),
                _ => (off, on),
            };
            let first = self.turn(first, 1 + round).await?;
            let second = self.turn(second, 1 + round).await?;
            let (own, other) = match round % 2 {
                0 => (first, second),
                _ => (second, first),
            };
            records.sample("recovery.overhead", own.0 / other.0);
            records.sample("recovery.overhead_processor", other.1 / own.1);
            with.push(own.0);
            without.push(other.0);
            processor.push((own.1, other.1));
        }
        let copies = on.stats().pager.packed - packed;
        if copies == 0 || off.stats().pager.packed > 0 {
            return Err("live sequences were not copied on one side only".into());
        }
        records.remark(
            "recovery.overhead",
            format!(
                "{:.1} against {:.1} tok/s of {} streams; {:.1} copies a second",
                median(&with),
                median(&without),
                self.streams,
                copies as f64 * median(&with)
                    / (self.rounds as usize * self.streams * self.tokens) as f64,
            ),
        );
        let of = |side: fn(&(f64, f64)) -> f64| median_of(&processor, side);
        records.remark(
            "recovery.overhead_processor",
            format!(
                "{:.2} against {:.2} s a turn",
                of(|both| both.0),
                of(|both| both.1)
            ),
        );
        Ok(records)
    }

    /// Tokens a second while all decode, and processor seconds of the whole turn.
    async fn turn(self, engine: &Engine, seed: u64) -> Result<(f64, f64)> {
        wait_until_idle(engine, false).await?;
        let before = processor_seconds();
        let mut numbers = ChaCha8Rng::seed_from_u64(100 + seed);
        let prompts = prompts(&mut numbers, self.streams, self.prompt_tokens);
        let output_tokens = DECODED_TOKENS + self.tokens;
        let requests = prompts
            .into_iter()
            .map(|prompt| request(prompt, output_tokens));
        let timed_readers = side_by_side(engine, requests.collect()).await?;
        wait_for_tokens(&timed_readers, output_tokens).await?;
        let times: Vec<_> = timed_readers
            .iter()
            .map(|timed_reader| timed_reader.times())
            .collect();
        for timed_reader in timed_readers {
            timed_reader.end().await?;
        }
        // All decode from the start of the last until the end of the first.
        let from = times.iter().map(|times| times[DECODED_TOKENS - 1]).max();
        let until = times.iter().map(|times| times[output_tokens - 1]).min();
        let (from, until) = from.zip(until).ok_or("no streams")?;
        let within = times
            .iter()
            .flatten()
            .filter(|at| **at > from && **at <= until);
        let tokens = within.count();
        if tokens < self.streams * self.tokens / 4 {
            return Err("the streams did not decode side by side".into());
        }
        let rate = tokens as f64 / (until - from).as_secs_f64();
        Ok((rate, processor_seconds() - before))
    }
}

/// Processor time of all threads of this process so far, as Linux counts it; unknown elsewhere.
fn processor_seconds() -> f64 {
    let seconds = Process::own().and_then(|process| process.processor_seconds());
    seconds.unwrap_or_default()
}
