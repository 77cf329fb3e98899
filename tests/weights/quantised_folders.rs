//! Folders in MLX's quantisation: what is read, and which folders are errors.

use motet::model::ModelError;
use motet::model::weights::ModelFiles;
use motet_weights::{Affine, Format, Role, ScaleFormat};
use safetensors::tensor::Dtype;
use serde_json::{Value as Json, json};

use crate::quantised::{EXPERTS, Form, HIDDEN, INNER, Quantised, Raw};
use crate::read_whole;

const FOUR: Form = Form::Affine {
    bits: 4,
    group: 64,
    scales: Dtype::BF16,
};
const EIGHT: Form = Form::Affine {
    bits: 8,
    group: 32,
    scales: Dtype::F16,
};

fn open(model: &Quantised) -> Result<ModelFiles, ModelError> {
    let folder = model.write();
    ModelFiles::open(folder.path())
}

#[test]
fn quantised_modules_are_mapped_in_the_forms_of_the_configuration() {
    let others = [
        ("mlp.gate", EIGHT),
        ("o_proj", Form::Plain),
        ("v_proj", Form::Mxfp4),
    ];
    let model = Quantised::qwen3_moe(FOUR, &others);
    let files = open(&model).expect("a complete model");
    let four = Format::Affine(Affine {
        bits: 4,
        group: 64,
        scales: ScaleFormat::BF16,
    });
    let eight = Format::Affine(Affine {
        bits: 8,
        group: 32,
        scales: ScaleFormat::F16,
    });
    for (layer, role, format, name) in [
        (None, Role::Embedding, four, "model.embed_tokens"),
        (None, Role::Head, four, "lm_head"),
        (
            Some(1),
            Role::Query,
            four,
            "model.layers.1.self_attn.q_proj",
        ),
        (
            Some(0),
            Role::Value,
            Format::GroupedMxfp4,
            "model.layers.0.self_attn.v_proj",
        ),
        (
            Some(0),
            Role::MixerOutput,
            Format::F32,
            "model.layers.0.self_attn.o_proj",
        ),
        (Some(1), Role::Router, eight, "model.layers.1.mlp.gate"),
        (
            Some(1),
            Role::ExpertDown,
            four,
            "model.layers.1.mlp.switch_mlp.down_proj",
        ),
    ] {
        let tensor = files.tensor(layer, role).expect("the folder has it");
        assert_eq!(tensor.name, format!("{name}.weight"));
        assert_eq!(tensor.format(), Some(format), "{name}");
        let bytes = |part: &str| -> &[u8] {
            let name = format!("{name}.{part}");
            let mut tensors = model.tensors.iter();
            tensors
                .find(|raw| raw.name == name)
                .map_or(&[], |raw| &raw.bytes)
        };
        let [part] = tensor.parts() else {
            panic!("{name}: one tensor is one part");
        };
        assert!(part.is_mapped(), "{name}");
        assert_eq!(part.bytes(), bytes("weight"), "{name}");
        assert_eq!(part.scales(), bytes("scales"), "{name}");
        assert_eq!(part.offsets(), bytes("biases"), "{name}");
    }
    let down = files.tensor(Some(0), Role::ExpertDown).expect("experts");
    assert_eq!(down.shape, [EXPERTS, HIDDEN, INNER]);
    assert_eq!(files.skipped(), []);
}

/// `AffineQuantised` has the numbers of the tensor, whatever the bits.
#[test]
fn affine_tensors_are_handed_to_mlx_as_they_are() {
    for bits in [2, 3, 4, 5, 6, 8] {
        let form = Form::Affine {
            bits,
            group: 128,
            scales: Dtype::BF16,
        };
        let files = open(&Quantised::llama(form, &[])).expect("a complete model");
        let tensor = files.tensor(Some(0), Role::Down).expect("a matrix");
        let affine = tensor.to_affine().expect("it is affine");
        assert_eq!((affine.bits, affine.group_size), (bits, 128));
        assert_eq!(affine.shape, [HIDDEN, INNER]);
        let bit = |at: usize| affine.packed[at / 32] >> (at % 32) & 1;
        let number = |i: usize| {
            let quant = (0..bits).map(|at| bit(i * bits + at) << at).sum::<u32>();
            affine.scales[i / 128] * quant as f32 + affine.biases[i / 128]
        };
        let numbers: Vec<f32> = (0..tensor.elements()).map(number).collect();
        assert_eq!(tensor.to_f32(), numbers, "{bits} bits");
    }
    let files = open(&Quantised::llama(Form::Mxfp4, &[])).expect("a complete model");
    let tensor = files.tensor(Some(0), Role::Down).expect("a matrix");
    assert!(tensor.to_affine().is_none());
}

#[test]
fn identities_see_codes_scales_offsets_and_forms() {
    let identity = |model: &Quantised| open(model).expect("a complete model").identity();
    let model = Quantised::llama(FOUR, &[]);
    let mut all = vec![identity(&model)];
    assert_eq!(all[0], identity(&model));
    for part in ["weight", "scales", "biases"] {
        let mut changed = model.clone();
        changed.tensor(&format!("q_proj.{part}")).bytes[40] ^= 1;
        all.push(identity(&changed));
    }
    all.push(identity(&Quantised::llama(Form::Mxfp4, &[])));
    let before = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), before);
}

/// Changes a Llama of four bits and checks the error that opening it gives.
fn check(change: impl FnOnce(&mut Quantised), expected: &str) {
    let mut model = Quantised::llama(FOUR, &[]);
    change(&mut model);
    let error = open(&model).expect_err(expected).to_string();
    assert!(error.contains(expected), "{error}\nexpected: {expected}");
}

#[test]
fn forms_that_are_not_known_are_errors() {
    let set = |name: &'static str, value: Json| {
        move |model: &mut Quantised| model.config["quantization"][name] = value
    };
    check(
        set("bits", json!(7)),
        "field `quantization.bits`: found 7; expected 2, 3, 4, 5, 6 or 8",
    );
    check(
        set("group_size", json!(48)),
        "field `quantization.group_size`: found 48; expected 32, 64 or 128",
    );
    check(
        set("mode", json!("nvfp4")),
        "field `quantization.mode`: found `nvfp4`; expected affine or mxfp4",
    );
    check(
        set("mode", json!("mxfp4")),
        "field `quantization.group_size`: found 64; expected 32, as mxfp4 has",
    );
    check(
        set("bits", json!("four")),
        "field `quantization.bits`: found \"four\"; expected a whole number",
    );
    check(
        set("model.embed_tokens", json!({"bits": 4, "group_size": 16})),
        "field `quantization.model.embed_tokens.group_size`: found 16; expected 32, 64 or 128",
    );
    check(
        set("model.embed_tokens", json!("none")),
        "field `quantization.model.embed_tokens`: found \"none\"; expected the form of a module",
    );
}

#[test]
fn tensors_that_differ_from_the_configuration_are_errors() {
    let set = |value: Json| {
        move |model: &mut Quantised| model.config["quantization"]["model.embed_tokens"] = value
    };
    check(
        set(json!({"group_size": 64, "bits": 8})),
        "tensor `model.embed_tokens.weight` is U32 [48, 16]; expected U32 [48, 32]: rows of 128 \
         elements, 8 bits in groups of 64, as config.json states",
    );
    check(
        set(json!({"group_size": 32, "bits": 4})),
        "tensor `model.embed_tokens.scales` is BF16 [48, 2]; expected F16, BF16 or F32 [48, 4]: \
         rows of 128 elements, 4 bits in groups of 32, as config.json states",
    );
    check(
        set(json!({"mode": "mxfp4"})),
        "tensor `model.embed_tokens.scales` is BF16 [48, 2]; expected U8 [48, 4]: rows of 128 \
         elements, MXFP4, as config.json states",
    );
    check(
        set(json!(false)),
        "tensor `model.embed_tokens.scales` is the scales of a module that config.json leaves \
         unquantised; expected a module without scales",
    );
    // Without a configuration, words are no weights.
    check(
        |model| {
            let config = model.config.as_object_mut().expect("an object");
            config.remove("quantization");
            config.remove("quantization_config");
        },
        "tensor `model.embed_tokens.weight` has shape [48, 16]; expected [48, 128]",
    );
}

#[test]
fn scales_that_are_missing_or_of_another_type_are_errors() {
    fn remove(end: &'static str) -> impl FnOnce(&mut Quantised) {
        move |model| model.tensors.retain(|raw| !raw.name.ends_with(end))
    }
    check(
        remove("0.self_attn.k_proj.scales"),
        "tensor `model.layers.0.self_attn.k_proj.scales` is missing; expected shape [64, 2]",
    );
    check(
        remove("1.mlp.up_proj.biases"),
        "tensor `model.layers.1.mlp.up_proj.biases` is missing; expected shape [256, 2]",
    );
    fn retype(end: &'static str, dtype: Dtype) -> impl FnOnce(&mut Quantised) {
        move |model| model.tensor(end).dtype = dtype
    }
    check(
        retype("0.mlp.down_proj.scales", Dtype::I16),
        "tensor `model.layers.0.mlp.down_proj.scales` is I16 [128, 4]; expected F16, BF16 or F32 \
         [128, 4]",
    );
    check(
        retype("0.mlp.down_proj.biases", Dtype::F16),
        "tensor `model.layers.0.mlp.down_proj.biases` is F16 [128, 4]; expected BF16 [128, 4]",
    );
    check(
        retype("0.mlp.down_proj.weight", Dtype::I32),
        "tensor `model.layers.0.mlp.down_proj.weight` is I32 [128, 32]; expected U32 [128, 32]",
    );
}

#[test]
fn rows_that_are_no_whole_groups_are_errors() {
    let wide = Form::Affine {
        bits: 4,
        group: 32,
        scales: Dtype::F16,
    };
    let mut model = Quantised::llama(wide, &[]);
    model.config["intermediate_size"] = json!(272);
    for (end, shape) in [
        ("gate_proj", [272, 16]),
        ("up_proj", [272, 16]),
        ("down_proj", [128, 34]),
    ] {
        for layer in 0..2 {
            let raw: &mut Raw = model.tensor(&format!("{layer}.mlp.{end}.weight"));
            raw.shape = shape.to_vec();
            raw.bytes = vec![0; shape[0] * shape[1] * 4];
            for part in ["scales", "biases"] {
                let raw = model.tensor(&format!("{layer}.mlp.{end}.{part}"));
                raw.shape = vec![shape[0], shape[1] / 4];
                raw.bytes = vec![0; shape[0] * (shape[1] / 4) * 2];
            }
        }
    }
    let error = open(&model)
        .expect_err("272 is no multiple of 32")
        .to_string();
    let expected = "tensor `model.layers.0.mlp.down_proj.weight` is a matrix with rows of 272 \
                    elements; expected rows of whole groups of 32 elements";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn scales_that_are_not_finite_are_errors() {
    let f32s = Form::Affine {
        bits: 2,
        group: 32,
        scales: Dtype::F32,
    };
    for (form, part, bad, kind) in [
        (FOUR, "scales", &[0x80, 0x7F][..], "BF16"),
        (FOUR, "biases", &[0xC0, 0xFF], "BF16"),
        (EIGHT, "scales", &[0x00, 0x7C], "F16"),
        (EIGHT, "biases", &[0x01, 0xFC], "F16"),
        (f32s, "scales", &[0, 0, 0x80, 0xFF], "F32"),
        (Form::Mxfp4, "scales", &[255], "U8"),
    ] {
        let mut model = Quantised::llama(form, &[]);
        let raw = model.tensor(&format!("1.mlp.down_proj.{part}"));
        raw.bytes[33 * bad.len()..][..bad.len()].copy_from_slice(bad);
        let folder = model.write();
        let files = ModelFiles::open(folder.path()).expect("opening reads no scales");
        assert!(files.tensor(Some(0), Role::Down).is_ok());
        let error = files.tensor(Some(1), Role::Down).map(drop);
        let error = error.expect_err("a bad scale").to_string();
        let expected = format!(
            "tensor `model.layers.1.mlp.down_proj.{part}` is {kind}, whose number 33 is not \
             finite; expected finite numbers"
        );
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn files_that_are_cut_short_are_errors() {
    let model = Quantised::qwen3_moe(FOUR, &[("mlp.gate", EIGHT)]);
    let folder = model.write();
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).expect("it was just written");
    read_whole::use_all(folder.path()).expect("a complete model");
    for part in 0..16 {
        std::fs::write(&path, &whole[..whole.len() * part / 16]).expect("it can be written");
        match read_whole::use_all(folder.path()) {
            Err(ModelError::Damaged { .. }) => {}
            other => panic!("{part}/16 of the file: {other:?}"),
        }
    }
}
