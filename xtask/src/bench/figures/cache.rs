//! Figures of the cache core.

use super::{Better, Figure, Needs, PERCENT, RATIO};
use crate::bench::{cache_core, demo, trace};

const TRACE: &str = "prompt blocks of the Mooncake conversation trace, with capacity for this share of the distinct ones";

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "cache.match_gbps",
        unit: "GB/s",
        versus: "token bytes of a 64 k-token path, in 1 node or 32, whichever is slower",
        goal: Some(2.0),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: cache_core::matching,
    },
    Figure {
        name: "cache.session_vs_kvbm",
        unit: RATIO,
        versus: "kvbm-logical's match of 128 active blocks of 16 tokens, set up as its README does; \
                 ours is match, open and close",
        goal: Some(0.25),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: cache_core::session,
    },
    Figure {
        name: "cache.evict_growth",
        unit: RATIO,
        versus: "insertion and eviction in a trie of 1,000 nodes; ours has 1,000,000",
        goal: Some(3.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: cache_core::evict_growth,
    },
    Figure {
        name: "cache.host_bytes_per_token",
        unit: "bytes",
        versus: "cached tokens of 1,000 conversations of 100 tokens",
        goal: Some(12.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: cache_core::host_bytes,
    },
    Figure {
        name: "cache.hit_2",
        unit: PERCENT,
        versus: TRACE,
        goal: Some(14.0),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: |workbench| trace::hit_rate(workbench, 2),
    },
    Figure {
        name: "cache.hit_5",
        unit: PERCENT,
        versus: TRACE,
        goal: Some(22.0),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: |workbench| trace::hit_rate(workbench, 5),
    },
    Figure {
        name: "cache.hit_10",
        unit: PERCENT,
        versus: TRACE,
        goal: Some(29.5),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: |workbench| trace::hit_rate(workbench, 10),
    },
    Figure {
        name: "cache.hit_20",
        unit: PERCENT,
        versus: TRACE,
        goal: Some(34.4),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: |workbench| trace::hit_rate(workbench, 20),
    },
    Figure {
        name: "cache.hybrid_reuse",
        unit: RATIO,
        versus: "the share of prompt tokens that a model of full attention of the same shape has \
                 cached; chats of ten turns (oracle), the worst kind of chats of each family",
        goal: Some(0.90),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: |workbench| cache_core::hybrid(workbench, "reuse"),
    },
    Figure {
        name: "cache.hybrid_bytes",
        unit: RATIO,
        versus: "the cached bytes of that model after the same chats",
        goal: Some(1.3),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: |workbench| cache_core::hybrid(workbench, "bytes"),
    },
    Figure {
        name: "cache.held_vs_needed",
        unit: RATIO,
        versus: "bytes that the distinct tokens need, after the load generator's load (oracle)",
        goal: Some(1.10),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: demo::held_vs_needed,
    },
];
