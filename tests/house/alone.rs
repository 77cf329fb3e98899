//! What the simulation has found in the scheduler's core, said to it alone, word for word.

use std::collections::VecDeque;
use std::time::Duration;

use motet::config::SchedulerConfig;
use motet::error::GenerateError;
use motet::model::oracle::OracleConfig;
use motet::model::{DeviceMemory, LayerKind, Readout};
use motet::{SequenceId, SlotId};
use motet_core::cache::{self, Message};
use motet_core::protocol::{Failure, Lost, Outcome};
use motet_core::scheduler::{
    Effect, Event, History, Leftover, MaskGate, SchedulerCore, Submission,
};

use crate::house::{Caller, submission};

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

fn first() -> Submission {
    let caller = Caller {
        output_tokens_max: 200,
        ..Caller::default()
    };
    submission(FIRST, &caller, &[1, 2, 3, 4], &[])
}

fn say(core: &mut SchedulerCore, event: Event) -> Vec<Effect> {
    let effects = core.handle(Duration::ZERO, event);
    core.check_integrity();
    effects
}

fn landed(tokens: Vec<Readout>) -> Event {
    outcome(Ok(tokens))
}

fn outcome(result: Result<Vec<Readout>, Failure>) -> Event {
    Event::Outcome(Outcome {
        result,
        busy: Duration::ZERO,
        gap: Duration::ZERO,
        lost: Lost::default(),
        memory: DeviceMemory::default(),
    })
}

/// A scheduler takes over from one that has failed, with so much work under way.
fn take_over(core: &mut SchedulerCore, under_way: usize) -> Vec<Effect> {
    let left = Leftover {
        epoch: 1,
        unanswered: 0,
        under_way,
        device_away: false,
    };
    let effects = say(core, Event::TakeOver(left));
    assert!(effects.contains(&Effect::Cache(Message::Reset)));
    say(core, Event::Cache(Ok(Vec::new())));
    effects
}

/// The device had not heard of the epoch when what had come from the pager was handed over,
/// and dropped it with all else when it did.
#[test]
fn nothing_is_handed_over_before_the_device_has_heard_of_the_epoch() {
    let mut core = scheduler();
    take_over(&mut core, 2);
    let tells = |effects: &[Effect]| {
        let cleared = Effect::Cache(Message::Cleared { number: 7 });
        effects.contains(&cleared)
    };
    let effects = say(
        &mut core,
        Event::News(vec![cache::Effect::Clears { number: 7 }]),
    );
    assert!(!tells(&effects), "nothing was sent yet");
    // What is under way is of the old epoch.
    let effects = say(&mut core, landed(Vec::new()));
    assert!(!tells(&effects));
    let epochs = effects.iter().filter_map(|effect| match effect {
        Effect::Work(work) => Some(work.epoch),
        _ => None,
    });
    assert_eq!(epochs.collect::<Vec<_>>(), [2], "it is told");
    assert!(!tells(&say(&mut core, landed(Vec::new()))));
    assert!(tells(&say(&mut core, landed(Vec::new()))), "it has heard");
}

/// What it was to import from the pager was thrown away when the cache was lost, so it failed,
/// and that was put down to those in it: who may not be tried again failed with it.
#[test]
fn nobody_is_to_blame_for_work_of_before_the_cache_was_lost() {
    let mut core = scheduler_that_tries_again(0);
    say(&mut core, Event::Submit(first()));
    let begun = cache::Effect::Begun {
        sequence: FIRST,
        slot: SlotId(1),
        cached_tokens: 2,
        miss: None,
    };
    let effects = say(&mut core, Event::Cache(Ok(vec![begun])));
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Work(_)))
    );
    say(&mut core, Event::CacheLost(None));
    let failure = Failure::Reset("copy-1 has not come".into());
    let effects = say(&mut core, outcome(Err(failure)));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Failed(..))),
        "{effects:?}"
    );
}

/// It was told of the pause after it could start: others waited for what it would compute.
#[test]
fn who_was_paused_does_not_start_with_a_new_scheduler() {
    let mut core = scheduler();
    take_over(&mut core, 0);
    let begins = |effects: &[Effect]| {
        let begin = |effect: &Effect| matches!(effect, Effect::Cache(Message::Begin(_)));
        effects.iter().any(begin)
    };
    let history = History {
        submission: first(),
        generated: vec![5],
        started: true,
        paused: true,
    };
    assert!(!begins(&say(&mut core, Event::GoOn(history))));
    assert!(begins(&say(&mut core, Event::Resume(FIRST))));
}

/// Alone on the device, it had no room to grow beside what was cached of it, and failed. It
/// fits where all that it holds is one tail; only if it does not, it fails.
#[test]
fn who_does_not_fit_with_what_is_cached_begins_afresh_before_it_fails() {
    let mut core = scheduler();
    let mut to_do: VecDeque<Effect> = say(&mut core, Event::Submit(first())).into();
    let (mut begins, mut end) = (Vec::new(), None);
    while let Some(effect) = to_do.pop_front() {
        let event = match effect {
            Effect::Cache(Message::Begin(begin)) => {
                begins.push(begin.afresh);
                Event::Cache(Ok(vec![cache::Effect::Begun {
                    sequence: FIRST,
                    slot: SlotId(begins.len() as u64),
                    cached_tokens: if begin.afresh { 0 } else { 2 },
                    miss: None,
                }]))
            }
            Effect::Cache(Message::Grow { sequence, .. }) => {
                Event::Cache(Ok(vec![cache::Effect::NoGrowth { sequence }]))
            }
            Effect::Cache(_) => Event::Cache(Ok(Vec::new())),
            Effect::Work(work) => {
                let tokens = work.spans.iter().map(|_| Readout::Token(9));
                landed(tokens.collect())
            }
            Effect::Failed(FIRST, error) => {
                end = Some(error);
                continue;
            }
            _ => continue,
        };
        to_do.extend(say(&mut core, event));
    }
    assert_eq!(begins, [false, true]);
    assert_eq!(end, Some(GenerateError::OutOfMemory));
}

/// Masks that are dear are waited for by nobody but their own sequence: it is in a step only once its mask is there,
/// and in one step at a time. Another goes on meanwhile.
#[test]
fn a_sequence_whose_mask_is_not_there_is_in_no_step() {
    let mut core = scheduler();
    let second = SequenceId(2);
    let begin = |core: &mut SchedulerCore, submission: Submission, slot| {
        let sequence = submission.sequence;
        say(core, Event::Submit(submission));
        let begun = cache::Effect::Begun {
            sequence,
            slot: SlotId(slot),
            cached_tokens: 0,
            miss: None,
        };
        say(core, Event::Cache(Ok(vec![begun])))
    };
    /// The slots of each step that is sent.
    fn steps(effects: &[Effect]) -> Vec<Vec<u64>> {
        let work = effects.iter().filter_map(|effect| match effect {
            Effect::Work(work) => Some(work.spans.iter().map(|span| span.slot.0).collect()),
            _ => None,
        });
        work.collect()
    }
    // Its prompt, and the step after it, are under way.
    begin(&mut core, first(), 1);
    say(&mut core, Event::Mask(FIRST, MaskGate::Shut));
    let caller = Caller {
        output_tokens_max: 200,
        ..Caller::default()
    };
    begin(
        &mut core,
        submission(second, &caller, &[5, 6, 7, 8], &[]),
        2,
    );
    let mut own_steps = 0;
    let mut others = 0;
    let mut under_way: VecDeque<Vec<u64>> = VecDeque::from([vec![1], vec![1]]);
    let mut drawn = 0;
    for round in 0..12 {
        let Some(step) = under_way.pop_front() else {
            break;
        };
        drawn += usize::from(step.contains(&1));
        let tokens = step.iter().map(|_| Readout::Token(9)).collect();
        let mut sent = steps(&say(&mut core, landed(tokens)));
        if round == 6 {
            // A mask for an output that it does not have any more is none.
            sent.extend(steps(&say(
                &mut core,
                Event::Mask(FIRST, MaskGate::ReadyAt(drawn + 1)),
            )));
            assert!(!sent.concat().contains(&1), "it is for another token");
            sent.extend(steps(&say(
                &mut core,
                Event::Mask(FIRST, MaskGate::ReadyAt(drawn)),
            )));
        }
        own_steps += sent.iter().filter(|step| step.contains(&1)).count();
        others += sent.iter().filter(|step| step.contains(&2)).count();
        under_way.extend(sent);
    }
    assert_eq!(own_steps, 1, "one step for one mask");
    assert!(others > own_steps, "the other goes on: {others}");
}
