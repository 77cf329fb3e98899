//! Values of configurations, and errors for invalid ones.

use motet::TokenId;
use motet::model::ModelError;
use motet::model::weights::ModelFiles;
use motet_weights::{Attention, Blueprint, Format, Mixer, Rope, RopeScaling};
use serde_json::{Value as Json, json};

use crate::folder;
use crate::gguf::{GgufFile, GgufTensor, Value};
use crate::tiny::{HEAD_DIM, HEADS, Scratch, Tiny};

/// The configuration of a folder whose config.json has those fields changed. `"absent"` removes
/// a field.
fn folder_config(changes: &Json) -> Result<Blueprint, ModelError> {
    let tiny = Tiny::of(Format::F32);
    let folder = folder::whole(tiny);
    let mut config = folder::config(tiny);
    let fields = config.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        if *value == json!("absent") {
            fields.remove(name);
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
    folder.write("config.json", config.to_string());
    ModelFiles::open(folder.path()).map(|files| files.blueprint().clone())
}

fn gguf_config(file: &GgufFile) -> Result<Blueprint, ModelError> {
    let scratch = Scratch::new();
    let path = scratch.write("tiny.gguf", file.write().0);
    ModelFiles::open(&path).map(|files| files.blueprint().clone())
}

/// The attention of the first layer.
fn attention(blueprint: &Blueprint) -> &Attention {
    match &blueprint.layers[0].mixer {
        Mixer::Attention(attention) => attention,
        other => panic!("a Llama has attention: {other:?}"),
    }
}

fn rope(blueprint: &Blueprint) -> &Rope {
    attention(blueprint).rope.as_ref().expect("a Llama has it")
}

/// Compares an error's text, which must name the file, ignoring the file's folder.
fn check(result: Result<Blueprint, ModelError>, file: &str, expected: &str) {
    let error = result.expect_err(expected).to_string();
    let (folder, rest) = error.split_once(file).expect("the error names the file");
    assert!(folder.contains("motet-scratch-"), "{error}");
    assert_eq!(rest, expected);
}

/// Compares the start of an error's text, which goes on with a list of everything known.
fn check_unknown(result: Result<Blueprint, ModelError>, expected: &str) {
    let error = result.expect_err(expected).to_string();
    assert!(error.contains(expected), "{error}");
}

fn check_folder(changes: Json, expected: &str) {
    check(folder_config(&changes), "config.json", expected);
}

fn check_gguf(name: &str, value: Option<Value>, expected: &str) {
    let file = GgufFile::of(Tiny::of(Format::Q4_0)).with(name, value);
    check(gguf_config(&file), "tiny.gguf", expected);
}

#[test]
fn folders_with_invalid_fields_are_errors() {
    check_folder(
        json!({"vocab_size": "absent"}),
        ": field `vocab_size`: is missing; expected a whole number, 1 or more",
    );
    check_folder(
        json!({"hidden_size": null}),
        ": field `hidden_size`: is missing; expected a whole number, 1 or more",
    );
    check_folder(
        json!({"num_hidden_layers": "two"}),
        ": field `num_hidden_layers`: found \"two\"; expected a whole number, 0 or more",
    );
    check_folder(
        json!({"num_attention_heads": 0}),
        ": field `num_attention_heads`: found 0; expected a whole number from 1 to 4096",
    );
    check_folder(
        json!({"vocab_size": u64::MAX}),
        ": field `vocab_size`: found 18446744073709551615; \
         expected a whole number from 1 to 16777216",
    );
    check_folder(
        json!({"num_key_value_heads": 3}),
        ": field `num_key_value_heads`: found 3 for 4 query heads; \
         expected a divisor of the number of query heads",
    );
    check_folder(
        json!({"head_dim": 7}),
        ": field `head_dim`: found 7; expected an even number, since rotary embeddings rotate pairs",
    );
    check_folder(
        json!({"head_dim": "absent", "num_attention_heads": 5, "num_key_value_heads": 5}),
        ": field `num_attention_heads`: found 5 without a head_dim; \
         expected a divisor of hidden_size, 32",
    );
    check_folder(
        json!({"rms_norm_eps": -1e-5}),
        ": field `rms_norm_eps`: found -0.00001; expected a finite number above 0",
    );
    check_folder(
        json!({"rope_theta": 1e300}),
        &format!(
            ": field `rope_theta`: found {}; expected a finite number above 0",
            1e300
        ),
    );
    check_folder(
        json!({"tie_word_embeddings": 1}),
        ": field `tie_word_embeddings`: found 1; expected true or false",
    );
    check_folder(
        json!({"eos_token_id": [2, 1.5]}),
        ": field `eos_token_id`: found [2,1.5]; expected a token id or an array of them",
    );
    check_folder(
        json!({"eos_token_id": 40}),
        ": field `eos_token_id`: found 40; expected a token id below 40",
    );
    check_folder(
        json!({"bos_token_id": 1u64 << 32}),
        ": field `bos_token_id`: found 4294967296; expected a token id",
    );
}

#[test]
fn folders_of_unsupported_models_are_errors() {
    check_unknown(
        folder_config(&json!({"architectures": ["GemmaForCausalLM"]})),
        "config.json: architecture `GemmaForCausalLM` is not supported; \
         the nearest known one is `Gemma2ForCausalLM`; \
         expected one of LlamaForCausalLM, MistralForCausalLM, ",
    );
    check_unknown(
        folder_config(&json!({"architectures": null, "model_type": "qwen4"})),
        "config.json: architecture `qwen4` is not supported; the nearest known one is `qwen2`; \
         expected one of llama, mistral, ",
    );
    check_folder(
        json!({"architectures": [], "model_type": "absent"}),
        ": field `model_type`: is missing; expected the type of a known model, such as `llama`",
    );
    check_folder(
        json!({"hidden_act": "gelu"}),
        ": field `hidden_act`: found `gelu`; expected `silu` or `gelu_pytorch_tanh`",
    );
    check_folder(
        json!({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
        ": field `rope_scaling.rope_type`: found `dynamic`; \
         expected `default`, `linear`, `llama3`, `yarn`, `longrope` or `proportional`",
    );
    check_folder(
        json!({"rope_scaling": {"type": "linear"}}),
        ": field `rope_scaling.factor`: is missing; expected a finite number above 0",
    );
    check_folder(
        json!({"rope_scaling": "linear"}),
        ": field `rope_scaling`: found \"linear\"; expected an object",
    );
}

#[test]
fn folders_are_read_with_transformers_defaults() {
    let config = |changes| folder_config(&changes).expect("the configuration is valid");
    let absent = config(json!({
        "rms_norm_eps": "absent", "rope_theta": "absent", "rope_scaling": "absent",
        "attention_bias": "absent", "bos_token_id": "absent", "eos_token_id": "absent",
        "hidden_act": "absent", "architectures": "absent",
    }));
    assert_eq!(absent.stem.norm_eps, 1e-6);
    assert_eq!(rope(&absent).theta, 10_000.0);
    assert_eq!(
        (absent.begin_token, &absent.end_tokens[..]),
        (None, &[][..])
    );
    assert_eq!(attention(&absent).window, None);

    let mistral =
        |window| config(json!({"architectures": ["MistralForCausalLM"], "sliding_window": window}));
    assert_eq!(attention(&mistral(json!(64))).window, Some(64));
    assert_eq!(attention(&mistral(json!(null))).window, None);
    assert_eq!(attention(&mistral(json!("absent"))).window, Some(4096));
    assert_eq!(mistral(json!(64)).family, "mistral");

    let llama3 = json!({
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    });
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context_tokens: 8192,
    };
    let scaled = config(json!({"rope_scaling": llama3}));
    assert_eq!(rope(&scaled).scaling, expected);
    let moved = config(json!({"rope_theta": "absent", "rope_parameters": llama3}));
    assert_eq!(
        (rope(&moved).theta, &rope(&moved).scaling),
        (500_000.0, &expected)
    );
    let linear = config(json!({"rope_scaling": {"type": "linear", "factor": 2}}));
    assert_eq!(rope(&linear).scaling, RopeScaling::Linear { factor: 2.0 });
}

#[test]
fn end_tokens_are_those_of_all_files() {
    let tokens = |generation: &str| -> Result<(Option<TokenId>, Vec<TokenId>), ModelError> {
        let folder = folder::whole(Tiny::of(Format::F32));
        folder.write("generation_config.json", generation);
        let files = ModelFiles::open(folder.path())?;
        Ok((
            files.blueprint().begin_token,
            files.blueprint().end_tokens.clone(),
        ))
    };
    let expect = |generation, expected| assert_eq!(tokens(generation).expect("valid"), expected);
    expect("{}", (Some(1), vec![2]));
    expect(r#"{"eos_token_id": [7, 2, 9]}"#, (Some(1), vec![2, 7, 9]));
    // Python's infinities, and ids that stand for none.
    let none = r#"{"eos_token_id": [-1, 7], "length_penalty": -Infinity, "top": NaN}"#;
    expect(none, (Some(1), vec![2, 7]));
    expect("\u{feff}{}", (Some(1), vec![2]));
    expect(
        r#"{"eos_token_id": 3, "bos_token_id": 4}"#,
        (Some(4), vec![2, 3]),
    );
    for (generation, expected) in [
        (
            r#"{"eos_token_id": "</s>"}"#,
            "generation_config.json: field `eos_token_id`",
        ),
        (
            r#"{"eos_token_id": 40}"#,
            "generation_config.json: field `eos_token_id`",
        ),
        ("{", "generation_config.json is damaged"),
        ("[]", "generation_config.json is damaged"),
    ] {
        let error = tokens(generation).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn gguf_files_with_invalid_fields_are_errors() {
    let gemma = GgufFile::of(Tiny::of(Format::Q4_0))
        .with("general.architecture", Some(Value::text("gemma")));
    check_unknown(
        gguf_config(&gemma),
        "tiny.gguf: architecture `gemma` is not supported; the nearest known one is `gemma2`; \
         expected one of llama, ",
    );
    check_gguf(
        "general.architecture",
        Some(Value::text("gemma3")),
        ": field `gemma3.embedding_length`: is missing; expected a whole number, 1 or more",
    );
    check_gguf(
        "general.architecture",
        None,
        ": field `general.architecture`: is missing; \
         expected the name of a known architecture, such as `llama`",
    );
    check_gguf(
        "llama.block_count",
        None,
        ": field `llama.block_count`: is missing; expected a whole number, 1 or more",
    );
    check_gguf(
        "llama.block_count",
        Some(Value::F32(2.0)),
        ": field `llama.block_count`: found Float(2.0); expected a whole number, 0 or more",
    );
    check_gguf(
        "llama.attention.head_count",
        Some(Value::I32s(vec![4, 4])),
        ": field `llama.attention.head_count`: found an array of I32; \
         expected a whole number, 0 or more",
    );
    check_gguf(
        "llama.attention.head_count_kv",
        Some(Value::I32(-2)),
        ": field `llama.attention.head_count_kv`: found Integer(-2); \
         expected a whole number, 0 or more",
    );
    check_gguf(
        "llama.attention.head_count_kv",
        Some(Value::U64(3)),
        ": field `llama.attention.head_count_kv`: found 3 for 4 query heads; \
         expected a divisor of the number of query heads",
    );
    check_gguf(
        "llama.rope.dimension_count",
        Some(Value::U32(8)),
        ": field `llama.rope.dimension_count`: found 8; expected 16, the dimensions of a head",
    );
    check_gguf(
        "llama.rope.freq_base",
        Some(Value::F32(f32::NAN)),
        ": field `llama.rope.freq_base`: found NaN; expected a finite number above 0",
    );
    check_gguf(
        "llama.rope.scaling.type",
        Some(Value::text("dynamic")),
        ": field `llama.rope.scaling.type`: found `dynamic`; \
         expected `none`, `linear`, `yarn` or `longrope`",
    );
    check_gguf(
        "llama.expert_count",
        Some(Value::U32(8)),
        ": field `llama.expert_used_count`: is missing; expected a whole number, 1 or more",
    );
    check_gguf(
        "tokenizer.ggml.eos_token_id",
        Some(Value::U32(40)),
        ": field `tokenizer.ggml.eos_token_id`: found 40; expected a token id below 40",
    );
    check_gguf(
        "split.count",
        Some(Value::U32(2)),
        ": field `split.no`: is missing; expected the index of this part",
    );
    check_gguf(
        "general.alignment",
        Some(Value::U32(24)),
        ": field `general.alignment`: found 24; expected a power of two up to 65536",
    );
}

#[test]
fn gguf_files_are_read_with_llama_cpp_defaults() {
    let file = GgufFile::of(Tiny::of(Format::Q8_0));
    let config = |file: &GgufFile| gguf_config(file).expect("the configuration is valid");
    let token = |id| Some(Value::U32(id));
    assert_eq!(config(&file).end_tokens, [2]);
    let turns = file.clone().with("tokenizer.ggml.eot_token_id", token(5));
    assert_eq!(config(&turns).end_tokens, [2, 5]);
    let messages = turns.with("tokenizer.ggml.eom_token_id", token(6));
    assert_eq!(config(&messages).end_tokens, [2, 5, 6]);
    let same = file.clone().with("tokenizer.ggml.eot_token_id", token(2));
    assert_eq!(config(&same).end_tokens, [2]);
    let none = file.clone().with("tokenizer.ggml.eos_token_id", None);
    assert!(config(&none).end_tokens.is_empty());
    let plain = file.clone().with("llama.rope.freq_base", None);
    assert_eq!(rope(&config(&plain)).theta, 10_000.0);
    let unnamed = file.clone().with("general.name", None);
    assert_eq!(config(&unnamed).name, "tiny");
    let linear = file
        .clone()
        .with("llama.rope.scaling.type", Some(Value::text("linear")))
        .with("llama.rope.scaling.factor", Some(Value::F32(4.0)));
    assert_eq!(
        rope(&config(&linear)).scaling,
        RopeScaling::Linear { factor: 4.0 }
    );
    let window = file.with("llama.attention.sliding_window", token(16));
    assert_eq!(attention(&config(&window)).window, Some(16));
    assert_eq!(
        attention(&config(&window)).heads * attention(&config(&window)).head_dim,
        HEADS * HEAD_DIM
    );
}

/// The divisors that llama.cpp's converter writes for Llama 3.1, computed in the same way.
fn llama3_divisors(theta: f32, factor: f32) -> Vec<f32> {
    (0..HEAD_DIM / 2)
        .map(|index| {
            let frequency = 1.0 / theta.powf(2.0 * index as f32 / HEAD_DIM as f32);
            let wavelength = 2.0 * std::f32::consts::PI / frequency;
            if wavelength < 8192.0 / 4.0 {
                1.0
            } else if wavelength > 8192.0 / 1.0 {
                factor
            } else {
                let smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        })
        .collect()
}

#[test]
fn llama_3_scaling_is_found_in_the_divisors_of_a_gguf_file() {
    let scaling = |divisors: &[f32]| {
        let base = Value::F32(500_000.0);
        let mut file =
            GgufFile::of(Tiny::of(Format::Q8_0)).with("llama.rope.freq_base", Some(base));
        file.tensors.push(GgufTensor {
            name: "rope_freqs.weight".to_owned(),
            dimensions: vec![divisors.len() as u64],
            kind: 0,
            bytes: divisors.iter().flat_map(|n| n.to_le_bytes()).collect(),
        });
        gguf_config(&file).map(|config| rope(&config).scaling.clone())
    };
    for factor in [8.0, 32.0] {
        let found = scaling(&llama3_divisors(500_000.0, factor)).expect("Llama 3");
        let expected = RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context_tokens: 8192,
        };
        assert_eq!(found, expected);
    }
    assert_eq!(
        scaling(&[1.0; HEAD_DIM / 2]).expect("no scaling"),
        RopeScaling::None
    );
    let mut other = llama3_divisors(500_000.0, 8.0);
    other[5] *= 1.1;
    let expected = RopeScaling::Long {
        divisors: other.clone(),
        magnitude: 1.0,
    };
    assert_eq!(scaling(&other).expect("divisors"), expected);
    other[5] = f32::NAN;
    assert!(matches!(scaling(&other), Err(ModelError::Field { .. })));
    assert!(matches!(
        scaling(&other[1..]),
        Err(ModelError::TensorShape { .. })
    ));
}
