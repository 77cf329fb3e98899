//! The cost of a cache without hits: no two prompts begin alike.
//!
//! Without a cache a finished sequence's state is discarded. Both sides run on the same device
//! and take turns, with the machine's clock: sealing, splitting and evicting have their real
//! costs.

use std::path::Path;
use std::time::Duration;

use motet::UserId;
use motet::config::{CacheConfig, SchedulerConfig};
use motet::model::Model;
use motet::model::oracle::Oracle;
use motet::request::Priority;

use crate::measured::{Records, median_of};
use crate::programs::Result;
use crate::programs::arrivals::{Arrival, Kind};
use crate::programs::engine::{free_oracle, load};
use crate::programs::scheduler::fair::name;
use crate::programs::scheduler::harness::{CoreHarness, Pace, SMALL_DEVICE};
use crate::protocol::Size;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Pairs of turns.
    rounds: u64,
    requests: usize,
    prompt_tokens: usize,
    output_tokens: usize,
}

/// The duration of one turn.
#[derive(Clone, Copy)]
struct Turn {
    /// The device's clock, plus the host's work where that clock is virtual.
    seconds: f64,
    host_seconds: f64,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        rounds: size.rounds() as u64,
        requests: size.pick(20, 4),
        prompt_tokens: size.pick(96, 16),
        output_tokens: size.pick(24, 4),
    };
    match model {
        None => {
            let mut oracle = Oracle::new(free_oracle())?;
            let remark = format!("{}, and the host's own time on top", name(SMALL_DEVICE));
            take_turns(measure, &mut oracle, || Pace::Virtual(SMALL_DEVICE), remark)
        }
        Some(path) => {
            use std::time::Instant;

            let mut model = load(path, false)?;
            let remark = "SmolLM2-135M on MLX, cores and device on one thread".to_owned();
            take_turns(measure, &mut model, || Pace::Real(Instant::now()), remark)
        }
    }
}

fn take_turns<M: Model>(
    measure: Measure,
    model: &mut M,
    pace: impl Fn() -> Pace,
    remark: String,
) -> Result<Records> {
    let mut records = Records::default();
    let (mut on, mut off) = (Vec::new(), Vec::new());
    // The first pair does not count.
    for round in 0..=measure.rounds {
        let with = measure.turn(model, pace(), round, true)?;
        let without = measure.turn(model, pace(), round, false)?;
        if round > 0 {
            records.sample("scheduler.cache_off_cost", without.seconds / with.seconds);
            on.push(with);
            off.push(without);
        }
    }
    let seconds = |turn: &Turn| turn.seconds;
    let host = |turn: &Turn| turn.host_seconds * 1e3;
    records.remark(
        "scheduler.cache_off_cost",
        format!(
            "{remark}: {:.3} s with, {:.3} s without; of these the cores' {:.2} and {:.2} ms",
            median_of(&on, seconds),
            median_of(&off, seconds),
            median_of(&on, host),
            median_of(&off, host),
        ),
    );
    Ok(records)
}

impl Measure {
    fn turn<M: Model>(self, model: &mut M, pace: Pace, seed: u64, retains: bool) -> Result<Turn> {
        let spec = model.spec().clone();
        let scheduler = SchedulerConfig {
            sequences_max: 8,
            ..SchedulerConfig::default()
        };
        let tokens = self.prompt_tokens + 2 * self.output_tokens;
        // Memory for the running sequences and two more: the cache is full soon.
        let device_bytes_max = (scheduler.sequences_max + 2) * spec.tail_bytes(tokens)
            + spec.scratch_bytes_per_token * scheduler.chunking.step_tokens_max;
        let cache = CacheConfig {
            device_bytes_max,
            ..CacheConfig::default()
        };
        let mut harness = CoreHarness::new(&spec, scheduler, cache, pace);
        if !retains {
            harness = harness.without_cache();
        }
        harness.serve(model, self.arrivals(seed, spec.vocab_size));
        if let Some(error) = harness.callers.failed() {
            return Err(format!("a request failed: {error}").into());
        }
        let [scheduler, cache, device] = harness.host_time();
        let cores = scheduler + cache;
        let on_top = match pace {
            Pace::Virtual(_) => cores + device,
            Pace::Real(_) => Duration::ZERO,
        };
        Ok(Turn {
            seconds: (harness.now() + on_top).as_secs_f64(),
            host_seconds: cores.as_secs_f64(),
        })
    }

    fn arrivals(self, seed: u64, vocab_size: usize) -> Vec<Arrival> {
        let kind = Kind {
            user: UserId(1),
            priority: Priority::Normal,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
        };
        let mut arrivals = kind.arrivals(self.requests, Duration::ZERO, seed + 1);
        for token in arrivals.iter_mut().flat_map(|arrival| &mut arrival.prompt) {
            *token %= vocab_size as motet::TokenId;
        }
        arrivals
    }
}
