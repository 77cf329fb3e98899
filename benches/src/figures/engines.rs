//! Figures against inference engines that are Python packages, on the same GGUF files.

use xtask::model::Model::{Qwen25Coder, SmolLm2};

use super::Goal::AtLeast;
use super::Measure::Compare;
use super::Needs::Mlx;
use super::{Figure, RATIO};
use crate::compare::engines::Engine::{Ik, MistralRs, OpenVino};
use crate::compare::model::Sides;
use crate::compare::weights::{decode, prefill};

const IK: &str = "ik_llama.cpp on the same file, by the libraries of ik-llama-cpp-python";
const OPENVINO: &str = "OpenVINO GenAI's continuous batching on the same file";
const MISTRALRS: &str = "mistral.rs on the same file";

/// mistral.rs has no batch: its Python interface takes one request at a time, and several sequences of one
/// request fail with this version, `input tensor is not contiguous`.
#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "weights.decode_b1_vs_ik", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(Ik, SmolLm2), 1)), versus: IK },
    Figure { name: "weights.decode_b16_vs_ik", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(Ik, SmolLm2), 16)), versus: IK },
    Figure { name: "weights.prefill_vs_ik", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| prefill(bench, Sides::engine(Ik, SmolLm2))), versus: IK },
    Figure { name: "weights.large_b1_vs_ik", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(Ik, Qwen25Coder), 1)), versus: IK },
    Figure { name: "weights.large_b8_vs_ik", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(Ik, Qwen25Coder), 8)), versus: IK },
    Figure { name: "weights.large_prefill_vs_ik", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| prefill(bench, Sides::engine(Ik, Qwen25Coder))), versus: IK },
    Figure { name: "weights.decode_b1_vs_openvino", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(OpenVino, SmolLm2), 1)), versus: OPENVINO },
    Figure { name: "weights.decode_b16_vs_openvino", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(OpenVino, SmolLm2), 16)), versus: OPENVINO },
    Figure { name: "weights.prefill_vs_openvino", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| prefill(bench, Sides::engine(OpenVino, SmolLm2))), versus: OPENVINO },
    Figure { name: "weights.large_b1_vs_openvino", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(OpenVino, Qwen25Coder), 1)), versus: OPENVINO },
    Figure { name: "weights.large_b8_vs_openvino", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(OpenVino, Qwen25Coder), 8)), versus: OPENVINO },
    Figure { name: "weights.large_prefill_vs_openvino", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| prefill(bench, Sides::engine(OpenVino, Qwen25Coder))), versus: OPENVINO },
    Figure { name: "weights.decode_b1_vs_mistralrs", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(MistralRs, SmolLm2), 1)), versus: MISTRALRS },
    Figure { name: "weights.prefill_vs_mistralrs", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| prefill(bench, Sides::engine(MistralRs, SmolLm2))), versus: MISTRALRS },
    Figure { name: "weights.large_b1_vs_mistralrs", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| decode(bench, Sides::engine(MistralRs, Qwen25Coder), 1)), versus: MISTRALRS },
    Figure { name: "weights.large_prefill_vs_mistralrs", unit: RATIO, goal: AtLeast(1.0), needs: Mlx,
        measure: Compare(|bench| prefill(bench, Sides::engine(MistralRs, Qwen25Coder))), versus: MISTRALRS },
];
