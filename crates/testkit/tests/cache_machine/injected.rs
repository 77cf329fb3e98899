//! An injected bug of each kind is noticed, by the check that looks for it.

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
const HISTORIES_MAX: usize = 90;
const OPERATIONS: usize = 150;

/// Bugs, and the messages of the checks that notice them.
#[rustfmt::skip] // a table
const ALL: &[(Injected, &str)] = &[
    (Core(LostSeal), "the trie and the device agree"),
    (Core(LostSplit), "is named while it exists"),
    (Core(WrongOrder), "a segment follows the tokens that it was computed after"),
    (Core(WrongSegment), "a segment follows the tokens that it was computed after"),
    (Core(ShortPath), "cached tokens are those of the path"),
    (Core(OffByOne), "the trie and the device agree"),
    (Core(RemovedOffByOne), "a slot holds the computed tokens of its sequence"),
    (Core(SlotLeak), "each slot belongs to a running sequence"),
    (Core(SegmentLeak), "the trie and the device agree"),
    (Core(EditsSwapped), "is named while it exists"),
    (Core(Overcounted), "cached tokens are those of the path"),
    (Core(LostSlotOpened), "belongs to a sequence that starts"),
    (Core(ShiftPublished), "only exact tokens are sealed"),
    (Core(PinReleased), "pins hold their prefixes"),
    (Core(PinLeak), "pins hold their prefixes"),
    (Core(KeyMixed), "keys never mix"),
    (Core(AdapterMixed), "keys never mix"),
    (Core(BytesMiscounted), "exactly the grants are reserved"),
    (Core(KindMistaken), "a node weighs what its segment weighs"),
    (Core(ChangedByError), "leaves the core unchanged"),
    (Core(ErrorSwallowed), "a mistake is rejected"),
    (Core(LostDiscard), "each slot belongs to a running sequence"),
    (Core(UnreservedGrant), "exactly the grants are reserved"),
    (Core(DeniedGrant), "a denied grant does not fit"),
    (Core(DeniedGrantEvicts), "a denied grant costs nothing"),
    (Core(ProbeCountsAll), "exactly the resumable tokens are resident"),
    (Core(ProbeUses), "a probe changes nothing"),
    (Core(LostStoredEvent), "a follower knows the whole blocks"),
    (Core(LostRemovedEvent), "a follower knows the whole blocks"),
    (Core(LostReport), "a follower knows the whole blocks"),
    (Device(LostSeal), "the device holds exactly what the edits say"),
    (Device(LostSplit), "the device holds exactly what the edits say"),
    (Device(WrongOrder), "gets the logits of its reference run"),
    (Device(WrongSegment), "gets the logits of its reference run"),
    (Device(ShortPath), "gets the logits of its reference run"),
    (Device(OffByOne), "bytes agree with the device's count"),
    (Device(RemovedOffByOne), "bytes agree with the device's count"),
    (Device(SlotLeak), "the device holds exactly what the edits say"),
    (Device(SegmentLeak), "the device holds exactly what the edits say"),
    (Device(EditsSwapped), "the device fails"),
];

thread_local!(pub(crate) static HUSH: Cell<bool> = const { Cell::new(false) });

/// Runs histories with an injected bug until one fails as expected: other checks may notice the
/// same bug too. Returns the number of histories.
fn notice(injected: Option<Injected>, expected: &str) -> Result<usize, Vec<String>> {
    let config = config(1);
    let mut runner = TestRunner::new(config.clone());
    let strategy = Histories::sequential_strategy(OPERATIONS..OPERATIONS + 1);
    let mut others = Vec::new();
    for history in 1..=HISTORIES_MAX {
        let tree = strategy
            .new_tree(&mut runner)
            .expect("a history is generated");
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
    text.expect("a failed check has a message")
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
    assert_eq!(healthy, Err(Vec::new()), "without a bug no check fails");
    for ((injected, expected), noticed) in ALL.iter().zip(noticed) {
        match noticed {
            Ok(histories) => println!("{injected:?}: `{expected}`, in history {histories}"),
            Err(others) => panic!("{injected:?}: `{expected}` did not occur, but {others:#?}"),
        }
    }
}
