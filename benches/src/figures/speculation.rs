//! Figures of speculation: drafts that change no token.

use super::Goal::{AtLeast, AtMost};
use super::Measure::{Compare, Run};
use super::Needs::{AgentTrace, Model};
use super::Program::{DraftModel, Speculation};
use super::{Figure, RATIO};
use crate::compare::edits;

const OFF: &str = "tokens/s without drafts; Qwen2.5-Coder 1.5B computes each step and a script replaces what it samples";

const NO_DRAFT_MODEL: &str = "tokens/s without a draft model; answers of Qwen2.5-Coder 1.5B to questions, Qwen2.5-Coder 0.5B drafts, prompts included";

const LLAMA: &str = "wall time of llama-server with drafts from n-grams, per token, same file and prompts; prompts computed before";

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "speculation.prose_b1", unit: RATIO, goal: AtLeast(0.99), needs: Model,
        measure: Run(Speculation, "speculation_texts"), versus: OFF },
    Figure { name: "speculation.prose_b8", unit: RATIO, goal: AtLeast(0.99), needs: Model,
        measure: Run(Speculation, "speculation_texts"), versus: OFF },
    Figure { name: "speculation.prose_b16", unit: RATIO, goal: AtLeast(0.99), needs: Model,
        measure: Run(Speculation, "speculation_texts"), versus: OFF },
    Figure { name: "speculation.edits_b1", unit: RATIO, goal: AtLeast(1.8), needs: Model,
        measure: Run(Speculation, "speculation_texts"), versus: OFF },
    Figure { name: "speculation.quotes_b1", unit: RATIO, goal: AtLeast(1.3), needs: Model,
        measure: Run(Speculation, "speculation_texts"), versus: OFF },
    Figure { name: "speculation.agents_b1", unit: RATIO, goal: AtLeast(1.2), needs: AgentTrace,
        measure: Run(Speculation, "speculation_agents"), versus: OFF },
    Figure { name: "speculation.agents_b8", unit: RATIO, goal: AtLeast(0.96), needs: AgentTrace,
        measure: Run(Speculation, "speculation_agents"), versus: OFF },
    Figure { name: "speculation.agents_b16", unit: RATIO, goal: AtLeast(0.94), needs: AgentTrace,
        measure: Run(Speculation, "speculation_agents"), versus: OFF },
    Figure { name: "speculation.draft_model_b1", unit: RATIO, goal: AtLeast(0.99), needs: Model,
        measure: Run(DraftModel, "speculation_draft_model"), versus: NO_DRAFT_MODEL },
    Figure { name: "speculation.draft_model_b8", unit: RATIO, goal: AtLeast(0.99), needs: Model,
        measure: Run(DraftModel, "speculation_draft_model"), versus: NO_DRAFT_MODEL },
    Figure { name: "speculation.edits_vs_llama_server_b1", unit: RATIO, goal: AtMost(0.8), needs: Model,
        measure: Compare(|bench| edits::against_llama(bench, 1)), versus: LLAMA },
    Figure { name: "speculation.edits_vs_llama_server_b8", unit: RATIO, goal: AtMost(0.8), needs: Model,
        measure: Compare(|bench| edits::against_llama(bench, 8)), versus: LLAMA },
    Figure { name: "speculation.tokens_changed", unit: "tokens", goal: AtMost(0.0), needs: Model,
        measure: Run(Speculation, "speculation_tokens"),
        versus: "the tokens without drafts, deterministic mode: right, wrong, random and no predictions, greedy and with a seed" },
];
