//! The table of figures: names, meaning, goals.

use anyhow::Result;

use super::model::Sides;
use super::statistics::Measured;
use super::workbench::{Peer, Workbench};
use super::{cache_core, demo, hostile, model, pager, recovery, scheduler, server, trace};

/// One number that the project wants to be good at.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// What it is measured against.
    pub(super) versus: &'static str,
    pub(super) goal: Option<f64>,
    pub(super) better: Better,
    pub(super) needs: Needs,
    pub(super) measure: fn(&mut Workbench) -> Result<Measured>,
}

/// What must be there for a figure to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// A real model on MLX.
    Mlx,
    /// The same; `--quick` makes do with the oracle.
    Model,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

impl Better {
    pub(super) fn name(self) -> &'static str {
        match self {
            Better::Higher => "higher",
            Better::Lower => "lower",
        }
    }
}

const RATIO: &str = "ratio";
const PERCENT: &str = "%";
const TRACE: &str = "prompt blocks of the Mooncake conversation trace, with room for this share of the distinct ones";
const MLX_LM: &str = "mlx-lm's batch generator, same libmlx, BLAS and f32 weights";
const MLX_LM_SERVER: &str = "wall time of mlx_lm.server with its defaults, same libmlx, BLAS and f32 weights, same load over HTTP";

/// Keys or values of one layer of SmolLM2-135M at 4,096 tokens: what the smallest
/// hidden copy of a tail would take.
const ONE_COPY_BYTES: f64 = (4_096 * 3 * 64 * size_of::<f32>()) as f64;

/// Every figure, in the order in which they are measured.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "model.matmul_sanity_vs_mlx_lm",
        unit: RATIO,
        versus: "GFLOP/s of the same f32 product in mlx-lm's process; about 1 where both use one BLAS",
        goal: None,
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: model::matmul_sanity,
    },
    Figure {
        name: "model.decode_b1_vs_mlx_lm",
        unit: RATIO,
        versus: MLX_LM,
        goal: Some(1.2),
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: |workbench| model::decode(workbench, Sides::MlxLm, 1, 128),
    },
    Figure {
        name: "model.decode_b8_vs_mlx_lm",
        unit: RATIO,
        versus: MLX_LM,
        goal: Some(1.2),
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: |workbench| model::decode(workbench, Sides::MlxLm, 8, 128),
    },
    Figure {
        name: "model.decode_b16_vs_mlx_lm",
        unit: RATIO,
        versus: MLX_LM,
        goal: Some(1.2),
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: |workbench| model::decode(workbench, Sides::MlxLm, 16, 128),
    },
    Figure {
        name: "model.prefill_vs_mlx_lm",
        unit: RATIO,
        versus: MLX_LM,
        goal: Some(1.2),
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: |workbench| model::prefill(workbench, Sides::MlxLm, 512),
    },
    Figure {
        name: "model.cpu_decode_b16_vs_mlx_lm",
        unit: RATIO,
        versus: MLX_LM,
        goal: Some(2.5),
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: |workbench| model::decode(workbench, Sides::MlxLm, 16, 512),
    },
    Figure {
        name: "model.cpu_prefill_2k_vs_mlx_lm",
        unit: RATIO,
        versus: MLX_LM,
        goal: Some(3.0),
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: |workbench| model::prefill(workbench, Sides::MlxLm, 2_048),
    },
    Figure {
        name: "model.cpu_step_vs_roofline",
        unit: RATIO,
        versus: "time in which threads that do nothing else read as many bytes as weights and cached \
                 state have; 16 sequences of 512 tokens",
        goal: Some(3.0),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: |workbench| model::step_vs_roofline(workbench, 16, 512),
    },
    Figure {
        name: "model.deterministic_decode",
        unit: RATIO,
        versus: "decode tokens/s of the fast mode; 16 sequences of 512 tokens",
        goal: None,
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: |workbench| model::decode(workbench, Sides::Fast, 16, 512),
    },
    Figure {
        name: "model.deterministic_prefill",
        unit: RATIO,
        versus: "prefill tokens/s of the fast mode; 2,048 tokens",
        goal: None,
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: |workbench| model::prefill(workbench, Sides::Fast, 2_048),
    },
    Figure {
        name: "model.shared_prefix_gain",
        unit: RATIO,
        versus: "16 private copies of the same 1,024-token prefix",
        goal: Some(1.3),
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: model::shared_prefix_gain,
    },
    Figure {
        name: "model.tail_growth",
        unit: RATIO,
        versus: "growth of a decode step from 128 to 4,096 cached tokens by bytes of weights and state",
        goal: Some(1.3),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: model::tail_growth,
    },
    Figure {
        name: "model.step_bytes_allocated",
        unit: "bytes",
        versus: "keys or values of one layer at 4,096 tokens, the smallest copy that could hide",
        goal: Some(ONE_COPY_BYTES),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: model::step_bytes_allocated,
    },
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
                 ours is match, begin and close",
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
        name: "cache.held_vs_needed",
        unit: RATIO,
        versus: "bytes that the distinct tokens need, after the load generator's load (oracle)",
        goal: Some(1.10),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: demo::held_vs_needed,
    },
    Figure {
        name: "scheduler.stall_8x2048",
        unit: RATIO,
        versus: "median step of four decoding sequences before 8 prompts of 2,048 tokens come; the longest gap then",
        goal: Some(5.0),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: |workbench| scheduler::stall(workbench, "stall"),
    },
    Figure {
        name: "scheduler.stall_2048",
        unit: RATIO,
        versus: "the same, one prompt of 2,048 tokens",
        goal: Some(5.0),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: |workbench| scheduler::stall(workbench, "stall_one"),
    },
    Figure {
        name: "scheduler.stall_512",
        unit: RATIO,
        versus: "the same, one prompt of 512 tokens",
        goal: Some(5.0),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: |workbench| scheduler::stall(workbench, "stall_short"),
    },
    Figure {
        name: "scheduler.stall_virtual",
        unit: RATIO,
        versus: "the same for 8 prompts of 2,048 tokens, in the virtual house",
        goal: Some(5.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: scheduler::stall_virtual,
    },
    Figure {
        name: "scheduler.prefill_cost",
        unit: RATIO,
        versus: "prefill of 8 prompts of 2,048 tokens beside the same four without a bound on a step, of up to 4,096 tokens",
        goal: Some(1.15),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: |workbench| scheduler::stall(workbench, "prefill_cost"),
    },
    Figure {
        name: "scheduler.host_us_per_seq_256",
        unit: "µs",
        versus: "256 sequences on an oracle that costs nothing, for each sequence and step, submit to token in the caller's stream; two workers",
        goal: Some(2.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::host(workbench, "cost"),
    },
    Figure {
        name: "scheduler.host_growth",
        unit: RATIO,
        versus: "the same at 64 sequences; ours has 4,096",
        goal: Some(1.5),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::host(workbench, "growth"),
    },
    Figure {
        name: "scheduler.device_idle_share",
        unit: "share",
        versus: "time while there is work, 16 sequences that decode",
        goal: Some(0.02),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: scheduler::device_idle,
    },
    Figure {
        name: "scheduler.fair_gap_vs_bound",
        unit: RATIO,
        versus: "VTC's bound on the service gap of two backlogged users (virtual house)",
        goal: Some(1.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::fair(workbench, "gap"),
    },
    Figure {
        name: "scheduler.fair_throughput",
        unit: RATIO,
        versus: "first come, first served, on the same load (virtual house)",
        goal: Some(0.97),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::fair(workbench, "throughput"),
    },
    Figure {
        name: "scheduler.polite_ttft",
        unit: RATIO,
        versus: "the polite user's p99 time to first token alone; a greedy one sends ten times its load (virtual house)",
        goal: Some(1.5),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::fair(workbench, "ttft"),
    },
    Figure {
        name: "scheduler.priority_ttft",
        unit: RATIO,
        versus: "the urgent class' p99 time to first token alone; all other places are taken by a background (virtual house)",
        goal: Some(1.5),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: scheduler::priority,
    },
    Figure {
        name: "scheduler.overload_goodput",
        unit: RATIO,
        versus: "tokens of whole answers at the best load; ours has ten times as many requests, for a minute (oracle)",
        goal: Some(0.95),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::overload(workbench, "goodput"),
    },
    Figure {
        name: "scheduler.overload_reject_ms",
        unit: "ms",
        versus: "the longest time until a refusal, meanwhile",
        goal: Some(10.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::overload(workbench, "reject_ms"),
    },
    Figure {
        name: "scheduler.overload_rss_growth",
        unit: RATIO,
        versus: "resident bytes after the first sixth of it",
        goal: Some(1.05),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::overload(workbench, "rss_growth"),
    },
    Figure {
        name: "scheduler.overload_lost",
        unit: "requests",
        versus: "requests that were taken in and not served, meanwhile",
        goal: Some(0.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: |workbench| scheduler::overload(workbench, "lost"),
    },
    Figure {
        name: "scheduler.cache_off_cost",
        unit: RATIO,
        versus: "throughput without a cache, no two prompts begin alike (both cores and the device, no actors)",
        goal: Some(0.99),
        better: Better::Higher,
        needs: Needs::Mlx,
        measure: scheduler::cache_off_cost,
    },
    Figure {
        name: "scheduler.preemption",
        unit: RATIO,
        versus: "throughput with all the memory that the load wants; ours has two thirds (virtual house)",
        goal: Some(0.85),
        better: Better::Higher,
        needs: Needs::Nothing,
        measure: scheduler::preemption,
    },
    Figure {
        name: "pager.copy_vs_memcpy",
        unit: RATIO,
        versus: "a plain copy of as many bytes, one thread; a segment of 2,048 tokens out or in, whichever is slower",
        goal: Some(0.7),
        better: Better::Higher,
        needs: Needs::Model,
        measure: pager::copy,
    },
    Figure {
        name: "pager.itl_beside_paging",
        unit: RATIO,
        versus: "p99 gap between tokens of four decoding sequences, the same short requests beside them, without a segment that moves",
        goal: Some(1.1),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::decode(workbench, "paging"),
    },
    Figure {
        name: "pager.itl_beside_copying",
        unit: RATIO,
        versus: "the same alone; ours has a thread that copies without a pause beside it: what remains to be contended for",
        goal: None,
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::decode(workbench, "copying"),
    },
    Figure {
        name: "pager.ttft_host",
        unit: RATIO,
        versus: "time to first token of a prompt of 2,048 tokens that is computed; ours is in host memory, but for 8 more",
        goal: Some(0.1),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::first_token(workbench, "from_host"),
    },
    Figure {
        name: "pager.ttft_disk",
        unit: RATIO,
        versus: "the same; ours is on the disk, after a restart",
        goal: Some(0.25),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::first_token(workbench, "from_disk"),
    },
    Figure {
        name: "pager.oversubscribed_gain",
        unit: RATIO,
        versus: "requests/s without host memory; conversations take four times the device's bytes",
        goal: Some(2.0),
        better: Better::Higher,
        needs: Needs::Model,
        measure: |workbench| pager::crowd(workbench, "gain"),
    },
    Figure {
        name: "pager.oversubscribed_changed",
        unit: "requests",
        versus: "requests whose tokens are not those without host memory, meanwhile",
        goal: Some(0.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::crowd(workbench, "changed"),
    },
    Figure {
        name: "recovery.pause_loaded",
        unit: RATIO,
        versus: "time to load the model and to compute the contexts of 16 live streams, nothing beside; ours is their longest gap when the device thread is killed",
        goal: Some(1.3),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| recovery::pause(workbench, "loaded"),
    },
    Figure {
        name: "recovery.pause_paged",
        unit: RATIO,
        versus: "the same gap without host memory; ours has copies of live sequences there",
        goal: Some(0.3),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| recovery::pause(workbench, "paged"),
    },
    Figure {
        name: "recovery.pause_paged_seconds",
        unit: "s",
        versus: "the longest gap of 16 live streams that have copies in host memory",
        goal: None,
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| recovery::pause(workbench, "seconds"),
    },
    Figure {
        name: "recovery.tokens_again",
        unit: "tokens",
        versus: "tokens of 16 streams that are computed a second time meanwhile, with copies in host memory",
        goal: None,
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| recovery::pause(workbench, "again"),
    },
    Figure {
        name: "recovery.overhead",
        unit: RATIO,
        versus: "tokens/s of 16 streams whose histories are not kept, nor their state copied to host memory",
        goal: Some(0.99),
        better: Better::Higher,
        needs: Needs::Model,
        measure: |workbench| recovery::overhead(workbench, "overhead"),
    },
    Figure {
        name: "recovery.overhead_processor",
        unit: RATIO,
        versus: "processor time of the same load with nothing kept; ours is the divisor: what a busy machine does not disturb",
        goal: None,
        better: Better::Higher,
        needs: Needs::Model,
        measure: |workbench| recovery::overhead(workbench, "overhead_processor"),
    },
    Figure {
        name: "recovery.tokens_wrong",
        unit: "streams",
        versus: "streams of 16 that have other tokens than undisturbed ones after 20 kills, with host memory and without",
        goal: Some(0.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: recovery::tokens,
    },
    Figure {
        name: "server.overhead_share",
        unit: RATIO,
        versus: "wall time of 16 users' replies of 128 tokens; ours is processor time of all threads but the device's: HTTP, SSE, text, actors",
        goal: Some(0.05),
        better: Better::Lower,
        needs: Needs::Model,
        measure: server::overhead_share,
    },
    Figure {
        name: "server.shared_vs_mlx_lm",
        unit: RATIO,
        versus: MLX_LM_SERVER,
        goal: Some(0.25),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| server::shared(workbench, Peer::MlxLm),
    },
    Figure {
        name: "server.unique_vs_mlx_lm",
        unit: RATIO,
        versus: MLX_LM_SERVER,
        goal: Some(0.75),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| server::unique(workbench, Peer::MlxLm),
    },
    Figure {
        name: "server.shared_vs_llama_server",
        unit: RATIO,
        versus: "wall time of llama-server with 16 slots on the same Q4_1 file as it is, same load over HTTP",
        goal: Some(0.5),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| server::shared(workbench, Peer::LlamaServer),
    },
    Figure {
        name: "server.hostile_grammar_gap",
        unit: RATIO,
        versus: "median step of eight streams undisturbed; their longest gap beside four clients that send the hostile \
                 schemas of tests/hostile/grammars.rs, each waited for and each left after 200 ms",
        goal: Some(3.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: hostile::grammar_gap,
    },
    Figure {
        name: "server.hostile_grammar_after",
        unit: RATIO,
        versus: "processor time of the server for each token of the eight streams before the schemas came; ours is from \
                 2 s after their clients have gone",
        goal: Some(1.15),
        better: Better::Lower,
        needs: Needs::Model,
        measure: hostile::grammar_after,
    },
    Figure {
        name: "server.hostile_grammar_cpu",
        unit: "s",
        versus: "processor time of the server until it rests again, of one hostile schema alone, the dearest",
        goal: Some(2.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: hostile::grammar_cpu,
    },
    Figure {
        name: "server.hostile_grammar_rss",
        unit: "MB",
        versus: "growth of the server's resident memory at its most while it gets all of them, one by one",
        goal: Some(64.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: hostile::grammar_rss,
    },
    Figure {
        name: "server.hostile_text_gap",
        unit: RATIO,
        versus: "median step of eight streams undisturbed; their longest gap beside eight clients that send texts of \
                 3.9 MB as prompts and to /tokenize",
        goal: Some(3.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: hostile::text_gap,
    },
    Figure {
        name: "server.hostile_body_rss",
        unit: "MB",
        versus: "growth of the server's resident memory at its most under 320 bodies of `[0,0,…]` at once, each just \
                 below 4 MiB",
        goal: Some(256.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: hostile::body_rss,
    },
    Figure {
        name: "demo.system_prompt_computed",
        unit: RATIO,
        versus: "length of a system prompt that 16 users share (engine on the oracle)",
        goal: Some(1.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: demo::system_prompt_computed,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_whose_they_are() {
        let mut names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIGURES.len());
        for name in names {
            let parts: Vec<&str> = name.split('.').collect();
            assert!(
                matches!(parts[..], [area, figure] if !area.is_empty() && !figure.is_empty()),
                "{name}"
            );
        }
    }
}
