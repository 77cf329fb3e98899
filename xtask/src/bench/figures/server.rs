//! Figures of the server over HTTP.

use super::{Better, Figure, Needs, RATIO};
use crate::bench::workbench::Peer;
use crate::bench::{forced, hostile, scores, server};

const MLX_LM_SERVER: &str = "wall time of mlx_lm.server with its defaults and f32 weights, same libmlx and BLAS, same load over HTTP; ours are as stored";

pub(super) const FIGURES: &[Figure] = &[
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
        name: "server.unique_vs_llama_server",
        unit: RATIO,
        versus: "wall time of that llama-server for 16 unlike prompts",
        goal: Some(0.25),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| server::unique(workbench, Peer::LlamaServer),
    },
    Figure {
        name: "server.single_vs_llama_server",
        unit: RATIO,
        versus: "wall time of that llama-server for one user with two turns",
        goal: Some(0.8),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| server::single(workbench, Peer::LlamaServer),
    },
    Figure {
        name: "server.score_reuse",
        unit: RATIO,
        versus: "all prompt tokens while 1,000 continuations of one prompt of 256 tokens are scored; ours come from the cache",
        goal: Some(0.98),
        better: Better::Higher,
        needs: Needs::Model,
        measure: scores::reuse,
    },
    Figure {
        name: "server.forced_tokens_gain",
        unit: RATIO,
        versus: "wall time of the same text where each token is sampled; a schema with eight long names, one client",
        goal: Some(1.3),
        better: Better::Higher,
        needs: Needs::Model,
        measure: forced::gain,
    },
    Figure {
        name: "server.hostile_grammar_gap",
        unit: RATIO,
        versus: "median step of eight streams undisturbed; their longest gap beside four clients that send the hostile \
                 schemas of tests/hostile/grammars, each waited for and each left after 200 ms",
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
        versus: "processor time of the server until it rests again, for the most expensive hostile schema alone",
        goal: Some(2.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: hostile::grammar_cpu,
    },
    Figure {
        name: "server.hostile_grammar_rss",
        unit: "MB",
        versus: "peak growth of the server's resident memory while it gets all these schemas, one by one",
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
        versus: "peak growth of the server's resident memory under 320 bodies of `[0,0,…]` at once, each just \
                 below 4 MiB",
        goal: Some(256.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: hostile::body_rss,
    },
    Figure {
        name: "server.hostile_answer_rss",
        unit: "MB",
        versus: "peak growth of the idle server's resident memory under requests within the body limit that ask for much: \
                 log probabilities of prompts, references, n, unread ends of streams, stored responses; each kind at once, \
                 then all; on the oracle",
        goal: Some(256.0),
        better: Better::Lower,
        needs: Needs::Nothing,
        measure: hostile::answer_rss,
    },
];
