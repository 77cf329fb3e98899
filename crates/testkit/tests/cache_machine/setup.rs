//! The start of a history: a model's shape, the cache's settings, an injected bug.

use motet_core::config::{CacheConfig, SlotChoice};
use motet_model::oracle::OracleConfig;
use motet_model::{LayerKind, ModelSpec, SegmentSize};
use proptest::prelude::*;

use crate::mutant::Injected;

/// Longest sequence, in tokens. Short, so that sequences reach their ends.
pub(crate) const CONTEXT_TOKENS: usize = 32;
/// Tokens per block in block events.
pub(crate) const BLOCK_TOKENS: usize = 3;

const KINDS: [&[LayerKind]; 5] = [
    &[LayerKind::Full],
    &[LayerKind::Full, LayerKind::Window { tokens: 3 }],
    &[LayerKind::Recurrent],
    &[
        LayerKind::Full,
        LayerKind::Window { tokens: 5 },
        LayerKind::Recurrent,
    ],
    &[LayerKind::Window { tokens: 4 }],
];

/// The configuration of a history.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) layers: &'static [LayerKind],
    pub(crate) can_shift: bool,
    /// Memory for about so many tokens; `None` is memory for everything.
    pub(crate) budget_tokens: Option<usize>,
    pub(crate) share_tokens_min: usize,
    pub(crate) merge_tokens_max: usize,
    pub(crate) restore_interval_tokens: usize,
    pub(crate) slot_choice: SlotChoice,
    pub(crate) tail_block_tokens: usize,
    pub(crate) pinned_tokens_max: Option<usize>,
    /// Operations for which edits are queued before the device carries them out.
    pub(crate) edits_wait: usize,
    pub(crate) injected: Option<Injected>,
}

impl Setup {
    pub(crate) fn oracle(&self) -> OracleConfig {
        OracleConfig {
            vocab_size: 2,
            context_tokens_max: CONTEXT_TOKENS,
            end_tokens: Vec::new(),
            tail_block_tokens: self.tail_block_tokens,
            can_shift: self.can_shift,
            ..OracleConfig::with_layers(self.layers)
        }
    }

    pub(crate) fn cache(&self, spec: &ModelSpec) -> CacheConfig {
        let bytes = |tokens: usize| {
            let states = tokens / 8 * spec.segment_bytes(SegmentSize::whole(1));
            spec.tail_bytes(tokens) + states
        };
        CacheConfig {
            device_bytes_max: bytes(self.budget_tokens.unwrap_or(100_000)),
            share_tokens_min: self.share_tokens_min,
            restore_interval_tokens: self.restore_interval_tokens,
            merge_tokens_max: self.merge_tokens_max,
            slot_choice: self.slot_choice,
            block_tokens: BLOCK_TOKENS,
            pinned_bytes_max: self
                .pinned_tokens_max
                .map(|tokens| spec.segment_bytes(SegmentSize::whole(tokens))),
            ..CacheConfig::default()
        }
    }

    /// Whether memory suffices for everything, so that nothing is rejected or evicted.
    pub(crate) fn has_ample_memory(&self) -> bool {
        self.budget_tokens.is_none()
    }
}

/// Any setup without an injected bug. Half of them have full attention only: all operations are
/// possible only there.
pub(crate) fn any_setup() -> impl Strategy<Value = Setup> {
    let layers =
        prop_oneof![4 => Just(0usize), 1 => Just(1), 1 => Just(2), 1 => Just(3), 1 => Just(4)];
    let budget = prop_oneof![Just(None), Just(Some(40)), Just(Some(70)), Just(Some(130))];
    let choice = prop_oneof![4 => Just(SlotChoice::Best), 1 => Just(SlotChoice::Longest)];
    let pinned = prop_oneof![Just(None), Just(Some(20))];
    let merge = prop_oneof![1 => Just(0usize), 3 => Just(8), 3 => Just(64)];
    (
        (layers, prop::bool::weighted(0.85), budget, choice, pinned),
        (1usize..4, merge, 3usize..12, 1usize..5, 1usize..4),
    )
        .prop_map(
            |((layers, can_shift, budget_tokens, slot_choice, pinned_tokens_max), numbers)| Setup {
                layers: KINDS[layers],
                can_shift,
                budget_tokens,
                share_tokens_min: numbers.0,
                merge_tokens_max: numbers.1,
                restore_interval_tokens: numbers.2,
                slot_choice,
                tail_block_tokens: numbers.3,
                pinned_tokens_max,
                edits_wait: numbers.4,
                injected: None,
            },
        )
}
