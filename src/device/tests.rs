//! The table on the oracle.

use std::ops::Range;
use std::sync::Arc;

use super::*;
use crate::fuse::Fuse;
use motet_core::protocol::{
    Draw, DrawSpec, DrawerStart, Edit, Failure, Input, PlannedSpan, Readout, Sampling, Want,
};
use motet_core::{CopyId, SegmentId, SlotId, TokenId};
use motet_model::Segment;
use motet_model::oracle::{Oracle, OracleConfig, Soloist, StepFault};
use motet_text::grammar::{Grammar, GrammarSource, GrammarVocabulary, MaskPool};

const SLOT: SlotId = SlotId(1);
const TWIN: SlotId = SlotId(2);

fn span(slot: SlotId, tokens: &[TokenId]) -> PlannedSpan {
    PlannedSpan {
        slot,
        input: Input::Known(tokens.to_vec()),
        want: Want::Logits,
    }
}

/// A span that draws a token: after these, or after what it drew last.
fn drawing(slot: SlotId, tokens: &[TokenId]) -> PlannedSpan {
    let draw = Draw {
        sampling: Sampling::GREEDY,
        index: 0,
    };
    PlannedSpan {
        slot,
        input: match tokens {
            [] => Input::Drawn,
            tokens => Input::Known(tokens.to_vec()),
        },
        want: Want::Token(draw),
    }
}

fn work(edits: Vec<Edit>, spans: Vec<PlannedSpan>) -> Work {
    Work {
        edits,
        spans,
        ..Work::default()
    }
}

fn open(slot: SlotId) -> Edit {
    Edit::Open {
        slot,
        path: vec![],
        room: 0,
    }
}

/// A table with two slots on segments 1 and 2, of two tokens each; the first has
/// a tail of two more.
fn table(oracle: &mut Oracle) -> Table<Oracle> {
    let mut table = Table::new();
    let open = |slot, path| Edit::Open {
        slot,
        path,
        room: 0,
    };
    let seal = |segment| Edit::Seal {
        slot: SLOT,
        tokens: 2,
        segment: SegmentId(segment),
    };
    for (edits, tokens) in [
        (vec![open(SLOT, vec![])], &[1, 2, 3, 4][..]),
        (vec![seal(1), seal(2)], &[5, 6]),
        (vec![open(TWIN, vec![SegmentId(1), SegmentId(2)])], &[]),
    ] {
        let spans = match tokens {
            [] => vec![],
            tokens => vec![span(SLOT, tokens)],
        };
        table.carry_out(oracle, work(edits, spans)).expect("done");
    }
    table
}

/// Logits after `next`, when these tokens were evaluated and `removed` of them
/// taken out again.
fn truth(config: &OracleConfig, tokens: &[TokenId], removed: Range<usize>) -> Readout {
    let mut soloist = Soloist::new(config);
    for &token in tokens {
        soloist.evaluate(token);
    }
    soloist.remove(removed);
    soloist.evaluate(9);
    let mut logits = Vec::new();
    soloist.push_logits(&mut logits);
    Readout::Logits(logits)
}

fn oracle() -> (OracleConfig, Oracle) {
    let config = OracleConfig::default();
    let oracle = Oracle::new(config.clone()).expect("a valid configuration");
    (config, oracle)
}

#[test]
fn merged_segments_are_one_in_every_path() {
    let (config, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    assert_eq!(table.held(), (2, 2));
    let merge = Edit::Merge {
        upper: SegmentId(1),
        lower: SegmentId(2),
        segment: SegmentId(3),
    };
    let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
    let found = table.carry_out(&mut oracle, work(vec![merge], spans));
    let expected = [
        truth(&config, &[1, 2, 3, 4, 5, 6], 6..6),
        truth(&config, &[1, 2, 3, 4], 4..4),
    ];
    assert_eq!(found.expect("done"), expected);
    assert_eq!(table.held(), (1, 2));
    assert_eq!(config.counters.now().segments_alive, 1);
}

#[test]
fn a_slot_that_retires_leaves_a_segment() {
    let (config, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    let retire = Edit::Retire {
        slot: SLOT,
        tokens: 1..2,
        segment: SegmentId(3),
    };
    let found = table.carry_out(&mut oracle, work(vec![retire], vec![]));
    assert_eq!(found.expect("done"), []);
    assert_eq!(table.held(), (3, 1));
    assert_eq!(table.segments[&SegmentId(3)].tokens(), 1);
    let counted = config.counters.now();
    assert_eq!((counted.segments_alive, counted.tails_alive), (3, 1));
}

#[test]
fn tokens_are_removed_from_one_slot_only() {
    let (config, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    let remove = Edit::Remove {
        slot: SLOT,
        kept: 1,
        removed: 3..5,
    };
    let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
    let found = table.carry_out(&mut oracle, work(vec![remove], spans));
    let expected = [
        truth(&config, &[1, 2, 3, 4, 5, 6], 3..5),
        truth(&config, &[1, 2, 3, 4], 4..4),
    ];
    assert_eq!(found.expect("done"), expected);
}

#[test]
fn an_edit_that_the_model_refuses_resets() {
    let (_, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    let remove = Edit::Remove {
        slot: SLOT,
        kept: 2,
        removed: 3..5,
    };
    let found = table.carry_out(&mut oracle, work(vec![remove], vec![]));
    let Err(Failure::Reset(message)) = found else {
        panic!("expected a reset, got {found:?}");
    };
    assert!(message.contains("tokens 3..5 of 6"), "{message}");
    assert_eq!(table.held(), (0, 0));
}

/// The device refuses memory for one edit: what it was to change and to make is lost, and what
/// would be made of that, and nothing else.
#[test]
fn an_edit_without_memory_costs_its_own_slot_and_segments() {
    let third = SlotId(3);
    let seal = |slot, segment| Edit::Seal {
        slot,
        tokens: 2,
        segment: SegmentId(segment),
    };
    let split = Edit::Split {
        segment: SegmentId(2),
        at: 1,
        upper: SegmentId(3),
        lower: SegmentId(4),
    };
    let opens = |slot, path: &[u64]| Edit::Open {
        slot,
        path: path.iter().copied().map(SegmentId).collect(),
        room: 0,
    };
    // Edits of which the first is refused; slots and segments that are lost.
    let table_of: [(Vec<Edit>, &[SlotId], &[u64]); 5] = [
        (vec![opens(third, &[1])], &[third], &[]),
        (vec![seal(SLOT, 3)], &[SLOT], &[3]),
        (vec![split.clone()], &[], &[3, 4]),
        (vec![split, opens(third, &[1, 3])], &[third], &[3, 4]),
        (vec![seal(SLOT, 3), seal(SLOT, 4)], &[SLOT], &[3, 4]),
    ];
    for (edits, slots, segments) in table_of {
        let (config, mut oracle) = oracle();
        let mut table = table(&mut oracle);
        let before = table.held();
        config.faults.refuse_memory(1);
        let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
        let told = table.carry_out(&mut oracle, work(edits, spans));
        let told = told.expect("all else is as it was");
        let twin = truth(&config, &[1, 2, 3, 4], 4..4);
        assert_eq!(told[1], twin, "others are served");
        let lost = table.take_lost();
        assert_eq!(lost.slots, slots);
        assert_eq!(
            lost.segments,
            segments.iter().copied().map(SegmentId).collect::<Vec<_>>()
        );
        assert!(lost.reason.contains("the device failed"), "{}", lost.reason);
        let own = match slots.contains(&SLOT) {
            true => Readout::Nothing,
            false => truth(&config, &[1, 2, 3, 4, 5, 6], 6..6),
        };
        assert_eq!(told[0], own);
        // They are closed and dropped like others, and then nothing is left of them.
        let mut gone: Vec<Edit> = slots
            .iter()
            .map(|slot| Edit::Close { slot: *slot })
            .collect();
        gone.extend(
            lost.segments
                .iter()
                .map(|segment| Edit::Drop { segment: *segment }),
        );
        table
            .carry_out(&mut oracle, work(gone, vec![]))
            .expect("done");
        assert!(table.absent.slots.is_empty() && table.absent.segments.is_empty());
        assert!(table.take_lost().is_empty());
        assert!(table.held().0 <= before.0 && table.held().1 <= before.1);
    }
}

#[test]
fn a_device_on_which_edits_fail_again_and_again_is_not_trusted() {
    let (config, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    config.faults.refuse_memory(u64::MAX);
    for number in 0.. {
        let slot = SlotId(10 + number);
        match table.carry_out(&mut oracle, work(vec![open(slot)], vec![])) {
            Ok(_) => assert_eq!(table.take_lost().slots, [slot]),
            Err(Failure::Reset(reason)) => {
                assert_eq!(number, 8);
                assert!(reason.contains("9 works in a row"), "{reason}");
                break;
            }
            Err(failure) => panic!("{failure:?}"),
        }
    }
    assert_eq!(table.held(), (0, 0));
    assert!(table.take_lost().is_empty());
}

/// Each token feeds the next step, whether that is launched before or after it landed.
#[test]
fn a_slot_is_fed_what_it_drew() {
    for early in [true, false] {
        let (config, mut oracle) = oracle();
        let mut table = Table::new();
        let mut told: [Vec<Readout>; 2] = [vec![], vec![]];
        let mut tell = |readouts: Vec<Readout>| {
            let [slot, twin] = <[Readout; 2]>::try_from(readouts).expect("two spans");
            told[0].push(slot);
            told[1].push(twin);
        };
        let spans = vec![drawing(SLOT, &[3, 1, 4]), drawing(TWIN, &[1, 5])];
        table.launch(&mut oracle, work(vec![open(SLOT), open(TWIN)], spans));
        table.draw(&mut oracle);
        for _ in 0..5 {
            let next = work(vec![], vec![drawing(SLOT, &[]), drawing(TWIN, &[])]);
            if early {
                table.launch(&mut oracle, next);
                tell(table.land(&mut oracle).expect("a step"));
            } else {
                tell(table.land(&mut oracle).expect("a step"));
                table.launch(&mut oracle, next);
            }
            table.draw(&mut oracle);
        }
        tell(table.land(&mut oracle).expect("a step"));
        for (told, prompt) in told.iter().zip([&[3, 1, 4][..], &[1, 5]]) {
            let truth = config.solo(prompt, 6, Sampling::GREEDY);
            let truth: Vec<Readout> = truth.into_iter().map(Readout::Token).collect();
            assert_eq!(*told, truth, "early: {early}");
        }
    }
}

type Answer = Result<Vec<Readout>, Failure>;

/// Two steps are launched, and the first fails as `fault` says.
fn fail(fault: StepFault) -> (Vec<Answer>, Table<Oracle>, Oracle) {
    let (config, mut oracle) = oracle();
    let mut table = Table::new();
    let third = SlotId(3);
    let edits = vec![open(SLOT), open(TWIN), open(third)];
    table
        .carry_out(&mut oracle, work(edits, vec![]))
        .expect("done");
    config.faults.next_steps(1, fault);
    table.launch(&mut oracle, work(vec![], vec![drawing(SLOT, &[3])]));
    table.draw(&mut oracle);
    let edits = vec![open(SlotId(4))];
    table.launch(
        &mut oracle,
        work(edits, vec![drawing(SLOT, &[]), drawing(TWIN, &[5])]),
    );
    let mut results = vec![table.land(&mut oracle)];
    table.draw(&mut oracle);
    results.push(table.land(&mut oracle));
    results.push(table.carry_out(&mut oracle, work(vec![], vec![drawing(third, &[7])])));
    (results, table, oracle)
}

#[test]
fn what_was_launched_on_a_failed_step_is_dropped() {
    for fault in [StepFault::FailLanding, StepFault::Fail] {
        let (results, table, _) = fail(fault);
        assert!(matches!(results[0], Err(Failure::Step(_))), "{results:?}");
        assert!(matches!(results[1], Err(Failure::Dropped)), "{results:?}");
        assert!(results[2].is_ok(), "others go on: {results:?}");
        // The third, and the one that the dropped work opened.
        assert_eq!(table.held(), (0, 2));
    }
}

/// A copy of a slot's tail is asked for while a step with that slot is under way, which lands
/// as `fault` says. What is handed over before the step has landed, and after.
fn copied_beside(fault: Option<StepFault>) -> (usize, NextExport<Parcel<Oracle>>) {
    let (config, mut oracle) = oracle();
    let (prototype, quay) = dock();
    let mut table = Table::with_dock(prototype.successor());
    let begins = work(vec![open(SLOT)], vec![drawing(SLOT, &[3, 1, 4])]);
    table.carry_out(&mut oracle, begins).expect("done");
    if let Some(fault) = fault {
        config.faults.next_steps(1, fault);
    }
    table.launch(&mut oracle, work(vec![], vec![drawing(SLOT, &[])]));
    table.draw(&mut oracle);
    let copy_out = Edit::CopyOut {
        slot: SLOT,
        tokens: 0..3,
        copy: CopyId(1),
    };
    table.launch(&mut oracle, work(vec![copy_out], vec![]));
    let early = quay.leaving.len();
    let landed = table.land(&mut oracle);
    assert_eq!(landed.is_err(), fault.is_some());
    let next = quay.leaving.next(Duration::MAX, |_| true);
    assert!(table.land(&mut oracle).is_ok());
    assert!(quay.leaving.is_empty(), "it is handed over once");
    (early, next)
}

#[test]
fn a_tails_copy_is_handed_over_when_the_steps_before_it_have_landed() {
    for fault in [None, Some(StepFault::FailLanding)] {
        let (early, next) = copied_beside(fault);
        assert_eq!(early, 0, "the step may still fail");
        let NextExport::Ready(Leaving { copy, parcel }) = next else {
            panic!("the pager waits for an answer: {next:?}");
        };
        assert_eq!(copy, CopyId(1));
        assert_eq!(parcel.is_err(), fault.is_some(), "{fault:?}");
    }
}

#[test]
fn after_a_reset_nothing_is_carried_out_until_it_was_heard_of() {
    let (results, mut table, mut oracle) = fail(StepFault::Panic);
    assert!(matches!(results[0], Err(Failure::Reset(_))), "{results:?}");
    assert!(matches!(results[1], Err(Failure::Dropped)), "{results:?}");
    assert!(matches!(results[2], Err(Failure::Dropped)), "{results:?}");
    assert_eq!(table.held(), (0, 0));
    let fresh = Work {
        epoch: 1,
        ..work(vec![open(SLOT)], vec![drawing(SLOT, &[3])])
    };
    table.carry_out(&mut oracle, fresh).expect("a new start");
}

/// The step under way lands well; the next could not be launched.
#[test]
fn a_launch_that_fails_leaves_the_step_under_way() {
    for (fault, reset) in [(StepFault::Fail, false), (StepFault::Panic, true)] {
        let (config, mut oracle) = oracle();
        let mut table = Table::new();
        let begin = work(vec![open(SLOT)], vec![drawing(SLOT, &[3])]);
        table.launch(&mut oracle, begin);
        table.draw(&mut oracle);
        config.faults.next_steps(1, fault);
        table.launch(&mut oracle, work(vec![], vec![drawing(SLOT, &[])]));
        let truth = config.solo(&[3], 1, Sampling::GREEDY);
        let first = table.land(&mut oracle).expect("it was well");
        assert_eq!(first, [Readout::Token(truth[0])]);
        let second = table.land(&mut oracle).expect_err("it failed");
        assert_eq!(matches!(second, Failure::Reset(_)), reset, "{second:?}");
        assert_eq!(table.held(), (0, 0));
        assert_eq!(config.counters.now().tails_alive, 0);
    }
}

/// The whole thread: outcomes come in order, and their times add up.
#[tokio::test]
async fn two_works_at_once() {
    let config = OracleConfig {
        cost: motet_model::oracle::StepCost {
            base: Duration::from_millis(20),
            ..Default::default()
        },
        ..OracleConfig::default()
    };
    let truth = config.solo(&[3, 1], 4, Sampling::GREEDY);
    let model = config.clone();
    let build = move || Ok(Oracle::new(model.clone()).expect("a valid configuration"));
    let started = Device::start(build, Fuse::default(), None).await;
    let started = started.expect("a device");
    let (mut device, loader) = (started.device, started.loader);
    let begun = Instant::now();
    assert!(device.send(work(vec![open(SLOT)], vec![drawing(SLOT, &[3, 1])])));
    for (index, truth) in truth.iter().enumerate() {
        if index < 3 {
            assert!(device.send(work(vec![], vec![drawing(SLOT, &[])])));
        }
        let outcome = device.outcomes.recv().await.expect("an outcome");
        assert_eq!(outcome.result.expect("a step"), [Readout::Token(*truth)]);
        assert!(
            outcome.busy >= Duration::from_millis(10),
            "{:?}",
            outcome.busy
        );
        assert_eq!(outcome.gap, Duration::ZERO);
    }
    assert!(begun.elapsed() >= Duration::from_millis(80));
    drop(device);
    loader.gone().await;
    assert_eq!(config.counters.now().tails_alive, 0);
}

/// Work of a newer epoch finds a device that is empty, also while older work is under way.
#[test]
fn a_newer_epoch_drops_everything_first() {
    let (config, mut oracle) = oracle();
    let truth = config.solo(&[3, 1], 2, Sampling::GREEDY);
    let mut table = Table::new();
    table.launch(
        &mut oracle,
        work(vec![open(SLOT)], vec![drawing(SLOT, &[3, 1])]),
    );
    table.draw(&mut oracle);
    // The same slot again: it would be an error to open it twice, were it still there.
    let mut anew = work(vec![open(TWIN)], vec![drawing(TWIN, &[3, 1, truth[0]])]);
    anew.epoch = 3;
    table.launch(&mut oracle, anew);
    assert_eq!(table.held(), (0, 1), "the newcomer's slot only");
    let late = table.land(&mut oracle).expect("a step");
    assert_eq!(late, [Readout::Token(truth[0])]);
    table.draw(&mut oracle);
    let landed = table.land(&mut oracle).expect("a step");
    assert_eq!(landed, [Readout::Token(truth[1])]);
    let old = table.carry_out(&mut oracle, work(vec![open(SLOT)], vec![]));
    assert!(matches!(old, Err(Failure::Dropped)), "{old:?}");
}

/// A thread that has died, then one that hangs: each is followed by another.
#[tokio::test]
async fn one_thread_follows_another() {
    let config = OracleConfig::default();
    let truth = config.solo(&[3, 1], 1, Sampling::GREEDY);
    let model = config.clone();
    let build = move || Ok(Oracle::new(model.clone()).expect("a valid configuration"));
    let fuse = Fuse::default();
    let started = Device::start(build, fuse.clone(), None).await;
    let started = started.expect("a device");
    let (mut device, loader) = (started.device, started.loader);
    let first = || work(vec![open(SLOT)], vec![drawing(SLOT, &[3, 1])]);
    fuse.light(1);
    assert!(device.send(first()));
    assert!(device.outcomes.recv().await.is_none(), "it has died");
    loader.gone().await;

    let mut loading = Some(loader.load());
    let mut device = loader.loaded(&mut loading).await.expect("another");
    let hang = Duration::from_millis(50);
    config.faults.next_steps(1, StepFault::Hang(hang));
    assert!(device.send(first()));
    assert!(device.outcomes.try_recv().is_err(), "it hangs");
    drop(device);
    let mut loading = Some(loader.load());
    device = loader.loaded(&mut loading).await.expect("a third");
    assert!(device.send(first()));
    let outcome = device.outcomes.recv().await.expect("an outcome");
    assert_eq!(outcome.result.expect("a step"), [Readout::Token(truth[0])]);
    drop(device);
    loader.gone().await;
}

/// What two slots draw in four steps, two at a time; `spec` is the first one's.
fn drawn_with(spec: DrawSpec) -> (OracleConfig, Vec<[Readout; 2]>) {
    let (config, mut oracle) = oracle();
    let mut table = Table::new();
    let mut first = work(
        vec![open(SLOT), open(TWIN)],
        vec![drawing(SLOT, &[3, 1]), drawing(TWIN, &[4])],
    );
    first.drawers.push(DrawerStart {
        slot: SLOT,
        spec: Arc::new(spec),
        sampling: Sampling::GREEDY,
        prompt: Arc::new([3, 1]),
        output: vec![],
    });
    table.launch(&mut oracle, first);
    table.draw(&mut oracle);
    let mut drawn = Vec::new();
    for left in (0..4).rev() {
        if left > 0 {
            let spans = vec![drawing(SLOT, &[]), drawing(TWIN, &[])];
            table.launch(&mut oracle, work(vec![], spans));
        }
        let readouts = table.land(&mut oracle).expect("a step");
        drawn.push(readouts.try_into().expect("two spans"));
        table.draw(&mut oracle);
    }
    (config, drawn)
}

/// A grammar that is over after two tokens, with no token to end on.
#[test]
fn a_drawer_that_fails_fails_its_own_span_only() {
    let mut tokens = vec![Vec::new(); 1_000];
    tokens[1] = b"a".to_vec();
    tokens[2] = b"b".to_vec();
    let vocabulary = GrammarVocabulary::from_bytes(tokens, &[]).expect("a vocabulary");
    let pool = MaskPool::start(1).expect("a thread");
    let source = GrammarSource::Regex("ab".into());
    let grammar = Grammar::compile(&source, &vocabulary, &pool).expect("it compiles");
    let (config, drawn) = drawn_with(DrawSpec {
        grammar: Some(Arc::new(grammar)),
        ..DrawSpec::default()
    });
    let truth = config.solo(&[4], 4, Sampling::GREEDY);
    for (step, [slot, twin]) in drawn.into_iter().enumerate() {
        assert_eq!(twin, Readout::Token(truth[step]));
        match step {
            0 | 1 => assert_eq!(slot, Readout::Token(step as TokenId + 1)),
            _ => assert!(matches!(slot, Readout::Failed(_)), "{slot:?}"),
        }
    }
}

#[test]
fn a_drawer_follows_its_slot_through_steps_under_way() {
    let (config, plain) = drawn_with(DrawSpec::default());
    let (_, scored) = drawn_with(DrawSpec {
        logprobs: Some(2),
        ..DrawSpec::default()
    });
    let truth = config.solo(&[3, 1], 4, Sampling::GREEDY);
    for (step, token) in truth.into_iter().enumerate() {
        assert_eq!(plain[step][0], Readout::Token(token));
        let Readout::Scored(found, logprobs) = &scored[step][0] else {
            panic!("no probabilities but {:?}", scored[step][0]);
        };
        assert_eq!((*found, logprobs.top[0].0), (token, token));
        assert_eq!(logprobs.top.len(), 2);
    }
}
