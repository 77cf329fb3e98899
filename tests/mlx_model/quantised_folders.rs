//! Folders in MLX's quantisation compute what the same numbers in single precision give, to the
//! last bit.

use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions, RetainedWeights};
use motet::model::weights::ModelFiles;
use safetensors::tensor::Dtype;

use crate::harness::{assert_close, one_at_a_time};
use crate::quantised::{Form, Quantised, Raw, safetensors};
use crate::scratch::Scratch;
use crate::stored::{load, logits, open};

const fn affine(bits: usize, group: usize, scales: Dtype) -> Form {
    Form::Affine {
        bits,
        group,
        scales,
    }
}

/// A folder with the numbers of `files` in single precision.
fn dequantised(model: &Quantised, files: &ModelFiles) -> Scratch {
    let folder = Scratch::new();
    let mut config = model.config.clone();
    let fields = config.as_object_mut().expect("an object");
    fields.remove("quantization");
    fields.remove("quantization_config");
    folder.write("config.json", config.to_string());
    let tensors = files.tensors().map(|(layer, role)| {
        let tensor = files.tensor(layer, role).expect("the folder has it");
        Raw {
            name: tensor.name.to_owned(),
            dtype: Dtype::F32,
            shape: tensor.shape.clone(),
            bytes: bytemuck::cast_slice(&tensor.to_f32()).to_vec(),
        }
    });
    let tensors: Vec<Raw> = tensors.collect();
    folder.write("model.safetensors", safetensors(&tensors));
    folder
}

fn assert_same_bits(model: &Quantised, what: &str) {
    let folder = model.write();
    let files = open(folder.path());
    let plain = dequantised(model, &files);
    let found = logits(&mut load(&files, true));
    let expected = logits(&mut load(&open(plain.path()), true));
    assert!(expected.iter().flatten().all(|logit| logit.is_finite()));
    let largest = |most: f32, logit: &f32| most.max(logit.abs());
    let spread = expected[0].iter().fold(0.0, largest);
    assert!(spread > 0.01, "{what}: the logits tell nothing: {spread}");
    assert_eq!(found, expected, "{what}");
    // MLX's own operations on numbers that were converted when the model was loaded.
    let composed = logits(&mut load(&files, false));
    assert_close(&found, &composed, 2e-4 * spread.max(1.0), what);
}

#[test]
fn each_form_computes_what_its_numbers_give() {
    let _serial = one_at_a_time();
    for (index, group) in [32, 64, 128].into_iter().enumerate() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let scales = [Dtype::F16, Dtype::BF16][(index + bits) % 2];
            let model = Quantised::llama(affine(bits, group, scales), &[]);
            assert_same_bits(
                &model,
                &format!("{bits} bits, groups of {group}, {scales:?}"),
            );
        }
    }
    let f32s = Quantised::llama(affine(4, 64, Dtype::F32), &[]);
    assert_same_bits(&f32s, "scales in single precision");
    assert_same_bits(&Quantised::llama(Form::Mxfp4, &[]), "MXFP4");
}

#[test]
fn modules_may_have_forms_of_their_own() {
    let _serial = one_at_a_time();
    let four = affine(4, 64, Dtype::BF16);
    let six = affine(6, 64, Dtype::BF16);
    let others = [
        ("v_proj", six),
        ("0.mlp.down_proj", six),
        ("1.mlp.gate_proj", Form::Mxfp4),
        ("1.self_attn.q_proj", Form::Plain),
        ("embed_tokens", affine(8, 32, Dtype::F16)),
    ];
    assert_same_bits(&Quantised::llama(four, &others), "mixed");
}

#[test]
fn experts_may_be_quantised() {
    let _serial = one_at_a_time();
    let router = [("mlp.gate", affine(8, 64, Dtype::BF16))];
    let mixed = [
        ("mlp.gate", affine(8, 64, Dtype::F16)),
        ("switch_mlp.down_proj", affine(6, 128, Dtype::F16)),
        ("0.mlp.switch_mlp.up_proj", Form::Mxfp4),
        ("lm_head", affine(6, 32, Dtype::F16)),
    ];
    let four = affine(4, 64, Dtype::BF16);
    assert_same_bits(&Quantised::qwen3_moe(four, &router), "experts of 4 bits");
    let three = affine(3, 32, Dtype::F16);
    assert_same_bits(&Quantised::qwen3_moe(three, &mixed), "mixed experts");
    assert_same_bits(
        &Quantised::qwen3_moe(Form::Mxfp4, &router),
        "experts in MXFP4",
    );
}

/// Bad scales are found before a model exists.
#[test]
fn scales_that_are_not_finite_are_errors_of_loading() {
    let _serial = one_at_a_time();
    let mut model = Quantised::llama(affine(4, 64, Dtype::BF16), &[]);
    model.tensor("0.mlp.up_proj.scales").bytes[..2].copy_from_slice(&[0x80, 0x7F]);
    let folder = model.write();
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        ..MlxOptions::default()
    };
    let error = MlxModel::load_reusing(&open(folder.path()), options, &RetainedWeights::default());
    let error = error
        .map(drop)
        .expect_err("a scale is infinite")
        .to_string();
    assert!(error.contains("mlp.up_proj.scales"), "{error}");
}
