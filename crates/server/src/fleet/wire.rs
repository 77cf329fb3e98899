//! vLLM's KV events: structs as arrays, each event beginning with its name.
//!
//! The newest vLLM writes events as maps. Older versions and SGLang write arrays; Dynamo reads
//! both.

use std::time::Duration;

use motet::TokenId;
use motet::cache::{BlockEvent, BlockHash, Salt};
use serde::Serialize;

/// The medium of the blocks. Blocks in host memory or on a disk are not published.
const MEDIUM: &str = "GPU";
/// The rank of an engine's part, if it has several.
const DATA_PARALLEL_RANK: u32 = 0;

/// A batch of events.
#[derive(Serialize)]
struct Batch<'a>(f64, Vec<Event<'a>>, u32);

#[derive(Serialize)]
#[serde(untagged)]
enum Event<'a> {
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

/// Encodes a batch as MessagePack; `None` if nothing in it may be published. Blocks with a salt
/// are left out: readers look blocks up by their tokens, and would mix up tenants.
pub(super) fn encode(
    events: &[BlockEvent],
    block_tokens: usize,
    since_1970: Duration,
) -> Option<Vec<u8>> {
    let wire_events = events
        .iter()
        .filter_map(|event| wire_event(event, block_tokens));
    let wire_events: Vec<Event<'_>> = wire_events.collect();
    (!wire_events.is_empty()).then(|| {
        let batch = Batch(since_1970.as_secs_f64(), wire_events, DATA_PARALLEL_RANK);
        rmp_serde::to_vec(&batch).expect("writing to memory does not fail")
    })
}

fn wire_event(event: &BlockEvent, block_tokens: usize) -> Option<Event<'_>> {
    let is_shared = |salt: &Salt| *salt == Salt::default();
    match event {
        BlockEvent::Stored {
            salt,
            parent,
            hashes,
            tokens,
        } if is_shared(salt) => Some(Event::Stored(
            "BlockStored",
            numbers(hashes),
            parent.map(|parent| parent.0),
            tokens,
            block_tokens,
            None,
            MEDIUM,
        )),
        BlockEvent::Removed { salt, hashes } if is_shared(salt) => {
            Some(Event::Removed("BlockRemoved", numbers(hashes), MEDIUM))
        }
        BlockEvent::AllRemoved => Some(Event::AllRemoved(("AllBlocksCleared",))),
        _ => None,
    }
}

fn numbers(hashes: &[BlockHash]) -> Vec<u64> {
    hashes.iter().map(|hash| hash.0).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn decoded(events: &[BlockEvent]) -> Option<Value> {
        let encoded = encode(events, 2, Duration::from_millis(1500))?;
        Some(rmp_serde::from_slice(&encoded).expect("MessagePack"))
    }

    #[test]
    fn events_are_written_as_vllm_writes_them() {
        let shared = Salt::default();
        let stored = BlockEvent::Stored {
            salt: shared.clone(),
            parent: Some(BlockHash(7)),
            hashes: vec![BlockHash(8), BlockHash(u64::MAX)],
            tokens: vec![1, 2, 3, 70_000],
        };
        let removed = BlockEvent::Removed {
            salt: shared,
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
        assert_eq!(decoded(&events), Some(expected));
    }

    #[test]
    fn salted_blocks_are_not_published() {
        let salt = Salt::new("a tenant");
        let stored = BlockEvent::Stored {
            salt: salt.clone(),
            parent: None,
            hashes: vec![BlockHash(1)],
            tokens: vec![1, 2],
        };
        let removed = BlockEvent::Removed {
            salt,
            hashes: vec![BlockHash(1)],
        };
        assert_eq!(decoded(&[stored, removed]), None);
    }
}
