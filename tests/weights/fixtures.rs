//! The models of `tests/parity`, as files in both containers: configurations, metadata, names
//! and shapes of Transformers and of llama.cpp's converter, and zeros for weights.

use std::path::PathBuf;

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value as Json;

use crate::gguf::{GgufFile, GgufTensor, Value, array};
use crate::tiny::Scratch;

/// One model.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub name: String,
    pub config: Json,
    pub tensors: Vec<FixtureTensor>,
    /// None where the converter does not know the model.
    pub gguf: Option<GgufFile>,
}

/// A tensor of the folder.
#[derive(Clone)]
pub(crate) struct FixtureTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub dtype: Dtype,
}

impl Fixture {
    /// All models, in alphabetical order.
    pub(crate) fn all() -> Vec<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/parity");
        let entries = std::fs::read_dir(&folder).expect("the fixtures are there");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.join("config.json").exists())
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect();
        names.sort();
        assert!(names.len() >= 19, "a fixture for each family: {names:?}");
        names
            .iter()
            .map(|name| Self::read(&folder.join(name), name))
            .collect()
    }

    pub(crate) fn named(name: &str) -> Self {
        let mut all = Self::all().into_iter();
        all.find(|fixture| fixture.name == name)
            .expect("its folder")
    }

    fn read(folder: &std::path::Path, name: &str) -> Self {
        let read = |file: &str| -> Option<Json> {
            let text = std::fs::read_to_string(folder.join(file)).ok()?;
            Some(serde_json::from_str(&text).expect("JSON"))
        };
        let expected = read("expected.json").expect("numbers of the model");
        Self {
            name: name.to_owned(),
            config: read("config.json").expect("a configuration"),
            tensors: entries(&expected["tensors"])
                .map(|(name, shape, kind)| FixtureTensor {
                    name,
                    shape,
                    dtype: if kind == "u8" { Dtype::U8 } else { Dtype::F32 },
                })
                .collect(),
            gguf: read("gguf.json").map(|json| gguf(&json)),
        }
    }

    /// Writes the folder.
    pub(crate) fn folder(&self) -> Scratch {
        let folder = Scratch::new();
        folder.write("config.json", self.config.to_string());
        let bytes = vec![
            0;
            self.tensors
                .iter()
                .map(FixtureTensor::bytes)
                .max()
                .unwrap_or(0)
        ];
        let views = self.tensors.iter().map(|tensor| {
            let own = &bytes[..tensor.bytes()];
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), own);
            (&tensor.name, view.expect("bytes fit their shape"))
        });
        let whole = serialize(views, None).expect("tensors can be serialised");
        folder.write("model.safetensors", whole);
        folder
    }

    pub(crate) fn tensor(&mut self, end: &str) -> &mut FixtureTensor {
        let tensor = self
            .tensors
            .iter_mut()
            .find(|tensor| tensor.name.ends_with(end));
        tensor.expect("the fixture has it")
    }
}

impl FixtureTensor {
    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// Names, shapes and kinds of tensors.
fn entries(json: &Json) -> impl Iterator<Item = (String, Vec<usize>, String)> {
    let object = json.as_object().expect("an object of tensors");
    object.iter().map(|(name, text)| {
        let mut words = text.as_str().expect("a description").split(' ');
        let shape = words.next().expect("a shape").split('x');
        let shape = shape.map(|size| size.parse().expect("a size")).collect();
        (
            name.clone(),
            shape,
            words.next().expect("a kind").to_owned(),
        )
    })
}

fn gguf(json: &Json) -> GgufFile {
    let metadata = json["metadata"].as_object().expect("metadata");
    let mut fields: Vec<(String, Value)> = metadata
        .iter()
        .map(|(name, typed)| (name.clone(), value(typed)))
        .collect();
    let vocabulary = (0..96).map(|id| format!("t{id}")).collect();
    fields.push(("tokenizer.ggml.tokens".to_owned(), Value::Texts(vocabulary)));
    let tensor = |(name, shape, kind): (String, Vec<usize>, String)| {
        let elements: usize = shape.iter().product();
        let (kind, bytes) = match kind.as_str() {
            "F32" => (0, 4 * elements),
            "MXFP4" => (39, elements / 32 * 17),
            other => panic!("no fixture has {other}"),
        };
        GgufTensor {
            name,
            dimensions: shape.iter().rev().map(|size| *size as u64).collect(),
            kind,
            // Divisors of frequencies must not be 0; one has these bytes.
            bytes: [0, 0, 0x80, 0x3f].into_iter().cycle().take(bytes).collect(),
        }
    };
    GgufFile {
        version: 3,
        fields,
        tensors: entries(&json["tensors"]).map(tensor).collect(),
        alignment: 32,
    }
}

fn value(typed: &Json) -> Value {
    let (kind, value) = (typed[0].as_str().expect("a type"), &typed[1]);
    let all = || value.as_array().expect("an array");
    match kind {
        "UINT32" => Value::U32(value.as_u64().expect("a number") as u32),
        "FLOAT32" => Value::F32(value.as_f64().expect("a number") as f32),
        "BOOL" => Value::Bool(value.as_bool().expect("a flag")),
        "STRING" => Value::text(value.as_str().expect("a text")),
        "ARRAY:INT32" => {
            let numbers = all()
                .iter()
                .map(|one| one.as_i64().expect("a number") as i32);
            Value::I32s(numbers.collect())
        }
        "ARRAY:BOOL" => {
            let flags: Vec<u8> = all().iter().map(|one| u8::from(one == true)).collect();
            Value::Raw(9, array(7, flags.len(), &flags))
        }
        other => panic!("no fixture has metadata of type {other}"),
    }
}
