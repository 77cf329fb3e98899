//! Injected bugs that the checkers of whole systems must find, so that a checker that cannot
//! fail is noticed.
//!
//! With `--cfg motet_injected` a test injects one of them for its own thread (`inject`), or
//! `MOTET_INJECTED` names one for a whole program. Without that cfg there are none:
//! [`is_injected`] is a constant `false`. (The primitives have other bugs, for loom:
//! `primitives/inject.rs`.)

#[cfg(motet_injected)]
pub use by_name::inject;

/// A bug of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The cache does not release the leases of a sequence.
    LostRelease,
    /// The cache extends a grant without reserving memory for it.
    DoubleGrant,
    /// The cache may evict a segment that it is about to split.
    HeldEvicted,
    /// The pager takes a detached state from before a reset for one from after it.
    StaleDetachedState,
    /// The pager never confirms that state in transit to a cancelled sequence was discarded.
    UnconfirmedCancel,
    /// The scheduler forgets the last token of a sequence that it rebuilds.
    TokenTwice,
    /// The scheduler does not report that a sequence has reached a checkpoint that another
    /// sequence waits for.
    LostCheckpoint,
    /// The scheduler takes an answer from before a reset for one from after it.
    StaleAnswer,
    /// A segment stays leased after its copy has failed.
    LostLease,
    /// A restarted sequence sends its last token twice.
    TokenAgain,
    /// A segment is evicted while it is leased.
    LeasedEvicted,
    /// A sequence that was started in the turn of its class may lose its slot at once.
    TurnTaken,
    /// A sampler takes the grammar's mask of a draft's first row for all its rows.
    StaleMask,
    /// The state of a draft's first wrong token stays in the tail.
    WrongDraftKept,
    /// All rows of a draft are sampled as if at the position of the first.
    DraftPositionKept,
    /// A sampler's penalties count the wrong tokens of a draft.
    WrongDraftCounted,
}

/// Whether the cores of this thread have this bug.
#[cfg(not(motet_injected))]
#[inline]
pub const fn is_injected(_: Bug) -> bool {
    false
}

/// Whether the cores of this thread have this bug.
#[cfg(motet_injected)]
#[inline]
pub fn is_injected(bug: Bug) -> bool {
    by_name::is_injected(bug)
}

#[cfg(motet_injected)]
mod by_name {
    use std::cell::Cell;
    use std::sync::OnceLock;

    use super::Bug;

    thread_local!(static INJECTED: Cell<Option<Bug>> = const { Cell::new(None) });

    impl Bug {
        /// Bugs that the test of all message orders must find.
        pub const OF_CORES: [Self; 8] = [
            Self::LostRelease,
            Self::DoubleGrant,
            Self::HeldEvicted,
            Self::StaleDetachedState,
            Self::UnconfirmedCancel,
            Self::TokenTwice,
            Self::LostCheckpoint,
            Self::StaleAnswer,
        ];
        /// Bugs that random histories with drafts must find.
        pub const OF_DRAFTS: [Self; 4] = [
            Self::StaleMask,
            Self::WrongDraftKept,
            Self::DraftPositionKept,
            Self::WrongDraftCounted,
        ];
        /// Bugs that the simulation of the whole engine must find, by name.
        pub const NAMED: [(&str, Self); 4] = [
            ("lost_lease", Self::LostLease),
            ("token_again", Self::TokenAgain),
            ("leased_evicted", Self::LeasedEvicted),
            ("turn_taken", Self::TurnTaken),
        ];

        /// Returns the bug that `MOTET_INJECTED` names.
        fn named() -> Option<Self> {
            static NAMED: OnceLock<Option<Bug>> = OnceLock::new();
            *NAMED.get_or_init(|| {
                let name = std::env::var("MOTET_INJECTED").ok()?;
                let mut named = Self::NAMED.iter();
                named.find(|(its, _)| *its == name).map(|(_, bug)| *bug)
            })
        }
    }

    /// Sets the bug of this thread's cores, or none.
    pub fn inject(bug: Option<Bug>) {
        INJECTED.set(bug);
    }

    pub(super) fn is_injected(bug: Bug) -> bool {
        INJECTED.get() == Some(bug) || Bug::named() == Some(bug)
    }
}
