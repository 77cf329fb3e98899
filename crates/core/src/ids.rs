//! The names that cross between actors: everything the control plane deals in.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// One token of a model's vocabulary.
pub type TokenId = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id!(
    /// One request's tokens: its prompt, then what is generated. Never reused.
    SequenceId,
    "seq-"
);
id!(
    /// A live sequence's place on the device. Never reused.
    SlotId,
    "slot-"
);
id!(
    /// A sealed segment on the device. Never reused.
    SegmentId,
    "seg-"
);
id!(
    /// A sealed segment's state outside the device. Never reused.
    CopyId,
    "copy-"
);
id!(
    /// A prefix that is kept. Never reused.
    PinId,
    "pin-"
);
id!(
    /// Whose a request is: users are served fairly. A digest of the name that the
    /// request gives; requests without one share the default.
    #[derive(Default)]
    UserId,
    "user-"
);

impl UserId {
    /// The user of this name, as requests of it are counted, and as events and snapshots
    /// tell it.
    ///
    /// The digest has 64 bits and no secret, so that one build gives one name the same id in
    /// every process, and a run can be repeated. Names that clients choose freely can be made
    /// so that two are one user: a server with untrusted names submits names of its own.
    ///
    /// ```
    /// use motet_core::UserId;
    ///
    /// assert_ne!(UserId::of("ada"), UserId::of("bob"));
    /// ```
    #[must_use]
    pub fn of(name: &str) -> Self {
        // Its keys are fixed: ties between users are broken by id, alike in every run.
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        // The default is nobody's.
        Self(hasher.finish().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_user_and_no_name_another() {
        assert_eq!(UserId::of("ada"), UserId::of("ada"));
        assert_ne!(UserId::of("ada"), UserId::of("bob"));
        assert_ne!(UserId::of(""), UserId::default());
    }
}
