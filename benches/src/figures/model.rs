//! Figures of the model against mlx-lm and against itself.

use xtask::model::Model;

use super::Goal::{AtLeast, AtMost, Higher};
use super::Measure::Compare;
use super::Needs::Mlx;
use super::{Figure, PERCENT, RATIO};
use crate::compare::kernels::step_vs_limit;
use crate::compare::model::{self, Sides};
use crate::mode::Mode;

const MLX_LM: &str =
    "mlx-lm's batch generator with f32 weights, same libmlx and BLAS; ours are as stored, Q4_1";
const LIMIT: &str = "the longer of two times, measured in turn: as many threads read the step's bytes; its products at the \
    kernels' best speed";
/// Bytes of keys or values of one layer of SmolLM2-135M at 4,096 tokens: the size of the smallest
/// hidden copy of a tail.
const ONE_COPY_BYTES: f64 = (4_096 * 3 * 64 * size_of::<f32>()) as f64;

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "model.matmul_sanity_vs_mlx_lm", unit: RATIO, goal: Higher, needs: Mlx,
        measure: Compare(model::matmul_sanity),
        versus: "GFLOP/s of the same f32 product in mlx-lm's process; about 1 where both use one BLAS" },
    Figure { name: "model.decode_b1_vs_mlx_lm", unit: RATIO, goal: AtLeast(5.0), needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::MLX_LM, 1, 128)),
        versus: MLX_LM },
    Figure { name: "model.decode_b8_vs_mlx_lm", unit: RATIO, goal: AtLeast(3.2), needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::MLX_LM, 8, 128)),
        versus: MLX_LM },
    Figure { name: "model.decode_b16_vs_mlx_lm", unit: RATIO, goal: AtLeast(3.0), needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::MLX_LM, 16, 128)),
        versus: MLX_LM },
    Figure { name: "model.prefill_vs_mlx_lm", unit: RATIO, goal: AtLeast(3.0), needs: Mlx,
        measure: Compare(|bench| model::prefill(bench, Sides::MLX_LM, 512)),
        versus: MLX_LM },
    Figure { name: "model.cpu_decode_b16_vs_mlx_lm", unit: RATIO, goal: AtLeast(4.0), needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::MLX_LM, 16, 512)),
        versus: MLX_LM },
    Figure { name: "model.cpu_prefill_2k_vs_mlx_lm", unit: RATIO, goal: AtLeast(6.0), needs: Mlx,
        measure: Compare(|bench| model::prefill(bench, Sides::MLX_LM, 2_048)),
        versus: MLX_LM },
    Figure { name: "model.step_b1_vs_limit", unit: RATIO, goal: AtMost(1.5), needs: Mlx,
        measure: Compare(|bench| step_vs_limit(bench, Model::SmolLm2, 1)), versus: LIMIT },
    Figure { name: "model.step_b16_vs_limit", unit: RATIO, goal: AtMost(1.5), needs: Mlx,
        measure: Compare(|bench| step_vs_limit(bench, Model::SmolLm2, 16)), versus: LIMIT },
    Figure { name: "model.large_step_b1_vs_limit", unit: RATIO, goal: AtMost(1.5), needs: Mlx,
        measure: Compare(|bench| step_vs_limit(bench, Model::Qwen25Coder, 1)), versus: LIMIT },
    Figure { name: "model.large_step_b16_vs_limit", unit: RATIO, goal: AtMost(1.5), needs: Mlx,
        measure: Compare(|bench| step_vs_limit(bench, Model::Qwen25Coder, 16)), versus: LIMIT },
    Figure { name: "model.deterministic_decode", unit: RATIO, goal: Higher, needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::exact(Mode::Deterministic), 16, 512)),
        versus: "decode tokens/s of the fast mode; 16 sequences of 512 tokens" },
    Figure { name: "model.deterministic_prefill", unit: RATIO, goal: Higher, needs: Mlx,
        measure: Compare(|bench| model::prefill(bench, Sides::exact(Mode::Deterministic), 2_048)),
        versus: "prefill tokens/s of the fast mode; 2,048 tokens" },
    Figure { name: "model.cache_bf16_decode", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::exact(Mode::CachedBf16), 16, 512)),
        versus: "decode tokens/s with state cached in f32; 16 sequences of 512 tokens, cached in bf16" },
    Figure { name: "model.cache_bf16_long_decode", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::exact(Mode::CachedBf16), 2, 4_096)),
        versus: "decode tokens/s with state cached in f32; 2 sequences of 4,096 tokens, cached in bf16" },
    Figure { name: "model.cache_bf16_prefill", unit: RATIO, goal: Higher, needs: Mlx,
        measure: Compare(|bench| model::prefill(bench, Sides::exact(Mode::CachedBf16), 2_048)),
        versus: "prefill tokens/s with state cached in f32; 2,048 tokens, cached in bf16" },
    Figure { name: "model.cache_bf16_loss", unit: PERCENT, goal: AtMost(0.2), needs: Mlx,
        measure: Compare(|bench| model::loss(bench, Mode::CachedBf16)),
        versus: "mean negative log-likelihood of 2,048 tokens with state cached in f32; the change in bf16" },
    Figure { name: "model.cache_int8_decode", unit: RATIO, goal: Higher, needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::exact(Mode::CachedInt8), 16, 512)),
        versus: "decode tokens/s with state cached in f32; 16 sequences of 512 tokens, cached in 8 bits" },
    Figure { name: "model.cache_int8_long_decode", unit: RATIO, goal: Higher, needs: Mlx,
        measure: Compare(|bench| model::decode(bench, Sides::exact(Mode::CachedInt8), 2, 4_096)),
        versus: "decode tokens/s with state cached in f32; 2 sequences of 4,096 tokens, cached in 8 bits" },
    Figure { name: "model.cache_int8_loss", unit: PERCENT, goal: AtMost(1.0), needs: Mlx,
        measure: Compare(|bench| model::loss(bench, Mode::CachedInt8)),
        versus: "mean negative log-likelihood of 2,048 tokens with state cached in f32; the change in 8 bits" },
    Figure { name: "model.shared_prefix_gain", unit: RATIO, goal: AtLeast(1.3), needs: Mlx,
        measure: Compare(model::shared_prefix_gain),
        versus: "16 private copies of the same 1,024-token prefix" },
    Figure { name: "model.tail_growth", unit: RATIO, goal: AtMost(1.3), needs: Mlx,
        measure: Compare(model::tail_growth),
        versus: "growth of a decode step from 128 to 4,096 cached tokens by bytes of weights and state" },
    Figure { name: "model.step_bytes_allocated", unit: "bytes", goal: AtMost(ONE_COPY_BYTES), needs: Mlx,
        measure: Compare(model::step_bytes_allocated),
        versus: "keys or values of one layer at 4,096 tokens, the smallest possible hidden copy" },
];
