//! The names that cross between actors: everything the control plane deals in.

use std::fmt;

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
