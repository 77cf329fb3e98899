//! Why a sequence reused less of its prompt than it might have.

/// Why a sequence computed tokens whose state exists or existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissReason {
    /// Memory was too short to use the cached tokens beside those still to be computed.
    OutOfMemory,
    /// The tokens are cached, but the model cannot resume after them: there is no restore
    /// point that far on. See `Request::restore_points`.
    NoState,
    /// A live sequence has the same tokens in its prompt. It had not computed them yet, or was
    /// past the offset where its state can be taken, or shared too few tokens to wait for.
    NotComputed,
    /// The tokens were computed and have been evicted or cleared.
    Evicted,
    /// There were copies in host memory or on disk. Computing the tokens was faster, or there
    /// was no memory to load them.
    NotLoaded,
    /// The tokens are cached under another `cache_salt`, one of the first sixteen. Events and
    /// metrics report this reason, but [`Usage`](crate::Usage) does not: a tenant
    /// must not learn what another tenant has sent.
    OtherSalt,
}

/// Tokens that a sequence computed although they might have been reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Miss {
    /// The reason. If several apply, it is the first in the order of declaration.
    pub reason: MissReason,
    /// How many more tokens might have been reused, as far as is known; at least one.
    pub tokens: usize,
}

impl Miss {
    /// A miss of `tokens` tokens.
    #[must_use]
    pub fn new(reason: MissReason, tokens: usize) -> Self {
        Self { reason, tokens }
    }
}

impl MissReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::OutOfMemory,
        Self::NoState,
        Self::NotComputed,
        Self::Evicted,
        Self::NotLoaded,
        Self::OtherSalt,
    ];

    /// The label of the reason in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::NoState => "no_state",
            Self::NotComputed => "not_computed",
            Self::Evicted => "evicted",
            Self::NotLoaded => "not_loaded",
            Self::OtherSalt => "other_salt",
        }
    }
}
