//! The time for which the device waits while there is work: sequences that only decode.

use std::path::Path;

use motet::config::EngineConfig;
use motet::{Engine, Shutdown};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use crate::Result;
use crate::arrivals::prompt;
use crate::engine::{on_model, request, runtime, submit_all, wait_for_tokens};
use crate::report::Report;

/// Tokens that all decode before the measurement starts.
const WARM_TOKENS: usize = 4;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Measure {
    rounds: u64,
    sequences: usize,
    prompt_tokens: usize,
    /// Tokens that each decodes.
    tokens: usize,
}

pub(crate) fn run(measure: Measure, model: Option<&Path>) -> Result<Report> {
    runtime(2)?.block_on(async {
        let engine = on_model(model, EngineConfig::default()).await?;
        let report = measure.take_turns(&engine).await;
        engine.shutdown(Shutdown::Abort).await;
        report
    })
}

impl Measure {
    async fn take_turns(self, engine: &Engine) -> Result<Report> {
        let mut report = Report::default();
        for round in 0..self.rounds {
            let mut numbers = ChaCha8Rng::seed_from_u64(round);
            let output_tokens = 2 * WARM_TOKENS + self.tokens;
            let requests = (0..self.sequences)
                .map(|_| request(prompt(&mut numbers, self.prompt_tokens), output_tokens));
            let timed_readers = submit_all(engine, requests.collect()).await?;
            wait_for_tokens(&timed_readers, WARM_TOKENS).await?;
            let before = engine.stats();
            wait_for_tokens(&timed_readers, WARM_TOKENS + self.tokens).await?;
            let after = engine.stats();
            for timed_reader in timed_readers {
                timed_reader.end().await?;
            }
            let idle = (after.device_idle - before.device_idle).as_secs_f64();
            let busy = (after.device_busy - before.device_busy).as_secs_f64();
            let steps = (after.steps - before.steps).max(1) as f64;
            report.sample("share", idle / (idle + busy));
            if round + 1 == self.rounds {
                let remark = format!(
                    "{} sequences: {:.1} ms busy and {:.3} ms idle a step, in the last of {} turns",
                    self.sequences,
                    1e3 * busy / steps,
                    1e3 * idle / steps,
                    self.rounds,
                );
                report.remark("share", remark);
            }
        }
        Ok(report)
    }
}
