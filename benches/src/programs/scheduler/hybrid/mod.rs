//! Chats on a model that cannot resume after any token, compared with the same chats on a model
//! of full attention of the same shape.
//!
//! The share of prompt tokens served from the cache is compared, and the cached bytes.
//! The same chats run a third time with the baseline that takes state at the end of each node
//! and keeps it. The models are oracles of the layers and the bytes of real families;
//! [`Chats::hold`] takes an engine on any model.

pub(crate) mod chats;
pub(crate) mod shapes;

use motet::config::{EngineConfig, RestorePointPolicy};
use motet::model::oracle::OracleConfig;
use motet::{Engine, Shutdown};

use crate::measured::Records;
use crate::programs::Result;
use crate::programs::engine::{on_oracle, runtime};
use crate::protocol::Size;
use chats::{Chats, Outcome};
use shapes::Shape;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    chats: u64,
    turns: u64,
}

/// The counts of the same chats on three models.
struct Compared {
    full: Outcome,
    hybrid: Outcome,
    baseline: Outcome,
}

pub(crate) fn run(size: Size) -> Result<Records> {
    let measure = Measure {
        chats: size.pick(12, 2),
        turns: size.pick(10, 3),
    };
    runtime(2)?.block_on(async {
        let mut records = Records::default();
        let mut worst = (f64::INFINITY, 0.0_f64);
        for shape in Shape::ALL {
            for (name, chats) in Chats::kinds(measure.chats, measure.turns) {
                let compared = Compared::new(&shape, &chats).await?;
                let (reuse, bytes) = compared.ratios(&compared.hybrid);
                worst = (worst.0.min(reuse), worst.1.max(bytes));
                compared.remark(shape.name, name, &mut records);
            }
        }
        records.sample("cache.hybrid_reuse", worst.0);
        records.sample("cache.hybrid_bytes", worst.1);
        Ok(records)
    })
}

impl Compared {
    async fn new(shape: &Shape, chats: &Chats) -> Result<Self> {
        let likely = RestorePointPolicy::Likely;
        Ok(Self {
            full: outcome(shape.full(), likely, chats).await?,
            hybrid: outcome(shape.oracle(), likely, chats).await?,
            baseline: outcome(shape.oracle(), RestorePointPolicy::EveryNode, chats).await?,
        })
    }

    /// Reuse and bytes of an outcome ÷ those of full attention.
    fn ratios(&self, outcome: &Outcome) -> (f64, f64) {
        let bytes = outcome.cached_bytes as f64 / self.full.cached_bytes as f64;
        (outcome.reuse() / self.full.reuse(), bytes)
    }

    fn remark(&self, shape: &str, chats: &str, records: &mut Records) {
        let (reuse, bytes) = self.ratios(&self.hybrid);
        let (baseline_reuse, baseline_bytes) = self.ratios(&self.baseline);
        let percent = |outcome: &Outcome| 100.0 * outcome.reuse();
        records.remark(
            "cache.hybrid_reuse",
            format!(
                "{shape}, {chats}: {:.1} % of {} prompt tokens cached, {:.1} % with full \
                 attention: {reuse:.3}; state at every node: {baseline_reuse:.3}",
                percent(&self.hybrid),
                self.hybrid.prompt_tokens,
                percent(&self.full),
            ),
        );
        records.remark(
            "cache.hybrid_bytes",
            format!(
                "{shape}, {chats}: {bytes:.2}; state at every node: {baseline_bytes:.2}; {} steps \
                 and {}, {} with full attention",
                self.hybrid.steps, self.baseline.steps, self.full.steps
            ),
        );
    }
}

async fn outcome(
    oracle: OracleConfig,
    restore_points: RestorePointPolicy,
    chats: &Chats,
) -> Result<Outcome> {
    let mut config = EngineConfig::default();
    config.cache.restore_points = restore_points;
    config.cache.device_bytes_max = 1 << 30;
    config.cache.full_sequences_min = 0;
    let engine: Engine = on_oracle(oracle, config).await?;
    let outcome = chats.hold(&engine).await;
    engine.shutdown(Shutdown::Finish).await;
    outcome
}
