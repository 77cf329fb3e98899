//! Use of the cache, for Dynamo's router and metrics.

use std::sync::Arc;
use std::time::Duration;

use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};
use motet::Engine;
use motet_server::fleet::CacheBlocks;

use crate::kv_events::RANK;

/// Interval at which a change is noticed.
const INTERVAL: Duration = Duration::from_millis(100);

/// Publishes the use of the cache whenever it changes.
pub(crate) async fn publish(engine: Engine, publisher: Arc<SnapshotPublisher>) {
    let mut interval = tokio::time::interval(INTERVAL);
    let (mut last, mut last_counted) = (None, Counted::default());
    loop {
        interval.tick().await;
        let counted = Counted::of(&engine);
        let snapshot = snapshot(
            &CacheBlocks::of(&engine),
            counted.since(last_counted).hit_rate(),
        );
        if last != Some(snapshot) {
            publisher.publish(RANK, snapshot);
            (last, last_counted) = (Some(snapshot), counted);
        }
    }
}

/// Prompt tokens that were looked up and found.
#[derive(Clone, Copy, Default)]
struct Counted {
    asked: u64,
    hit: u64,
}

impl Counted {
    fn of(engine: &Engine) -> Self {
        let cache = engine.stats().cache;
        Self {
            asked: cache.asked_tokens,
            hit: cache.hit_tokens,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            asked: self.asked.saturating_sub(before.asked),
            hit: self.hit.saturating_sub(before.hit),
        }
    }

    fn hit_rate(self) -> Option<f32> {
        (self.asked > 0).then(|| self.hit as f32 / self.asked as f32)
    }
}

fn snapshot(blocks: &CacheBlocks, kv_cache_hit_rate: Option<f32>) -> ComponentSnapshot {
    ComponentSnapshot {
        kv_used_blocks: blocks.used() as u64,
        kv_total_blocks: blocks.total() as u64,
        gpu_cache_usage: blocks.used_share() as f32,
        kv_cache_hit_rate,
        dp_rank: RANK,
    }
}
