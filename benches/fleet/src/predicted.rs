//! The blocks that workers are expected to have, since sequences were sent to them.
//!
//! With `router_predicted_ttl_secs`, Dynamo's router keeps a second index for them, which looks at
//! the real clock. This one has the same tree and the same timers, on the virtual clock.

use std::collections::HashSet;
use std::time::Duration;

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::approx::{BlockEntry, PruneConfig, PruneManager};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEventData, KvCacheRemoveData, LocalBlockHash, OverlapScores,
    WorkerId, WorkerWithDpRank, compute_seq_hash_for_block,
};
use tokio::time::Instant;

use crate::Result;
use crate::events::{self, Events};

pub(crate) struct PredictedBlocks {
    index: RadixTree,
    timers: PruneManager<BlockEntry>,
    /// Workers whose timers run out without effect.
    lost: HashSet<WorkerId>,
    events: Events,
}

impl PredictedBlocks {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self {
            index: RadixTree::new(),
            timers: PruneManager::new(PruneConfig { ttl }),
            lost: HashSet::new(),
            events: Events::default(),
        }
    }

    /// The number of these blocks that each worker is expected to have.
    pub(crate) fn find(
        &mut self,
        now: Instant,
        blocks: &[LocalBlockHash],
    ) -> Result<OverlapScores> {
        let mut expired = self.timers.pop_expired(now);
        expired.retain(|entry| !self.lost.contains(&entry.worker.worker_id));
        // With a block, the index also drops those behind it.
        expired.sort_unstable_by(|one, other| other.cmp(one));
        for entry in expired {
            let block_hashes = vec![entry.key];
            let removed = KvCacheEventData::Removed(KvCacheRemoveData { block_hashes });
            let event = self.events.number(entry.worker.worker_id, removed);
            self.index.apply_event(event)?;
        }
        Ok(self.index.find_matches(blocks.to_vec(), false))
    }

    /// A sequence of these blocks was sent to a worker.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        worker: WorkerWithDpRank,
        blocks: &[LocalBlockHash],
    ) -> Result<()> {
        let chain = compute_seq_hash_for_block(blocks);
        let chain = chain.into_iter().map(ExternalSequenceBlockHash);
        let entries = chain.clone().enumerate();
        let entries = entries.map(|(seq_position, key)| BlockEntry {
            key,
            worker,
            seq_position,
        });
        self.timers.insert_at(entries.collect(), now);
        if !blocks.is_empty() {
            let stored = events::stored(None, chain.zip(blocks.iter().copied()));
            let event = self.events.number(worker.worker_id, stored);
            self.index.apply_event(event)?;
        }
        Ok(())
    }

    pub(crate) fn remove_worker(&mut self, worker: WorkerId) {
        self.lost.insert(worker);
        self.index.remove_worker(worker);
    }
}
