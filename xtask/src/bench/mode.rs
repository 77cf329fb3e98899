//! The modes of our side that are measured against exact products.

use std::fmt;

/// How our side computes, other than with exact products and state in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// With every sum in its sequence's order.
    Deterministic,
    /// As it is by default: with activations in 8 bits.
    Default,
    /// With state cached in bf16.
    CachedBf16,
    /// With state cached in 8 bits.
    CachedInt8,
}

impl Mode {
    /// Arguments of `benches/figures/`.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Mode::Deterministic => &["--serve-deterministic"],
            Mode::Default => &["--serve"],
            Mode::CachedBf16 => &["--serve-cached", "bf16"],
            Mode::CachedInt8 => &["--serve-cached", "int8"],
        }
    }

    /// Whether numbers are rounded. Sampled tokens may differ then.
    pub(super) fn is_rounded(self) -> bool {
        self != Mode::Deterministic
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Deterministic => "deterministic",
            Mode::Default => "default",
            Mode::CachedBf16 => "cached-bf16",
            Mode::CachedInt8 => "cached-int8",
        })
    }
}
