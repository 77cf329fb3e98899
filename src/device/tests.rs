//! Tests of the device thread on the oracle.

use super::*;
use crate::runtime::EngineRuntime;
use motet_model::oracle::{Oracle, OracleConfig, StepFault};
use motet_protocol::{
    Edit, OutputKind, PlannedSpan, PlannedTokens, Sampling, SlotId, SpanOutput, TokenId,
    TokenSampling,
};

const SLOT: SlotId = SlotId(1);

/// Work that opens the slot, if `opens`, and samples a token: after these tokens, or after the
/// token that it sampled last.
fn work(opens: bool, tokens: &[TokenId]) -> Work {
    let open = Edit::Open {
        slot: SLOT,
        path: vec![],
        expected_tokens: 0,
    };
    let token_sampling = TokenSampling {
        sampling: Sampling::GREEDY,
        position: 0,
    };
    let span = PlannedSpan {
        slot: SLOT,
        token_source: match tokens {
            [] => PlannedTokens::Sampled(Vec::new()),
            tokens => PlannedTokens::Known(tokens.to_vec()),
        },
        output_kind: OutputKind::Token(token_sampling),
    };
    Work {
        edits: opens.then_some(open).into_iter().collect(),
        spans: vec![span],
        ..Work::default()
    }
}

/// Runs the whole thread: outcomes arrive in order, and their times add up.
fn loaded(config: &OracleConfig) -> Loaded<Oracle> {
    Loaded {
        model: Oracle::new(config.clone()).expect("a valid configuration"),
        draft_model: None,
    }
}

#[tokio::test]
async fn two_steps_in_flight() {
    let config = OracleConfig {
        cost: motet_model::oracle::StepCost {
            base: Duration::from_millis(100),
            ..Default::default()
        },
        ..OracleConfig::default()
    };
    let expected_output = config.reference_tokens(&[3, 1], 4, Sampling::GREEDY);
    let model = config.clone();
    let build = move || Ok(loaded(&model));
    let started = Device::start(build, EngineRuntime::default()).await;
    let started = started.expect("a device");
    let (mut device, loader) = (started.device, started.loader);
    let started_at = Instant::now();
    assert!(device.send(work(true, &[3, 1])));
    for (index, expected_output) in expected_output.iter().enumerate() {
        if index < 3 {
            assert!(device.send(work(false, &[])));
        }
        let outcome = device.outcomes.recv().await.expect("an outcome");
        assert_eq!(
            outcome.result.expect("a step"),
            [SpanOutput::Token(*expected_output)]
        );
        assert!(
            outcome.busy >= Duration::from_millis(50),
            "{:?}",
            outcome.busy
        );
        assert_eq!(outcome.gap, Duration::ZERO);
    }
    assert!(started_at.elapsed() >= Duration::from_millis(400));
    drop(device);
    loader.gone().wait().await;
    assert_eq!(config.counters.now().tails_alive, 0);
}

/// A thread that waits for work returns unused memory once, and again after more work.
#[tokio::test]
async fn memory_is_trimmed_once_in_each_pause() {
    let config = OracleConfig::default();
    let model = config.clone();
    let build = move || Ok(loaded(&model));
    let started = Device::start(build, EngineRuntime::default()).await;
    let mut device = started.expect("a device").device;
    let mut trims = Vec::new();
    for opens in [true, false] {
        assert!(device.send(work(opens, &[3, 1])));
        device.outcomes.recv().await.expect("an outcome");
        trims.push(config.counters.now().trims);
        tokio::time::sleep(3 * TRIM_AFTER).await;
    }
    trims.push(config.counters.now().trims);
    assert_eq!(trims, [0, 1, 2]);
}

/// One thread dies, and then one hangs: each is replaced by another.
#[tokio::test]
async fn device_thread_can_be_replaced() {
    let config = OracleConfig::default();
    let expected_output = config.reference_tokens(&[3, 1], 1, Sampling::GREEDY);
    let model = config.clone();
    let build = move || Ok(loaded(&model));
    let started = Device::start(build, EngineRuntime::default()).await;
    let started = started.expect("a device");
    let (mut device, loader) = (started.device, started.loader);
    let first = || work(true, &[3, 1]);
    config.faults.end_thread(1);
    assert!(device.send(first()));
    assert!(device.outcomes.recv().await.is_none(), "it has died");
    loader.gone().wait().await;

    let mut loading = Some(loader.load());
    let mut device = loader.loaded(&mut loading).await.expect("another");
    let stall = Duration::from_millis(700);
    config.faults.next_steps(1, StepFault::Stall(stall));
    assert!(device.send(first()));
    assert!(device.outcomes.try_recv().is_err(), "it hangs");
    drop(device);
    let mut loading = Some(loader.load());
    device = loader.loaded(&mut loading).await.expect("a third");
    assert!(device.send(first()));
    let outcome = device.outcomes.recv().await.expect("an outcome");
    assert_eq!(
        outcome.result.expect("a step"),
        [SpanOutput::Token(expected_output[0])]
    );
    drop(device);
    loader.gone().wait().await;
}
