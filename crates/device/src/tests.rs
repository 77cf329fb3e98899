//! Tests of the device table on the oracle.

mod draft_model;
mod drafts;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use motet_model::oracle::{Oracle, OracleConfig, ReferenceRun, StepFault};
use motet_model::{DetachedState, LayerKind, Segment, Tail};
use motet_protocol::{
    CopyId, Edit, Failure, GrammarError, OutputKind, PlannedSpan, PlannedTokens, SampledToken,
    SamplerStart, Sampling, SamplingSpec, SegmentId, SlotId, SpanOutput, TokenId, TokenSampling,
    Work,
};
use motet_text::grammar::{Grammar, GrammarSource, GrammarVocabulary, MaskPool};

use crate::{Export, NextExport, Table, transfer_queue};

const SLOT: SlotId = SlotId(1);
const TWIN: SlotId = SlotId(2);

fn span(slot: SlotId, tokens: &[TokenId]) -> PlannedSpan {
    PlannedSpan {
        slot,
        token_source: PlannedTokens::Known(tokens.to_vec()),
        output_kind: OutputKind::Logits,
    }
}

/// A span that samples a token: after these tokens, or after the token that it sampled last.
fn sampled_span(slot: SlotId, tokens: &[TokenId]) -> PlannedSpan {
    sampled_span_at(0, slot, tokens)
}

/// A span that samples the token at this position.
fn sampled_span_at(position: u64, slot: SlotId, tokens: &[TokenId]) -> PlannedSpan {
    let token_sampling = TokenSampling {
        sampling: Sampling::GREEDY,
        position,
    };
    PlannedSpan {
        slot,
        token_source: match tokens {
            [] => PlannedTokens::Sampled(Vec::new()),
            tokens => PlannedTokens::Known(tokens.to_vec()),
        },
        output_kind: OutputKind::Token(token_sampling),
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
        expected_tokens: 0,
    }
}

/// A table with two slots on segments 1 and 2, with two tokens each; the first slot has a tail
/// of two more.
fn table(oracle: &mut Oracle) -> Table<Oracle> {
    let mut table = Table::new();
    let open = |slot, path| Edit::Open {
        slot,
        path,
        expected_tokens: 0,
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
        table.run_work(oracle, work(edits, spans)).expect("done");
    }
    table
}

/// Returns the logits after `next`, when these tokens were evaluated and `removed` of them
/// removed again.
fn expected_output(config: &OracleConfig, tokens: &[TokenId], removed: Range<usize>) -> SpanOutput {
    let mut reference_run = ReferenceRun::new(config);
    for &token in tokens {
        reference_run.evaluate(token);
    }
    reference_run.remove(removed);
    reference_run.evaluate(9);
    let mut logits = Vec::new();
    reference_run.push_logits(&mut logits);
    SpanOutput::Logits(logits)
}

fn oracle() -> (OracleConfig, Oracle) {
    let config = OracleConfig::default();
    let oracle = Oracle::new(config.clone()).expect("a valid configuration");
    (config, oracle)
}

#[test]
fn merged_segments_are_replaced_in_every_path() {
    let (config, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    assert_eq!(table.held(), (2, 2));
    let merge = Edit::Merge {
        upper: SegmentId(1),
        lower: SegmentId(2),
        segment: SegmentId(3),
    };
    let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
    let outputs = table.run_work(&mut oracle, work(vec![merge], spans));
    let expected = [
        expected_output(&config, &[1, 2, 3, 4, 5, 6], 6..6),
        expected_output(&config, &[1, 2, 3, 4], 4..4),
    ];
    assert_eq!(outputs.expect("done"), expected);
    assert_eq!(table.held(), (1, 2));
    assert_eq!(config.counters.now().segments_alive, 1);
}

#[test]
fn stripped_segment_is_replaced_in_every_path() {
    let window = LayerKind::Window { tokens: 3 };
    let layers = [LayerKind::Full, window, LayerKind::Recurrent];
    let config = OracleConfig::with_layers(&layers);
    let mut oracle = Oracle::new(config.clone()).expect("a valid configuration");
    let mut table = table(&mut oracle);
    let strip = Edit::Strip {
        segment: SegmentId(1),
        below: SegmentId(2),
        stripped: SegmentId(3),
    };
    let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
    let outputs = table.run_work(&mut oracle, work(vec![strip], spans));
    let expected = [
        expected_output(&config, &[1, 2, 3, 4, 5, 6], 6..6),
        expected_output(&config, &[1, 2, 3, 4], 4..4),
    ];
    assert_eq!(outputs.expect("done"), expected);
    assert_eq!(table.held(), (2, 2));
    assert_eq!(config.counters.now().segments_alive, 2);
    let drop = |segment| Edit::Drop {
        segment: SegmentId(segment),
    };
    let edits = vec![
        Edit::Close { slot: SLOT },
        Edit::Close { slot: TWIN },
        drop(2),
        drop(3),
    ];
    table
        .run_work(&mut oracle, work(edits, vec![]))
        .expect("done");
    assert_eq!(config.counters.now().segments_alive, 0);
}

#[test]
fn slot_sealed_in_place_leaves_a_segment() {
    let (config, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    let seal_in_place = Edit::SealInPlace {
        slot: SLOT,
        tokens: 1..2,
        segment: SegmentId(3),
    };
    let outputs = table.run_work(&mut oracle, work(vec![seal_in_place], vec![]));
    assert_eq!(outputs.expect("done"), []);
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
        retained: 1,
        removed: 3..5,
    };
    let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
    let outputs = table.run_work(&mut oracle, work(vec![remove], spans));
    let expected = [
        expected_output(&config, &[1, 2, 3, 4, 5, 6], 3..5),
        expected_output(&config, &[1, 2, 3, 4], 4..4),
    ];
    assert_eq!(outputs.expect("done"), expected);
}

#[test]
fn edit_rejected_by_the_model_resets_the_device() {
    let (_, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    let remove = Edit::Remove {
        slot: SLOT,
        retained: 2,
        removed: 3..5,
    };
    let outputs = table.run_work(&mut oracle, work(vec![remove], vec![]));
    let Err(Failure::Reset(message)) = outputs else {
        panic!("expected a reset, got {outputs:?}");
    };
    assert!(message.contains("tokens 3..5 of 6"), "{message}");
    assert_eq!(table.held(), (0, 0));
}

/// The device has no memory for one edit: only the slots and segments of that edit, and of
/// edits that need them, are lost.
#[test]
fn edit_without_memory_loses_only_its_own_slot_and_segments() {
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
        expected_tokens: 0,
    };
    // Pairs of edits whose first fails, with the slots and segments that are lost.
    let cases: [(Vec<Edit>, &[SlotId], &[u64]); 5] = [
        (vec![opens(third, &[1])], &[third], &[]),
        (vec![seal(SLOT, 3)], &[SLOT], &[3]),
        (vec![split.clone()], &[], &[3, 4]),
        (vec![split, opens(third, &[1, 3])], &[third], &[3, 4]),
        (vec![seal(SLOT, 3), seal(SLOT, 4)], &[SLOT], &[3, 4]),
    ];
    for (edits, slots, segments) in cases {
        let (config, mut oracle) = oracle();
        let mut table = table(&mut oracle);
        let before = table.held();
        config.faults.fail_allocations(1);
        let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
        let outputs = table.run_work(&mut oracle, work(edits, spans));
        let outputs = outputs.expect("everything else is unchanged");
        let twin = expected_output(&config, &[1, 2, 3, 4], 4..4);
        assert_eq!(outputs[1], twin, "other slots continue");
        let lost = table.take_lost();
        assert_eq!(lost.slots, slots);
        assert_eq!(
            lost.segments,
            segments.iter().copied().map(SegmentId).collect::<Vec<_>>()
        );
        assert!(lost.reason.contains("the device failed"), "{}", lost.reason);
        let own_output = if slots.contains(&SLOT) {
            SpanOutput::Nothing
        } else {
            expected_output(&config, &[1, 2, 3, 4, 5, 6], 6..6)
        };
        assert_eq!(outputs[0], own_output);
        // They are closed and dropped like others, and then none is left.
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
            .run_work(&mut oracle, work(gone, vec![]))
            .expect("done");
        assert!(table.absent.slots.is_empty() && table.absent.segments.is_empty());
        assert!(table.take_lost().is_empty());
        assert!(table.held().0 <= before.0 && table.held().1 <= before.1);
    }
}

#[test]
fn repeated_edit_failures_reset_the_device() {
    let (config, mut oracle) = oracle();
    let mut table = table(&mut oracle);
    config.faults.fail_allocations(u64::MAX);
    for number in 0.. {
        let slot = SlotId(10 + number);
        match table.run_work(&mut oracle, work(vec![open(slot)], vec![])) {
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

/// Each sampled token is the next step's source, whether that step is submitted before or after
/// the finish.
#[test]
fn sampled_token_is_the_next_input_of_its_slot() {
    for early in [true, false] {
        let (config, mut oracle) = oracle();
        let mut table = Table::new();
        let mut outputs: [Vec<SpanOutput>; 2] = [vec![], vec![]];
        let mut check_outputs = |span_outputs: Vec<SpanOutput>| {
            let [slot, twin] = <[SpanOutput; 2]>::try_from(span_outputs).expect("two spans");
            outputs[0].push(slot);
            outputs[1].push(twin);
        };
        let spans = vec![sampled_span(SLOT, &[3, 1, 4]), sampled_span(TWIN, &[1, 5])];
        table.submit(&mut oracle, work(vec![open(SLOT), open(TWIN)], spans));
        table.sample(&mut oracle);
        for _ in 0..5 {
            let next = work(
                vec![],
                vec![sampled_span(SLOT, &[]), sampled_span(TWIN, &[])],
            );
            if early {
                table.submit(&mut oracle, next);
                check_outputs(table.finish(&mut oracle).expect("a step"));
            } else {
                check_outputs(table.finish(&mut oracle).expect("a step"));
                table.submit(&mut oracle, next);
            }
            table.sample(&mut oracle);
        }
        check_outputs(table.finish(&mut oracle).expect("a step"));
        for (outputs, prompt) in outputs.iter().zip([&[3, 1, 4][..], &[1, 5]]) {
            let expected_output = config.reference_tokens(prompt, 6, Sampling::GREEDY);
            let expected_output: Vec<SpanOutput> =
                expected_output.into_iter().map(SpanOutput::Token).collect();
            assert_eq!(*outputs, expected_output, "early: {early}");
        }
    }
}

type StepResult = Result<Vec<SpanOutput>, Failure>;

/// Submits two steps; the first fails with `fault`.
fn run_with_fault(fault: StepFault) -> (Vec<StepResult>, Table<Oracle>, Oracle) {
    let (config, mut oracle) = oracle();
    let mut table = Table::new();
    let third = SlotId(3);
    let edits = vec![open(SLOT), open(TWIN), open(third)];
    table
        .run_work(&mut oracle, work(edits, vec![]))
        .expect("done");
    config.faults.next_steps(1, fault);
    table.submit(&mut oracle, work(vec![], vec![sampled_span(SLOT, &[3])]));
    table.sample(&mut oracle);
    let edits = vec![open(SlotId(4))];
    table.submit(
        &mut oracle,
        work(
            edits,
            vec![sampled_span(SLOT, &[]), sampled_span(TWIN, &[5])],
        ),
    );
    let mut results = vec![table.finish(&mut oracle)];
    table.sample(&mut oracle);
    results.push(table.finish(&mut oracle));
    results.push(table.run_work(&mut oracle, work(vec![], vec![sampled_span(third, &[7])])));
    (results, table, oracle)
}

#[test]
fn step_submitted_on_a_failed_step_is_dropped() {
    for fault in [StepFault::FailFinish, StepFault::Fail] {
        let (results, table, _) = run_with_fault(fault);
        assert!(matches!(results[0], Err(Failure::Step(_))), "{results:?}");
        assert!(matches!(results[1], Err(Failure::Dropped)), "{results:?}");
        assert!(results[2].is_ok(), "other slots continue: {results:?}");
        // The third slot, and the one that the dropped work opened.
        assert_eq!(table.held(), (0, 2));
    }
}

/// Copies a slot's tail out while a step with that slot is in flight; the step finishes with
/// `fault`. Returns the exports before the step has finished, and after.
fn copy_out_in_flight(fault: Option<StepFault>) -> (usize, NextExport<DetachedState<Oracle>>) {
    let (config, mut oracle) = oracle();
    let (prototype, host_end) = transfer_queue();
    let mut table = Table::with_transfer_queue(prototype.successor());
    let first_work = work(vec![open(SLOT)], vec![sampled_span(SLOT, &[3, 1, 4])]);
    table.run_work(&mut oracle, first_work).expect("done");
    if let Some(fault) = fault {
        config.faults.next_steps(1, fault);
    }
    table.submit(&mut oracle, work(vec![], vec![sampled_span(SLOT, &[])]));
    table.sample(&mut oracle);
    let copy_out = Edit::CopyOut {
        slot: SLOT,
        tokens: 0..3,
        copy: CopyId(1),
    };
    table.submit(&mut oracle, work(vec![copy_out], vec![]));
    let early = host_end.exports.len();
    let finished = table.finish(&mut oracle);
    assert_eq!(finished.is_err(), fault.is_some());
    let next = host_end.exports.next(Duration::MAX, |_| true);
    assert!(table.finish(&mut oracle).is_ok());
    assert!(host_end.exports.is_empty(), "the copy is exported once");
    (early, next)
}

#[test]
fn tail_copy_is_exported_after_the_steps_before_it_finish() {
    for fault in [None, Some(StepFault::FailFinish)] {
        let (early, next) = copy_out_in_flight(fault);
        assert_eq!(early, 0, "the step may still fail");
        let NextExport::Ready(Export {
            copy,
            detached_state,
        }) = next
        else {
            panic!("the pager waits for an answer: {next:?}");
        };
        assert_eq!(copy, CopyId(1));
        assert_eq!(detached_state.is_err(), fault.is_some(), "{fault:?}");
    }
}

#[test]
fn work_of_the_old_epoch_is_dropped_after_a_reset() {
    let (results, mut table, mut oracle) = run_with_fault(StepFault::Panic);
    assert!(matches!(results[0], Err(Failure::Reset(_))), "{results:?}");
    assert!(matches!(results[1], Err(Failure::Dropped)), "{results:?}");
    assert!(matches!(results[2], Err(Failure::Dropped)), "{results:?}");
    assert_eq!(table.held(), (0, 0));
    let fresh = Work {
        epoch: 1,
        ..work(vec![open(SLOT)], vec![sampled_span(SLOT, &[3])])
    };
    table.run_work(&mut oracle, fresh).expect("a new start");
}

/// The step in flight finishes; the next cannot be submitted.
#[test]
fn failed_submit_keeps_the_step_in_flight() {
    for (fault, reset) in [(StepFault::Fail, false), (StepFault::Panic, true)] {
        let (config, mut oracle) = oracle();
        let mut table = Table::new();
        let first_work = work(vec![open(SLOT)], vec![sampled_span(SLOT, &[3])]);
        table.submit(&mut oracle, first_work);
        table.sample(&mut oracle);
        config.faults.next_steps(1, fault);
        table.submit(&mut oracle, work(vec![], vec![sampled_span(SLOT, &[])]));
        let expected_output = config.reference_tokens(&[3], 1, Sampling::GREEDY);
        let first = table.finish(&mut oracle).expect("the first step finishes");
        assert_eq!(first, [SpanOutput::Token(expected_output[0])]);
        let second = table.finish(&mut oracle).expect_err("it failed");
        assert_eq!(matches!(second, Failure::Reset(_)), reset, "{second:?}");
        assert_eq!(table.held(), (0, 0));
        assert_eq!(config.counters.now().tails_alive, 0);
    }
}

/// Work of a newer epoch finds an empty device, also while older work is in flight.
#[test]
fn a_newer_epoch_drops_everything_first() {
    let (config, mut oracle) = oracle();
    let expected_output = config.reference_tokens(&[3, 1], 2, Sampling::GREEDY);
    let mut table = Table::new();
    table.submit(
        &mut oracle,
        work(vec![open(SLOT)], vec![sampled_span(SLOT, &[3, 1])]),
    );
    table.sample(&mut oracle);
    // The same slot again: opening it twice would be an error, were it still open.
    let mut next_epoch = work(
        vec![open(TWIN)],
        vec![sampled_span(TWIN, &[3, 1, expected_output[0]])],
    );
    next_epoch.epoch = 3;
    table.submit(&mut oracle, next_epoch);
    assert_eq!(table.held(), (0, 1), "only the new epoch's slot");
    let late = table.finish(&mut oracle).expect("a step");
    assert_eq!(late, [SpanOutput::Token(expected_output[0])]);
    table.sample(&mut oracle);
    let finished = table.finish(&mut oracle).expect("a step");
    assert_eq!(finished, [SpanOutput::Token(expected_output[1])]);
    let old = table.run_work(&mut oracle, work(vec![open(SLOT)], vec![]));
    assert!(matches!(old, Err(Failure::Dropped)), "{old:?}");
}

/// Returns what two slots sample in four steps, two at a time; `spec` is the first slot's.
fn run_with_sampler(spec: SamplingSpec) -> (OracleConfig, Vec<[SpanOutput; 2]>) {
    let (config, mut oracle) = oracle();
    let mut table = Table::new();
    let mut first = work(
        vec![open(SLOT), open(TWIN)],
        vec![
            sampled_span_at(2, SLOT, &[3, 1]),
            sampled_span_at(1, TWIN, &[4]),
        ],
    );
    first.sampler_starts.push(SamplerStart {
        slot: SLOT,
        spec: Arc::new(spec),
        sampling: Sampling::GREEDY,
        prompt: Arc::new([3, 1]),
        output: vec![],
    });
    table.submit(&mut oracle, first);
    table.sample(&mut oracle);
    let mut outputs = Vec::new();
    for index in 1..=4 {
        if index < 4 {
            let spans = [(SLOT, 2), (TWIN, 1)]
                .map(|(slot, prompt)| sampled_span_at(prompt + index, slot, &[]));
            let spans = spans.to_vec();
            table.submit(&mut oracle, work(vec![], spans));
        }
        let span_outputs = table.finish(&mut oracle).expect("a step");
        outputs.push(span_outputs.try_into().expect("two spans"));
        table.sample(&mut oracle);
    }
    (config, outputs)
}

/// A grammar that is complete after two tokens, without an end token.
#[test]
fn failed_sampler_fails_only_its_span() {
    let mut tokens = vec![Vec::new(); 1_000];
    tokens[1] = b"a".to_vec();
    tokens[2] = b"b".to_vec();
    let vocabulary = GrammarVocabulary::from_bytes(tokens, &[]).expect("a vocabulary");
    let pool = MaskPool::start(1).expect("a thread");
    let source = GrammarSource::Regex("ab".into());
    let grammar = Grammar::compile(&source, &vocabulary, &pool).expect("it compiles");
    let (config, outputs) = run_with_sampler(SamplingSpec {
        grammar: Some(Arc::new(grammar)),
        ..SamplingSpec::default()
    });
    let expected_output = config.reference_tokens(&[4], 4, Sampling::GREEDY);
    for (step, [slot, twin]) in outputs.into_iter().enumerate() {
        assert_eq!(twin, SpanOutput::Token(expected_output[step]));
        match step {
            0 | 1 => assert_eq!(slot, SpanOutput::Token(step as TokenId + 1)),
            _ => assert!(matches!(slot, SpanOutput::Failed(_)), "{slot:?}"),
        }
    }
}

#[test]
fn sampler_follows_its_slot_through_steps_in_flight() {
    let (config, plain) = run_with_sampler(SamplingSpec::default());
    let (_, scored) = run_with_sampler(SamplingSpec {
        logprobs: Some(2),
        ..SamplingSpec::default()
    });
    let expected_output = config.reference_tokens(&[3, 1], 4, Sampling::GREEDY);
    for (step, token) in expected_output.into_iter().enumerate() {
        assert_eq!(plain[step][0], SpanOutput::Token(token));
        let SpanOutput::Scored(outputs, logprobs) = &scored[step][0] else {
            panic!("no probabilities but {:?}", scored[step][0]);
        };
        assert_eq!((*outputs, logprobs.top[0].0), (token, token));
        assert_eq!(logprobs.top.len(), 2);
    }
}
