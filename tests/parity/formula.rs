//! Weights by a formula: one number for each element of each tensor, from the tensor's name alone.
//!
//! `formula.json` gives the constants of [`motet_testkit::formula`] by the name's suffix. Every such
//! number is exact in f32, bf16 and f16. `formula.py` is the same in Python.

use std::sync::LazyLock;

use motet_testkit::formula;
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
    formula::numbers(name, count, kind.bits, kind.exponent, kind.offset)
}

/// The bytes of a tensor of bytes.
pub(crate) fn bytes(family: &str, name: &str, count: usize) -> Vec<u8> {
    let kind = Kind::of(family, name);
    formula::bytes(name, count, kind.bits, kind.offset)
}
