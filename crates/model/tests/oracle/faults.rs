//! Injected failures, misuse, counts and costs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use motet_model::oracle::{Oracle, OracleConfig, OracleSegment, StepCost, StepFault};
use motet_model::{
    Model, ModelError, OutputKind, Packer, Segment, Span, SpanOutput, Tail, TokenSource,
};
use motet_protocol::TokenId;

fn oracle(config: &OracleConfig) -> Oracle {
    Oracle::new(config.clone()).expect("a valid configuration")
}

/// One step of one fresh slot.
fn step(oracle: &mut Oracle, tokens: &[TokenId]) -> Result<Vec<SpanOutput>, ModelError> {
    let mut tail = oracle.tail(&[], 0).expect("memory");
    oracle.step(&mut [Span {
        tokens: TokenSource::Known(tokens),
        path: &[],
        tail: &mut tail,
        output_kind: OutputKind::Nothing,
    }])
}

fn is_device_error<T>(result: Result<T, ModelError>) -> bool {
    matches!(result, Err(ModelError::Device(_)))
}

#[test]
fn injected_step_faults_fail_steps() {
    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    config.faults.at_step(1, StepFault::Fail);
    config.faults.at_step(4, StepFault::Fail);
    config
        .faults
        .next_steps(1, StepFault::Stall(Duration::ZERO));
    let failed: Vec<bool> = (0..6)
        .map(|_| is_device_error(step(&mut oracle, &[1, 2])))
        .collect();
    assert_eq!(failed, [false, true, false, false, true, false]);
    config.faults.next_steps(2, StepFault::Fail);
    let failed: Vec<bool> = (0..3)
        .map(|_| is_device_error(step(&mut oracle, &[1, 2])))
        .collect();
    assert_eq!(failed, [true, true, false]);
    let counts = config.counters.now();
    assert_eq!((counts.steps, counts.spans), (9, 5));
    assert_eq!(counts.tokens_evaluated, 10);
}

#[test]
fn poison_fails_every_step_that_evaluates_it() {
    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    config.faults.poison(66);
    assert!(is_device_error(step(&mut oracle, &[1, 66, 2])));
    assert!(step(&mut oracle, &[1, 2]).is_ok());
    assert!(is_device_error(step(&mut oracle, &[66])));
    config.faults.clear();
    assert!(step(&mut oracle, &[66]).is_ok());
}

/// Two tokens' state.
fn sealed(oracle: &mut Oracle) -> OracleSegment {
    let mut tail = oracle.tail(&[], 0).expect("memory");
    let mut spans = [Span {
        tokens: TokenSource::Known(&[8, 9]),
        path: &[],
        tail: &mut tail,
        output_kind: OutputKind::Nothing,
    }];
    oracle.step(&mut spans).expect("a step");
    oracle.seal(&mut tail, 2).expect("a valid offset")
}

#[test]
fn panic_leaves_segments_intact() {
    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    let path = [Rc::new(sealed(&mut oracle))];
    config.faults.next_steps(1, StepFault::Panic);
    let caught = catch_unwind(AssertUnwindSafe(|| step(&mut oracle, &[1])));
    let message = caught.expect_err("an injected panic");
    assert_eq!(
        message.downcast_ref::<String>().map(String::as_str),
        Some("step 1 (injected)")
    );
    let mut tail = oracle.tail(&path, 0).expect("memory");
    let mut spans = [Span {
        tokens: TokenSource::Known(&[7]),
        path: &path,
        tail: &mut tail,
        output_kind: OutputKind::Logits,
    }];
    let expected = config.reference_logits(&[8, 9, 7])[2 * config.vocab_size..].to_vec();
    let span_outputs = oracle.step(&mut spans).expect("a step");
    assert_eq!(span_outputs, [SpanOutput::Logits(expected)]);
}

#[test]
fn failed_allocation_changes_nothing() {
    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    let mut tail = oracle.tail(&[], 0).expect("memory");
    let mut spans = [Span {
        tokens: TokenSource::Known(&[8, 9, 10]),
        path: &[],
        tail: &mut tail,
        output_kind: OutputKind::Nothing,
    }];
    oracle.step(&mut spans).expect("a step");
    let segment = oracle.seal(&mut tail, 2).expect("a valid offset");
    let packer = oracle.packer();
    let detached_state = oracle.export(&segment).expect("detached state");
    let mut bytes = vec![0; packer.packed_bytes(segment.segment_size())];
    packer.pack(&detached_state, &mut bytes).expect("it packs");
    let unpacked = || {
        packer
            .unpack(segment.segment_size(), &bytes)
            .expect("whole bytes")
    };
    // Detached states count as segments, and none may be alive when the counts are compared.
    drop((detached_state, unpacked()));
    let before = config.counters.now();
    config.faults.fail_allocations(5);
    assert!(is_device_error(oracle.tail(&[], 0)));
    assert!(is_device_error(oracle.seal(&mut tail, 1)));
    assert!(is_device_error(oracle.split(&segment, 1)));
    assert!(is_device_error(oracle.merge(&segment, &segment)));
    assert!(is_device_error(oracle.import(unpacked())));
    assert_eq!(config.counters.now(), before);
    assert_eq!(tail.tokens(), 1);
    assert!(oracle.seal(&mut tail, 1).is_ok(), "five failed");
}

#[test]
fn injected_export_faults_fail_exports() {
    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    let segment = sealed(&mut oracle);
    config.faults.fail_exports(1);
    assert!(is_device_error(oracle.export(&segment)));
    let detached_state = oracle.export(&segment).expect("one failed");
    // Detached state holds the memory of its segment.
    drop(segment);
    assert_eq!(config.counters.now().segments_alive, 1);
    drop(detached_state);
    assert_eq!(config.counters.now().segments_alive, 0);
}

#[test]
fn failed_removal_keeps_segments_and_invalidates_the_tail() {
    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    let mut tail = oracle.tail(&[], 0).expect("memory");
    let logits_after_nine = |oracle: &mut Oracle, path: &[_], tail: &mut _| {
        let mut spans = [Span {
            tokens: TokenSource::Known(&[9]),
            path,
            tail,
            output_kind: OutputKind::Logits,
        }];
        oracle.step(&mut spans).expect("a step").remove(0)
    };
    logits_after_nine(&mut oracle, &[], &mut tail);
    let path = [Rc::new(oracle.seal(&mut tail, 1).expect("a valid offset"))];
    config.faults.fail_allocations(1);
    assert!(is_device_error(oracle.remove(&path, 0, &mut tail, 1..1)));
    let expected = config.reference_logits(&[9, 9])[config.vocab_size..].to_vec();
    let expected = SpanOutput::Logits(expected);
    let mut fresh = oracle.tail(&path, 0).expect("memory");
    assert_eq!(logits_after_nine(&mut oracle, &path, &mut fresh), expected);
    assert_ne!(logits_after_nine(&mut oracle, &path, &mut tail), expected);
}

#[test]
fn misuse_is_an_error_that_names_the_span() {
    let config = OracleConfig {
        context_tokens_max: 3,
        ..OracleConfig::default()
    };
    let mut oracle = oracle(&config);
    let mut check = |tokens: &[TokenId], expected: &str| {
        let error = step(&mut oracle, tokens).expect_err(expected).to_string();
        assert_eq!(error, format!("the device failed: span 0: {expected}"));
    };
    check(&[], "there are no tokens to evaluate");
    check(&[1, 1_000], "a token is outside the vocabulary of 1000");
    check(&[1, 2, 3, 4], "4 tokens exceed the context of 3");
    assert!(step(&mut oracle, &[1, 2, 3]).is_ok());
}

#[test]
fn counts_follow_live_state() {
    let config = OracleConfig {
        layer_bytes: 100.into(),
        tail_block_tokens: 4,
        ..OracleConfig::default()
    };
    let mut oracle = oracle(&config);
    let alive = || {
        let counts = config.counters.now();
        (
            counts.segments_alive,
            counts.tails_alive,
            counts.bytes_alive,
        )
    };
    let mut tail = oracle.tail(&[], 0).expect("memory");
    assert_eq!(alive(), (0, 1, 0));
    let mut spans = [Span {
        tokens: TokenSource::Known(&[1, 2, 3, 4, 5]),
        path: &[],
        tail: &mut tail,
        output_kind: OutputKind::Nothing,
    }];
    oracle.step(&mut spans).expect("a step");
    assert_eq!(alive(), (0, 1, 800), "five tokens take two blocks");
    let segment = oracle.seal(&mut tail, 3).expect("a valid offset");
    assert_eq!(alive(), (1, 1, 700));
    assert_eq!((segment.bytes(), tail.bytes()), (300, 400));
    let parts = oracle.split(&segment, 1).expect("a valid offset");
    assert_eq!(alive(), (3, 1, 1_000));
    assert_eq!(oracle.memory().active_bytes, 1_000);
    drop((segment, parts, tail));
    assert_eq!(alive(), (0, 0, 0));
    assert_eq!(oracle.memory().peak_bytes, 1_000);
}

#[test]
fn step_takes_the_configured_time() {
    let cost = StepCost {
        base: Duration::from_millis(5),
        per_token: Duration::from_millis(2),
        per_cached_token: Duration::from_millis(1),
    };
    assert_eq!(cost.of(3, 4), Duration::from_millis(15));
    assert_eq!(StepCost::default().of(9, 9), Duration::ZERO);
    let config = OracleConfig {
        cost,
        ..OracleConfig::default()
    };
    let mut oracle = oracle(&config);
    let started_at = Instant::now();
    step(&mut oracle, &[1, 2, 3]).expect("a step");
    assert!(started_at.elapsed() >= Duration::from_millis(11));
    config
        .faults
        .next_steps(1, StepFault::Stall(Duration::from_millis(30)));
    let started_at = Instant::now();
    step(&mut oracle, &[1]).expect("a step");
    assert!(started_at.elapsed() >= Duration::from_millis(37));
}
