//! An urgent class above a background that takes all remaining capacity.

use std::time::Duration;

use motet::UserId;
use motet::config::{CacheConfig, ChunkingConfig, SchedulerConfig};
use motet::model::Model;
use motet::model::oracle::Oracle;
use motet::request::Priority;
use motet_core::scheduler::policy::step_cost::StepCost;

use crate::measured::{Records, percentile};
use crate::programs::Result;
use crate::programs::arrivals::Kind;
use crate::programs::engine::free_oracle;
use crate::programs::scheduler::fair::name;
use crate::programs::scheduler::harness::{
    CoreHarness, LARGE_DEVICE, Pace, SMALL_DEVICE, WaitSeconds,
};
use crate::protocol::Size;

/// Background requests that are inside beyond those that can run, so that one always waits.
const BACKGROUND_WAITING: usize = 8;
/// The urgent class' part of the device's capacity.
const URGENT_PART: f64 = 0.1;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Loads, each another sample.
    seeds: u64,
    /// Urgent requests of each.
    requests: usize,
}

/// Urgent requests on one device.
#[derive(Clone, Copy)]
struct Load {
    cost: StepCost,
    step_tokens_max: usize,
    seed: u64,
    requests: usize,
    prompt_tokens: usize,
}

pub(crate) fn run(size: Size) -> Result<Records> {
    let measure = Measure {
        seeds: size.pick(5, 1),
        requests: size.pick(400, 4),
    };
    let mut records = Records::default();
    for (cost, step_tokens_max) in [(SMALL_DEVICE, 256), (LARGE_DEVICE, 2_048)] {
        for prompt_tokens in [512, 64] {
            let main = cost == SMALL_DEVICE && prompt_tokens == 512;
            let (mut ratios, mut behind) = (Vec::new(), String::new());
            for seed in 1..=measure.seeds {
                let load = Load {
                    cost,
                    step_tokens_max,
                    seed,
                    requests: measure.requests,
                    prompt_tokens,
                };
                let (beside, preempted) = load.wait(true)?;
                let (alone, _) = load.wait(false)?;
                ratios.push(beside.token / alone.token);
                if seed == 1 {
                    behind = format!(
                        "prompts of {prompt_tokens} tokens: p99 {beside}, alone {alone}; {preempted} \
                         preemptions of background sequences"
                    );
                }
            }
            let ratio = percentile(&ratios, 0.5);
            records.remark(
                "scheduler.priority_ttft",
                format!("{}, {behind}: {ratio:.2}", name(cost)),
            );
            for ratio in ratios.into_iter().filter(|_| main) {
                records.sample("scheduler.priority_ttft", ratio);
            }
        }
    }
    Ok(records)
}

impl Load {
    /// The urgent class' p99 time to its first token, and the number of preemptions.
    fn wait(self, background_too: bool) -> Result<(WaitSeconds, u64)> {
        let urgent = Kind {
            user: UserId(1),
            priority: Priority::Urgent,
            prompt_tokens: self.prompt_tokens,
            output_tokens: 32,
        };
        let background = Kind {
            user: UserId(2),
            priority: Priority::Background,
            prompt_tokens: 512,
            output_tokens: 128,
        };
        let seconds = self.cost.per_token * urgent.tokens() as f64
            + self.cost.base * urgent.output_tokens as f64 / 4.0;
        let apart = Duration::from_secs_f64(seconds / URGENT_PART);
        let mut model = Oracle::new(free_oracle())?;
        let scheduler = SchedulerConfig {
            chunking: ChunkingConfig {
                step_tokens_max: self.step_tokens_max,
                ..ChunkingConfig::default()
            },
            ..SchedulerConfig::default()
        };
        let inside = if background_too {
            scheduler.sequences_max + BACKGROUND_WAITING
        } else {
            0
        };
        let cache = CacheConfig::default();
        let mut harness =
            CoreHarness::new(model.spec(), scheduler, cache, Pace::Virtual(self.cost));
        let more = (1..).flat_map(|round: u64| {
            background.arrivals(64, Duration::ZERO, self.seed + 1_000 * round)
        });
        let arrivals = urgent.arrivals(self.requests, apart, self.seed);
        harness.serve_beside(&mut model, arrivals, more, inside);
        if let Some(error) = harness.callers.failed() {
            return Err(format!("a request failed: {error}").into());
        }
        let waits = harness
            .callers
            .waits(|caller| caller.priority == Priority::Urgent);
        Ok((waits, harness.scheduler().stats().preempted))
    }
}
