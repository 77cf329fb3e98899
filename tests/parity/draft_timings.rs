//! Cost of drafts for recurrent layers: copies of state, and rows that are computed again. Prints it
//! for a Qwen3.5 of 0.8B's widths: `cargo test --release --features mlx --test parity --
//! --ignored --nocapture`.

use std::time::Instant;

use half::bf16;
use motet::model::Model;
use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::request::Sampling;
use motet_model::sampling::TokenSampling;
use motet_model::{OutputKind, Tail};
use safetensors::tensor::{Dtype, TensorView, serialize};

use crate::fixture::{Fixture, text_of};
use crate::harness::{Slot, one_at_a_time};
use crate::scratch::Scratch;

const FAMILY: &str = "qwen3_5";

/// The sizes of the fixture, and those of Qwen3.5 0.8B, where both files have them.
const WIDTHS: [(&str, &str); 8] = [
    (r#""hidden_size": 64"#, r#""hidden_size": 1024"#),
    (r#""intermediate_size": 96"#, r#""intermediate_size": 3584"#),
    (r#""num_attention_heads": 4"#, r#""num_attention_heads": 8"#),
    (r#""head_dim": 32"#, r#""head_dim": 256"#),
    (
        r#""linear_key_head_dim": 16"#,
        r#""linear_key_head_dim": 128"#,
    ),
    (
        r#""linear_num_key_heads": 2"#,
        r#""linear_num_key_heads": 16"#,
    ),
    (
        r#""linear_num_value_heads": 4"#,
        r#""linear_num_value_heads": 16"#,
    ),
    (
        r#""linear_value_head_dim": 16"#,
        r#""linear_value_head_dim": 128"#,
    ),
];

fn shape(name: &str, fixture: &[usize]) -> Vec<usize> {
    let ends = |end: &str| name.ends_with(end);
    if ends("in_proj_qkv.weight") {
        vec![6144, 1024]
    } else if ends("in_proj_z.weight") {
        vec![2048, 1024]
    } else if ends("in_proj_a.weight") || ends("in_proj_b.weight") {
        vec![16, 1024]
    } else if ends("conv1d.weight") {
        vec![6144, 1, 4]
    } else if ends("A_log") || ends("dt_bias") {
        vec![16]
    } else if ends("linear_attn.norm.weight") {
        vec![128]
    } else if ends("q_norm.weight") || ends("k_norm.weight") {
        vec![256]
    } else if ends("q_proj.weight") {
        vec![4096, 1024]
    } else if ends("k_proj.weight") || ends("v_proj.weight") {
        vec![512, 1024]
    } else if ends("out_proj.weight") || ends("o_proj.weight") {
        vec![1024, 2048]
    } else if ends("down_proj.weight") {
        vec![1024, 3584]
    } else if ends("gate_proj.weight") || ends("up_proj.weight") {
        vec![3584, 1024]
    } else if let [rows, _] = fixture {
        vec![*rows, 1024]
    } else {
        vec![1024]
    }
}

fn wide() -> Scratch {
    let folder = Scratch::new();
    let mut config = text_of(FAMILY, "config.json").expect("a configuration");
    for (narrow, wide) in WIDTHS {
        assert!(config.contains(narrow), "{narrow}");
        config = config.replace(narrow, wide);
    }
    folder.write("config.json", config);
    let tensors = Fixture::of(FAMILY).tensors();
    let stored: Vec<(Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|tensor| {
            let shape = shape(&tensor.name, &tensor.shape);
            let number = |index: usize| {
                let mixed = (index as u32).wrapping_mul(2_654_435_761) >> 8;
                bf16::from_f32((mixed as f32 / (1 << 24) as f32 - 0.5) * 0.1)
            };
            let bytes = (0..shape.iter().product())
                .flat_map(|index| number(index).to_bits().to_le_bytes())
                .collect();
            (shape, bytes)
        })
        .collect();
    let views = tensors.iter().zip(&stored).map(|(tensor, (shape, bytes))| {
        let view = TensorView::new(Dtype::BF16, shape.clone(), bytes);
        (&tensor.name, view.expect("bytes fit their shape"))
    });
    let bytes = serialize(views, None).expect("tensors can be serialised");
    folder.write("model.safetensors", bytes);
    folder
}

/// Milliseconds of the fastest of many calls.
fn fastest(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..60)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[0]
}

#[test]
#[ignore = "measures; nothing to fail"]
fn drafts_of_recurrent_layers() {
    let _serial = one_at_a_time();
    let folder = wide();
    let files = ModelFiles::open(folder.path()).expect("the model opens");
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        ..MlxOptions::default()
    };
    let mut model = MlxModel::load(&files, options).expect("a model");
    let greedy = TokenSampling {
        sampling: Sampling::GREEDY,
        position: 0,
    };
    for rows in [1_usize, 2, 4, 8] {
        let tokens: Vec<u32> = (2..2 + rows as u32).collect();
        let mut run = |output_kind: OutputKind, stay: usize| {
            let mut slot = Slot::new(&mut model, &[]);
            slot.step(&mut model, &tokens, OutputKind::Nothing);
            fastest(|| {
                let verifies = matches!(output_kind, OutputKind::Verify(_)) && rows > 1;
                slot.step(&mut model, &tokens, output_kind.clone());
                if verifies {
                    let held = slot.tail.tokens() - rows + stay;
                    model.truncate(&mut slot.tail, held).expect("it goes back");
                }
            })
        };
        let plain = run(OutputKind::Logits, rows);
        let one_stays = run(OutputKind::Verify(greedy), 1);
        let all_stay = run(OutputKind::Verify(greedy), rows);
        println!(
            "{rows} rows: {plain:.2} ms without a draft, {one_stays:.2} ms where one row stays, \
             {all_stay:.2} ms where all do"
        );
    }
}
