//! Figures of the server over HTTP.

use xtask::model::Model::Qwen25Coder;

use super::Goal::{AtLeast, AtMost};
use super::Measure::Compare;
use super::Needs::{Model, Nothing};
use super::{Figure, RATIO};
use crate::compare::servers::ServerName;
use crate::compare::{forced, hostile, scores, server};

const MLX_LM_SERVER: &str = "wall time of mlx_lm.server with its defaults and f32 weights, same libmlx and BLAS, same load over HTTP; ours are as stored";

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "server.overhead_share", unit: RATIO, goal: AtMost(0.05), needs: Model,
        measure: Compare(server::overhead_share),
        versus: "wall time of 16 users' replies of 128 tokens; ours is processor time of all threads but the device's: HTTP, SSE, text, actors" },
    Figure { name: "server.shared_vs_mlx_lm", unit: RATIO, goal: AtMost(0.15), needs: Model,
        measure: Compare(|bench| server::shared(bench, ServerName::MlxLm)),
        versus: MLX_LM_SERVER },
    Figure { name: "server.unique_vs_mlx_lm", unit: RATIO, goal: AtMost(0.4), needs: Model,
        measure: Compare(|bench| server::unique(bench, ServerName::MlxLm)),
        versus: MLX_LM_SERVER },
    Figure { name: "server.shared_vs_llama_server", unit: RATIO, goal: AtMost(0.13), needs: Model,
        measure: Compare(|bench| server::shared(bench, ServerName::LLAMA)),
        versus: "wall time of llama-server with 16 slots on the same Q4_1 file as it is, same load over HTTP" },
    Figure { name: "server.unique_vs_llama_server", unit: RATIO, goal: AtMost(0.3), needs: Model,
        measure: Compare(|bench| server::unique(bench, ServerName::LLAMA)),
        versus: "wall time of that llama-server for 16 unlike prompts" },
    Figure { name: "server.single_vs_llama_server", unit: RATIO, goal: AtMost(0.8), needs: Model,
        measure: Compare(|bench| server::single(bench, [ServerName::Ours, ServerName::LLAMA])),
        versus: "wall time of that llama-server for one user with two turns" },
    Figure { name: "server.large_single_vs_llama_server", unit: RATIO, goal: AtMost(0.8), needs: Model,
        measure: Compare(|bench| server::single(bench, [ServerName::OursOn(Qwen25Coder), ServerName::Llama(Qwen25Coder)])),
        versus: "the same on Qwen2.5-Coder 1.5B Q4_K_M" },
    Figure { name: "server.score_reuse", unit: RATIO, goal: AtLeast(0.98), needs: Model,
        measure: Compare(scores::reuse),
        versus: "all prompt tokens while 1,000 continuations of one prompt of 256 tokens are scored; ours come from the cache" },
    Figure { name: "server.forced_tokens_gain", unit: RATIO, goal: AtLeast(2.5), needs: Model,
        measure: Compare(forced::gain),
        versus: "wall time of the same text where each token is sampled; a schema with eight long names, one client" },
    Figure { name: "server.hostile_grammar_gap", unit: RATIO, goal: AtMost(3.0), needs: Model,
        measure: Compare(hostile::grammar_gap),
        versus: "median step of eight streams undisturbed; their longest gap beside four clients that send the hostile \
         schemas of tests/hostile/grammars, each waited for and each left after 200 ms" },
    Figure { name: "server.hostile_grammar_after", unit: RATIO, goal: AtMost(1.15), needs: Model,
        measure: Compare(hostile::grammar_after),
        versus: "processor time of the server for each token of the eight streams before the schemas came; ours is from \
         2 s after their clients have gone" },
    Figure { name: "server.hostile_grammar_cpu", unit: "s", goal: AtMost(2.0), needs: Model,
        measure: Compare(hostile::grammar_cpu),
        versus: "processor time of the server until it rests again, for the most expensive hostile schema alone" },
    Figure { name: "server.hostile_grammar_rss", unit: "MB", goal: AtMost(64.0), needs: Model,
        measure: Compare(hostile::grammar_rss),
        versus: "peak growth of the server's resident memory while it gets all these schemas, one by one" },
    Figure { name: "server.hostile_text_gap", unit: RATIO, goal: AtMost(3.0), needs: Model,
        measure: Compare(hostile::text_gap),
        versus: "median step of eight streams undisturbed; their longest gap beside eight clients that send texts of \
         3.9 MB as prompts and to /tokenize" },
    Figure { name: "server.hostile_body_rss", unit: "MB", goal: AtMost(256.0), needs: Model,
        measure: Compare(hostile::body_rss),
        versus: "peak growth of the server's resident memory under 320 bodies of `[0,0,…]` at once, each just \
         below 4 MiB" },
    Figure { name: "server.hostile_answer_rss", unit: "MB", goal: AtMost(256.0), needs: Nothing,
        measure: Compare(hostile::answer_rss),
        versus: "peak growth of the idle server's resident memory under requests within the body limit that ask for much: \
         log probabilities of prompts, references, n, unread ends of streams, stored responses; each kind at once, \
         then all; on the oracle" },
];
