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
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::Priority;
use serde::Deserialize;

use crate::Result;
use crate::arrivals::{Arrival, Kind};
use crate::fair::name;
use crate::harness::{CoreHarness, Pace, SMALL_DEVICE};
use crate::report::{Report, median};

/// The amount of work to measure.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Measure {
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

pub(crate) fn run(measure: Measure, model: Option<&Path>) -> Result<Report> {
    match model {
        None => {
            let mut oracle = Oracle::new(OracleConfig {
                vocab_size: 50_000,
                verify: false,
                ..OracleConfig::default()
            })?;
            let remark = format!("{}, and the host's own time on top", name(SMALL_DEVICE));
            take_turns(measure, &mut oracle, || Pace::Virtual(SMALL_DEVICE), remark)
        }
        #[cfg(feature = "mlx")]
        Some(path) => {
            use std::time::Instant;

            let mut model = crate::engine::mlx_model(path)?;
            let remark = "SmolLM2-135M on MLX, cores and device on one thread".to_owned();
            take_turns(measure, &mut model, || Pace::Real(Instant::now()), remark)
        }
        #[cfg(not(feature = "mlx"))]
        Some(_) => Err(crate::engine::NO_MLX.into()),
    }
}

fn take_turns<M: Model>(
    measure: Measure,
    model: &mut M,
    pace: impl Fn() -> Pace,
    remark: String,
) -> Result<Report> {
    let mut report = Report::default();
    let (mut on, mut off) = (Vec::new(), Vec::new());
    // The first pair does not count.
    for round in 0..=measure.rounds {
        let with = measure.turn(model, pace(), round, true)?;
        let without = measure.turn(model, pace(), round, false)?;
        if round > 0 {
            report.sample("throughput", without.seconds / with.seconds);
            on.push(with);
            off.push(without);
        }
    }
    let middle =
        |turns: &[Turn], of: fn(&Turn) -> f64| median(&turns.iter().map(of).collect::<Vec<f64>>());
    let seconds = |turn: &Turn| turn.seconds;
    let host = |turn: &Turn| turn.host_seconds * 1e3;
    report.remark(
        "throughput",
        format!(
            "{remark}: {:.3} s with, {:.3} s without; of these the cores' {:.2} and {:.2} ms",
            middle(&on, seconds),
            middle(&off, seconds),
            middle(&on, host),
            middle(&off, host),
        ),
    );
    Ok(report)
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
            #[cfg(feature = "mlx")]
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
            class: Priority::Normal,
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
