//! Figures of the cache core.

use super::Goal::{AtLeast, AtMost};
use super::Measure::Run;
use super::Needs::{Nothing, Trace};
use super::Program::{Cache, Scheduler};
use super::{Figure, PERCENT, RATIO};

const TRACE: &str = "prompt blocks of the Mooncake conversation trace, with capacity for this share of the distinct ones";

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "cache.match_gbps", unit: "GB/s", goal: AtLeast(2.0), needs: Nothing,
        measure: Run(Cache, "match"),
        versus: "token bytes of a 64 k-token path, in 1 node or 32, whichever is slower" },
    Figure { name: "cache.session_vs_kvbm", unit: RATIO, goal: AtMost(0.25), needs: Nothing,
        measure: Run(Cache, "session"),
        versus: "kvbm-logical's match of 128 active blocks of 16 tokens, set up as its README does; \
         ours is match, open and close" },
    Figure { name: "cache.evict_growth", unit: RATIO, goal: AtMost(3.0), needs: Nothing,
        measure: Run(Cache, "evict_growth"),
        versus: "insertion and eviction in a trie of 1,000 nodes; ours has 1,000,000" },
    Figure { name: "cache.host_bytes_per_token", unit: "bytes", goal: AtMost(12.0), needs: Nothing,
        measure: Run(Cache, "host_bytes"),
        versus: "cached tokens of 1,000 conversations of 100 tokens" },
    Figure { name: "cache.hit_2", unit: PERCENT, goal: AtLeast(14.0), needs: Trace,
        measure: Run(Scheduler, "trace"),
        versus: TRACE },
    Figure { name: "cache.hit_5", unit: PERCENT, goal: AtLeast(22.0), needs: Trace,
        measure: Run(Scheduler, "trace"),
        versus: TRACE },
    Figure { name: "cache.hit_10", unit: PERCENT, goal: AtLeast(29.5), needs: Trace,
        measure: Run(Scheduler, "trace"),
        versus: TRACE },
    Figure { name: "cache.hit_20", unit: PERCENT, goal: AtLeast(34.4), needs: Trace,
        measure: Run(Scheduler, "trace"),
        versus: TRACE },
    Figure { name: "cache.hybrid_reuse", unit: RATIO, goal: AtLeast(0.99), needs: Nothing,
        measure: Run(Scheduler, "hybrid"),
        versus: "the share of prompt tokens that a model of full attention of the same shape has \
         cached; chats of ten turns (oracle), the worst kind of chats of each family" },
    Figure { name: "cache.hybrid_bytes", unit: RATIO, goal: AtMost(1.05), needs: Nothing,
        measure: Run(Scheduler, "hybrid"),
        versus: "the cached bytes of that model after the same chats" },
    Figure { name: "cache.held_vs_needed", unit: RATIO, goal: AtMost(1.10), needs: Nothing,
        measure: Run(Scheduler, "held"),
        versus: "bytes that the distinct tokens need, after the load generator's load (oracle)" },
];
