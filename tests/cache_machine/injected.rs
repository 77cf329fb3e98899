//! A planted bug of each kind is noticed, and by the check that looks for it.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use crate::mutant::Bug::*;
use crate::mutant::Injected::{self, Core, Device};
use crate::{CacheMachine, Histories, config, hush_injected_panics};

/// Histories in which a bug may show.
const HISTORIES_MAX: usize = 60;
const OPERATIONS: usize = 150;

/// Bugs, and what is said when they are noticed.
#[rustfmt::skip] // a table
const ALL: &[(Injected, &str)] = &[
    (Core(LostSeal), "the trie holds what the device holds"),
    (Core(LostSplit), "is named while it is held"),
    (Core(WrongOrder), "a segment follows what it was computed after"),
    (Core(WrongSegment), "a segment follows what it was computed after"),
    (Core(ShortPath), "cached tokens are those of the path"),
    (Core(OffByOne), "the trie holds what the device holds"),
    (Core(RemovedOffByOne), "a slot holds what its sequence has computed"),
    (Core(SlotLeak), "each slot belongs to a running sequence"),
    (Core(SegmentLeak), "the trie holds what the device holds"),
    (Core(EditsSwapped), "is named while it is held"),
    (Core(Overcounted), "cached tokens are those of the path"),
    (Core(LostSlotOpened), "belongs to a sequence that begins"),
    (Core(ShiftPublished), "only what is exact is sealed"),
    (Core(PinReleased), "pins hold their prefixes"),
    (Core(PinLeak), "pins hold their prefixes"),
    (Core(SaltMixed), "salts never mix"),
    (Core(BytesMiscounted), "what is granted is reserved"),
    (Core(KindMistaken), "a node weighs what its segment weighs"),
    (Core(ChangedByError), "leaves the core unchanged"),
    (Core(ErrorSwallowed), "a mistake is refused"),
    (Core(LostDiscard), "each slot belongs to a running sequence"),
    (Core(UnreservedGrant), "what is granted is reserved"),
    (Core(DeniedGrant), "who may not grow does not fit"),
    (Core(DeniedGrantEvicts), "who may not grow costs nothing"),
    (Core(ProbeCountsAll), "what can be resumed after is resident"),
    (Core(ProbeUses), "nothing changes by being looked at"),
    (Core(LostStoredEvent), "who follows knows the trie's whole blocks"),
    (Core(LostRemovedEvent), "who follows knows the trie's whole blocks"),
    (Device(LostSeal), "the device holds what it was told to"),
    (Device(LostSplit), "the device holds what it was told to"),
    (Device(WrongOrder), "gets what it gets alone"),
    (Device(WrongSegment), "gets what it gets alone"),
    (Device(ShortPath), "gets what it gets alone"),
    (Device(OffByOne), "bytes are what the device counts"),
    (Device(RemovedOffByOne), "bytes are what the device counts"),
    (Device(SlotLeak), "the device holds what it was told to"),
    (Device(SegmentLeak), "the device holds what it was told to"),
    (Device(EditsSwapped), "the device fails"),
];

thread_local!(pub(crate) static HUSH: Cell<bool> = const { Cell::new(false) });

/// Runs histories with a planted bug until one fails as expected: the same bug may be
/// noticed by other checks too. Says how many histories that took.
fn notice(injected: Option<Injected>, expected: &str) -> Result<usize, Vec<String>> {
    let config = config(1);
    let mut runner = TestRunner::new(config.clone());
    let strategy = Histories::sequential_strategy(OPERATIONS..OPERATIONS + 1);
    let mut others = Vec::new();
    for history in 1..=HISTORIES_MAX {
        let tree = strategy.new_tree(&mut runner).expect("a history is drawn");
        let (mut setup, operations, _) = tree.current();
        setup.injected = injected;
        let run = || CacheMachine::test_sequential(config.clone(), setup, operations, None);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            let text = text_of(&*panic);
            if text.contains(expected) {
                return Ok(history);
            }
            others.push(text);
        }
    }
    Err(others)
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.expect("a check that fails says so")
}

#[test]
fn each_injected_bug_is_noticed() {
    hush_injected_panics();
    HUSH.set(true);
    let healthy = notice(None, "");
    let noticed: Vec<_> = ALL
        .iter()
        .map(|(injected, expected)| notice(Some(*injected), expected))
        .collect();
    HUSH.set(false);
    assert_eq!(healthy, Err(Vec::new()), "without a bug nothing is noticed");
    for ((injected, expected), noticed) in ALL.iter().zip(noticed) {
        match noticed {
            Ok(histories) => println!("{injected:?}: `{expected}`, in history {histories}"),
            Err(others) => panic!("{injected:?}: `{expected}` was never said, but {others:#?}"),
        }
    }
}
