//! Failures that the simulation has found in the scheduler's core, as exact lists of its
//! events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use motet_core::cache::{self, Message};
use motet_core::config::SchedulerConfig;
use motet_core::scheduler::{
    Effect, Event, History, MaskGate, Predecessor, SchedulerCore, Submission,
};
use motet_model::oracle::OracleConfig;
use motet_model::{DeviceMemory, LayerKind, SpanOutput};
use motet_protocol::GenerateError;
use motet_protocol::{Failure, Lost, Outcome};
use motet_protocol::{SequenceId, SlotId};

use crate::harness::{Caller, submission};

const FIRST: SequenceId = SequenceId(1);

fn scheduler() -> SchedulerCore {
    scheduler_that_tries_again(SchedulerConfig::default().step_retries_max)
}

fn scheduler_that_tries_again(step_retries_max: u32) -> SchedulerCore {
    let spec = OracleConfig::with_layers(&[LayerKind::Full]).spec();
    let config = SchedulerConfig {
        step_retries_max,
        ..SchedulerConfig::default()
    };
    SchedulerCore::new(spec, config)
}

/// An oracle whose sequences do not end by themselves.
fn endless() -> OracleConfig {
    OracleConfig {
        end_tokens: Vec::new(),
        ..OracleConfig::with_layers(&[LayerKind::Full])
    }
}

fn first() -> Submission {
    let caller = Caller {
        output_tokens_max: 200,
        ..Caller::default()
    };
    submission(FIRST, &caller, &[1, 2, 3, 4], &endless())
}

fn handle(core: &mut SchedulerCore, event: Event) -> Vec<Effect> {
    let effects = core.handle(Duration::ZERO, event);
    core.check_integrity();
    effects
}

fn step_finished(tokens: Vec<SpanOutput>) -> Event {
    outcome(Ok(tokens))
}

fn outcome(result: Result<Vec<SpanOutput>, Failure>) -> Event {
    Event::Outcome(Outcome {
        result,
        drafts: Ok(Vec::new()),
        busy: Duration::ZERO,
        gap: Duration::ZERO,
        lost: Lost::default(),
        memory: DeviceMemory::default(),
    })
}

/// A rebuilt scheduler replaces a failed one, with so much work in flight.
fn rebuild(core: &mut SchedulerCore, in_flight: usize) -> Vec<Effect> {
    let left = Predecessor {
        epoch: 1,
        pending_answers: 0,
        in_flight,
        device_away: false,
    };
    let effects = handle(core, Event::Rebuilt(left));
    assert!(effects.contains(&Effect::Cache(Message::Reset)));
    handle(core, Event::Cache(Ok(Vec::new())));
    effects
}

/// When the detached states from the pager were submitted, the device did not know the epoch
/// yet. It dropped them with all else when the epoch arrived.
#[test]
fn fence_waits_until_the_device_knows_the_epoch() {
    let mut core = scheduler();
    rebuild(&mut core, 2);
    let has_fence = |effects: &[Effect]| {
        let fence_passed = Effect::Cache(Message::FencePassed { number: 7 });
        effects.contains(&fence_passed)
    };
    let effects = handle(
        &mut core,
        Event::CacheEffects(vec![cache::Effect::Fence { number: 7 }]),
    );
    assert!(!has_fence(&effects), "nothing was sent yet");
    // The work in flight belongs to the old epoch.
    let effects = handle(&mut core, step_finished(Vec::new()));
    assert!(!has_fence(&effects));
    let epochs = effects.iter().filter_map(|effect| match effect {
        Effect::Work(work) => Some(work.epoch),
        _ => None,
    });
    assert_eq!(epochs.collect::<Vec<_>>(), [2], "it gets the event");
    assert!(!has_fence(&handle(&mut core, step_finished(Vec::new()))));
    assert!(
        has_fence(&handle(&mut core, step_finished(Vec::new()))),
        "it got the event"
    );
}

/// The state to import from the pager was discarded when the cache was lost, so the step
/// failed. That was blamed on the sequences in it: those without another retry failed with it.
#[test]
fn work_sent_before_the_cache_was_lost_blames_no_sequence() {
    let mut core = scheduler_that_tries_again(0);
    handle(&mut core, Event::Submit(first()));
    let opened = cache::Effect::SlotOpened {
        sequence: FIRST,
        slot: SlotId(1),
        cached_tokens: 2,
        miss: None,
        continuation: Arc::default(),
    };
    let effects = handle(&mut core, Event::Cache(Ok(vec![opened])));
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Work(_)))
    );
    handle(&mut core, Event::CacheLost(None));
    let failure = Failure::Reset("copy-1 has not been loaded".into());
    let effects = handle(&mut core, outcome(Err(failure)));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Failed(..))),
        "{effects:?}"
    );
}

/// The pause arrived after the sequence could start: others waited for state that it would
/// compute.
#[test]
fn paused_sequence_stays_paused_in_a_rebuilt_scheduler() {
    let mut core = scheduler();
    rebuild(&mut core, 0);
    let begins = |effects: &[Effect]| {
        let begin = |effect: &Effect| matches!(effect, Effect::Cache(Message::OpenSlot(_)));
        effects.iter().any(begin)
    };
    let history = History {
        submission: first(),
        generated: vec![5],
        started: true,
        paused: true,
    };
    assert!(!begins(&handle(&mut core, Event::Restore(history))));
    assert!(begins(&handle(&mut core, Event::Resume(FIRST))));
}

/// Alone on the device, the sequence could not grow beside its own cached state, and failed. It
/// fits if all of its state is in one tail; it fails only if it does not fit then.
#[test]
fn sequence_without_memory_retries_without_the_cache_before_it_fails() {
    let mut core = scheduler();
    let mut to_do: VecDeque<Effect> = handle(&mut core, Event::Submit(first())).into();
    let (mut begins, mut end) = (Vec::new(), None);
    while let Some(effect) = to_do.pop_front() {
        let event = match effect {
            Effect::Cache(Message::OpenSlot(begin)) => {
                begins.push(begin.ignore_cache);
                Event::Cache(Ok(vec![cache::Effect::SlotOpened {
                    sequence: FIRST,
                    slot: SlotId(begins.len() as u64),
                    cached_tokens: if begin.ignore_cache { 0 } else { 2 },
                    miss: None,
                    continuation: Arc::default(),
                }]))
            }
            Effect::Cache(Message::ExtendGrant { sequence, .. }) => {
                Event::Cache(Ok(vec![cache::Effect::GrantDenied { sequence }]))
            }
            Effect::Cache(_) => Event::Cache(Ok(Vec::new())),
            Effect::Work(work) => {
                let tokens = work.spans.iter().map(|_| SpanOutput::Token(9));
                step_finished(tokens.collect())
            }
            Effect::Failed(FIRST, error) => {
                end = Some(error);
                continue;
            }
            _ => continue,
        };
        to_do.extend(handle(&mut core, event));
    }
    assert_eq!(begins, [false, true]);
    assert_eq!(end, Some(GenerateError::OutOfMemory));
}

/// Only its own sequence waits for an expensive mask: it is in a step only once its mask is
/// there, and in one step at a time. Another continues meanwhile.
#[test]
fn sequence_without_its_mask_is_in_no_step() {
    let mut core = scheduler();
    let second = SequenceId(2);
    let begin = |core: &mut SchedulerCore, submission: Submission, slot| {
        let sequence = submission.sequence;
        handle(core, Event::Submit(submission));
        let opened = cache::Effect::SlotOpened {
            sequence,
            slot: SlotId(slot),
            cached_tokens: 0,
            miss: None,
            continuation: Arc::default(),
        };
        handle(core, Event::Cache(Ok(vec![opened])))
    };
    /// The slots of each submitted step.
    fn steps(effects: &[Effect]) -> Vec<Vec<u64>> {
        let work = effects.iter().filter_map(|effect| match effect {
            Effect::Work(work) => Some(work.spans.iter().map(|span| span.slot.0).collect()),
            _ => None,
        });
        work.collect()
    }
    // Its prompt, and the step after it, are in flight.
    begin(&mut core, first(), 1);
    handle(&mut core, Event::Mask(FIRST, MaskGate::Shut));
    let caller = Caller {
        output_tokens_max: 200,
        ..Caller::default()
    };
    begin(
        &mut core,
        submission(second, &caller, &[5, 6, 7, 8], &endless()),
        2,
    );
    let mut own_steps = 0;
    let mut others = 0;
    let mut in_flight: VecDeque<Vec<u64>> = VecDeque::from([vec![1], vec![1]]);
    let mut sampled = 0;
    for round in 0..12 {
        let Some(step) = in_flight.pop_front() else {
            break;
        };
        sampled += usize::from(step.contains(&1));
        let tokens = step.iter().map(|_| SpanOutput::Token(9)).collect();
        let mut sent = steps(&handle(&mut core, step_finished(tokens)));
        if round == 6 {
            // A mask for an output that the sequence no longer has is ignored.
            sent.extend(steps(&handle(
                &mut core,
                Event::Mask(FIRST, MaskGate::ReadyAt(sampled + 1)),
            )));
            assert!(!sent.concat().contains(&1), "it is for another token");
            sent.extend(steps(&handle(
                &mut core,
                Event::Mask(FIRST, MaskGate::ReadyAt(sampled)),
            )));
        }
        own_steps += sent.iter().filter(|step| step.contains(&1)).count();
        others += sent.iter().filter(|step| step.contains(&2)).count();
        in_flight.extend(sent);
    }
    assert_eq!(own_steps, 1, "one step for one mask");
    assert!(others > own_steps, "the other continues: {others}");
}
