//! Many users with several turns each, whose conversations take four times the device's bytes:
//! with host memory beside it, and without.
//!
//! In each turn all users ask at once, and wait for one another before the next, as if all
//! paused for the same time. Everything is counted, including the first turn, in which nothing
//! can be loaded. Both sides take turns. Each has an engine of its own with as many device
//! bytes, and both must give the same tokens: otherwise the whole measurement fails. Both are
//! deterministic, so that tokens do not depend on what else is in a step.

use std::path::Path;
use std::time::Instant;

use motet::config::EngineConfig;
use motet::model::{ModelSpec, SegmentSize};
use motet::{Engine, Shutdown, TokenId};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::{Records, median_of};
use crate::programs::Result;
use crate::programs::arrivals::prompt;
use crate::programs::engine::{on_model_in_mode, request, runtime};
use crate::programs::pages::{config, spec, wait_until_idle};
use crate::protocol::Size;

/// Bytes of all conversations in the end ÷ the device's bytes.
const OVERSUBSCRIBED: usize = 4;
/// Tokens of a phrase that a conversation repeats.
const PHRASE_TOKENS: usize = 16;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    /// Pairs of loads.
    rounds: u64,
    users: usize,
    turns: usize,
    /// Tokens of the first prompt.
    opening_tokens: usize,
    /// Tokens that each turn adds to it.
    question_tokens: usize,
    output_tokens: usize,
    sequences_max: usize,
}

/// The measurements of one load.
#[derive(Debug)]
struct Load {
    seconds: f64,
    prompt_tokens: usize,
    cached_tokens: usize,
    loaded: u64,
    /// Seconds in which the device worked, and in which it waited although there was work.
    busy: f64,
    idle: f64,
    steps: u64,
    /// The answer to each request.
    answers: Vec<Vec<TokenId>>,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        rounds: size.pick(5, 1),
        users: 16,
        turns: size.pick(5, 2),
        opening_tokens: size.pick(384, 64),
        question_tokens: 16,
        output_tokens: size.pick(16, 4),
        sequences_max: 4,
    };
    let spec = spec(model)?;
    runtime(2)?.block_on(async {
        let working_bytes = measure.working_bytes(&spec);
        let config = measure.config(&spec, 3 * working_bytes);
        let with = on_model_in_mode(model, config, true).await?;
        let without = on_model_in_mode(model, measure.config(&spec, 0), true).await?;
        let records = measure.take_turns(&with, &without, &spec).await;
        with.shutdown(Shutdown::Abort).await;
        without.shutdown(Shutdown::Abort).await;
        records
    })
}

impl Measure {
    /// Bytes of all conversations in the end.
    fn working_bytes(self, spec: &ModelSpec) -> usize {
        let tokens = self.opening_tokens
            + self.turns * self.output_tokens
            + (self.turns - 1) * self.question_tokens;
        self.users * spec.segment_bytes(SegmentSize::whole(tokens))
    }

    fn config(self, spec: &ModelSpec, host_bytes: usize) -> EngineConfig {
        let device_bytes = self.working_bytes(spec) / OVERSUBSCRIBED;
        let mut config = config(spec, device_bytes, host_bytes);
        config.scheduler.sequences_max = self.sequences_max;
        config
    }

    async fn take_turns(
        self,
        with: &Engine,
        without: &Engine,
        spec: &ModelSpec,
    ) -> Result<Records> {
        let mut records = Records::default();
        let (mut loads, mut besides) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            let load = self.load(with, round).await?;
            let beside = self.load(without, round).await?;
            records.sample("pager.oversubscribed_gain", beside.seconds / load.seconds);
            let changed = changed(&load.answers, &beside.answers);
            if changed > 0 {
                let all = load.answers.len();
                return Err(format!(
                    "round {round}: {changed} of {all} requests have other tokens with host \
                     memory than without"
                )
                .into());
            }
            records.sample("pager.oversubscribed_changed", changed as f64);
            loads.push(load);
            besides.push(beside);
        }
        let loaded: u64 = loads.iter().map(|load| load.loaded).sum();
        if loaded == 0 {
            return Err("nothing was loaded from host memory".into());
        }
        let requests = (self.users * self.turns) as f64;
        let summary = |loads: &[Load]| {
            let of = |value: fn(&Load) -> f64| median_of(loads, value);
            format!(
                "{:.2} requests/s ({:.0} % of prompt tokens cached, {:.0} steps, device {:.1} s busy \
                 and {:.2} s idle)",
                requests / of(|load| load.seconds),
                100.0 * of(|load| load.cached_tokens as f64 / load.prompt_tokens as f64),
                of(|load| load.steps as f64),
                of(|load| load.busy),
                of(|load| load.idle),
            )
        };
        records.remark(
            "pager.oversubscribed_gain",
            format!(
                "{} users, {} turns, {:.0} MB of conversations; with host memory {}, without {}; \
                 {loaded} copies loaded",
                self.users,
                self.turns,
                self.working_bytes(spec) as f64 / 1e6,
                summary(&loads),
                summary(&besides),
            ),
        );
        records.remark(
            "pager.oversubscribed_changed",
            format!("of {requests} requests in each of {} loads", self.rounds),
        );
        Ok(records)
    }

    async fn load(self, engine: &Engine, seed: u64) -> Result<Load> {
        wait_until_idle(engine, false).await?;
        let mut numbers = ChaCha8Rng::seed_from_u64(seed + 1);
        let phrases: Vec<Vec<TokenId>> = (0..self.users)
            .map(|_| prompt(&mut numbers, PHRASE_TOKENS))
            .collect();
        let mut conversations: Vec<Vec<TokenId>> = vec![Vec::new(); self.users];
        let before = engine.stats();
        let mut answers = Vec::new();
        let started_at = Instant::now();
        for turn in 0..self.turns {
            let tokens = match turn {
                0 => self.opening_tokens,
                _ => self.question_tokens,
            };
            let mut streams = Vec::with_capacity(self.users);
            for (conversation, phrase) in conversations.iter_mut().zip(&phrases) {
                conversation.extend(phrase.iter().cycle().take(tokens));
                let asked = request(conversation.clone(), self.output_tokens);
                streams.push(tokio::spawn(engine.submit(asked).await?.collect()));
            }
            for (conversation, stream) in conversations.iter_mut().zip(streams) {
                let tokens = stream.await??.tokens;
                conversation.extend(&tokens);
                answers.push(tokens);
            }
        }
        let seconds = started_at.elapsed().as_secs_f64();
        let after = engine.stats();
        Ok(Load {
            seconds,
            prompt_tokens: (after.prompt_tokens - before.prompt_tokens) as usize,
            cached_tokens: (after.cached_tokens - before.cached_tokens) as usize,
            loaded: after.pager.unpacked - before.pager.unpacked,
            busy: (after.device_busy - before.device_busy).as_secs_f64(),
            idle: (after.device_idle - before.device_idle).as_secs_f64(),
            steps: after.steps - before.steps,
            answers,
        })
    }
}

/// Number of requests whose tokens differ between the sides.
fn changed(own: &[Vec<TokenId>], other: &[Vec<TokenId>]) -> usize {
    let both = own.iter().zip(other);
    let same = both.filter(|(own, other)| own == other).count();
    own.len().max(other.len()) - same
}
