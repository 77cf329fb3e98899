//! The time for which the device waits while there is work: sequences that only decode.

use std::path::Path;

use motet::config::EngineConfig;
use motet::{Engine, Shutdown};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::Records;
use crate::programs::Result;
use crate::programs::arrivals::prompt;
use crate::programs::engine::{on_model, request, runtime, submit_all, wait_for_tokens};
use crate::protocol::Size;

/// Tokens that all decode before the measurement starts.
const WARM_TOKENS: usize = 4;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    rounds: u64,
    sequences: usize,
    prompt_tokens: usize,
    /// Tokens that each decodes.
    tokens: usize,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        rounds: size.rounds() as u64,
        sequences: 16,
        prompt_tokens: size.pick(128, 16),
        tokens: size.pick(64, 8),
    };
    runtime(2)?.block_on(async {
        let engine = on_model(model, EngineConfig::default()).await?;
        let records = measure.take_turns(&engine).await;
        engine.shutdown(Shutdown::Abort).await;
        records
    })
}

impl Measure {
    async fn take_turns(self, engine: &Engine) -> Result<Records> {
        let mut records = Records::default();
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
            records.sample("scheduler.device_idle_share", idle / (idle + busy));
            if round + 1 == self.rounds {
                let remark = format!(
                    "{} sequences: {:.1} ms busy and {:.3} ms idle a step, in the last of {} turns",
                    self.sequences,
                    1e3 * busy / steps,
                    1e3 * idle / steps,
                    self.rounds,
                );
                records.remark("scheduler.device_idle_share", remark);
            }
        }
        Ok(records)
    }
}
