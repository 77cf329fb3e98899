//! Measurements of kvbm-logical, Dynamo's block manager.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dynamo_tokens::TokenBlockSequence;
use kvbm_logical::blocks::ImmutableBlock;
use kvbm_logical::manager::FrequencyTrackingCapacity;
use kvbm_logical::{BlockManager, BlockRegistry, KvbmSequenceHashProvider, SequenceHash};

use crate::Result;
use crate::rounds::time;

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: usize = 16;
/// Matched blocks that are kept until all have been timed.
const MATCHES_HELD_MAX: usize = 16;

#[derive(Clone, Debug)]
struct Device;

/// A block manager that holds the blocks of some texts.
pub(crate) struct Kvbm {
    manager: BlockManager<Device>,
    /// Keeps blocks active.
    held: Vec<ImmutableBlock<Device>>,
}

impl Kvbm {
    /// Set up as its own documentation and its own benchmark do: it counts how often blocks are
    /// used, and evicts the least recently used.
    pub(crate) fn new(blocks: usize) -> Result<Self> {
        let tracker = FrequencyTrackingCapacity::Medium.create_tracker();
        let registry = BlockRegistry::builder().frequency_tracker(tracker).build();
        Self::of(registry, blocks)
    }

    /// The same without use counts, so that no policy of its own can use them.
    pub(crate) fn without_frequencies(blocks: usize) -> Result<Self> {
        Self::of(BlockRegistry::builder().build(), blocks)
    }

    fn of(registry: BlockRegistry, blocks: usize) -> Result<Self> {
        let manager = BlockManager::builder()
            .block_count(blocks)
            .block_size(BLOCK_TOKENS)
            .registry(registry)
            .with_lru_backend()
            .build()?;
        Ok(Self {
            manager,
            held: Vec::new(),
        })
    }

    /// Registers the text's whole blocks, and holds them if they are to stay active.
    pub(crate) fn register(&mut self, text: &[u32], active: bool) -> Result<()> {
        let sequence = sequence(text);
        let fresh = self.manager.allocate_blocks(sequence.blocks().len());
        let complete = fresh
            .ok_or("kvbm has too few blocks")?
            .into_iter()
            .zip(sequence.blocks())
            .map(|(block, tokens)| block.complete(tokens))
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|error| error.to_string())?;
        let registered = self.manager.register_blocks(complete);
        if active {
            self.held.extend(registered);
        }
        Ok(())
    }

    /// Seconds to match these hashes. The matched blocks are released outside of that time.
    pub(crate) fn match_seconds(&self, hashes: &[SequenceHash], operations: usize) -> f64 {
        let mut taken = Duration::ZERO;
        let mut remaining = operations;
        while remaining > 0 {
            let batch = remaining.min(MATCHES_HELD_MAX);
            let mut matches = Vec::with_capacity(batch);
            let started_at = Instant::now();
            for _ in 0..batch {
                matches.push(self.manager.match_blocks(black_box(hashes)));
            }
            taken += started_at.elapsed();
            assert!(matches.iter().all(|matched| matched.len() == hashes.len()));
            remaining -= batch;
        }
        taken.as_secs_f64() / operations as f64
    }

    /// Seconds to match these hashes and to release the matched blocks.
    pub(crate) fn match_and_drop_seconds(&self, hashes: &[SequenceHash], operations: usize) -> f64 {
        time(operations, || {
            let matched = self.manager.match_blocks(black_box(hashes));
            assert_eq!(matched.len(), hashes.len(), "all of it is registered");
        })
    }
}

/// The hashes of the text's whole blocks.
pub(crate) fn hashes(text: &[u32]) -> Vec<SequenceHash> {
    let sequence = sequence(text);
    let blocks = sequence.blocks().iter();
    blocks.map(|block| block.kvbm_sequence_hash()).collect()
}

fn sequence(text: &[u32]) -> TokenBlockSequence {
    TokenBlockSequence::from_slice(text, BLOCK_TOKENS as u32, Some(1337))
}
