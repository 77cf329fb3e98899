//! Families: their configurations and tensors in both containers, and what is wrong in them.

use motet::model::ModelError;
use motet::model::weights::ModelFiles;
use motet_weights::{Attention, Biases, Blueprint, Mixer, Mlp, Role, RopeScaling};
use serde_json::{Value as Json, json};

use crate::fixtures::{Fixture, FixtureTensor};
use crate::gguf::{GgufFile, GgufTensor, Value};
use crate::tiny::Scratch;

fn open(fixture: &Fixture) -> Result<ModelFiles, ModelError> {
    ModelFiles::open(fixture.folder().path())
}

fn open_gguf(file: &GgufFile) -> Result<ModelFiles, ModelError> {
    let scratch = Scratch::new();
    ModelFiles::open(&scratch.write("model.gguf", file.write().0))
}

/// The description without what a container says in its own way: names and tokens; the context
/// too, which the converter of Granite 4 replaces.
fn arithmetic(blueprint: &Blueprint) -> Blueprint {
    Blueprint {
        family: "",
        name: String::new(),
        context_tokens_max: 0,
        end_tokens: Vec::new(),
        begin_token: None,
        ..blueprint.clone()
    }
}

/// Fixtures with an option that GGUF has no key for, or that the converter leaves out.
const GGUF_LACKS: [&str; 8] = [
    "gemma2",        // the scale of the scores
    "gemma3",        // the same
    "gemma3_vision", // the same
    "gpt_oss",       // the limit of the activation
    "gpt_oss_mxfp4", // the same
    "mistral",       // the window
    "olmoe",         // the clamp, and the constant in norms
    "qwen2_yarn",    // the window
];

#[test]
fn every_family_is_read_from_both_containers() {
    for fixture in Fixture::all() {
        let name = &fixture.name;
        let folder = open(&fixture).unwrap_or_else(|error| panic!("{name}: {error}"));
        let multimodal = fixture.config.get("vision_config").is_some();
        let parts: Vec<&str> = folder.skipped().iter().map(|part| part.part).collect();
        assert_eq!(
            parts,
            if multimodal { vec!["vision"] } else { vec![] },
            "{name}"
        );
        for (layer, role) in folder.tensors() {
            let tensor = folder
                .tensor(layer, role)
                .expect("checked when it was opened");
            assert_eq!(tensor.to_f32().len(), tensor.elements(), "{name}: {role:?}");
        }
        let Some(gguf) = &fixture.gguf else {
            continue;
        };
        let gguf = open_gguf(gguf).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(gguf.skipped(), [], "{name}");
        assert!(gguf.tensors().eq(folder.tensors()), "{name}");
        for (layer, role) in gguf.tensors() {
            let shape = |files: &ModelFiles| files.tensor(layer, role).expect("checked").shape;
            assert_eq!(shape(&gguf), shape(&folder), "{name}: {role:?}");
        }
        let (one, other) = (arithmetic(folder.blueprint()), arithmetic(gguf.blueprint()));
        // The divisors of Llama 3's frequencies are not part of the fixture.
        if GGUF_LACKS.contains(&name.as_str()) || ["llama", "phi3"].contains(&name.as_str()) {
            assert_ne!(one, other, "{name}");
        } else {
            assert_eq!(one, other, "{name}");
        }
    }
}

/// Checks the error of a folder with changed fields of the language model's configuration.
fn check(name: &str, changes: &Json, expected: &str) {
    let mut fixture = Fixture::named(name);
    let nested = fixture.config.get("text_config").is_some();
    let config = if nested {
        &mut fixture.config["text_config"]
    } else {
        &mut fixture.config
    };
    for (field, value) in changes.as_object().expect("an object") {
        config[field] = value.clone();
    }
    let error = open(&fixture).expect_err(expected).to_string();
    let (_, rest) = error
        .split_once("config.json: ")
        .expect("the error names the file");
    assert_eq!(rest, expected, "{name}");
}

#[test]
fn configurations_that_contradict_themselves_are_errors() {
    check(
        "qwen3_moe",
        &json!({"num_experts_per_tok": 9}),
        "field `num_experts_per_tok`: found 9; \
         expected a whole number from 1 to 8, the number of experts",
    );
    check(
        "qwen3_moe",
        &json!({"num_experts": 1u64 << 63}),
        "field `num_experts`: found 9223372036854775808; expected a whole number from 1 to 4096",
    );
    check(
        "gemma2",
        &json!({"sliding_window": 513}),
        "field `sliding_window`: found 513; expected at most the context of 512 tokens",
    );
    check(
        "gemma2",
        &json!({"layer_types": ["full_attention"]}),
        "field `layer_types`: found a list of 1; expected one for each of the 4 layers",
    );
    check(
        "lfm2",
        &json!({"layer_types": ["conv", "conv", "mamba", "conv"]}),
        "field `layer_types`: found \"mamba\"; expected one of [\"full_attention\", \"conv\"]",
    );
    check(
        "qwen3_5_vision",
        &json!({"linear_num_key_heads": 3}),
        "field `text_config.linear_num_key_heads`: found 3 for 4 value heads; \
         expected a divisor of the number of value heads",
    );
    check(
        "granitemoehybrid",
        &json!({"mamba_n_heads": 7, "mamba_d_head": 16}),
        "field `mamba_n_heads`: found 7; expected a divisor of the inner size, 128",
    );
    check(
        "smollm3",
        &json!({"num_hidden_layers": 1u64 << 63}),
        "field `num_hidden_layers`: found 9223372036854775808; \
         expected a whole number from 1 to 1024",
    );
}

#[test]
fn options_that_are_not_supported_are_errors() {
    check(
        "gemma3_vision",
        &json!({"use_bidirectional_attention": true}),
        "field `text_config.use_bidirectional_attention`: found true; expected false",
    );
    check(
        "qwen3_5_vision",
        &json!({"attn_output_gate": false}),
        "field `text_config.attn_output_gate`: found false; expected true",
    );
    check(
        "smollm3",
        &json!({"use_sliding_window": true}),
        "field `use_sliding_window`: found true; expected false",
    );
    check(
        "qwen2",
        &json!({"partial_rotary_factor": 0.5}),
        "field `partial_rotary_factor`: found 0.5; expected 1",
    );
    check(
        "qwen3",
        &json!({"hidden_act": "relu"}),
        "field `hidden_act`: found `relu`; expected `silu` or `gelu_pytorch_tanh`",
    );
}

#[test]
fn a_tensor_of_each_family_is_needed() {
    for mut fixture in Fixture::all() {
        // Another one in each fixture: the names differ, but not the check.
        let at = fixture.name.bytes().map(usize::from).sum::<usize>() % fixture.tensors.len();
        let removed = fixture.tensors.remove(at).name;
        let is_text = !["visual.", "vision", "projector"]
            .iter()
            .any(|part| removed.contains(part));
        match open(&fixture) {
            Err(ModelError::TensorMissing { tensor, .. }) => {
                assert!(is_text, "{}: {tensor}", fixture.name);
                // The first expert's name stands for those of alternatives.
                assert!(
                    tensor == removed || removed.contains("experts"),
                    "{tensor} {removed}"
                );
            }
            Err(error) => panic!("{}: {removed}: {error}", fixture.name),
            Ok(_) => assert!(!is_text, "{}: {removed}", fixture.name),
        }
    }
}

#[test]
fn tensors_of_another_shape_or_too_many_are_errors() {
    for (fixture, end) in [
        ("qwen3_moe", "layers.1.mlp.experts.7.down_proj.weight"),
        ("gpt_oss", "layers.0.mlp.experts.gate_up_proj"),
        ("gpt_oss_mxfp4", "layers.0.mlp.experts.gate_up_proj_scales"),
        ("phi3", "layers.0.self_attn.qkv_proj.weight"),
        ("qwen3_5_vision", "layers.0.linear_attn.in_proj_z.weight"),
        ("lfm2", "layers.0.conv.conv.weight"),
    ] {
        let mut wide = Fixture::named(fixture);
        let tensor = wide.tensor(end);
        tensor.shape[0] += 1;
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        match open(&wide) {
            Err(ModelError::TensorShape { tensor, found, .. }) => {
                assert_eq!((tensor, found), (name, shape));
            }
            other => panic!("{fixture}: {other:?}"),
        }
        let mut more = Fixture::named(fixture);
        let mut extra = more.tensors[0].clone();
        extra.name = name_of_extra(&more, end);
        let expected = extra.name.clone();
        more.tensors.push(extra);
        match open(&more) {
            Err(ModelError::TensorExtra { tensor, .. }) => assert_eq!(tensor, expected),
            other => panic!("{fixture}: {other:?}"),
        }
    }
}

fn name_of_extra(fixture: &Fixture, end: &str) -> String {
    let one = fixture.tensors.iter().find(|one| one.name.ends_with(end));
    format!("{}.scale", one.expect("the fixture has it").name)
}

#[test]
fn descriptions_of_one_family_have_identities_of_their_own() {
    let mut known = Vec::new();
    let changes = [
        json!({}),
        json!({"rope_theta": 777.0}),
        json!({"rms_norm_eps": 1e-3}),
        json!({"query_pre_attn_scalar": 99}),
        json!({"sliding_window": 17}),
        json!({"final_logit_softcapping": 5.0}),
        json!({"attn_logit_softcapping": 5.0}),
        json!({"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]}),
    ];
    for change in &changes {
        let mut fixture = Fixture::named("gemma2");
        for (field, value) in change.as_object().expect("an object") {
            fixture.config[field] = value.clone();
        }
        let identity = open(&fixture).expect("a model").identity();
        assert!(!known.contains(&identity), "{change}");
        known.push(identity);
    }
}

/// Norm weights of the folder are 0, and factors in canonical form.
#[test]
fn norms_of_gemma_and_qwen_are_factors() {
    for (name, plain) in [
        ("gemma3_vision", None),
        ("qwen3_5_vision", Some(Role::InnerNorm)),
    ] {
        let files = open(&Fixture::named(name)).expect("a model");
        for (layer, role) in files.tensors() {
            let is_norm = format!("{role:?}").ends_with("Norm");
            let expected = if is_norm && Some(role) != plain {
                1.0
            } else {
                0.0
            };
            let expected = if role == Role::DecayRate {
                -1.0
            } else {
                expected
            };
            let numbers = files.tensor(layer, role).expect("checked").to_f32();
            assert!(
                numbers.iter().all(|one| *one == expected),
                "{name}: {role:?}"
            );
        }
    }
}

#[test]
fn hybrids_have_attention_where_the_file_lists_it() {
    let kinds = |files: &ModelFiles| -> Vec<bool> {
        let layers = files.blueprint().layers.iter();
        layers
            .map(|layer| matches!(layer.mixer, Mixer::Attention(_)))
            .collect()
    };
    for (name, expected) in [
        ("lfm2", [false, false, true, false]),
        ("qwen3_5_vision", [false, false, false, true]),
    ] {
        let fixture = Fixture::named(name);
        assert_eq!(kinds(&open(&fixture).expect("a model")), expected, "{name}");
        let gguf = fixture.gguf.as_ref().expect("a GGUF file");
        assert_eq!(
            kinds(&open_gguf(gguf).expect("a model")),
            expected,
            "{name}"
        );
    }
}

/// The error of a GGUF file with another value in a field, from the file's name on.
fn check_gguf(name: &str, field: &str, value: Value, expected: &str) {
    let file = Fixture::named(name).gguf.expect("a GGUF file");
    let error = open_gguf(&file.with(field, Some(value))).expect_err(expected);
    let error = error.to_string();
    let (_, rest) = error.split_once("model.gguf: ").expect("the file's name");
    assert_eq!(rest, expected);
}

fn attentions(files: &ModelFiles) -> Vec<Attention> {
    let layers = files.blueprint().layers.iter();
    let mixers = layers.filter_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(attention.clone()),
        _ => None,
    });
    mixers.collect()
}

/// The opened folder with changed fields.
fn changed(name: &str, changes: &Json) -> ModelFiles {
    let mut fixture = Fixture::named(name);
    for (field, value) in changes.as_object().expect("an object") {
        fixture.config[field] = value.clone();
    }
    open(&fixture).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn rows_of_mxfp4_must_have_whole_blocks() {
    let mut fixture = Fixture::named("gpt_oss_mxfp4");
    fixture.config["intermediate_size"] = json!(48);
    for tensor in &mut fixture.tensors {
        if tensor.name.contains("experts.gate_up_proj") {
            tensor.shape[1] = 96;
        } else if tensor.name.contains("experts.down_proj_") && tensor.shape.len() > 2 {
            tensor.shape[2] = 1;
        }
    }
    let error = open(&fixture).expect_err("half a block").to_string();
    assert!(
        error.contains(
            "tensor `model.layers.0.mlp.experts.down_proj_blocks` is stored as MXFP4 with rows of \
             48 elements; expected one of rows of whole blocks of 32 elements"
        ),
        "{error}"
    );
}

#[test]
fn an_unknown_language_model_in_a_known_class_is_an_error() {
    let mut fixture = Fixture::named("gemma3_vision");
    fixture.config["text_config"]["model_type"] = json!("mistral4");
    let error = open(&fixture).expect_err("an unknown type").to_string();
    assert!(
        error.contains(
            "architecture `mistral4` is not supported; the nearest known one is `mistral`"
        ),
        "{error}"
    );
}

#[test]
fn quantised_folders_are_errors() {
    let expected = "expected an unquantised folder, one in MLX's quantisation, gpt-oss in MXFP4, or a \
                    GGUF file";
    for method in ["gptq", "awq", "bitsandbytes", "mxfp4"] {
        check(
            "llama",
            &json!({"quantization_config": {"quant_method": method}}),
            &format!("field `quantization_config.quant_method`: found `{method}`; {expected}"),
        );
    }
    check(
        "llama",
        &json!({"quantization": {"bits": 4}}),
        "field `quantization.group_size`: is missing; expected a whole number",
    );
    check(
        "llama",
        &json!({"quantization_config": {"bits": 4}}),
        &format!("field `quantization_config`: found {{\"bits\":4}}; {expected}"),
    );
}

#[test]
fn tensors_without_a_place_are_errors() {
    let check = |mut fixture: Fixture, name: &str| {
        fixture.tensors.push(FixtureTensor {
            name: name.to_owned(),
            shape: vec![1],
            dtype: safetensors::Dtype::F32,
        });
        match open(&fixture) {
            Err(ModelError::TensorExtra { tensor, .. }) => assert_eq!(tensor, name),
            other => panic!("{name}: {other:?}"),
        }
    };
    for name in [
        "model.layers.0.output.weight",
        "model.layers.0.mtp.weight",
        "model.layers.99.self_attn.q_proj.weight",
        "model.norm.bias",
        "lm_head.bias",
    ] {
        check(Fixture::named("llama"), name);
        check(Fixture::named("qwen3"), name);
    }
    let mut tied = Fixture::named("qwen3");
    let mut head = tied.tensor("embed_tokens.weight").clone();
    head.name = "lm_head.weight".to_owned();
    tied.tensors.push(head);
    assert_eq!(open(&tied).expect("a model").skipped().len(), 1);

    let with = |name: &str| {
        let mut file = Fixture::named("qwen3_5_vision").gguf.expect("a GGUF file");
        file.tensors.push(GgufTensor {
            name: name.to_owned(),
            dimensions: vec![1],
            kind: 0,
            bytes: vec![0; 4],
        });
        file
    };
    for name in ["output_norm.bias", "output.bias", "blk.4.attn_q.weight"] {
        match open_gguf(&with(name)) {
            Err(ModelError::TensorExtra { tensor, .. }) => assert_eq!(tensor, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(
        open_gguf(&with("v.patch_embd.weight"))
            .expect("a model")
            .skipped()
            .len(),
        1
    );
}

#[test]
fn gemma_3_has_a_window_by_default() {
    let mut fixture = Fixture::named("gemma3");
    let config = fixture.config.as_object_mut().expect("an object");
    config.remove("sliding_window");
    let first = &attentions(&open(&fixture).expect("a model"))[0];
    assert_eq!(first.window, Some(4096));
    let stated = attentions(&open(&Fixture::named("gemma3")).expect("a model"));
    assert_eq!(first.rope, stated[0].rope);
    let none = attentions(&changed("gemma3", &json!({"sliding_window": null})));
    assert_eq!((none[0].window, &none[0].rope), (None, &stated[0].rope));
}

#[test]
fn qwen3_moe_has_windows_on_all_layers_or_none() {
    let change = json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 3});
    let files = changed("qwen3_moe", &change);
    assert!(attentions(&files).iter().all(|one| one.window == Some(64)));
}

#[test]
fn a_factor_alone_scales_linearly() {
    let file = Fixture::named("qwen3").gguf.expect("a GGUF file");
    let file = file.with("qwen3.rope.scaling.factor", Some(Value::F32(4.0)));
    let rope = attentions(&open_gguf(&file).expect("a model"))[0]
        .rope
        .clone();
    let scaling = rope.expect("it has positions").scaling;
    assert_eq!(scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn granite_4_is_read_with_its_class_defaults() {
    let mut fixture = Fixture::named("granitemoehybrid_moe");
    let config = fixture.config.as_object_mut().expect("an object");
    config.remove("num_local_experts");
    config.insert("mamba_d_head".to_owned(), json!("auto"));
    let files = open(&fixture).expect("a model");
    let Mlp::Experts(experts) = &files.blueprint().layers[0].mlp else {
        panic!("eight experts by default");
    };
    assert_eq!(experts.count, 8);
    fixture
        .config
        .as_object_mut()
        .expect("an object")
        .remove("shared_intermediate_size");
    let error = open(&fixture).expect_err("another width").to_string();
    assert!(error.contains("expected [2048, 64]"), "{error}");
    check(
        "granitemoehybrid",
        &json!({"position_embedding_type": "alibi"}),
        "field `position_embedding_type`: found `alibi`; expected `rope`, `nope` or null",
    );
    check(
        "granitemoehybrid",
        &json!({"mamba_d_head": 8}),
        "field `mamba_d_head`: found 8; expected 16, the inner size of each head",
    );
}

#[test]
fn biases_of_granite_4_have_canonical_order() {
    let mut file = Fixture::named("granitemoehybrid")
        .gguf
        .expect("a GGUF file");
    let weights: Vec<(String, u64)> = file
        .tensors
        .iter()
        .filter(|one| one.name.starts_with("blk.") && one.name.contains(".attn_"))
        .filter(|one| one.dimensions.len() == 2)
        .map(|one| (one.name.replace(".weight", ".bias"), one.dimensions[1]))
        .collect();
    assert!(weights.len() >= 4, "queries, keys, values and the output");
    file.tensors.extend(weights.into_iter().map(|(name, rows)| {
        GgufTensor {
            name,
            dimensions: vec![rows],
            kind: 0,
            bytes: (0..rows)
                .flat_map(|row| (row as f32).to_le_bytes())
                .collect(),
        }
    }));
    let files = open_gguf(&file).expect("a model");
    assert_eq!(attentions(&files)[0].biases, Biases::All);
    let (layer, role) = files
        .tensors()
        .find(|one| one.1 == Role::QueryBias)
        .expect("a bias");
    let numbers = files.tensor(layer, role).expect("checked").to_f32();
    assert_eq!(numbers[..3], [0.0, 2.0, 4.0]);
}

#[test]
fn lists_that_do_not_fit_are_errors() {
    check(
        "qwen3_moe",
        &json!({"mlp_only_layers": 3}),
        "field `mlp_only_layers`: found 3; expected a list of whole numbers",
    );
    check(
        "qwen3_moe",
        &json!({"mlp_only_layers": [99]}),
        "field `mlp_only_layers`: found 99 in the list; expected indices below 2, the number of layers",
    );
    check(
        "gemma3_flat",
        &json!({"sliding_window_pattern": 0}),
        "field `sliding_window_pattern`: found 0; expected a whole number, 1 or more",
    );
    check_gguf(
        "qwen3_5_vision",
        "qwen35.attention.recurrent_layers",
        Value::I32s(vec![1]),
        "field `qwen35.attention.recurrent_layers`: found a list of 1; \
         expected one for each of the 4 layers",
    );
    let file = Fixture::named("gemma3").gguf.expect("a GGUF file");
    let file = file.with(
        "gemma3.attention.sliding_window_pattern",
        Some(Value::U32(1)),
    );
    let windows = attentions(&open_gguf(&file).expect("a model"));
    assert!(windows.iter().all(|one| one.window.is_none()));
}

#[test]
fn gguf_files_that_contradict_themselves_are_errors() {
    check_gguf(
        "qwen3_moe",
        "qwen3moe.expert_used_count",
        Value::U32(9),
        "field `qwen3moe.expert_used_count`: found 9; \
         expected a whole number from 1 to 8, the number of experts",
    );
    check_gguf(
        "gemma2",
        "gemma2.attention.sliding_window",
        Value::U32(513),
        "field `gemma2.attention.sliding_window`: found 513; \
         expected at most the context of 512 tokens",
    );
    check_gguf(
        "qwen3_5_vision",
        "qwen35.rope.dimension_count",
        Value::U32(3),
        "field `qwen35.rope.dimension_count`: found 3; expected an even number, 2 or more",
    );
    check_gguf(
        "qwen3",
        "tokenizer.ggml.tokens",
        Value::Texts(Vec::new()),
        "field `tokenizer.ggml.tokens`: found 0 tokens; expected 1 to 16777216 tokens",
    );
    check_gguf(
        "qwen2_yarn",
        "qwen2.rope.freq_base",
        Value::F32(1.0),
        "field `qwen2.rope.freq_base`: found 1, and a scaling that does not fit; \
         expected finite frequencies of rotary embeddings",
    );
}

#[test]
fn every_expert_is_needed() {
    let mut fixture = Fixture::named("qwen3_moe");
    let name = "model.layers.1.mlp.experts.5.down_proj.weight";
    fixture.tensors.retain(|tensor| tensor.name != name);
    match open(&fixture) {
        Err(ModelError::TensorMissing { tensor, .. }) => assert_eq!(tensor, name),
        other => panic!("{other:?}"),
    }
}
