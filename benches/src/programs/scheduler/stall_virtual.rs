//! The longest gap when long prompts arrive, in the virtual engine: how well the scheduler
//! predicts a step's time, without a machine's noise.

use std::time::Duration;

use motet::UserId;
use motet::config::{CacheConfig, ChunkingConfig, InterToken, SchedulerConfig};
use motet::model::Model;
use motet::model::oracle::Oracle;
use motet::request::Priority;
use motet_core::scheduler::policy::step_cost::StepCost;

use crate::measured::{Records, largest, median, percentile};
use crate::programs::Result;
use crate::programs::arrivals::Kind;
use crate::programs::engine::free_oracle;
use crate::programs::scheduler::fair::name;
use crate::programs::scheduler::harness::{CoreHarness, LARGE_DEVICE, Pace, SMALL_DEVICE};
use crate::protocol::Size;

const DECODING: usize = 4;
/// Tokens that they decode before the prompts arrive, about.
const WARM_TOKENS: u32 = 64;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Loads, each another sample.
    seeds: u64,
    prompt_tokens: usize,
    prompts: usize,
}

/// The results of one load.
struct Stall {
    before: f64,
    gaps: Vec<f64>,
    /// Until the last prompt had its first token.
    seconds: f64,
}

pub(crate) fn run(size: Size) -> Result<Records> {
    let measure = Measure {
        seeds: size.pick(5, 1),
        prompt_tokens: size.pick(2_048, 64),
        prompts: size.pick(8, 2),
    };
    let mut records = Records::default();
    for cost in [SMALL_DEVICE, LARGE_DEVICE] {
        let bounded = SchedulerConfig {
            chunking: ChunkingConfig {
                step_tokens_max: if cost == SMALL_DEVICE { 256 } else { 2_048 },
                ..ChunkingConfig::default()
            },
            ..SchedulerConfig::default()
        };
        let unbounded = SchedulerConfig {
            chunking: ChunkingConfig {
                step_tokens_max: 2 * measure.prompt_tokens,
                inter_token: InterToken::Unbounded,
                ..ChunkingConfig::default()
            },
            ..SchedulerConfig::default()
        };
        for seed in 1..=measure.seeds {
            let stall = measure.stall(cost, &bounded, seed)?;
            let free = measure.stall(cost, &unbounded, seed)?;
            let longest = |stall: &Stall| largest(&stall.gaps) / stall.before;
            if cost == SMALL_DEVICE {
                records.sample("scheduler.stall_virtual", longest(&stall));
            }
            if seed == 1 {
                let remark = format!(
                    "{}: longest gap {:.2} steps, p99 {:.2}, p50 {:.2}; prefill takes {:.2} times what \
                     it takes unbounded (then {:.0})",
                    name(cost),
                    longest(&stall),
                    percentile(&stall.gaps, 0.99) / stall.before,
                    median(&stall.gaps) / stall.before,
                    stall.seconds / free.seconds,
                    longest(&free),
                );
                records.remark("scheduler.stall_virtual", remark);
            }
        }
    }
    Ok(records)
}

impl Measure {
    fn stall(self, cost: StepCost, scheduler: &SchedulerConfig, seed: u64) -> Result<Stall> {
        let mut model = Oracle::new(free_oracle())?;
        let decoding = Kind {
            user: UserId(1),
            priority: Priority::Normal,
            prompt_tokens: 64,
            output_tokens: 2_000,
        };
        let prompts = Kind {
            user: UserId(2),
            prompt_tokens: self.prompt_tokens,
            output_tokens: 1,
            ..decoding
        };
        let step = cost.base + DECODING as f64 * cost.per_token;
        let came_at = Duration::from_secs_f64(step) * WARM_TOKENS;
        let mut arrivals = decoding.arrivals(DECODING, Duration::ZERO, seed);
        arrivals.extend(prompts.arrivals(self.prompts, Duration::ZERO, seed + 1_000));
        for arrival in &mut arrivals[DECODING..] {
            arrival.at = came_at;
        }
        let cache = CacheConfig::default();
        let mut harness =
            CoreHarness::new(model.spec(), scheduler.clone(), cache, Pace::Virtual(cost));
        harness.serve(&mut model, arrivals);
        if let Some(error) = harness.callers.failed() {
            return Err(format!("a request failed: {error}").into());
        }
        let (decoding, prompts) = harness.callers.all.split_at(DECODING);
        let prefilled_at = prompts
            .iter()
            .filter_map(|caller| caller.token_times.first())
            .max();
        let prefilled_at = prefilled_at.copied().unwrap_or_default();
        let gaps = |selected: &dyn Fn(&Duration) -> bool| -> Vec<f64> {
            let pairs = decoding
                .iter()
                .flat_map(|caller| caller.token_times.windows(2));
            let selected = pairs.filter(|pair| selected(&pair[1]));
            selected
                .map(|pair| (pair[1] - pair[0]).as_secs_f64())
                .collect()
        };
        Ok(Stall {
            before: median(&gaps(&|at| *at < came_at)),
            gaps: gaps(&|at| (came_at..=prefilled_at).contains(at)),
            seconds: (prefilled_at - came_at).as_secs_f64(),
        })
    }
}
