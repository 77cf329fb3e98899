//! vLLM's KV events, each beginning with its name.
//!
//! Events are arrays, as older versions of vLLM and SGLang write them, and most readers expect. With salts they
//! are maps, as the newest vLLM writes them, with the salt as Dynamo reads it: in `cache_salt`.

use std::time::Duration;

use motet::TokenId;
use motet::cache::{BlockEvent, BlockHash, BlockTier, PrefixKey, Salt};
use serde::Serialize;

use crate::arguments::FleetSettings;

/// The rank of an engine's part, if it has several.
const DATA_PARALLEL_RANK: u32 = 0;

/// How events are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventForm {
    pub(super) block_tokens: usize,
    /// Whether blocks with a salt are published.
    pub(super) has_salts: bool,
    /// Whether blocks in host memory and on the disk are published.
    pub(super) has_tiers: bool,
}

/// A batch of events.
#[derive(Serialize)]
struct Batch<'a>(f64, Vec<Event<'a>>, u32);

#[derive(Serialize)]
#[serde(untagged)]
enum Event<'a> {
    Named(NamedEvent<'a>),
    /// Name, hashes, hash of the block before the first, tokens, tokens of a block, number of an
    /// adapter, medium.
    Stored(
        &'static str,
        Vec<u64>,
        Option<u64>,
        &'a [TokenId],
        usize,
        Option<u64>,
        &'static str,
    ),
    /// Name, hashes, medium.
    Removed(&'static str, Vec<u64>, &'static str),
    /// Name.
    AllRemoved((&'static str,)),
}

/// An event with its fields' names.
#[derive(Serialize)]
#[serde(tag = "type")]
enum NamedEvent<'a> {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: &'a [TokenId],
        block_size: usize,
        lora_id: Option<u64>,
        medium: &'static str,
        lora_name: Option<&'a str>,
        cache_salt: Option<&'a str>,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: &'static str,
    },
    #[serde(rename = "AllBlocksCleared")]
    AllRemoved {},
}

impl EventForm {
    pub(super) fn of(settings: &FleetSettings) -> Self {
        Self {
            block_tokens: settings.kv_events_block_size,
            has_salts: settings.kv_events_salts,
            has_tiers: settings.kv_events_tiers,
        }
    }

    /// Encodes a batch as MessagePack; `None` if nothing in it may be published.
    pub(super) fn encode(&self, events: &[BlockEvent], since_1970: Duration) -> Option<Vec<u8>> {
        let events = events.iter().filter_map(|event| self.event(event));
        let events: Vec<Event<'_>> = events.collect();
        (!events.is_empty()).then(|| {
            let batch = Batch(since_1970.as_secs_f64(), events, DATA_PARALLEL_RANK);
            rmp_serde::to_vec_named(&batch).expect("writing to memory does not fail")
        })
    }

    /// Whether blocks of this key are published. Without names of salts, readers would mix up tenants. A
    /// salt with an empty name is left out in any case: to readers it is no salt. Blocks of adapters are
    /// left out, too.
    fn publishes(&self, key: &PrefixKey) -> bool {
        let is_named = match key.salt.name() {
            Some(name) => self.has_salts && !name.is_empty(),
            None => key.salt == Salt::default(),
        };
        is_named && key.adapter.is_none()
    }

    /// The medium of a tier, as vLLM and Dynamo name it. `None` if its blocks are not published.
    fn medium(&self, tier: BlockTier) -> Option<&'static str> {
        match tier {
            BlockTier::Device => Some("GPU"),
            BlockTier::Host if self.has_tiers => Some("CPU"),
            BlockTier::Disk if self.has_tiers => Some("DISK"),
            _ => None,
        }
    }

    fn event<'a>(&self, event: &'a BlockEvent) -> Option<Event<'a>> {
        match event {
            BlockEvent::Stored {
                tier,
                key,
                parent,
                hashes,
                tokens,
            } if self.publishes(key) => {
                let medium = self.medium(*tier)?;
                let (hashes, parent) = (numbers(hashes), parent.map(|parent| parent.0));
                Some(if self.has_salts {
                    Event::Named(NamedEvent::BlockStored {
                        block_hashes: hashes,
                        parent_block_hash: parent,
                        token_ids: tokens,
                        block_size: self.block_tokens,
                        lora_id: None,
                        medium,
                        lora_name: None,
                        cache_salt: key.salt.name(),
                    })
                } else {
                    let size = self.block_tokens;
                    Event::Stored("BlockStored", hashes, parent, tokens, size, None, medium)
                })
            }
            BlockEvent::Removed { tier, key, hashes } if self.publishes(key) => {
                let medium = self.medium(*tier)?;
                let block_hashes = numbers(hashes);
                Some(if self.has_salts {
                    Event::Named(NamedEvent::BlockRemoved {
                        block_hashes,
                        medium,
                    })
                } else {
                    Event::Removed("BlockRemoved", block_hashes, medium)
                })
            }
            BlockEvent::AllRemoved if self.has_salts => {
                Some(Event::Named(NamedEvent::AllRemoved {}))
            }
            BlockEvent::AllRemoved => Some(Event::AllRemoved(("AllBlocksCleared",))),
            _ => None,
        }
    }
}

fn numbers(hashes: &[BlockHash]) -> Vec<u64> {
    hashes.iter().map(|hash| hash.0).collect()
}

#[cfg(test)]
mod tests {
    use motet::cache::{ActiveAdapter, AdapterKey};
    use serde_json::{Value, json};

    use super::*;

    fn decoded(events: &[BlockEvent], has_salts: bool) -> Option<Value> {
        let form = EventForm {
            block_tokens: 2,
            has_salts,
            has_tiers: false,
        };
        let encoded = form.encode(events, Duration::from_millis(1500))?;
        Some(rmp_serde::from_slice(&encoded).expect("MessagePack"))
    }

    #[test]
    fn events_are_written_as_vllm_writes_them() {
        let shared = PrefixKey::default();
        let stored = BlockEvent::Stored {
            tier: BlockTier::Device,
            key: shared.clone(),
            parent: Some(BlockHash(7)),
            hashes: vec![BlockHash(8), BlockHash(u64::MAX)],
            tokens: vec![1, 2, 3, 70_000],
        };
        let removed = BlockEvent::Removed {
            tier: BlockTier::Device,
            key: shared,
            hashes: vec![BlockHash(8)],
        };
        let expected = json!([
            1.5,
            [
                ["AllBlocksCleared"],
                [
                    "BlockStored",
                    [8, u64::MAX],
                    7,
                    [1, 2, 3, 70_000],
                    2,
                    null,
                    "GPU"
                ],
                ["BlockRemoved", [8], "GPU"],
            ],
            0
        ]);
        let events = [BlockEvent::AllRemoved, stored, removed];
        assert_eq!(decoded(&events, false), Some(expected));
    }

    #[test]
    fn copies_are_published_with_their_media_or_not_at_all() {
        for (tier, medium) in [(BlockTier::Host, "CPU"), (BlockTier::Disk, "DISK")] {
            let removed = BlockEvent::Removed {
                tier,
                key: PrefixKey::default(),
                hashes: vec![BlockHash(8)],
            };
            assert_eq!(decoded(std::slice::from_ref(&removed), false), None);
            let form = EventForm {
                block_tokens: 2,
                has_salts: false,
                has_tiers: true,
            };
            let encoded = form.encode(&[removed], Duration::ZERO);
            let encoded = encoded.expect("it is published");
            let decoded: Value = rmp_serde::from_slice(&encoded).expect("MessagePack");
            assert_eq!(decoded, json!([0.0, [["BlockRemoved", [8], medium]], 0]));
        }
    }

    #[test]
    fn salted_blocks_are_published_with_their_salts_or_not_at_all() {
        let events = |salt: Salt| {
            let key = PrefixKey::of(salt);
            let tier = BlockTier::Device;
            let stored = BlockEvent::Stored {
                tier,
                key: key.clone(),
                parent: None,
                hashes: vec![BlockHash(1)],
                tokens: vec![1, 2],
            };
            let hashes = vec![BlockHash(1)];
            [stored, BlockEvent::Removed { tier, key, hashes }]
        };
        let named = |salt: Value| {
            json!([
                1.5,
                [
                    {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null,
                     "token_ids": [1, 2], "block_size": 2, "lora_id": null, "medium": "GPU",
                     "lora_name": null, "cache_salt": salt},
                    {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
                ],
                0
            ])
        };
        let tenant = events(Salt::new("a tenant"));
        assert_eq!(decoded(&tenant, false), None);
        assert_eq!(decoded(&tenant, true), Some(named("a tenant".into())));
        let shared = decoded(&events(Salt::default()), true);
        assert_eq!(shared, Some(named(Value::Null)));
        // To a reader, an empty salt is none.
        assert_eq!(decoded(&events(Salt::new("")), true), None);
        let of_adapter = events(Salt::default()).map(|mut event| {
            let (BlockEvent::Stored { key, .. } | BlockEvent::Removed { key, .. }) = &mut event
            else {
                panic!("neither is all")
            };
            key.adapter = Some(ActiveAdapter::whole(AdapterKey {
                digest: [1; 32],
                scale: 0,
            }));
            event
        });
        assert_eq!(decoded(&of_adapter, true), None);
        let removed = json!([1.5, [{"type": "AllBlocksCleared"}], 0]);
        assert_eq!(decoded(&[BlockEvent::AllRemoved], true), Some(removed));
    }
}
