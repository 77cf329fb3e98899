//! Files that are missing, cut short, changed or invented. Each gives a typed error, never a
//! panic, and takes no more memory than the file's size accounts for.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use motet::model::ModelError;
use motet_weights::Format;
use proptest::prelude::*;
use serde_json::json;

use crate::allocation::largest_during;
use crate::fixtures::Fixture;
use crate::gguf::{GgufFile, Value, array};
use crate::tiny::{Scratch, Tiny};
use crate::{folder, read_whole};

/// Maximum bytes of one allocation. The tiny files have less than 64 KiB.
const ALLOCATION_BYTES_MAX: usize = 1 << 20;

/// Opens the model and, if that works, reads all of it, with bounded allocations.
fn use_all(path: &Path) -> Result<(), ModelError> {
    let (result, largest) = largest_during(|| read_whole::use_all(path).map(drop));
    assert!(largest < ALLOCATION_BYTES_MAX, "{largest} bytes at once");
    result
}

/// A file that is changed in place and restored.
struct Victim {
    file: File,
    bytes: Vec<u8>,
}

impl Victim {
    fn new(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the file was just written");
        let file = OpenOptions::new().write(true).open(path);
        Self {
            file: file.expect("the file was just written"),
            bytes,
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let done = self
            .file
            .seek(SeekFrom::Start(at as u64))
            .and_then(|_| self.file.write_all(bytes));
        done.expect("a scratch file can be written");
    }

    /// Opens `path` with the file's bytes at `at` replaced.
    fn with(&mut self, path: &Path, at: usize, bytes: &[u8]) -> Result<(), ModelError> {
        let end = (at + bytes.len()).min(self.bytes.len());
        self.write(at, &bytes[..end - at]);
        let result = use_all(path);
        let original = self.bytes[at..end].to_vec();
        self.write(at, &original);
        result
    }
}

/// Cuts the file of a model at every byte of its header and at some offsets after it, and
/// changes every byte of the header in four ways.
fn check_mutations(path: &Path, file: &Path, header: usize) {
    use_all(path).expect("the tiny model is complete");
    let mut victim = Victim::new(file);
    for at in 0..header {
        let byte = victim.bytes[at];
        for changed in [byte ^ 0xff, byte ^ 1, byte ^ 0x80, 0] {
            // Either Ok or a typed error is correct.
            victim.with(path, at, &[changed]).ok();
        }
    }
    use_all(path).expect("every change was undone");
    let whole = victim.bytes.len();
    let behind = (header..whole).rev().step_by(97);
    for length in behind.chain((0..header).rev()) {
        victim.file.set_len(length as u64).expect("a scratch file");
        let error = use_all(path).expect_err("the file is cut short");
        assert!(matches!(error, ModelError::Damaged { .. }), "{error}");
    }
}

#[test]
fn gguf_file_truncated_or_changed_anywhere() {
    let scratch = Scratch::new();
    let (bytes, header) = GgufFile::of(Tiny::of(Format::Q4_0)).write();
    let path = scratch.write("tiny.gguf", bytes);
    check_mutations(&path, &path, header);
}

#[test]
fn safetensors_file_truncated_or_changed_anywhere() {
    let folder = folder::whole(Tiny::of(Format::BF16));
    let file = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&file).expect("the file was just written");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    check_mutations(folder.path(), &file, 8 + length as usize);
}

#[test]
fn json_files_truncated_or_changed_anywhere() {
    let folder = folder::sharded(Tiny::of(Format::BF16), 2);
    folder.write("generation_config.json", r#"{"eos_token_id": [2, 3]}"#);
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
    ] {
        let file = folder.path().join(name);
        let whole = std::fs::read(&file).expect("the file was just written");
        check_mutations(folder.path(), &file, whole.len());
        std::fs::write(&file, whole).expect("a scratch file");
    }
}

/// Changes some bytes of each family's files and cuts them at some places.
#[test]
fn files_of_each_family_changed_at_some_places() {
    const PLACES: usize = 12;
    let sample = |path: &Path, file: &Path| {
        read_whole::use_all(path).expect("the fixture is complete");
        let mut victim = Victim::new(file);
        // Headers precede the tensors, and are longer than 64 KiB in no fixture.
        let step = victim.bytes.len().min(1 << 16).div_ceil(PLACES);
        for at in (0..victim.bytes.len().min(1 << 16)).step_by(step.max(1)) {
            let changed = victim.bytes[at] ^ 1;
            victim.write(at, &[changed]);
            // Either Ok or a typed error is correct.
            read_whole::use_all(path).ok();
            let original = victim.bytes[at];
            victim.write(at, &[original]);
        }
        for part in 1..PLACES as u64 {
            let length = victim.bytes.len() as u64 * part / PLACES as u64;
            victim.file.set_len(length).expect("a scratch file");
            read_whole::use_all(path)
                .map(drop)
                .expect_err("the file is cut short");
        }
        std::fs::write(file, &victim.bytes).expect("a scratch file");
    };
    for fixture in Fixture::all() {
        let folder = fixture.folder();
        for file in ["config.json", "model.safetensors"] {
            sample(folder.path(), &folder.path().join(file));
        }
        if let Some(gguf) = fixture.gguf {
            let scratch = Scratch::new();
            let path = scratch.write("model.gguf", gguf.write().0);
            sample(&path, &path);
        }
    }
}

/// Numbers that commonly cause arithmetic overflow.
fn wild_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..16),
        prop_oneof![
            Just(u64::MAX),
            Just(u64::MAX - 31),
            Just(1 << 63),
            Just(1 << 61),
            Just(1 << 40),
            Just(u64::from(u32::MAX)),
            any::<u64>(),
        ]
        .prop_map(|number| number.to_le_bytes().to_vec()),
        (0u32..42).prop_map(|kind| kind.to_le_bytes().to_vec()),
    ]
}

#[test]
fn a_gguf_header_overwritten_at_random() {
    let scratch = Scratch::new();
    let (bytes, header) = GgufFile::of(Tiny::of(Format::Q8_0)).write();
    let path = scratch.write("tiny.gguf", bytes);
    let victim = std::cell::RefCell::new(Victim::new(&path));
    proptest!(ProptestConfig::with_cases(4000), |(at in 0..header, bytes in wild_bytes())| {
        victim.borrow_mut().with(&path, at, &bytes).ok();
    });
}

#[test]
fn safetensors_headers_made_to_overflow() {
    let huge = u64::MAX;
    let tensor = |shape: &[u64], start: u64, end: u64| json!({ "dtype": "U8", "shape": shape, "data_offsets": [start, end] });
    let steps: serde_json::Map<_, _> = (0..8u64)
        .map(|index| {
            let size = (1 << 61) - 1;
            let end = (index + 1) * size;
            (index.to_string(), tensor(&[size], index * size, end))
        })
        .collect();
    for header in [
        json!({ "a": tensor(&[huge], 0, huge) }),
        json!({ "a": tensor(&[huge, huge], 0, 1) }),
        json!({ "a": tensor(&[1], huge, 0) }),
        json!({ "a": tensor(&[1], 1, 2) }),
        json!(steps),
        json!({}),
        json!([]),
    ] {
        let header = header.to_string();
        for length in [header.len() as u64, 0, huge, huge - 7, 100_000_001] {
            let folder = folder::whole(Tiny::of(Format::F32));
            let bytes = [&length.to_le_bytes()[..], header.as_bytes()].concat();
            folder.write("model.safetensors", bytes);
            let error = use_all(folder.path()).expect_err("the folder is not a model");
            let missing = matches!(error, ModelError::TensorMissing { .. });
            assert!(
                missing || matches!(error, ModelError::Damaged { .. }),
                "{error}"
            );
        }
    }
}

/// The error of opening that path, from the file's name on.
fn complaint(path: &Path, name: &str) -> String {
    let error = use_all(path).expect_err("the model is invalid").to_string();
    let start = error.find(name).expect("the error names the file");
    error[start..].to_owned()
}

#[test]
fn missing_files_are_errors() {
    let scratch = Scratch::new();
    assert_eq!(
        complaint(&scratch.path().join("nowhere"), "nowhere"),
        "nowhere does not exist: expected a Hugging Face folder or a GGUF file"
    );
    assert_eq!(
        complaint(scratch.path(), "config.json"),
        "config.json does not exist: expected a model's config.json"
    );
    let tiny = Tiny::of(Format::F32);
    scratch.write("config.json", folder::config(tiny).to_string());
    assert_eq!(
        complaint(scratch.path(), "model.safetensors"),
        "model.safetensors does not exist: expected model.safetensors, \
         or model.safetensors.index.json and its shards"
    );
    let folder = folder::sharded(tiny, 2);
    let shard = "model-00002-of-00002.safetensors";
    std::fs::remove_file(folder.path().join(shard)).expect("the shard was written");
    assert_eq!(
        complaint(folder.path(), shard),
        format!("{shard} does not exist: expected a shard that model.safetensors.index.json names")
    );
}

#[test]
fn an_index_must_not_reach_out_of_its_folder() {
    for shard in ["../model.safetensors", "/etc/passwd", "a/b", "..", ""] {
        let folder = folder::sharded(Tiny::of(Format::F32), 1);
        let index = json!({ "weight_map": { "model.norm.weight": shard } });
        folder.write("model.safetensors.index.json", index.to_string());
        assert_eq!(
            complaint(folder.path(), "model.safetensors.index.json"),
            format!(
                "model.safetensors.index.json: field `weight_map.model.norm.weight`: \
                 found \"{shard}\"; expected the name of a file in this folder"
            )
        );
    }
}

#[test]
fn tensors_that_do_not_match_the_configuration_are_errors() {
    let check = |change: fn(&mut GgufFile), expected: &str| {
        let mut file = GgufFile::of(Tiny::of(Format::Q4_0));
        change(&mut file);
        let scratch = Scratch::new();
        let path = scratch.write("tiny.gguf", file.write().0);
        assert_eq!(
            complaint(&path, "tiny.gguf"),
            format!("tiny.gguf{expected}")
        );
    };
    check(
        |file| {
            file.tensors
                .retain(|tensor| tensor.name != "blk.1.attn_k.weight")
        },
        ": tensor `blk.1.attn_k.weight` is missing; expected shape [32, 32]",
    );
    check(
        |file| file.tensor("blk.0.ffn_up.weight").dimensions = vec![64, 32],
        ": tensor `blk.0.ffn_up.weight` has shape [32, 64]; expected [64, 32]",
    );
    check(
        |file| file.tensor("blk.0.ffn_up.weight").kind = 16,
        ": tensor `blk.0.ffn_up.weight` is stored as IQ2_XXS; \
         expected one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, \
         Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4",
    );
    check(
        |file| file.tensor("blk.0.ffn_up.weight").kind = 77,
        ": tensor `blk.0.ffn_up.weight` is stored as ggml type 77; \
         expected one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, \
         Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4",
    );
    check(
        |file| file.tensor("output_norm.weight").kind = 8,
        ": tensor `output_norm.weight` is stored as Q8_0; expected one of F32, F16, BF16",
    );
    check(
        |file| file.tensor("token_embd.weight").dimensions = vec![16, 80],
        " is damaged: tensor `token_embd.weight` has rows of 16 elements in Q4_0; \
         expected a multiple of 32",
    );
    check(
        |file| file.tensor("token_embd.weight").dimensions = vec![32, u64::MAX / 2],
        " is damaged: tensor `token_embd.weight` of shape [9223372036854775807, 32] \
         reaches beyond its end; expected every tensor within the file",
    );
    check(
        |file| {
            let again = file.tensors[0].clone();
            file.tensors.push(again);
        },
        " is damaged: tensor `token_embd.weight` is there twice; expected every tensor once",
    );
}

/// The formats that cut rows into blocks: ggml's number, the name, and the elements of a block.
const BLOCKS: [(u32, &str, u64); 13] = [
    (2, "Q4_0", 32),
    (3, "Q4_1", 32),
    (6, "Q5_0", 32),
    (7, "Q5_1", 32),
    (8, "Q8_0", 32),
    (10, "Q2_K", 256),
    (11, "Q3_K", 256),
    (12, "Q4_K", 256),
    (13, "Q5_K", 256),
    (14, "Q6_K", 256),
    (20, "IQ4_NL", 32),
    (23, "IQ4_XS", 256),
    (39, "MXFP4", 32),
];

#[test]
fn rows_that_are_no_multiple_of_a_block_are_errors() {
    for (kind, name, elements) in BLOCKS {
        let mut file = GgufFile::of(Tiny::of(Format::F32));
        let tensor = file.tensor("blk.1.ffn_down.weight");
        tensor.kind = kind;
        tensor.dimensions = vec![elements + 16, 2];
        let scratch = Scratch::new();
        let path = scratch.write("tiny.gguf", file.write().0);
        assert_eq!(
            complaint(&path, "tiny.gguf"),
            format!(
                "tiny.gguf is damaged: tensor `blk.1.ffn_down.weight` has rows of {} elements \
                 in {name}; expected a multiple of {elements}",
                elements + 16
            )
        );
    }
}

#[test]
fn blocks_after_the_end_of_the_file_are_errors() {
    for (kind, name, elements) in BLOCKS {
        let mut file = GgufFile::of(Tiny::of(Format::F32));
        let last = file.tensors.last_mut().expect("the model has tensors");
        let (tensor, bytes) = (last.name.clone(), last.bytes.len() as u64);
        last.kind = kind;
        // No block has fewer bytes than a quarter of its elements.
        last.dimensions = vec![elements, bytes / (elements / 4) + 1];
        let rows = last.dimensions[1];
        let scratch = Scratch::new();
        let path = scratch.write("tiny.gguf", file.write().0);
        assert_eq!(
            complaint(&path, "tiny.gguf"),
            format!(
                "tiny.gguf is damaged: tensor `{tensor}` of shape [{rows}, {elements}] reaches \
                 beyond its end; expected every tensor within the file"
            ),
            "{name}"
        );
    }
}

#[test]
fn foreign_gguf_headers_are_errors() {
    let check = |bytes: &[u8], expected: &str| {
        let scratch = Scratch::new();
        let path = scratch.write("tiny.gguf", bytes);
        assert_eq!(
            complaint(&path, "tiny.gguf"),
            format!("tiny.gguf is damaged: {expected}")
        );
    };
    let tiny = GgufFile::of(Tiny::of(Format::Q4_0));
    check(
        b"",
        "it ends 0 bytes into the magic number; expected 4 bytes",
    );
    check(
        b"ggjt....",
        "it does not begin with `GGUF`; expected a GGUF file",
    );
    for (version, what) in [
        (1, "its version is 1"),
        (4, "its version is 4"),
        (3u32.swap_bytes(), "it is big-endian"),
    ] {
        let mut file = tiny.clone();
        file.version = version;
        check(
            &file.write().0,
            &format!("{what}; expected little-endian GGUF of version 2 or 3"),
        );
    }
    let twice = GgufFile {
        fields: vec![tiny.fields[0].clone(), tiny.fields[0].clone()],
        ..tiny.clone()
    };
    check(
        &twice.write().0,
        "metadata key `general.architecture` is there twice; expected every key once",
    );
    let deep = (0..8).fold(array(0, 0, &[]), |inner, _| array(9, 1, &inner));
    check(
        &tiny.clone().with("a", Some(Value::Raw(9, deep))).write().0,
        "metadata key `a` nests arrays; expected at most 4 levels",
    );
    check(
        &tiny.with("a", Some(Value::Raw(13, vec![0; 8]))).write().0,
        "metadata key `a` is of type 13; expected a type from 0 to 12",
    );
}
