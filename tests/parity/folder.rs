//! A family's model as a Hugging Face folder.

use half::{bf16, f16};
use motet::model::weights::ModelFiles;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use motet_testkit::formula::little_endian;

use crate::fixture::{Fixture, TensorEntry, families, text_of};
use crate::formula;
use crate::scratch::Scratch;

/// Types of numbers in which a folder may be stored. All hold the same numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Numbers {
    F32,
    F16,
    Bf16,
}

/// A folder with the family's configuration and weights in f32; it is removed on drop.
pub(crate) fn open_family(family: &str) -> Scratch {
    family_stored_in(family, Numbers::F32)
}

/// As [`open_family`], in another type of numbers.
pub(crate) fn family_stored_in(family: &str, numbers: Numbers) -> Scratch {
    let folder = Scratch::new();
    let config = text_of(family, "config.json").expect("each family has a configuration");
    folder.write("config.json", config);
    folder.write("model.safetensors", weights(&Fixture::of(family), numbers));
    folder
}

fn weights(fixture: &Fixture, numbers: Numbers) -> Vec<u8> {
    let tensors = fixture.tensors();
    let stored: Vec<_> = tensors
        .iter()
        .map(|tensor| stored(&fixture.family, tensor, numbers))
        .collect();
    let views = tensors.iter().zip(&stored).map(|(tensor, (dtype, bytes))| {
        let view = TensorView::new(*dtype, tensor.shape.clone(), bytes);
        (&tensor.name, view.expect("bytes fit their shape"))
    });
    serialize(views, None).expect("tiny tensors can be serialised")
}

fn stored(family: &str, tensor: &TensorEntry, numbers: Numbers) -> (Dtype, Vec<u8>) {
    let count = tensor.count();
    if tensor.unsigned {
        return (Dtype::U8, formula::bytes(family, &tensor.name, count));
    }
    let floats = formula::numbers(family, &tensor.name, count);
    let halves = |to: fn(f32) -> u16| floats.iter().flat_map(|x| to(*x).to_le_bytes()).collect();
    match numbers {
        Numbers::F32 => (Dtype::F32, little_endian(&floats)),
        Numbers::F16 => (Dtype::F16, halves(|x| f16::from_f32(x).to_bits())),
        Numbers::Bf16 => (Dtype::BF16, halves(|x| bf16::from_f32(x).to_bits())),
    }
}

#[test]
fn every_folder_opens() {
    for family in families() {
        let opened = ModelFiles::open(open_family(&family).path());
        assert!(opened.is_ok(), "{family}: {:?}", opened.err());
    }
}

#[test]
fn numbers_are_exact_in_every_type() {
    for family in families() {
        for tensor in Fixture::of(&family).tensors() {
            if tensor.unsigned {
                continue;
            }
            for number in formula::numbers(&family, &tensor.name, tensor.count()) {
                assert_eq!(f16::from_f32(number).to_f32(), number, "{}", tensor.name);
                assert_eq!(bf16::from_f32(number).to_f32(), number, "{}", tensor.name);
            }
        }
    }
}

#[test]
fn folders_hold_all_tensors() {
    for family in families() {
        for (numbers, dtype) in [
            (Numbers::F32, Dtype::F32),
            (Numbers::F16, Dtype::F16),
            (Numbers::Bf16, Dtype::BF16),
        ] {
            let folder = family_stored_in(&family, numbers);
            let bytes = std::fs::read(folder.path().join("model.safetensors")).expect("written");
            let file = SafeTensors::deserialize(&bytes).expect("a file of safetensors");
            let expected = Fixture::of(&family).tensors();
            assert_eq!(file.len(), expected.len(), "{family}");
            for tensor in expected {
                let view = file.tensor(&tensor.name).expect("every tensor is stored");
                assert_eq!(view.shape(), tensor.shape, "{family}: {}", tensor.name);
                let dtype = if tensor.unsigned { Dtype::U8 } else { dtype };
                assert_eq!(view.dtype(), dtype, "{family}: {}", tensor.name);
            }
        }
    }
}
