//! Figures of weights as their files store them.

use xtask::model::Model;

use super::Goal::{AtLeast, AtMost, Lower};
use super::Measure::Compare;
use super::Needs::Mlx;
use super::{Figure, PERCENT, RATIO};
use crate::compare::model::{self, Sides};
use crate::compare::weights::{self, Before};
use crate::mode::Mode;

const LLAMA: &str = "llama-server on the same Q4_1 file, where one is at hand";
const LLAMA_LARGE: &str = "llama-server on the same Q4_K_M file of Qwen2.5-Coder 1.5B";

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "weights.decode_b1_vs_llama", unit: RATIO, goal: AtLeast(1.2), needs: Mlx,
        measure: Compare(|bench| weights::decode(bench, Sides::llama(Model::SmolLm2, Mode::Default), 1)),
        versus: LLAMA },
    Figure { name: "weights.decode_b16_vs_llama", unit: RATIO, goal: AtLeast(2.5), needs: Mlx,
        measure: Compare(|bench| weights::decode(bench, Sides::llama(Model::SmolLm2, Mode::Default), 16)),
        versus: LLAMA },
    Figure { name: "weights.prefill_vs_llama", unit: RATIO, goal: AtLeast(3.5), needs: Mlx,
        measure: Compare(|bench| weights::prefill(bench, Sides::llama(Model::SmolLm2, Mode::Default))),
        versus: LLAMA },
    Figure { name: "weights.exact_decode_b1_vs_llama", unit: RATIO, goal: AtLeast(1.2), needs: Mlx,
        measure: Compare(|bench| weights::decode(bench, Sides::llama(Model::SmolLm2, Mode::Exact), 1)),
        versus: LLAMA },
    Figure { name: "weights.exact_decode_b16_vs_llama", unit: RATIO, goal: AtLeast(2.0), needs: Mlx,
        measure: Compare(|bench| weights::decode(bench, Sides::llama(Model::SmolLm2, Mode::Exact), 16)),
        versus: LLAMA },
    Figure { name: "weights.exact_prefill_vs_llama", unit: RATIO, goal: AtLeast(1.5), needs: Mlx,
        measure: Compare(|bench| weights::prefill(bench, Sides::llama(Model::SmolLm2, Mode::Exact))),
        versus: LLAMA },
    Figure { name: "weights.large_b1_vs_llama", unit: RATIO, goal: AtLeast(1.1), needs: Mlx,
        measure: Compare(|bench| weights::decode(bench, Sides::llama(Model::Qwen25Coder, Mode::Default), 1)),
        versus: LLAMA_LARGE },
    Figure { name: "weights.large_b8_vs_llama", unit: RATIO, goal: AtLeast(1.8), needs: Mlx,
        measure: Compare(|bench| weights::decode(bench, Sides::llama(Model::Qwen25Coder, Mode::Default), 8)),
        versus: LLAMA_LARGE },
    Figure { name: "weights.large_prefill_vs_llama", unit: RATIO, goal: AtLeast(1.8), needs: Mlx,
        measure: Compare(|bench| weights::prefill(bench, Sides::llama(Model::Qwen25Coder, Mode::Default))),
        versus: LLAMA_LARGE },
    Figure { name: "weights.exact_large_b1_vs_llama", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| weights::decode(bench, Sides::llama(Model::Qwen25Coder, Mode::Exact), 1)),
        versus: LLAMA_LARGE },
    Figure { name: "weights.exact_large_b8_vs_llama", unit: RATIO, goal: AtLeast(1.5), needs: Mlx,
        measure: Compare(|bench| weights::decode(bench, Sides::llama(Model::Qwen25Coder, Mode::Exact), 8)),
        versus: LLAMA_LARGE },
    Figure { name: "weights.exact_large_prefill_vs_llama", unit: RATIO, goal: AtLeast(1.2), needs: Mlx,
        measure: Compare(|bench| weights::prefill(bench, Sides::llama(Model::Qwen25Coder, Mode::Exact))),
        versus: LLAMA_LARGE },
    Figure { name: "weights.int8_loss", unit: PERCENT, goal: AtMost(0.5), needs: Mlx,
        measure: Compare(|bench| model::loss(bench, Mode::Default)),
        versus: "mean negative log-likelihood of 2,048 tokens with exact products; the change with activations in 8 bits" },
    Figure { name: "weights.resident_vs_file", unit: RATIO, goal: AtMost(1.15), needs: Mlx,
        measure: Compare(weights::resident_vs_file),
        versus: "the file of Qwen2.5-Coder 1.5B; resident memory of the server in the pause after one answer" },
    Figure { name: "weights.load_vs_read", unit: RATIO, goal: AtMost(1.5), needs: Mlx,
        measure: Compare(|bench| weights::load_vs_read(bench, Before::OnDisk)),
        versus: "the time to read that file once from the disk; time until the server is ready" },
    Figure { name: "weights.cached_load_vs_read", unit: RATIO, goal: Lower, needs: Mlx,
        measure: Compare(|bench| weights::load_vs_read(bench, Before::InSystemCache)),
        versus: "the same from the system's cache" },
];
