//! Identifiers that actors exchange.

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
    /// A sequence: one request's tokens, the prompt and then the output. Never reused.
    SequenceId,
    "seq-"
);
id!(
    /// A slot: a live sequence's place on the device. Never reused.
    SlotId,
    "slot-"
);
id!(
    /// A sealed segment on the device. Never reused.
    SegmentId,
    "seg-"
);
id!(
    /// A copy of a sealed segment's state outside the device. Never reused.
    CopyId,
    "copy-"
);
id!(
    /// A pinned prefix. Never reused.
    PinId,
    "pin-"
);
id!(
    /// The user that a request belongs to; the scheduler divides service fairly between users.
    /// The id is a digest of the name in the request. Requests without a name share the
    /// default.
    #[derive(Default)]
    UserId,
    "user-"
);

impl UserId {
    /// Returns the id of the user with this name. Requests are counted by it, and events and
    /// snapshots show it.
    ///
    /// The digest has 64 bits and no secret: one build gives a name the same id in every
    /// process, and a run can be repeated. A client that chooses names freely can construct two
    /// names with one id. A server with untrusted clients submits names of its own.
    ///
    /// ```
    /// use motet_protocol::UserId;
    ///
    /// assert_ne!(UserId::of("ada"), UserId::of("bob"));
    /// ```
    #[must_use]
    pub fn of(name: &str) -> Self {
        // The hasher's keys are fixed: ties between users are broken by id, alike in every run.
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        // 0 is the default id, which no name may have.
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
