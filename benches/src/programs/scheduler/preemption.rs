//! Less memory than the load needs: a preempted sequence continues later with the same tokens.

use std::time::Duration;

use motet::UserId;
use motet::config::{CacheConfig, SchedulerConfig};
use motet::model::Model;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::{Priority, Sampling};
use motet_core::scheduler::policy::step_cost::StepCost;

use crate::measured::{Records, percentile};
use crate::programs::Result;
use crate::programs::arrivals::Kind;
use crate::programs::scheduler::fair::name;
use crate::programs::scheduler::harness::{CoreHarness, LARGE_DEVICE, Pace, SMALL_DEVICE};
use crate::protocol::Size;

/// Memory that the load needs ÷ available memory.
const OVERSUBSCRIPTION: f64 = 1.5;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Loads, each another sample.
    seeds: u64,
    /// Sequences that run at once where memory suffices.
    sequences: usize,
    /// Requests for each of these.
    rounds: usize,
}

/// One load on one device.
#[derive(Clone, Copy)]
struct Load {
    cost: StepCost,
    kind: Kind,
    seed: u64,
    measure: Measure,
}

pub(crate) fn run(size: Size) -> Result<Records> {
    let measure = Measure {
        seeds: size.pick(5, 1),
        sequences: size.pick(32, 4),
        rounds: size.pick(4, 2),
    };
    let mut records = Records::default();
    let kinds = [
        (SMALL_DEVICE, 256),
        (SMALL_DEVICE, 1_024),
        (LARGE_DEVICE, 256),
    ];
    for (cost, prompt_tokens) in kinds {
        let main = cost == SMALL_DEVICE && prompt_tokens == 256;
        let (mut ratios, mut behind) = (Vec::new(), String::new());
        for seed in 1..=measure.seeds {
            let load = Load {
                cost,
                kind: Kind {
                    user: UserId(1),
                    priority: Priority::Normal,
                    prompt_tokens,
                    output_tokens: 256,
                },
                seed,
                measure,
            };
            let free = load.serve(measure.sequences, usize::MAX / 4)?;
            let budget_bytes = (most_bytes(&free) as f64 / OVERSUBSCRIPTION) as usize;
            let pressed = load.serve(measure.sequences, budget_bytes)?;
            let seconds = |harness: &CoreHarness<Oracle>| harness.now().as_secs_f64();
            ratios.push(seconds(&free) / seconds(&pressed));
            let fewer = (measure.sequences as f64 / OVERSUBSCRIPTION) as usize;
            let throttled = load.serve(fewer, budget_bytes)?;
            let evaluated = |harness: &CoreHarness<Oracle>| -> usize {
                harness.steps.iter().map(|step| step.tokens).sum()
            };
            behind = format!(
                "prompts of {prompt_tokens} tokens: {} preemptions in {} requests, {:.3} times \
                 the tokens evaluated, all tokens as in reference runs; {:.3} of the throughput \
                 with {fewer} at once, not {}",
                pressed.scheduler().stats().preempted,
                pressed.callers.all.len(),
                evaluated(&pressed) as f64 / evaluated(&free) as f64,
                seconds(&free) / seconds(&throttled),
                measure.sequences,
            );
        }
        let ratio = percentile(&ratios, 0.5);
        records.remark(
            "scheduler.preemption",
            format!("{}, {behind}: {ratio:.3}", name(cost)),
        );
        for ratio in ratios.into_iter().filter(|_| main) {
            records.sample("scheduler.preemption", ratio);
        }
    }
    Ok(records)
}

/// The most bytes that all slots held at once.
fn most_bytes(harness: &CoreHarness<Oracle>) -> usize {
    let tokens = harness.steps.iter().map(|step| step.cached_tokens).max();
    tokens.unwrap_or_default() * OracleConfig::default().layer_bytes.token
}

impl Load {
    fn serve(self, sequences_max: usize, device_bytes_max: usize) -> Result<CoreHarness<Oracle>> {
        let config = OracleConfig {
            vocab_size: 50_000,
            tail_block_tokens: 1,
            ..OracleConfig::default()
        };
        let mut model = Oracle::new(config.clone())?;
        let scheduler = SchedulerConfig {
            sequences_max,
            ..SchedulerConfig::default()
        };
        let cache = CacheConfig {
            device_bytes_max,
            ..CacheConfig::default()
        };
        let mut harness =
            CoreHarness::new(model.spec(), scheduler, cache, Pace::Virtual(self.cost));
        let requests = self.measure.sequences * self.measure.rounds;
        harness.serve(
            &mut model,
            self.kind.arrivals(requests, Duration::ZERO, self.seed),
        );
        for (number, caller) in harness.callers.all.iter().enumerate() {
            if let Some(error) = &caller.error {
                return Err(format!("request {number} failed: {error}").into());
            }
            let expected =
                config.reference_tokens(&caller.prompt, caller.output_tokens, Sampling::GREEDY);
            if caller.received != expected {
                return Err(
                    format!("request {number} has other tokens than its reference run").into(),
                );
            }
        }
        Ok(harness)
    }
}
