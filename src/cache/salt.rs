//! Salts: who may share with whom.

use std::fmt;
use std::sync::Arc;

/// Sequences share state only with those of the same salt. The default salt is that
/// of all who name none.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(Option<Arc<str>>);

impl Salt {
    /// The salt of this name, which is often a tenant's.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(Some(name.into()))
    }

    /// A number that differs between salts, as far as 64 bits can.
    pub(super) fn fingerprint(&self) -> u64 {
        let name = self.0.as_deref().unwrap_or_default();
        let named = u64::from(self.0.is_some());
        // As FxHash does.
        name.bytes().fold(named, |hash, byte| {
            (hash.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x517c_c1b7_2722_0a95)
        })
    }
}

/// Says whether there is a name, and not which: it may be a secret.
impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "Salt(default)",
            Some(_) => "Salt(named)",
        })
    }
}
