//! Two users, one greedy: the gap between their services, and the cost of fairness.
//!
//! The greedy user sends ten times the polite one's work in prompts eight times as long. While
//! both have waiting requests, their services since then may differ by `2 max(w_p L_input, w_q
//! M)` at most (Sheng et al., OSDI'24, theorem 4.2): `w_p` and `w_q` are the prices of a prompt
//! token and an output token, `L_input` is the longest prompt, and `M` the most tokens in the
//! running batch.

use std::time::Duration;

use motet::UserId;
use motet::config::{CacheConfig, ChunkingConfig, FairnessConfig, SchedulerConfig};
use motet::model::Model;
use motet::model::oracle::Oracle;
use motet::request::Priority;
use motet_core::scheduler::policy::step_cost::StepCost;

use crate::measured::{Records, median_of};
use crate::programs::Result;
use crate::programs::arrivals::{Arrival, Kind, merged};
use crate::programs::engine::free_oracle;
use crate::programs::scheduler::harness::{
    CoreHarness, LARGE_DEVICE, Pace, SMALL_DEVICE, WaitSeconds,
};
use crate::protocol::Size;

const POLITE: UserId = UserId(1);
const GREEDY: UserId = UserId(2);
const PROMPT_TOKENS: usize = 64;
const OUTPUT_TOKENS: usize = 32;
/// Sequences among which a step's base cost is shared, about.
const BATCH: f64 = 32.0;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Loads, each another sample.
    seeds: u64,
    /// The polite user's requests.
    requests: usize,
}

/// One load on one device.
#[derive(Clone, Copy)]
struct Load {
    cost: StepCost,
    step_tokens_max: usize,
    seed: u64,
    requests: usize,
    /// The polite user's part of the device's capacity.
    part: f64,
    /// Whether classes in which a request waits long have turns.
    ages: bool,
}

/// The results of one load on one device.
#[derive(Clone, Copy)]
struct Sample {
    gap: f64,
    throughput: f64,
    beside: WaitSeconds,
    alone: WaitSeconds,
    first_come: WaitSeconds,
}

pub(crate) fn run(size: Size) -> Result<Records> {
    let measure = Measure {
        seeds: size.pick(5, 1),
        requests: size.pick(400, 20),
    };
    let mut records = Records::default();
    for (cost, step_tokens_max) in [(SMALL_DEVICE, 256), (LARGE_DEVICE, 2_048)] {
        for ages in [true, false] {
            let sample = |seed| {
                let load = Load {
                    cost,
                    step_tokens_max,
                    seed,
                    requests: measure.requests,
                    part: 0.0,
                    ages,
                };
                load.sample()
            };
            let samples: Vec<Sample> = (1..=measure.seeds).map(sample).collect::<Result<_>>()?;
            let middle = |of: fn(&Sample) -> f64| median_of(&samples, of);
            let ageing = if ages { "" } else { ", no turns for the aged" };
            let name = format!("{}{ageing}", name(cost));
            let gap = middle(|sample| sample.gap);
            records.remark("scheduler.fair_gap_vs_bound", format!("{name}: {gap:.3}"));
            let throughput = middle(|sample| sample.throughput);
            records.remark(
                "scheduler.fair_throughput",
                format!("{name}: {throughput:.3}"),
            );
            let ratio = middle(Sample::wait_by_alone);
            let Sample {
                beside,
                alone,
                first_come,
                ..
            } = samples[0];
            records.remark(
                "scheduler.polite_ttft",
                format!(
                    "{name}: {ratio:.2}; p99 {beside}, alone {alone}, first come first served \
                     {first_come}"
                ),
            );
            for sample in samples.iter().filter(|_| ages && cost == SMALL_DEVICE) {
                records.sample("scheduler.fair_gap_vs_bound", sample.gap);
                records.sample("scheduler.fair_throughput", sample.throughput);
                records.sample("scheduler.polite_ttft", sample.wait_by_alone());
            }
        }
    }
    Ok(records)
}

impl Sample {
    fn wait_by_alone(&self) -> f64 {
        self.beside.token / self.alone.token
    }
}

/// A device in words.
pub(crate) fn name(cost: StepCost) -> String {
    format!(
        "virtual device of {:.0} ms a step, {:.2} ms a token, {:.2} µs a token attended to",
        cost.base * 1e3,
        cost.per_token * 1e3,
        cost.per_attended * 1e6
    )
}

impl Load {
    fn sample(self) -> Result<Sample> {
        let with_part = |part| Self { part, ..self };
        // Both exceed the device's capacity.
        let fair = with_part(1.0).serve(true, true)?;
        let first_come = with_part(1.0).serve(true, false)?;
        // The polite user has less than its share.
        let share = with_part(0.2);
        Ok(Sample {
            gap: gap_by_bound(&fair),
            throughput: rate(&fair) / rate(&first_come),
            beside: polite_wait(&share.serve(true, true)?),
            alone: polite_wait(&share.serve(false, true)?),
            first_come: polite_wait(&share.serve(true, false)?),
        })
    }

    fn serve(self, greedy_too: bool, has_separate_users: bool) -> Result<CoreHarness<Oracle>> {
        let mut model = Oracle::new(free_oracle())?;
        let scheduler = SchedulerConfig {
            chunking: ChunkingConfig {
                step_tokens_max: self.step_tokens_max,
                ..ChunkingConfig::default()
            },
            fairness: FairnessConfig {
                ageing: FairnessConfig::default().ageing.filter(|_| self.ages),
                ..FairnessConfig::default()
            },
            ..SchedulerConfig::default()
        };
        let cache = CacheConfig::default();
        let mut harness =
            CoreHarness::new(model.spec(), scheduler, cache, Pace::Virtual(self.cost));
        harness.serve(&mut model, self.arrivals(greedy_too, has_separate_users));
        match harness.callers.failed() {
            Some(error) => Err(format!("a request failed: {error}").into()),
            None => Ok(harness),
        }
    }

    fn arrivals(self, greedy_too: bool, has_separate_users: bool) -> Vec<Arrival> {
        let polite = Kind {
            user: POLITE,
            priority: Priority::Normal,
            prompt_tokens: PROMPT_TOKENS,
            output_tokens: OUTPUT_TOKENS,
        };
        let greedy = Kind {
            user: if has_separate_users { GREEDY } else { POLITE },
            prompt_tokens: 8 * PROMPT_TOKENS,
            ..polite
        };
        let seconds = |kind: Kind| {
            self.cost.per_token * kind.tokens() as f64
                + self.cost.base / BATCH * kind.output_tokens as f64
        };
        let apart = |kind, part| Duration::from_secs_f64(seconds(kind) / part);
        let span = apart(polite, self.part) * self.requests as u32;
        let greedy_apart = apart(greedy, 10.0 * self.part);
        let greedy_requests = if greedy_too {
            (span.as_secs_f64() / greedy_apart.as_secs_f64()) as usize
        } else {
            0
        };
        merged([
            polite.arrivals(self.requests, apart(polite, self.part), self.seed),
            greedy.arrivals(greedy_requests, greedy_apart, self.seed + 1_000),
        ])
    }
}

/// The largest difference between both services since both had waiting requests, ÷ the bound.
fn gap_by_bound(harness: &CoreHarness<Oracle>) -> f64 {
    let prices = FairnessConfig::default();
    let (prompt, output) = (prices.prompt_token_service, prices.output_token_service);
    let (mut difference, mut least, mut most, mut gap) = (0.0, 0.0, 0.0, 0.0_f64);
    for step in &harness.steps {
        let both = [POLITE, GREEDY]
            .iter()
            .all(|user| step.backlogged.contains(user));
        if !both {
            (difference, least, most) = (0.0, 0.0, 0.0);
            continue;
        }
        for (user, sign) in [(POLITE, 1.0), (GREEDY, -1.0)] {
            let had = step.evaluated.get(&user).copied().unwrap_or_default();
            difference += sign * (prompt * had.prompt as f64 + output * had.output as f64);
        }
        least = difference.min(least);
        most = difference.max(most);
        gap = gap.max(most - least);
    }
    let running = harness.steps.iter().map(|step| step.cached_tokens).max();
    let longest = (8 * PROMPT_TOKENS) as f64;
    gap / (2.0 * (prompt * longest).max(output * running.unwrap_or(1) as f64))
}

/// Tokens in a second, from the first request to the end of the last.
fn rate(harness: &CoreHarness<Oracle>) -> f64 {
    harness.callers.tokens() as f64 / harness.now().as_secs_f64()
}

fn polite_wait(harness: &CoreHarness<Oracle>) -> WaitSeconds {
    harness
        .callers
        .waits(|caller| caller.prompt.len() == PROMPT_TOKENS)
}
