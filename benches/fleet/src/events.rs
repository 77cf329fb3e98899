//! Motet's block events as the router reads them.

use dynamo_kv_router::RouterEvent;
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, WorkerId, compute_block_hash_for_seq,
};
use motet_core::cache::BlockEvent;

use crate::setting::BLOCK_TOKENS;

/// Numbers events.
#[derive(Debug, Default)]
pub(crate) struct Events(u64);

impl Events {
    /// A worker's event.
    pub(crate) fn of(&mut self, worker: WorkerId, event: &BlockEvent) -> RouterEvent {
        let data = match event {
            BlockEvent::Stored {
                parent,
                hashes,
                tokens,
                ..
            } => {
                let options = BlockHashOptions::default();
                let local = compute_block_hash_for_seq(tokens, BLOCK_TOKENS as u32, options);
                let hashes = hashes.iter().map(|hash| ExternalSequenceBlockHash(hash.0));
                let parent = parent.map(|parent| ExternalSequenceBlockHash(parent.0));
                stored(parent, hashes.zip(local))
            }
            BlockEvent::Removed { hashes, .. } => {
                let hashes = hashes.iter().map(|hash| ExternalSequenceBlockHash(hash.0));
                KvCacheEventData::Removed(KvCacheRemoveData {
                    block_hashes: hashes.collect(),
                })
            }
            _ => unreachable!("a simulated device loses no state"),
        };
        self.number(worker, data)
    }

    pub(crate) fn number(&mut self, worker: WorkerId, data: KvCacheEventData) -> RouterEvent {
        self.0 += 1;
        let event = KvCacheEvent {
            event_id: self.0,
            data,
            dp_rank: 0,
        };
        RouterEvent::new(worker, event)
    }
}

/// Blocks that follow `parent`: their hashes with and without all tokens before them.
pub(crate) fn stored(
    parent: Option<ExternalSequenceBlockHash>,
    blocks: impl Iterator<Item = (ExternalSequenceBlockHash, LocalBlockHash)>,
) -> KvCacheEventData {
    let blocks = blocks.map(|(block_hash, tokens_hash)| KvCacheStoredBlockData {
        block_hash,
        tokens_hash,
        mm_extra_info: None,
    });
    KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash: parent,
        start_position: None,
        blocks: blocks.collect(),
    })
}
