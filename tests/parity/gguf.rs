//! A family's model as llama.cpp's converter writes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use motet::model::weights::ModelFiles;
use serde::Deserialize;
use serde_json::Value;

use motet_testkit::formula::little_endian;

use crate::fixture::{Fixture, TensorEntry, checksum, families, shape_of, text_of};
use crate::formula;
use crate::scratch::Scratch;
use crate::transformation::{Numbers, apply, four_bit_floats};

/// Bytes to which the data of a tensor is aligned.
const ALIGNMENT: usize = 32;

/// The converter's result for a family's folder.
#[derive(Deserialize)]
pub(crate) struct GgufFixture {
    /// Type and value of each field.
    metadata: BTreeMap<String, (String, Value)>,
    /// Shape, type, hash, transformation and the folder's tensor.
    tensors: BTreeMap<String, String>,
    /// Numbers that no formula gives to the last bit.
    values: BTreeMap<String, Vec<f32>>,
    /// Fields of the configuration that the file cannot say, and the logits without them.
    #[serde(default)]
    computed_with: Option<Value>,
    #[serde(default)]
    logits: Option<String>,
}

/// A tensor of the file.
struct GgufTensor {
    name: String,
    shape: Vec<usize>,
    /// ggml's number of the type.
    kind: u32,
    bytes: Vec<u8>,
    hash: String,
    exact: bool,
}

impl GgufFixture {
    /// `None` when llama.cpp's converter does not know the family, or another fixture is the same.
    pub(crate) fn of(family: &str) -> Option<Self> {
        let text = text_of(family, "gguf.json")?;
        Some(serde_json::from_str(&text).expect("the fixture is complete"))
    }

    /// Logits of the file's model at the fixture's rows, which differ from those of the folder's
    /// where the format has no field for an option.
    pub(crate) fn logits(&self, fixture: &Fixture) -> Vec<Vec<f32>> {
        match &self.logits {
            Some(text) => fixture.rows_of(text),
            None => fixture.logits(),
        }
    }

    fn tensors(&self, family: &str) -> Vec<GgufTensor> {
        let folder: BTreeMap<String, TensorEntry> = Fixture::of(family)
            .tensors()
            .into_iter()
            .map(|tensor| (tensor.name.clone(), tensor))
            .collect();
        let tensor = |(name, words): (&String, &String)| {
            let [shape, kind, hash, transformation, source] =
                words.split(' ').collect::<Vec<_>>()[..]
            else {
                panic!("{name}: {words}");
            };
            let listed = self.values.get(name);
            let bytes = match (kind, listed) {
                ("MXFP4", _) => in_blocks(family, &folder[source], &folder, transformation),
                (_, Some(values)) => little_endian(values),
                (_, None) => {
                    little_endian(&apply(transformation, &numbers(family, source, &folder)))
                }
            };
            if let (Some(values), false) = (listed, transformation == "none") {
                let found = apply(transformation, &numbers(family, source, &folder));
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs();
                assert!(
                    found.iter().zip(values).all(near),
                    "{family}: {name}: {found:?}"
                );
            }
            GgufTensor {
                name: name.clone(),
                shape: shape_of(shape),
                kind: if kind == "MXFP4" { 39 } else { 0 },
                bytes,
                hash: hash.to_owned(),
                exact: listed.is_none(),
            }
        };
        self.tensors.iter().map(tensor).collect()
    }
}

/// A folder's tensor, or the tensors of all experts where the name has a star.
fn numbers(family: &str, source: &str, folder: &BTreeMap<String, TensorEntry>) -> Numbers {
    if let Some((before, after)) = source.split_once('*') {
        let names = (0..).map(|expert| format!("{before}{expert}{after}"));
        let experts = names.map_while(|name| folder.get(&name));
        let values =
            experts.flat_map(|tensor| formula::numbers(family, &tensor.name, tensor.count()));
        let values: Vec<f32> = values.collect();
        return Numbers {
            shape: vec![values.len()],
            values,
        };
    }
    let tensor = &folder[source];
    Numbers {
        shape: tensor.shape.clone(),
        values: formula::numbers(family, source, tensor.count()),
    }
}

fn in_blocks(
    family: &str,
    tensor: &TensorEntry,
    folder: &BTreeMap<String, TensorEntry>,
    transformation: &str,
) -> Vec<u8> {
    let scales = &folder[&tensor.name.replace("_blocks", "_scales")];
    let [_, rows, per_row, _] = tensor.shape[..] else {
        panic!("{}: {:?}", tensor.name, tensor.shape);
    };
    let rest = match transformation {
        "mxfp4_even_rows" => Some(0),
        "mxfp4_odd_rows" => Some(1),
        _ => None,
    };
    four_bit_floats(
        &formula::bytes(family, &tensor.name, tensor.count()),
        &formula::bytes(family, &scales.name, scales.count()),
        rows,
        per_row,
        |row| rest.is_none_or(|rest| row % 2 == rest),
    )
}

/// Writes the family's GGUF file into the folder.
pub(crate) fn write_gguf(family: &str, gguf: &GgufFixture, folder: &Scratch) -> PathBuf {
    let vocabulary = Fixture::of(family).vocabulary();
    let mut fields = gguf.metadata.clone();
    for (name, kind, value) in tokens(vocabulary) {
        fields.insert(name.to_owned(), (kind.to_owned(), value));
    }
    let tensors = gguf.tensors(family);
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((fields.len() as u64).to_le_bytes());
    for (name, (kind, value)) in &fields {
        out.extend(string(name));
        out.extend(field(kind, value));
    }
    let mut data = Vec::new();
    for tensor in &tensors {
        out.extend(string(&tensor.name));
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        out.extend(
            tensor
                .shape
                .iter()
                .rev()
                .flat_map(|size| (*size as u64).to_le_bytes()),
        );
        out.extend(tensor.kind.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(&tensor.bytes);
        data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out.extend(data);
    folder.write(&format!("{family}.gguf"), out)
}

/// A vocabulary of names.
fn tokens(count: usize) -> [(&'static str, &'static str, Value); 5] {
    let names: Vec<String> = (0..count).map(|id| format!("t{id}")).collect();
    [
        ("tokenizer.ggml.model", "STRING", "gpt2".into()),
        ("tokenizer.ggml.pre", "STRING", "default".into()),
        ("tokenizer.ggml.tokens", "ARRAY:STRING", names.into()),
        (
            "tokenizer.ggml.token_type",
            "ARRAY:INT32",
            vec![1; count].into(),
        ),
        ("tokenizer.ggml.eos_token_id", "UINT32", 2.into()),
    ]
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A field's type and bytes.
fn field(kind: &str, value: &Value) -> Vec<u8> {
    let Some(element) = kind.strip_prefix("ARRAY:") else {
        let (number, bytes) = scalar(kind, value);
        return [&number.to_le_bytes()[..], &bytes].concat();
    };
    let elements = value.as_array().expect("an array's value is an array");
    let mut out = 9_u32.to_le_bytes().to_vec();
    let (number, _) = scalar(element, &elements[0]);
    out.extend(number.to_le_bytes());
    out.extend((elements.len() as u64).to_le_bytes());
    out.extend(elements.iter().flat_map(|value| scalar(element, value).1));
    out
}

fn scalar(kind: &str, value: &Value) -> (u32, Vec<u8>) {
    let integer = || value.as_i64().expect("an integer");
    match kind {
        "UINT32" => (4, (integer() as u32).to_le_bytes().to_vec()),
        "INT32" => (5, (integer() as i32).to_le_bytes().to_vec()),
        "FLOAT32" => {
            let number = value.as_f64().expect("a number") as f32;
            (6, number.to_le_bytes().to_vec())
        }
        "BOOL" => (7, vec![u8::from(value.as_bool().expect("true or false"))]),
        "STRING" => (8, string(value.as_str().expect("a string"))),
        other => panic!("{other} is no type of a field"),
    }
}

#[test]
fn every_gguf_tensor_has_the_hash_of_the_converters() {
    let mut files = 0;
    for family in families() {
        let Some(gguf) = GgufFixture::of(&family) else {
            continue;
        };
        files += 1;
        for tensor in gguf.tensors(&family) {
            let elements: usize = tensor.shape.iter().product();
            let bytes = if tensor.kind == 39 {
                elements / 32 * 17
            } else {
                elements * 4
            };
            assert_eq!(tensor.bytes.len(), bytes, "{family}: {}", tensor.name);
            if tensor.exact {
                assert_eq!(
                    checksum(&tensor.bytes),
                    tensor.hash,
                    "{family}: {}",
                    tensor.name
                );
            }
        }
        assert_eq!(
            gguf.computed_with.is_some(),
            gguf.logits.is_some(),
            "{family}"
        );
        let fixture = Fixture::of(&family);
        let same = gguf.logits(&fixture) == fixture.logits();
        assert_eq!(same, gguf.computed_with.is_none(), "{family}");
        let folder = Scratch::new();
        let file = write_gguf(&family, &gguf, &folder);
        let opened = ModelFiles::open(&file);
        assert!(opened.is_ok(), "{family}: {:?}", opened.err());
    }
    assert!(files >= 15, "{files} files");
}
