//! The forms of quantised modules.

use std::collections::HashMap;
use std::fmt;

/// The forms of a folder's quantised modules.
#[derive(Debug)]
pub(crate) struct MlxQuantisation {
    /// The form of modules that are not listed.
    pub(crate) default: Grouping,
    /// The forms of single modules, by their paths. None for those that are not quantised.
    pub(crate) modules: HashMap<String, Option<Grouping>>,
}

/// The form of a quantised matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    Affine { bits: usize, group: usize },
    Mxfp4,
}

impl Grouping {
    /// Bits of an element.
    pub(crate) fn bits(self) -> usize {
        match self {
            Self::Affine { bits, .. } => bits,
            Self::Mxfp4 => 4,
        }
    }

    /// Elements with the same scale.
    pub(crate) fn group(self) -> usize {
        match self {
            Self::Affine { group, .. } => group,
            Self::Mxfp4 => 32,
        }
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affine { bits, group } => write!(f, "{bits} bits in groups of {group}"),
            Self::Mxfp4 => write!(f, "MXFP4"),
        }
    }
}
