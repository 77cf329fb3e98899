//! Figures of weights as their files store them.

use super::{Better, Figure, Needs, PERCENT, RATIO, Workbench};
use crate::bench::mode::Mode;
use crate::bench::weights::Before;
use crate::bench::{model, weights};
use crate::model::Model;

const LLAMA: &str = "llama-server on the same Q4_1 file, where one is at hand";
const LLAMA_LARGE: &str = "llama-server on the same Q4_K_M file of Qwen2.5-Coder 1.5B";
const BYTES: &str = "the time in which as many threads read the step's bytes";

const fn figure(
    name: &'static str,
    versus: &'static str,
    goal: f64,
    better: Better,
    measure: fn(&mut Workbench) -> anyhow::Result<super::Measured>,
) -> Figure {
    Figure {
        name,
        unit: RATIO,
        versus,
        goal: Some(goal),
        better,
        needs: Needs::Mlx,
        measure,
    }
}

pub(super) const FIGURES: &[Figure] = &[
    figure(
        "weights.decode_b1_vs_llama",
        LLAMA,
        1.2,
        Better::Higher,
        |workbench| weights::decode(workbench, Workbench::against_llama, Model::SmolLm2, 1),
    ),
    figure(
        "weights.decode_b16_vs_llama",
        LLAMA,
        2.0,
        Better::Higher,
        |workbench| weights::decode(workbench, Workbench::against_llama, Model::SmolLm2, 16),
    ),
    figure(
        "weights.prefill_vs_llama",
        LLAMA,
        1.5,
        Better::Higher,
        |workbench| weights::prefill(workbench, Workbench::against_llama, Model::SmolLm2),
    ),
    figure(
        "weights.exact_decode_b1_vs_llama",
        LLAMA,
        1.2,
        Better::Higher,
        |workbench| weights::decode(workbench, Workbench::exact_against_llama, Model::SmolLm2, 1),
    ),
    figure(
        "weights.exact_decode_b16_vs_llama",
        LLAMA,
        2.0,
        Better::Higher,
        |workbench| {
            weights::decode(
                workbench,
                Workbench::exact_against_llama,
                Model::SmolLm2,
                16,
            )
        },
    ),
    figure(
        "weights.exact_prefill_vs_llama",
        LLAMA,
        1.5,
        Better::Higher,
        |workbench| weights::prefill(workbench, Workbench::exact_against_llama, Model::SmolLm2),
    ),
    figure(
        "weights.step_b1_vs_bytes",
        BYTES,
        1.3,
        Better::Lower,
        |workbench| model::step_vs_roofline(workbench, Workbench::by_default, 1, 128),
    ),
    figure(
        "weights.step_b16_vs_bytes",
        BYTES,
        1.5,
        Better::Lower,
        |workbench| model::step_vs_roofline(workbench, Workbench::by_default, 16, 128),
    ),
    figure(
        "weights.large_b1_vs_llama",
        LLAMA_LARGE,
        1.0,
        Better::Higher,
        |workbench| weights::decode(workbench, Workbench::against_llama, Model::Qwen25Coder, 1),
    ),
    figure(
        "weights.large_b8_vs_llama",
        LLAMA_LARGE,
        1.5,
        Better::Higher,
        |workbench| weights::decode(workbench, Workbench::against_llama, Model::Qwen25Coder, 8),
    ),
    figure(
        "weights.large_prefill_vs_llama",
        LLAMA_LARGE,
        1.2,
        Better::Higher,
        |workbench| weights::prefill(workbench, Workbench::against_llama, Model::Qwen25Coder),
    ),
    figure(
        "weights.exact_large_b1_vs_llama",
        LLAMA_LARGE,
        1.0,
        Better::Higher,
        |workbench| {
            weights::decode(
                workbench,
                Workbench::exact_against_llama,
                Model::Qwen25Coder,
                1,
            )
        },
    ),
    figure(
        "weights.exact_large_b8_vs_llama",
        LLAMA_LARGE,
        1.5,
        Better::Higher,
        |workbench| {
            weights::decode(
                workbench,
                Workbench::exact_against_llama,
                Model::Qwen25Coder,
                8,
            )
        },
    ),
    figure(
        "weights.exact_large_prefill_vs_llama",
        LLAMA_LARGE,
        1.2,
        Better::Higher,
        |workbench| {
            weights::prefill(
                workbench,
                Workbench::exact_against_llama,
                Model::Qwen25Coder,
            )
        },
    ),
    Figure {
        name: "weights.int8_loss",
        unit: PERCENT,
        versus: "mean negative log-likelihood of 2,048 tokens with exact products; the change with activations in 8 bits",
        goal: Some(0.5),
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: |workbench| model::loss(workbench, Mode::Default),
    },
    figure(
        "weights.resident_vs_file",
        "the file of Qwen2.5-Coder 1.5B; resident memory of the server in the pause after one answer",
        1.15,
        Better::Lower,
        weights::resident_vs_file,
    ),
    figure(
        "weights.load_vs_read",
        "the time to read that file once from the disk; time until the server is ready",
        1.5,
        Better::Lower,
        |workbench| weights::load_vs_read(workbench, Before::OnDisk),
    ),
    Figure {
        name: "weights.cached_load_vs_read",
        unit: RATIO,
        versus: "the same from the system's cache",
        goal: None,
        better: Better::Lower,
        needs: Needs::Mlx,
        measure: |workbench| weights::load_vs_read(workbench, Before::InSystemCache),
    },
];
