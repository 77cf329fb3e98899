//! Chats on oracles of the layers and the bytes of hybrid and window models reuse about as much
//! as with full attention, at few more bytes. `cargo xtask bench cache.hybrid` measures more
//! of the same chats.

#[path = "../../benches/src/programs/scheduler/hybrid/chats.rs"]
mod chats;
#[path = "../../benches/src/programs/scheduler/hybrid/shapes.rs"]
mod shapes;

use chats::{Chats, Outcome};
use motet::config::{EngineConfig, RestorePointPolicy};
use motet::model::oracle::{Oracle, OracleConfig};
use motet::{Engine, EngineStats, Shutdown};
use shapes::Shape;

const CHATS: u64 = 4;
const TURNS: u64 = 10;
/// The goals of `cache.hybrid_reuse` and `cache.hybrid_bytes`.
const REUSE_MIN: f64 = 0.90;
const BYTES_MAX: f64 = 1.3;

async fn outcome(
    oracle: OracleConfig,
    restore_points: RestorePointPolicy,
    chats: &Chats,
) -> (Outcome, EngineStats) {
    let mut config = EngineConfig::default();
    config.cache.restore_points = restore_points;
    config.cache.device_bytes_max = 1 << 30;
    config.cache.full_sequences_min = 0;
    let engine = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")));
    let engine = engine.config(config).start().await;
    let engine = engine.expect("the engine starts");
    let outcome = chats.hold(&engine).await.expect("the chats end well");
    let stats = engine.stats();
    engine.shutdown(Shutdown::Finish).await;
    (outcome, stats)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hybrids_reuse_as_much_as_full_attention_at_few_more_bytes() {
    let mut baseline_bytes_max = 0.0_f64;
    for shape in Shape::ALL {
        for (name, chats) in Chats::kinds(CHATS, TURNS) {
            let likely = RestorePointPolicy::Likely;
            let (full, full_stats) = outcome(shape.full(), likely, &chats).await;
            let (hybrid, stats) = outcome(shape.oracle(), likely, &chats).await;
            let baseline = RestorePointPolicy::EveryNode;
            let (baseline, baseline_stats) = outcome(shape.oracle(), baseline, &chats).await;

            let reuse = hybrid.reuse() / full.reuse();
            let bytes = hybrid.cached_bytes as f64 / full.cached_bytes as f64;
            let of = format!("{}, {name}: {stats:?}", shape.name);
            assert!(reuse >= REUSE_MIN, "reuse {reuse}, {of}");
            assert!(bytes <= BYTES_MAX, "{bytes} times the bytes, {of}");
            assert!(hybrid.cached_bytes <= baseline.cached_bytes, "{of}");
            let baseline_bytes = baseline.cached_bytes as f64 / full.cached_bytes as f64;
            baseline_bytes_max = baseline_bytes_max.max(baseline_bytes);

            assert_eq!(full_stats.cache.restore, None, "{of}");
            let restore = stats.cache.restore.expect("it has restore points");
            assert_eq!(restore.prompts, CHATS * TURNS, "{of}");
            assert!(restore.resumed >= CHATS * (TURNS - 1), "{of}");
            assert!(restore.taken > 0 && restore.given_up > 0, "{of}");
            let baseline = baseline_stats.cache.restore.expect("it has restore points");
            assert!(restore.snapshot_bytes <= baseline.snapshot_bytes, "{of}");
            assert_eq!(baseline.given_up, 0, "{of}");
        }
    }
    assert!(
        baseline_bytes_max > BYTES_MAX,
        "the baseline is far from the goal: {baseline_bytes_max}"
    );
}
