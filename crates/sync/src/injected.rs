//! Mistakes that the checkers of whole systems must find, so that a checker that cannot
//! fail is noticed.
//!
//! With `--cfg motet_injected` a test [plants](inject) one of them for its own thread, or
//! `MOTET_PLANTED` [names](Bug::NAMED) one for a whole program; without it there are none,
//! and `is_injected` is `false` before the compiler is done.
//! (The primitives in `shared` have others, for loom: `sync/inject.rs`.)

use std::cell::Cell;
use std::sync::OnceLock;

/// A mistake of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The cache does not give up what a sequence held.
    LostRelease,
    /// The cache lets a slot grow, and reserves no room for it.
    DoubleGrant,
    /// The cache may evict what it is about to cut.
    HeldEvicted,
    /// The pager takes a parcel of before a reset for one of after it.
    StaleDetachedState,
    /// The pager does not say when what was on its way to who has left is gone.
    UnconfirmedCancel,
    /// The scheduler forgets the last token of a sequence that begins anew.
    TokenTwice,
    /// The scheduler does not say that a sequence has got where another waits for it.
    LostCheckpoint,
    /// The scheduler takes an answer of before a reset for one of after it.
    StaleAnswer,
    /// A segment whose copy fails stays leased.
    LostLease,
    /// A sequence that begins again says its last token again.
    TokenAgain,
    /// A segment is evicted though somebody leases it.
    LeasedEvicted,
    /// A sequence that has started in the turn of its class may lose its slot at once.
    TurnTaken,
}

impl Bug {
    /// Those that every order of messages must show.
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
    /// Those that a simulation of the whole house must show, by their names.
    pub const NAMED: [(&str, Self); 4] = [
        ("lost_lease", Self::LostLease),
        ("token_again", Self::TokenAgain),
        ("leased_evicted", Self::LeasedEvicted),
        ("turn_taken", Self::TurnTaken),
    ];

    /// What `MOTET_PLANTED` names.
    fn named() -> Option<Self> {
        static NAMED: OnceLock<Option<Bug>> = OnceLock::new();
        *NAMED.get_or_init(|| {
            let name = std::env::var("MOTET_INJECTED").ok()?;
            let mut named = Self::NAMED.iter();
            named.find(|(its, _)| *its == name).map(|(_, bug)| *bug)
        })
    }
}

thread_local!(static INJECTED: Cell<Option<Bug>> = const { Cell::new(None) });

/// From now on this thread's cores make this mistake, or none.
pub fn inject(bug: Option<Bug>) {
    INJECTED.set(bug);
}

/// Whether the cores of this thread make this mistake.
#[inline]
pub fn is_injected(bug: Bug) -> bool {
    cfg!(motet_injected) && (INJECTED.get() == Some(bug) || Bug::named() == Some(bug))
}
