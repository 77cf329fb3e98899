//! Possible operations, as data that shrinks. Sequences and pins are named by numbers modulo
//! the number that exists, so that any part of a history is a history.

use motet_protocol::TokenId;
use proptest::prelude::*;

use crate::system::{KEYS, SALTS};

/// One operation on the cache or the device.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    OpenSlot(SequenceRequest),
    /// The running sequences whose bit is set evaluate up to `chunk` tokens.
    Step {
        mask: u8,
        chunk: usize,
        /// Checkpoints that are reached now are reported only before the next step.
        late: bool,
        fill: TokenId,
    },
    /// A new sequence continues from the first tokens of another: from all, if `at` is none.
    Fork {
        source: usize,
        at: Option<usize>,
        appended: Vec<TokenId>,
        headroom: usize,
    },
    /// A sequence asks for a slot of so many tokens: a running one, or one that is not running.
    ExtendGrant {
        sequence: usize,
        tokens_max: usize,
        runs: bool,
    },
    /// Probes how much is cached of so many sequences, in any state.
    ProbePrefix {
        first: usize,
        probes: usize,
    },
    /// The end of a sequence is truncated.
    Truncate {
        sequence: usize,
        to: usize,
    },
    /// Tokens in the middle are removed.
    Remove {
        sequence: usize,
        start: usize,
        tokens: usize,
    },
    /// A sequence runs until its slot is full, and shifts.
    Shift {
        sequence: usize,
        fill: TokenId,
    },
    /// A sequence that waits, or that did not fit, is cancelled.
    Cancel {
        sequence: usize,
    },
    Close {
        sequence: usize,
    },
    /// Sequences that did not fit are retried.
    Retry,
    /// All sequences end but one, all state without a lease is cleared, and then it ends too.
    CloseAllButOne {
        last: usize,
    },
    /// A step fails, and with it its slots.
    FailStep {
        mask: u8,
        chunk: usize,
    },
    /// A step panics: the device loses everything.
    Panic {
        mask: u8,
    },
    /// The next edit that needs memory fails: the device loses everything.
    FailAllocation,
    Pin {
        of: usize,
        tokens: usize,
        time_to_live_ms: Option<u64>,
    },
    Unpin {
        pin: usize,
    },
    /// Time passes.
    Pass {
        ms: u64,
    },
    Clear {
        salt: Option<usize>,
    },
    /// A large sequence is opened and closed.
    Press {
        key: usize,
        family: usize,
    },
    /// A message that makes no sense or cannot be carried out.
    Mistake {
        mistake: Mistake,
        sequence: usize,
        by: usize,
    },
}

/// A sequence that is to start.
#[derive(Clone, Debug)]
pub(crate) struct SequenceRequest {
    pub(crate) family: usize,
    pub(crate) shared: usize,
    pub(crate) own: Vec<TokenId>,
    pub(crate) key: usize,
    /// Tokens beyond the prompt in its slot's first grant.
    pub(crate) headroom: usize,
    pub(crate) keep: Option<usize>,
    /// 0 is the start of its own tokens.
    pub(crate) restore_point: Option<usize>,
    pub(crate) retention: u8,
}

impl SequenceRequest {
    /// The end of its conversation, for some requests.
    pub(crate) fn turn_end(&self) -> Option<usize> {
        let tokens = self.prompt().len();
        (!self.headroom.is_multiple_of(3)).then(|| tokens.saturating_sub(self.headroom % 4))
    }
}

/// The error in an [`Operation::Mistake`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mistake {
    ShareUnknown,
    SharePastComputed,
    RemoveUnknown,
    RemoveOutside,
    RemoveCannot,
    OpenSlotTwice,
    PinTooLarge,
    PinNotCached,
    PinTwice,
    UnpinUnknown,
    KeepTooLarge,
}

impl SequenceRequest {
    /// A beginning that a family shares, followed by own tokens.
    pub(crate) fn prompt(&self) -> Vec<TokenId> {
        let shared = (0..self.shared).map(|at| family_token(self.family, at));
        shared.chain(self.own.iter().copied()).collect()
    }
}

/// The token at `at` of all prompts of a family.
pub(crate) fn family_token(family: usize, at: usize) -> TokenId {
    let bits: [u32; 3] = [
        0b0110_1001_1100_1010,
        0b0110_1110_0001_0111,
        0b1010_0000_1111_0011,
    ];
    bits[family % 3] >> (at % 16) & 1
}

/// Any operation; the usual ones are more frequent.
pub(crate) fn any_operation() -> BoxedStrategy<Operation> {
    use Operation::*;
    let any_sequence = || 0usize..8;
    let token = || 0u32..2;
    let step = (any::<u8>(), 1usize..9, prop::bool::weighted(0.2), token());
    let fork = (
        any_sequence(),
        prop::option::weighted(0.6, 0usize..CONTEXT),
        prop::collection::vec(token(), 0..4),
        0usize..12,
    );
    let extend_grant = (
        any_sequence(),
        0usize..CONTEXT + 1,
        prop::bool::weighted(0.9),
    );
    let remove = (any_sequence(), 0usize..CONTEXT, 1usize..7);
    let pin = (
        0usize..32,
        0usize..20,
        prop::option::weighted(0.7, 1u64..12),
    );
    let mistake = (any_mistake(), any_sequence(), 0usize..6);
    prop_oneof![
        42 => any_sequence_request().prop_map(OpenSlot),
        78 => step.prop_map(|(mask, chunk, late, fill)| Step { mask, chunk, late, fill }),
        24 => fork.prop_map(|(source, at, appended, headroom)| Fork { source, at, appended, headroom }),
        21 => extend_grant.prop_map(|(sequence, tokens_max, runs)| ExtendGrant { sequence, tokens_max, runs }),
        9 => (any_sequence(), 1usize..24).prop_map(|(first, probes)| ProbePrefix { first, probes }),
        15 => (any_sequence(), 0usize..CONTEXT).prop_map(|(sequence, to)| Truncate { sequence, to }),
        15 => remove.prop_map(|(sequence, start, tokens)| Remove { sequence, start, tokens }),
        12 => (any_sequence(), token()).prop_map(|(sequence, fill)| Shift { sequence, fill }),
        12 => any_sequence().prop_map(|sequence| Cancel { sequence }),
        39 => any_sequence().prop_map(|sequence| Close { sequence }),
        12 => Just(Retry),
        4 => any_sequence().prop_map(|last| CloseAllButOne { last }),
        6 => (any::<u8>(), 1usize..9).prop_map(|(mask, chunk)| FailStep { mask, chunk }),
        1 => any::<u8>().prop_map(|mask| Panic { mask }),
        1 => Just(FailAllocation),
        18 => pin.prop_map(|(of, tokens, time_to_live_ms)| Pin { of, tokens, time_to_live_ms }),
        9 => any_sequence().prop_map(|pin| Unpin { pin }),
        12 => (1u64..6).prop_map(|ms| Pass { ms }),
        6 => prop::option::of(0..SALTS).prop_map(|salt| Clear { salt }),
        9 => (0..KEYS, 0usize..3).prop_map(|(key, family)| Press { key, family }),
        27 => mistake.prop_map(|(mistake, sequence, by)| Mistake { mistake, sequence, by }),
    ]
    .boxed()
}

const CONTEXT: usize = crate::setup::CONTEXT_TOKENS;

fn any_sequence_request() -> impl Strategy<Value = SequenceRequest> {
    let prompt = (0usize..3, 0usize..18, prop::collection::vec(0u32..2, 1..7));
    let rest = (
        prop_oneof![6 => Just(0usize), 2 => Just(1), 1 => Just(2)],
        0usize..12,
        prop::option::weighted(0.3, 0usize..12),
        prop::option::weighted(0.4, prop_oneof![Just(0usize), 1usize..20]),
        prop_oneof![5 => Just(0u8), 1 => Just(1), 1 => Just(2)],
    );
    (prompt, rest).prop_map(
        |((family, shared, own), (key, headroom, keep, restore_point, retention))| {
            SequenceRequest {
                family,
                shared,
                own,
                key,
                headroom,
                keep,
                restore_point,
                retention,
            }
        },
    )
}

fn any_mistake() -> impl Strategy<Value = Mistake> {
    use Mistake::*;
    prop::sample::select(vec![
        ShareUnknown,
        SharePastComputed,
        RemoveUnknown,
        RemoveOutside,
        RemoveCannot,
        OpenSlotTwice,
        PinTooLarge,
        PinNotCached,
        PinTwice,
        UnpinUnknown,
        KeepTooLarge,
    ])
}
