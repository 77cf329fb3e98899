//! The numeric modes of our model.

use std::fmt;

use clap::ValueEnum;

/// How our side computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Mode {
    /// As it is by default: with activations in 8 bits.
    Default,
    /// With every product in `f32`, and state in `f32`.
    Exact,
    /// With exact products, and every sum in its sequence's order.
    Deterministic,
    /// With exact products, and state cached in bf16.
    CachedBf16,
    /// With exact products, and state cached in 8 bits.
    CachedInt8,
}

impl Mode {
    /// Whether numbers are rounded that exact products do not round. Sampled tokens may differ
    /// then.
    pub(crate) fn is_rounded(self) -> bool {
        matches!(self, Mode::Default | Mode::CachedBf16 | Mode::CachedInt8)
    }
}

/// As on the command line of `measure`.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no mode is left out");
        f.write_str(value.get_name())
    }
}
