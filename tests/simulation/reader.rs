//! A caller that reads its stream and checks it.

use std::time::Duration;

use motet::TokenStream;
use motet::error::GenerateError;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::time::{sleep, timeout};

use crate::expected::{self, ExpectedOutput};
use crate::harness::SimulationHarness;
use crate::plan::{Fault, POISON};

/// A waiting reader gets the next token, or an end, within this time.
const NEXT_TOKEN_WITHIN: Duration = Duration::from_secs(3_600);

/// Faults that make cores panic, at a random message.
const PANICS: [Fault; 3] = [
    Fault::SchedulerPanics,
    Fault::CachePanics,
    Fault::PagerPanics,
];

/// These faults may fail any sequence in a step, repeatedly.
const FAILS_STEPS: [Fault; 7] = [
    Fault::StepFails,
    Fault::FinishFails,
    Fault::ModelPanics,
    Fault::DeviceOutOfMemory,
    Fault::DeviceStuck,
    Fault::DeviceDies,
    // The device then seems to be stuck.
    Fault::ClockJumps,
];

/// A reader's speed.
#[derive(Clone, Copy, Debug)]
enum Habit {
    Prompt,
    /// Sleeps before each token.
    Slow,
    /// Sleeps once, long.
    Stalls,
    /// Leaves at some point.
    Leaves,
}

/// Reads until the end, or until its caller has enough. Returns true if the stream ended well.
pub(crate) async fn read(
    harness: &SimulationHarness,
    stream: &mut TokenStream,
    expected: &mut ExpectedOutput,
    rng: &mut ChaCha8Rng,
) -> bool {
    let habit = match rng.random_range(0..10) {
        0 => Habit::Slow,
        1 => Habit::Stalls,
        2 => Habit::Leaves,
        _ => Habit::Prompt,
    };
    let at = rng.random_range(0..=20);
    let name = stream.sequence();
    let mut finish = None;
    for read in 0.. {
        match habit {
            Habit::Slow => sleep(harness.pause(rng, 1..=200)).await,
            Habit::Stalls if read == at => {
                harness.record.count("behaviour: stops reading", 1);
                sleep(harness.pause(rng, 1_000..=90_000)).await;
            }
            Habit::Leaves if read == at => {
                harness.record.count("behaviour: leaves", 1);
                harness.record.log(format_args!("{name} leaves"));
                return false;
            }
            Habit::Prompt | Habit::Stalls | Habit::Leaves => {}
        }
        expected.is_slow |= matches!(habit, Habit::Slow | Habit::Stalls);
        let next = timeout(NEXT_TOKEN_WITHIN, stream.next()).await;
        match next.unwrap_or_else(|_| panic!("{name} waits for its token {read}")) {
            Some(Ok(piece)) if let Some(prefill) = piece.prefill => {
                assert_eq!(
                    (piece.token, expected.received),
                    (None, 0),
                    "{name}: no token yet"
                );
                assert!(prefill.cached_tokens <= prefill.computed_tokens);
                assert!(prefill.computed_tokens <= prefill.prompt_tokens);
                harness.record.count("progress of a prompt", 1);
            }
            Some(Ok(piece)) if let Some(last) = piece.finish => {
                assert_eq!(piece.token, None, "{name}: the finish has no token");
                finish = Some(last);
                break;
            }
            Some(Ok(piece)) => {
                let token = piece.token.expect("no text is held back");
                harness.record.log(format_args!("{name} gets {token}"));
                harness.record.count("tokens", 1);
                expected.received(token);
            }
            Some(Err(error)) => {
                failed(harness, name, expected, &error);
                return false;
            }
            None => break,
        }
    }
    let finish = finish.expect("a stream that ended well has a finish");
    harness
        .record
        .log(format_args!("{name} finishes: {finish:?}"));
    harness.record.count("end: well", 1);
    expected.finished(finish.reason);
    let usage = finish.usage;
    assert_eq!(
        usage.output_tokens, expected.received,
        "{name}: tokens are counted"
    );
    assert!(
        usage.cached_tokens < usage.prompt_tokens,
        "{name}: {usage:?}"
    );
    true
}

/// Checks that a stream failed for a possible reason.
pub(crate) fn failed(
    harness: &SimulationHarness,
    name: motet::SequenceId,
    expected: &ExpectedOutput,
    error: &GenerateError,
) {
    let plan = &harness.plan;
    harness.record.log(format_args!("{name} fails: {error}"));
    harness.record.count(expected::label(error), 1);
    let may_be = match error {
        GenerateError::Device { attempts, .. } => {
            let retries_max = plan.config.scheduler.step_retries_max;
            // A retry alone fails only the poisoned sequence.
            let poisoned =
                plan.rate(Fault::Poison) > 0.0 && (retries_max == 0 || expected.may_hold(POISON));
            *attempts > retries_max && (poisoned || plan.has_any(&FAILS_STEPS))
        }
        GenerateError::Panicked { attempts, .. } => {
            *attempts > plan.config.scheduler.step_retries_max && plan.has_any(&PANICS)
        }
        GenerateError::OutOfMemory => plan.pins,
        GenerateError::ForkSource(_)
        | GenerateError::ForkPastEnd { .. }
        | GenerateError::ForkFull { .. } => expected.is_fork,
        GenerateError::DeadlineMissed { .. } => expected.has_deadline,
        GenerateError::SlowReader { .. } => {
            expected.is_slow && plan.config.scheduler.unread_timeout.is_some()
        }
        GenerateError::Shutdown => harness.was_aborted.get(),
        GenerateError::HandedOver { output_tokens } => {
            harness.was_aborted.get() && *output_tokens == expected.received
        }
        GenerateError::Broken { .. } => plan.rate(Fault::BreakerOpens) > 0.0,
        _ => false,
    };
    assert!(may_be, "{name} fails without a reason: {error}");
}
