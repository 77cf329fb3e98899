//! Every tensor, in every format, from both containers.

use std::path::Path;

use motet::model::ModelError;
use motet::model::weights::ModelFiles;
use motet_weights::{Biases, Format, Mixer, Role, Tensor, TokenizerSource};

use crate::folder;
use crate::gguf::GgufFile;
use crate::tiny::{HIDDEN, Scratch, Tiny, TinyTensor, VOCAB, naive};

const FORMATS: [Format; 10] = [
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q8_0,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Iq4Nl,
    Format::Mxfp4,
];

/// Opens the files and compares every tensor with the naive reading.
fn check(path: &Path, expected: &[TinyTensor]) -> ModelFiles {
    let files = ModelFiles::open(path).expect("the tiny model is complete");
    assert_eq!(files.tensors().count(), expected.len());
    assert_eq!(files.skipped(), []);
    let is_gguf = path.is_file();
    for expected in expected {
        let tensor = files
            .tensor(expected.layer, expected.role)
            .expect("the tensor was written");
        let name = if is_gguf {
            &expected.gguf_name
        } else {
            &expected.name
        };
        assert_eq!(tensor.name, name);
        assert_eq!(tensor.shape, expected.shape);
        assert_eq!(tensor.format(), Some(expected.format));
        let [part] = tensor.parts() else {
            panic!("{}: one tensor is one part", tensor.name);
        };
        assert_eq!(part.bytes(), expected.bytes, "{}", tensor.name);
        // Only rows in another order are copied.
        let reordered = is_gguf && expected.rope_heads.is_some();
        assert_eq!(part.is_mapped(), !reordered, "{}", tensor.name);
        let naive: Vec<f32> = (0..tensor.elements())
            .map(|index| naive(expected.format, &expected.bytes, index))
            .collect();
        assert_eq!(tensor.to_f32(), naive, "{}", tensor.name);
        check_affine(&tensor);
    }
    files
}

/// Reads MLX's layout as `mlx.core.dequantize` documents it.
fn check_affine(tensor: &Tensor<'_>) {
    let Some(affine) = tensor.to_affine() else {
        assert!(!matches!(
            tensor.format(),
            Some(Format::Q8_0 | Format::Q4_0 | Format::Q4_1)
        ));
        return;
    };
    assert_eq!(affine.shape, tensor.shape);
    assert_eq!(affine.group_size, 32);
    assert_eq!(affine.packed.len(), tensor.elements() * affine.bits / 32);
    let per_word = 32 / affine.bits;
    let values: Vec<f32> = (0..tensor.elements())
        .map(|index| {
            let word = affine.packed[index / per_word] >> (index % per_word * affine.bits);
            let quant = word & ((1 << affine.bits) - 1);
            let group = index / affine.group_size;
            affine.scales[group] * quant as f32 + affine.biases[group]
        })
        .collect();
    assert_eq!(values, tensor.to_f32(), "{}", tensor.name);
}

#[test]
fn gguf_files_of_every_format() {
    for format in FORMATS {
        for (tied, biased) in [(true, false), (false, true)] {
            let tiny = Tiny {
                format,
                tied,
                biased,
            };
            let scratch = Scratch::new();
            let path = scratch.write("tiny.gguf", GgufFile::of(tiny).write().0);
            let files = check(&path, &tiny.tensors());
            let blueprint = files.blueprint();
            assert_eq!(blueprint.stem.tied_embeddings, tied);
            let Mixer::Attention(attention) = &blueprint.layers[0].mixer else {
                panic!("a Llama has attention");
            };
            assert_eq!(attention.biases == Biases::All, biased);
            assert!(matches!(files.tokenizer_source(), TokenizerSource::Gguf(_)));
        }
    }
}

#[test]
fn gguf_of_version_2_and_of_another_alignment() {
    let tiny = Tiny::of(Format::Q4_1);
    let scratch = Scratch::new();
    let mut file = GgufFile::of(tiny);
    file.version = 2;
    check(&scratch.write("2.gguf", file.write().0), &tiny.tensors());
    for alignment in [8, 256] {
        let value = crate::gguf::Value::U32(alignment);
        let mut file = file.clone().with("general.alignment", Some(value));
        file.alignment = alignment as usize;
        let path = scratch.write("aligned.gguf", file.write().0);
        check(&path, &tiny.tensors());
    }
}

#[test]
fn folders_whole_and_sharded() {
    for format in [Format::F32, Format::F16, Format::BF16] {
        let tiny = Tiny {
            format,
            tied: false,
            biased: true,
        };
        let whole = folder::whole(tiny);
        let files = check(whole.path(), &tiny.tensors());
        assert!(matches!(
            files.tokenizer_source(),
            TokenizerSource::HuggingFace { folder } if folder == whole.path()
        ));
        for shards in [1, 3] {
            check(folder::sharded(tiny, shards).path(), &tiny.tensors());
        }
    }
}

#[test]
fn both_containers_give_the_same_configuration() {
    let tiny = Tiny::of(Format::F32);
    let scratch = Scratch::new();
    let gguf = scratch.write("tiny.gguf", GgufFile::of(tiny).write().0);
    let gguf = ModelFiles::open(&gguf).expect("the tiny model is complete");
    let folder = folder::whole(tiny);
    let folder = ModelFiles::open(folder.path()).expect("the tiny model is complete");
    let mut named = folder.blueprint().clone();
    assert!(named.name.starts_with("motet-scratch-"));
    named.name = "Tiny".to_owned();
    assert_eq!(*gguf.blueprint(), named);
    // Apart from the names, they are the same model.
    assert_eq!(gguf.identity(), folder.identity());
}

#[test]
fn reading_ahead_covers_all_tensors() {
    let file = GgufFile::of(Tiny::of(Format::Q8_0));
    let scratch = Scratch::new();
    let path = scratch.write("tiny.gguf", file.write().0);
    let files = ModelFiles::open(&path).expect("the model is complete");
    let mut calls = Vec::new();
    files.read_all(|read, all| calls.push((read, all)));
    let bytes: usize = file.tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    assert!(calls.is_sorted());
    assert_eq!(calls.last(), Some(&(bytes, bytes)));
}

#[test]
fn identities_distinguish_models() {
    let identity = |file: &GgufFile| {
        let scratch = Scratch::new();
        let path = scratch.write("tiny.gguf", file.write().0);
        ModelFiles::open(&path)
            .expect("the model is complete")
            .identity()
    };
    let file = GgufFile::of(Tiny::of(Format::Q8_0));
    assert_eq!(identity(&file), identity(&file.clone()));
    let base = crate::gguf::Value::F32(500_000.0);
    let other_config = file.clone().with("llama.rope.freq_base", Some(base));
    let mut other_weights = file.clone();
    other_weights.tensor("blk.1.ffn_up.weight").bytes[5] ^= 1;
    let other_format = GgufFile::of(Tiny::of(Format::Q4_0));
    for other in [other_config, other_weights, other_format] {
        assert_ne!(identity(&file), identity(&other));
    }
}

/// A fine-tune, a merge or an adapter may change any number. Here the last bit of one tensor
/// after another changes.
#[test]
fn one_bit_of_any_tensor_is_another_model() {
    let identity = |path: &Path| {
        ModelFiles::open(path)
            .expect("the model is complete")
            .identity()
    };
    let file = GgufFile::of(Tiny::of(Format::Q8_0));
    let scratch = Scratch::new();
    let of_gguf = |file: &GgufFile| identity(&scratch.write("tiny.gguf", file.write().0));
    let mut known = vec![of_gguf(&file)];
    for tensor in 0..file.tensors.len() {
        let mut other = file.clone();
        *other.tensors[tensor].bytes.last_mut().expect("a number") ^= 1;
        let name = &file.tensors[tensor].name;
        let found = of_gguf(&other);
        assert!(!known.contains(&found), "{name}: the identity changes");
        known.push(found);
    }
    assert!(known.len() > 12, "{} tensors", known.len());

    let tiny = Tiny::of(Format::BF16);
    let names: Vec<String> = tiny.tensors().into_iter().map(|one| one.name).collect();
    let folder = folder::sharded(tiny, 3);
    let mut known = vec![identity(folder.path())];
    for name in &names {
        let mut tensors = tiny.tensors();
        let one = tensors.iter_mut().find(|one| one.name == *name);
        *one.expect("its own").bytes.last_mut().expect("a number") ^= 1;
        for (shard, tensors) in tensors.chunks(tensors.len().div_ceil(3)).enumerate() {
            let file = format!("model-{:05}-of-00003.safetensors", shard + 1);
            folder.write(&file, folder::safetensors(tensors));
        }
        let found = identity(folder.path());
        assert!(!known.contains(&found), "{name}: the identity changes");
        known.push(found);
    }
}

#[test]
fn scales_too_large_for_a_half_precision_bias_have_no_affine_form() {
    let mut file = GgufFile::of(Tiny::of(Format::Q8_0));
    let scale = half::f16::from_f32(600.0).to_le_bytes();
    file.tensor("blk.0.attn_v.weight").bytes[..2].copy_from_slice(&scale);
    let scratch = Scratch::new();
    let path = scratch.write("tiny.gguf", file.write().0);
    let files = ModelFiles::open(&path).expect("the model is complete");
    let tensor = |role| files.tensor(Some(0), role).expect("the tensor was written");
    assert!(tensor(Role::Value).to_affine().is_none());
    assert!(tensor(Role::Value).to_f32()[0].is_finite());
    assert!(tensor(Role::MixerOutput).to_affine().is_some());
}

#[test]
fn tensor_unknown_to_the_architecture_is_missing() {
    let tiny = Tiny::of(Format::F32);
    let folder = folder::whole(tiny);
    let files = ModelFiles::open(folder.path()).expect("the model is complete");
    assert_eq!(
        files
            .tensor(None, Role::Embedding)
            .expect("the architecture has the tensor")
            .shape,
        [VOCAB, HIDDEN]
    );
    for (layer, role, name) in [
        (None, Role::Head, "Head"),
        (Some(2), Role::Up, "Up of layer 2"),
        (Some(0), Role::Router, "Router of layer 0"),
    ] {
        let error = files.tensor(layer, role).expect_err("tied, two layers");
        assert!(matches!(error, ModelError::TensorMissing { tensor, .. } if tensor == name));
    }
}
