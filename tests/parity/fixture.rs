//! The committed numbers of one family.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use motet_testkit::formula::little_endian;

use crate::formula;

/// The numbers that `generate.py` found for one family.
#[derive(Deserialize)]
pub(crate) struct Fixture {
    #[serde(skip)]
    pub(crate) family: String,
    /// The sequence whose logits are known.
    pub(crate) tokens: Vec<u32>,
    /// Positions of `logits`.
    pub(crate) rows: Vec<usize>,
    logits: String,
    /// Positions of the residual stream.
    pub(crate) residual_rows: Vec<usize>,
    residual_stream: Vec<String>,
    /// The greedy continuation, and by how much each token's logit exceeds the second.
    pub(crate) greedy: Vec<u32>,
    pub(crate) margins: Vec<f32>,
    /// Largest differences between equally right ways of computing.
    noise: BTreeMap<String, Option<f64>>,
    /// Largest difference of a right logit: ten times the noise.
    pub(crate) tolerance: f32,
    /// Largest differences that known mistakes make.
    mutants: BTreeMap<String, f64>,
    tensors: BTreeMap<String, String>,
}

/// A tensor as a checkpoint stores it.
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// Bytes, not floating-point numbers.
    pub(crate) unsigned: bool,
    checksum: String,
}

/// The names of all families that have a fixture.
pub(crate) fn families() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(place())
        .expect("the fixtures are beside the test")
        .map(|entry| entry.expect("a readable folder"))
        .filter(|entry| entry.path().join("expected.json").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The folder of the fixtures. A program that has left the checkout finds them beside itself, where
/// `MOTET_FIXTURES` says.
fn place() -> PathBuf {
    let elsewhere = std::env::var_os("MOTET_FIXTURES").map(PathBuf::from);
    elsewhere.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/parity"))
}

impl Fixture {
    pub(crate) fn of(family: &str) -> Self {
        let text = text_of(family, "expected.json").expect("each family has its numbers");
        let mut fixture: Self = serde_json::from_str(&text).expect("the fixture is complete");
        family.clone_into(&mut fixture.family);
        fixture
    }

    pub(crate) fn tensors(&self) -> Vec<TensorEntry> {
        let entry = |(name, words): (&String, &String)| {
            let [shape, kind, checksum] = words.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{name}: {words}");
            };
            TensorEntry {
                name: name.clone(),
                shape: shape_of(shape),
                unsigned: kind == "u8",
                checksum: checksum.to_owned(),
            }
        };
        self.tensors.iter().map(entry).collect()
    }

    /// Logits of the positions `rows`.
    pub(crate) fn logits(&self) -> Vec<Vec<f32>> {
        self.rows_of(&self.logits)
    }

    /// Numbers in base64, in as many rows as `rows` has.
    pub(crate) fn rows_of(&self, text: &str) -> Vec<Vec<f32>> {
        in_rows(&floats(text), self.rows.len())
    }

    pub(crate) fn vocabulary(&self) -> usize {
        self.logits()[0].len()
    }

    /// The largest difference between equally right ways of computing.
    pub(crate) fn noise(&self) -> f64 {
        self.noise.values().flatten().copied().fold(0.0, f64::max)
    }

    /// The residual stream after each layer, at the positions `residual_rows`: where the first
    /// difference is, the layer is wrong.
    pub(crate) fn residual_stream(&self) -> Vec<Vec<Vec<f32>>> {
        let rows = self.residual_rows.len();
        let layers = self.residual_stream.iter();
        layers.map(|layer| in_rows(&floats(layer), rows)).collect()
    }
}

impl TensorEntry {
    pub(crate) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The formula's numbers, as little-endian f32 or as bytes.
    fn bytes(&self, family: &str) -> Vec<u8> {
        if self.unsigned {
            return formula::bytes(family, &self.name, self.count());
        }
        little_endian(&formula::numbers(family, &self.name, self.count()))
    }
}

/// A file of a family's folder, if there is one.
pub(crate) fn text_of(family: &str, file: &str) -> Option<String> {
    std::fs::read_to_string(place().join(family).join(file)).ok()
}

/// Sizes that are joined by `x`, outermost first.
pub(crate) fn shape_of(text: &str) -> Vec<usize> {
    let sizes = text.split('x').map(str::parse);
    sizes.collect::<Result<_, _>>().expect("sizes are numbers")
}

/// The first 16 hexadecimal digits of SHA-256.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub(crate) fn in_rows(numbers: &[f32], rows: usize) -> Vec<Vec<f32>> {
    assert_eq!(numbers.len() % rows, 0, "rows are of one width");
    numbers
        .chunks(numbers.len() / rows)
        .map(<[f32]>::to_vec)
        .collect()
}

/// Little-endian f32 in base64.
pub(crate) fn floats(text: &str) -> Vec<f32> {
    let bytes = base64(text);
    let chunks = bytes.chunks_exact(4);
    assert!(chunks.remainder().is_empty(), "whole numbers");
    chunks
        .map(|chunk| f32::from_le_bytes(chunk.try_into().expect("four bytes")))
        .collect()
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.trim_end_matches('=').chars();
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for digit in digits {
        let value = DIGITS.find(digit).expect("a digit of base64");
        bits = bits << 6 | value as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    bytes
}

#[test]
fn base64_is_read() {
    assert_eq!(base64("AACAPw=="), [0, 0, 128, 63]);
    assert_eq!(base64("+/8="), [0xfb, 0xff]);
    assert_eq!(floats("AACAPwAAAMA="), [1.0, -2.0]);
}

#[test]
fn every_tensor_has_its_checksum() {
    for family in families() {
        let fixture = Fixture::of(&family);
        for tensor in fixture.tensors() {
            let found = checksum(&tensor.bytes(&family));
            assert_eq!(found, tensor.checksum, "{family}: {}", tensor.name);
        }
    }
}

/// The numbers have the sizes that the configuration says.
#[test]
fn every_fixture_is_complete() {
    let families = families();
    assert!(families.len() >= 20, "{families:?}");
    for family in families {
        let fixture = Fixture::of(&family);
        let config = text_of(&family, "config.json").expect("each family has a configuration");
        let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        let text = config.get("text_config").unwrap_or(&config);
        let size = |name: &str| text[name].as_u64().expect("a size") as usize;
        let logits = fixture.logits();
        assert_eq!(logits.len(), fixture.rows.len(), "{family}");
        assert!(
            logits.iter().all(|row| row.len() == size("vocab_size")),
            "{family}"
        );
        let stream = fixture.residual_stream();
        assert_eq!(stream.len(), size("num_hidden_layers"), "{family}");
        let mut rows = stream.iter().flatten();
        assert!(rows.all(|row| row.len() == size("hidden_size")), "{family}");
        assert_eq!(fixture.greedy.len(), fixture.margins.len(), "{family}");
        let last = fixture.rows.last().expect("there are rows");
        assert!(*last < fixture.tokens.len(), "{family}");
    }
}

/// A right model differs by the tolerance at most, and each known mistake by a multiple of it.
#[test]
fn every_fixture_would_notice_each_known_mistake() {
    for family in families() {
        let fixture = Fixture::of(&family);
        let tolerance = f64::from(fixture.tolerance);
        let noise = fixture.noise();
        assert!((tolerance / noise - 10.0).abs() < 0.1, "{family}: {noise}");
        assert!(noise < 5e-5, "{family}: {noise}");
        assert!(fixture.mutants.len() >= 5, "{family} has too few mistakes");
        for (mistake, difference) in &fixture.mutants {
            // Both forms of GELU differ by less than a thousandth.
            let least = if mistake == "exact GELU" { 10.0 } else { 99.0 };
            assert!(
                *difference >= least * tolerance,
                "{family}: {mistake}: {difference}"
            );
        }
    }
}
