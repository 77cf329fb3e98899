//! Changes of the cache, for Dynamo's router: salted blocks too, which it knows by their hashes, and
//! the tier of each.

use std::sync::Arc;

use dynamo_backend_common::KvEventPublisher;
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, StorageTier, compute_block_hash_for_seq,
};
use motet::Engine;
use motet::cache::{BlockEvent, BlockHash, BlockTier, PrefixKey};

/// The engine's rank among its parts, of which it has one.
pub(crate) const RANK: u32 = 0;

/// Publishes the cache's contents until the engine is gone.
pub(crate) async fn publish(engine: Engine, publisher: Arc<KvEventPublisher>) {
    let block_tokens = publisher.kv_block_size();
    'all: loop {
        let mut events = match engine.follow_blocks().await {
            Ok(events) => events,
            Err(error) => {
                tracing::info!(%error, "KV events end");
                return;
            }
        };
        while let Some(batch) = events.next().await {
            if batch.missed > 0 {
                tracing::warn!(
                    missed = batch.missed,
                    "KV events were missed: all blocks are published again"
                );
                continue 'all;
            }
            let events = batch.events.iter();
            let sent = events.filter_map(|event| sent_event(event, block_tokens));
            let sent = sent.map(|(data, tier)| {
                let event = KvCacheEvent {
                    event_id: publisher.next_event_id(),
                    data,
                    dp_rank: RANK,
                };
                (event, tier)
            });
            if publisher
                .publish_batch_with_storage_tiers(sent.collect())
                .is_err()
            {
                tracing::info!("KV events end: their publisher has ended");
                return;
            }
        }
    }
}

/// The change as Dynamo's router takes it, and the tier that changed; `None` for blocks that it must not
/// know.
fn sent_event(event: &BlockEvent, block_tokens: u32) -> Option<(KvCacheEventData, StorageTier)> {
    match event {
        BlockEvent::Stored {
            tier,
            key,
            parent,
            hashes,
            tokens,
        } if is_published(key) => {
            let options = BlockHashOptions {
                cache_namespace: key.salt.name(),
                ..BlockHashOptions::default()
            };
            let of_tokens = compute_block_hash_for_seq(tokens, block_tokens, options);
            let blocks = hashes.iter().zip(of_tokens);
            let blocks = blocks.map(|(hash, tokens_hash)| KvCacheStoredBlockData {
                block_hash: sent_hash(hash),
                tokens_hash,
                mm_extra_info: None,
            });
            let data = KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: parent.as_ref().map(sent_hash),
                start_position: None,
                blocks: blocks.collect(),
            });
            Some((data, sent_tier(*tier)?))
        }
        BlockEvent::Removed { tier, key, hashes } if is_published(key) => {
            let block_hashes = hashes.iter().map(sent_hash).collect();
            let data = KvCacheEventData::Removed(KvCacheRemoveData { block_hashes });
            Some((data, sent_tier(*tier)?))
        }
        BlockEvent::AllRemoved => Some((KvCacheEventData::Cleared, StorageTier::Device)),
        _ => None,
    }
}

/// Whether the router can tell the key. It cannot tell a private salt, which is of one sequence, nor one with an
/// empty name, which Dynamo takes for none. Requests name no adapters here.
fn is_published(key: &PrefixKey) -> bool {
    !key.is_private() && key.salt.name() != Some("") && key.adapter.is_none()
}

fn sent_tier(tier: BlockTier) -> Option<StorageTier> {
    match tier {
        BlockTier::Device => Some(StorageTier::Device),
        BlockTier::Host => Some(StorageTier::HostPinned),
        BlockTier::Disk => Some(StorageTier::Disk),
        _ => None,
    }
}

fn sent_hash(hash: &BlockHash) -> ExternalSequenceBlockHash {
    ExternalSequenceBlockHash(hash.0)
}

#[cfg(test)]
mod tests {
    use dynamo_kv_router::protocols::LocalBlockHash;
    use motet::SequenceId;
    use motet::cache::Salt;

    use super::*;

    fn stored(salt: Salt) -> BlockEvent {
        BlockEvent::Stored {
            tier: BlockTier::Device,
            key: PrefixKey::of(salt),
            parent: Some(BlockHash(7)),
            hashes: vec![BlockHash(8), BlockHash(9)],
            tokens: vec![1, 2, 3, 4],
        }
    }

    /// The parent, and each block's hash and the hash of its tokens.
    type SentBlocks = (Option<u64>, Vec<(u64, LocalBlockHash)>);

    fn sent(event: &BlockEvent) -> Option<SentBlocks> {
        let (data, tier) = sent_event(event, 2)?;
        assert_eq!(tier, StorageTier::Device);
        let KvCacheEventData::Stored(stored) = data else {
            panic!("expected stored blocks")
        };
        let blocks = stored
            .blocks
            .iter()
            .map(|block| (block.block_hash.0, block.tokens_hash));
        Some((stored.parent_hash.map(|hash| hash.0), blocks.collect()))
    }

    #[test]
    fn blocks_have_the_hashes_by_which_the_router_looks_requests_up() {
        for name in [None, Some("tenant")] {
            let salt = name.map_or_else(Salt::default, Salt::new);
            // The router hashes a request's prompt, under the namespace that the request names.
            let options = BlockHashOptions {
                cache_namespace: name,
                ..BlockHashOptions::default()
            };
            let asked = compute_block_hash_for_seq(&[1, 2, 3, 4, 5], 2, options);
            let expected = [8, 9].into_iter().zip(asked).collect();
            assert_eq!(sent(&stored(salt)), Some((Some(7), expected)));
        }
        let (shared, salted) = (
            sent(&stored(Salt::default())),
            sent(&stored(Salt::new("tenant"))),
        );
        assert_ne!(shared, salted, "tenants would find each other's blocks");
    }

    #[test]
    fn blocks_of_one_sequence_are_not_published() {
        let private = Salt::private(SequenceId(1));
        assert!(sent_event(&stored(private.clone()), 2).is_none());
        let hashes = vec![BlockHash(8)];
        let removed = BlockEvent::Removed {
            tier: BlockTier::Host,
            key: PrefixKey::of(private),
            hashes,
        };
        assert!(sent_event(&removed, 2).is_none());
        let (data, _) = sent_event(&BlockEvent::AllRemoved, 2).expect("published");
        assert_eq!(data, KvCacheEventData::Cleared);
    }

    #[test]
    fn a_salt_with_an_empty_name_is_not_published_as_none() {
        assert!(sent_event(&stored(Salt::new("")), 2).is_none());
    }
}
