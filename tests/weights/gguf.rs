//! A writer of GGUF files in the form of llama.cpp's converter.

use motet_weights::Format;

use crate::tiny::{HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, Tiny, TinyTensor, VOCAB};

/// A metadata value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    U8(u8),
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Text(String),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Texts(Vec<String>),
    /// A type's number and arbitrary bytes.
    Raw(u32, Vec<u8>),
}

impl Value {
    pub(crate) fn text(text: &str) -> Self {
        Value::Text(text.to_owned())
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut typed = |kind: u32, bytes: &[u8]| {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Value::U8(number) => typed(0, &[*number]),
            Value::U32(number) => typed(4, &number.to_le_bytes()),
            Value::I32(number) => typed(5, &number.to_le_bytes()),
            Value::F32(number) => typed(6, &number.to_le_bytes()),
            Value::Bool(flag) => typed(7, &[u8::from(*flag)]),
            Value::U64(number) => typed(10, &number.to_le_bytes()),
            Value::Text(text) => typed(8, &string(text)),
            Value::I32s(numbers) => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
                typed(9, &array(5, numbers.len(), &bytes));
            }
            Value::F32s(numbers) => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
                typed(9, &array(6, numbers.len(), &bytes));
            }
            Value::Texts(texts) => {
                let bytes: Vec<u8> = texts.iter().flat_map(|text| string(text)).collect();
                typed(9, &array(8, texts.len(), &bytes));
            }
            Value::Raw(kind, bytes) => typed(*kind, bytes),
        }
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

pub(crate) fn array(kind: u32, count: usize, elements: &[u8]) -> Vec<u8> {
    let count = (count as u64).to_le_bytes();
    [&kind.to_le_bytes()[..], &count, elements].concat()
}

/// A GGUF file being built. Everything may be changed before it is written.
#[derive(Clone)]
pub(crate) struct GgufFile {
    pub version: u32,
    pub fields: Vec<(String, Value)>,
    pub tensors: Vec<GgufTensor>,
    pub alignment: usize,
}

#[derive(Clone)]
pub(crate) struct GgufTensor {
    pub name: String,
    /// Innermost first, as in the format.
    pub dimensions: Vec<u64>,
    pub kind: u32,
    pub bytes: Vec<u8>,
}

impl GgufFile {
    pub(crate) fn of(tiny: Tiny) -> Self {
        Self {
            version: 3,
            fields: fields(),
            tensors: tiny.tensors().iter().map(GgufTensor::of).collect(),
            alignment: 32,
        }
    }

    /// The file with that field set or removed.
    pub(crate) fn with(mut self, name: &str, value: Option<Value>) -> Self {
        self.fields.retain(|(field, _)| field != name);
        self.fields
            .extend(value.map(|value| (name.to_owned(), value)));
        self
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut GgufTensor {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        tensor.expect("the tiny model has it")
    }

    /// The file's bytes, and the length of its header.
    pub(crate) fn write(&self) -> (Vec<u8>, usize) {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.fields.len() as u64).to_le_bytes());
        for (name, value) in &self.fields {
            out.extend(string(name));
            value.write(&mut out);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            out.extend(tensor.dimensions.iter().flat_map(|n| n.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        let header = out.len();
        out.resize(header.next_multiple_of(self.alignment), 0);
        out.extend(data);
        (out, header)
    }
}

impl GgufTensor {
    fn of(tensor: &TinyTensor) -> Self {
        Self {
            name: tensor.gguf_name.clone(),
            dimensions: tensor.shape.iter().rev().map(|size| *size as u64).collect(),
            kind: kind(tensor.format),
            bytes: match tensor.rope_heads {
                Some(heads) => permuted(&tensor.bytes, tensor.shape[0], heads),
                None => tensor.bytes.clone(),
            },
        }
    }
}

pub(crate) fn kind(format: Format) -> u32 {
    format.gguf_number().expect("a format of GGUF's")
}

/// `reshape(heads, 2, half, ...).swapaxes(1, 2)` of convert_hf_to_gguf.py.
fn permuted(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / rows;
    let head_dim = rows / heads;
    let mut out = vec![0; bytes.len()];
    for row in 0..rows {
        let (head, which, at) = (
            row / head_dim,
            row % head_dim / (head_dim / 2),
            row % (head_dim / 2),
        );
        let to = head * head_dim + at * 2 + which;
        out[to * row_bytes..][..row_bytes].copy_from_slice(&bytes[row * row_bytes..][..row_bytes]);
    }
    out
}

fn fields() -> Vec<(String, Value)> {
    let tokens = (0..VOCAB).map(|id| format!("t{id}")).collect();
    [
        ("general.architecture", Value::text("llama")),
        ("general.name", Value::text("Tiny")),
        ("llama.block_count", Value::U32(LAYERS as u32)),
        ("llama.context_length", Value::U32(128)),
        ("llama.embedding_length", Value::U32(HIDDEN as u32)),
        ("llama.feed_forward_length", Value::U32(INNER as u32)),
        ("llama.attention.head_count", Value::U32(HEADS as u32)),
        ("llama.attention.head_count_kv", Value::U32(KV_HEADS as u32)),
        ("llama.attention.key_length", Value::U32(HEAD_DIM as u32)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.freq_base", Value::F32(10_000.0)),
        ("llama.rope.dimension_count", Value::U32(HEAD_DIM as u32)),
        ("tokenizer.ggml.tokens", Value::Texts(tokens)),
        ("tokenizer.ggml.token_type", Value::I32s(vec![1; VOCAB])),
        ("tokenizer.ggml.scores", Value::F32s(vec![-0.5; VOCAB])),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}
