//! Weights by a formula: one number for each element of each tensor, from the tensor's name alone.
//!
//! Element i of a tensor is `offset + q / 2^(bits - 1) * 2^exponent`. Here q is a signed integer of
//! `bits` bits: the upper bits of the i-th number of SplitMix64 seeded with FNV-1a of the name.
//! `formula.json` gives the rest by the name's suffix. Every such number is exact in f32, bf16 and
//! f16. `formula.py` is the same in Python.

use std::sync::LazyLock;

use serde::Deserialize;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    serde_json::from_str(include_str!("formula.json")).expect("the table is complete")
});

#[derive(Deserialize)]
struct Table {
    kinds: Vec<Kind>,
}

/// Constants of the tensors whose names end with `suffix`; the first entry that fits decides.
#[derive(Deserialize)]
struct Kind {
    suffix: String,
    /// `None`: every family.
    families: Option<Vec<String>>,
    #[serde(default = "eight")]
    bits: u32,
    #[serde(default)]
    exponent: i32,
    #[serde(default)]
    offset: f64,
}

fn eight() -> u32 {
    8
}

impl Kind {
    fn of(family: &str, name: &str) -> &'static Self {
        let fits = |kind: &&Kind| {
            let families = kind.families.as_deref();
            name.ends_with(&kind.suffix)
                && families.is_none_or(|families| families.iter().any(|other| other == family))
        };
        let kind = TABLE.kinds.iter().find(fits);
        kind.expect("the last entry fits every tensor")
    }
}

/// The numbers of a tensor.
pub(crate) fn numbers(family: &str, name: &str, count: usize) -> Vec<f32> {
    let kind = Kind::of(family, name);
    let half = f64::from(1 << (kind.bits - 1));
    upper_bits(name, kind.bits, count)
        .map(|upper| {
            let unit = (upper as f64 - half) / half;
            (kind.offset + unit * f64::from(kind.exponent).exp2()) as f32
        })
        .collect()
}

/// The bytes of a tensor of bytes: `offset` plus the upper bits.
pub(crate) fn bytes(family: &str, name: &str, count: usize) -> Vec<u8> {
    let kind = Kind::of(family, name);
    upper_bits(name, kind.bits, count)
        .map(|upper| (upper as f64 + kind.offset) as u8)
        .collect()
}

fn upper_bits(name: &str, bits: u32, count: usize) -> impl Iterator<Item = u64> {
    split_mix(fnv1a(name))
        .take(count)
        .map(move |number| number >> (64 - bits))
}

fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn split_mix(seed: u64) -> impl Iterator<Item = u64> {
    (1_u64..).map(move |index| {
        let mut z = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Published test vectors of both generators.
#[test]
fn the_generators_are_the_published_ones() {
    let numbers: Vec<u64> = split_mix(1_234_567).take(3).collect();
    let published = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ];
    assert_eq!(numbers, published);
    assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
}
