//! Tests of models that are loaded from checkpoints.

mod checkpoint;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use mlx_rs::{Device, Dtype, Stream, memory, with_stream};

use super::state_tests::one_at_a_time;
use crate::device::ops::Ops;
use crate::device::profile::{self, Op};
use crate::layers::attention::{AttentionBackend, Attentions};
use crate::layers::weights::Weights;
use crate::model::load::spec;
use crate::model::mlx_model::Backend;
use crate::state::detached_state::Identity;
use crate::state::groups::{Cached, LayerGroups};
use crate::step::forward::Network;
use crate::weights::MatrixForm;
use crate::{MlxDevice, MlxModel, MlxOptions, MlxTail, bridge};
use checkpoint::{QWEN, Qwen, Sizes, VOCAB};
use motet_kernels::Arithmetic;
use motet_model::{CacheKind, Model, Span, Tail};
use motet_protocol::{ModelError, OutputKind, SpanOutput};
use motet_weights::ModelFiles;

const SUPPORTED: [Sizes; 3] = [
    Sizes::Qwen(QWEN),
    Sizes::Granite {
        state: 16,
        kernel: 4,
    },
    Sizes::Lfm { kernel: 8 },
];

/// Each has one size that a kernel does not support. The error of determinism names it.
const UNSUPPORTED: [(Sizes, &str); 8] = [
    (
        Sizes::Qwen(Qwen {
            value_dim: 24,
            ..QWEN
        }),
        "the size of a value head is 24",
    ),
    (
        Sizes::Qwen(Qwen { inner: 24, ..QWEN }),
        "the size of an expert is 24",
    ),
    (
        Sizes::Qwen(Qwen { hidden: 40, ..QWEN }),
        "the size of the residual stream is 40",
    ),
    (
        Sizes::Qwen(Qwen { kernel: 9, ..QWEN }),
        "the size of a convolution is 9",
    ),
    (
        Sizes::Granite {
            state: 24,
            kernel: 4,
        },
        "the size of a state is 24",
    ),
    (
        Sizes::Granite {
            state: 16,
            kernel: 10,
        },
        "the size of a convolution is 10",
    ),
    (Sizes::Lfm { kernel: 9 }, "the size of a convolution is 9"),
    (Sizes::Lfm { kernel: 1 }, "the size of a convolution is 1"),
];

fn load(folder: &Path, kernels: bool, deterministic: bool) -> Result<MlxModel, ModelError> {
    let files = ModelFiles::open(folder)?;
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels,
        deterministic,
        ..MlxOptions::default()
    };
    MlxModel::load(&files, options)
}

/// The logits of a prompt, then of single tokens.
fn logits(model: &mut MlxModel) -> Vec<f32> {
    let mut tail = model.tail(&[], 0).expect("a tail");
    let steps: [&[u32]; 4] = [&[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], &[9], &[7], &[9, 3]];
    steps.map(|tokens| step(model, &mut tail, tokens)).concat()
}

fn step(model: &mut MlxModel, tail: &mut MlxTail, tokens: &[u32]) -> Vec<f32> {
    let mut spans = [Span {
        tokens: tokens.into(),
        path: &[],
        tail,
        output_kind: OutputKind::Logits,
    }];
    let outputs = model.step(&mut spans).expect("a step");
    match outputs.into_iter().next() {
        Some(SpanOutput::Logits(logits)) => logits,
        other => panic!("expected logits, found {other:?}"),
    }
}

fn assert_same_logits(sizes: Sizes) {
    let folder = sizes.checkpoint();
    let [with, without] = [true, false].map(|kernels| {
        let model = load(&folder.0, kernels, false);
        logits(&mut model.unwrap_or_else(|error| panic!("{sizes:?}: {error}")))
    });
    assert_eq!(with.len(), 16 * VOCAB);
    for (with, without) in with.iter().zip(&without) {
        let close = (with - without).abs() <= 1e-4;
        assert!(close, "{sizes:?}: {with} and {without}");
    }
    assert!(with.iter().any(|logit| logit.abs() > 1e-3), "{sizes:?}");
}

#[test]
fn models_with_sizes_that_kernels_support_generate() {
    let _serial = one_at_a_time();
    for sizes in SUPPORTED {
        assert_same_logits(sizes);
    }
}

#[test]
fn models_with_sizes_that_no_kernel_supports_are_composed() {
    let _serial = one_at_a_time();
    for (sizes, _) in UNSUPPORTED {
        assert_same_logits(sizes);
    }
}

#[test]
fn determinism_needs_sizes_that_kernels_support() {
    let _serial = one_at_a_time();
    if !bridge::available() {
        return;
    }
    for sizes in SUPPORTED {
        let folder = sizes.checkpoint();
        load(&folder.0, true, true).unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
    }
    for (sizes, expected) in UNSUPPORTED {
        let folder = sizes.checkpoint();
        match load(&folder.0, true, true) {
            Err(ModelError::NotDeterministic { found, .. }) => assert_eq!(found, expected),
            other => panic!("{sizes:?}: expected an error, found {other:?}"),
        }
    }
}

/// A model in the types of a GPU, composed on the CPU.
fn load_in_bf16(folder: &Path) -> MlxModel {
    load_composed(folder, CacheKind::Bf16, Dtype::Bfloat16, MatrixForm::Affine)
}

/// A model whose numbers have this type and whose matrices have this form, composed on the CPU.
fn load_composed(folder: &Path, kind: CacheKind, dtype: Dtype, form: MatrixForm) -> MlxModel {
    let files = ModelFiles::open(folder).expect("a complete checkpoint");
    let blueprint = files.blueprint();
    let cached = Cached::as_it_is(kind);
    let groups = Arc::new(LayerGroups::new(blueprint, cached));
    let stream = Stream::new_with_device(&Device::cpu());
    let weights = with_stream(&stream, || Weights::load(&files, dtype, form));
    let network = Network {
        weights: weights.unwrap_or_else(|_| panic!("the weights load")),
        attentions: Attentions::new(blueprint, &groups, cached, AttentionBackend::Composed),
        ops: Ops {
            kernels: None,
            arithmetic: Arithmetic::Exact,
        },
        stem: blueprint.stem.clone(),
        layer_bytes_per_row: 1,
    };
    let spec = spec(blueprint, &groups, false);
    let backend = Backend {
        device: MlxDevice::Cpu,
        stream,
        has_kernels: false,
        in_place: false,
    };
    let identity: Identity = LazyLock::new(Box::new(|| 1));
    MlxModel::new(spec, identity, groups, Box::new(network), backend, None)
}

/// MLX's quantised products, which a GPU uses, have the numbers that dequantised ones have.
#[test]
fn quantised_matrices_stay_quantised_for_a_gpu() {
    let _serial = one_at_a_time();
    for bits in [2, 3, 4, 5, 6, 8] {
        let folder = Sizes::Lfm { kernel: 8 }.quantised_checkpoint(bits);
        let logits = |form| {
            let mut model = load_composed(&folder.0, CacheKind::F32, Dtype::Float32, form);
            let mut tail = model.tail(&[], 0).expect("a tail");
            let run = || step(&mut model, &mut tail, &[3, 1, 4, 1, 5]);
            let (logits, timed) = profile::record(run);
            let bytes = timed.iter().map(|timed| timed.cost.read_bytes);
            (logits, bytes.sum::<usize>())
        };
        let (found, quantised_bytes) = logits(MatrixForm::Affine);
        let (expected, bytes) = logits(MatrixForm::Converted);
        assert!(
            quantised_bytes < bytes * 3 / 4,
            "{bits} bits: {quantised_bytes} of {bytes}"
        );
        let largest = found.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(largest > 0.01, "{bits} bits: the logits tell nothing");
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 1e-4 * largest.max(1.0),
                "{found}, not {expected}"
            );
        }
    }
}

/// A residual stream in single precision would make each product convert its weights.
#[test]
fn residual_stream_keeps_its_type() {
    let _serial = one_at_a_time();
    for sizes in SUPPORTED {
        let folder = sizes.checkpoint();
        let mut model = load_in_bf16(&folder.0);
        let mut tail = model.tail(&[], 0).expect("a tail");
        let tokens = [3, 1, 4, 1, 5];
        let (_, timed) = profile::record(|| step(&mut model, &mut tail, &tokens));
        let sums: Vec<usize> = timed
            .iter()
            .filter(|timed| timed.op == Op::AddNorm)
            .map(|timed| timed.cost.read_bytes)
            .collect();
        // The stream and what is added to it, two bytes for each number.
        assert_eq!(sums, [2 * 2 * tokens.len() * 32; 4], "{sizes:?}");
    }
}

/// Set in a process that runs one test.
const ALONE: &str = "MOTET_TEST_ALONE";

/// Runs a test in a process of its own, unless this process is that one, and says whether it is.
/// MLX counts the memory of a process, and tests run side by side.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let tests = std::env::current_exe().expect("this program's path");
    let output = std::process::Command::new(tests)
        .args([test, "--exact"])
        .env(ALONE, "1")
        .output()
        .expect("this program runs again");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
    false
}

#[test]
fn composed_experts_fit_their_scratch_memory() {
    if !is_alone("checkpoint_tests::composed_experts_fit_their_scratch_memory") {
        return;
    }
    let folder = Sizes::Qwen(Qwen {
        experts: 64,
        inner: 64,
        ..QWEN
    })
    .checkpoint();
    let mut model = load(&folder.0, false, false).expect("a model");
    let tokens: Vec<u32> = (0..48).map(|token| token % 31).collect();
    let mut tail = model.tail(&[], 0).expect("a tail");
    let before = memory::active_memory().expect("a counter");
    memory::reset_peak_memory().expect("a counter");
    step(&mut model, &mut tail, &tokens);
    let peak = memory::peak_memory().expect("a counter") - before;
    let bound = model.spec().scratch_bytes_per_token * tokens.len() + tail.bytes();
    // The bound is not loose, either.
    assert!(
        peak <= bound && 2 * peak >= bound,
        "{peak} bytes at most, and a bound of {bound}"
    );
}
