//! Failures that the simulation has found in the cores, each as a shortest history.

use std::time::Duration;

use motet_core::cache::{CacheCore, Effect, Message, OpenSlot};
use motet_core::config::{CacheConfig, PagerConfig, SchedulerConfig};
use motet_core::pager::{self, PagerEvent};
use motet_core::scheduler::{Event, SchedulerCore};
use motet_model::oracle::{OracleConfig, StepFault};
use motet_model::sampling::Sampling;
use motet_model::{LayerKind, Model};
use motet_protocol::Priority;
use motet_protocol::{SequenceId, TokenId, UserId};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::harness::{Caller, HistoryHarness};

const FULL: &[LayerKind] = &[LayerKind::Full];

/// A harness with memory for so many tokens, and so many slots.
fn harness(budget_tokens: usize, sequences_max: usize) -> HistoryHarness {
    let mut harness = HistoryHarness::with_context(FULL, budget_tokens, 256);
    let config = SchedulerConfig {
        sequences_max,
        ..harness.scheduler_config.clone()
    };
    harness
        .cores
        .replace_scheduler(SchedulerCore::new(harness.model.spec().clone(), config));
    harness
}

/// Delivers all messages in flight. Time does not pass, and callers do nothing.
fn deliver_all(harness: &mut HistoryHarness) {
    let channels = harness.channels();
    for _ in 0..10_000 {
        if !(0..channels).any(|channel| harness.deliver(channel)) {
            return;
        }
    }
    panic!("work ends: {:?}", harness.cores.scheduler());
}

fn check_end(mut harness: HistoryHarness) {
    harness.run_until_idle(&mut ChaCha8Rng::seed_from_u64(0));
    harness.check_end();
    harness.check_empty();
}

/// No event followed the pause, and the paused sequence kept its slot without using it.
#[test]
fn queued_sequence_takes_the_slot_of_a_paused_one() {
    let mut harness = harness(400, 1);
    let first = harness.submit(vec![1, 2, 3], 100, Sampling::GREEDY);
    assert!(harness.deliver(0) && harness.deliver(1), "it has a slot");
    let second = harness.submit(vec![7, 8, 9], 3, Sampling::GREEDY);
    harness.handle_event(Event::Pause(first));
    deliver_all(&mut harness);
    assert!(
        harness.cores.now() < Duration::from_millis(100),
        "no time has passed"
    );
    assert_eq!(harness.callers[&first].end, None);
    assert!(harness.callers[&second].end.is_some(), "it had its turn");
    harness.handle_event(Event::Resume(first));
    check_end(harness);
}

/// The device gets the next step before it has finished the previous one. A step submitted
/// behind a failed step was dropped, the step submitted behind that one as well, and so on:
/// each had been lost by the time the next was planned.
#[test]
fn no_step_is_submitted_on_top_of_one_that_may_be_dropped() {
    let mut harness = harness(400, 4);
    let step = harness.scheduler_config.chunking.step_tokens_max as TokenId;
    for number in 0..3 {
        let prompt = (0..step).map(|at| 1 + (at + 16 * number) % 48).collect();
        harness.submit(prompt, 3, Sampling::GREEDY);
    }
    harness.oracle.faults.next_steps(1, StepFault::Fail);
    while harness.failures.is_empty() {
        while harness.deliver(0) || harness.deliver(1) {}
        // It submits wherever it can.
        harness.eager = false;
        assert!(harness.deliver(2), "a step fails");
    }
    while harness.deliver(0) || harness.deliver(1) {}
    assert_eq!(harness.table.in_flight(), 1, "one was submitted behind it");
    assert!(harness.work.is_empty(), "nothing is submitted behind that");
    deliver_all(&mut harness);
    for (sequence, caller) in &harness.callers {
        assert!(caller.end.is_some(), "{sequence} advances");
    }
    assert_eq!(harness.failures.len(), 1);
    check_end(harness);
}

/// An urgent request needs nearly all of the memory, which two small ones hold. The second
/// small one started in the memory that the first had freed for the urgent one, and vice versa,
/// forever.
#[test]
fn small_sequence_does_not_take_memory_freed_for_a_large_one() {
    let mut harness = harness(50, 3);
    for (number, prompt_tokens, output_tokens_max, priority) in [
        (1, 5, 75, Priority::Normal),
        (2, 2, 23, Priority::Normal),
        (3, 44, 13, Priority::Urgent),
    ] {
        harness.submit_caller(Caller {
            prompt: (0..prompt_tokens)
                .map(|at| 1 + (at + 10 * (number - 1)) % 48)
                .collect(),
            output_tokens_max,
            priority,
            user: Some(UserId(u64::from(number))),
            ..Caller::default()
        });
        for _ in 0..9 {
            assert!(
                (0..3).any(|channel| harness.deliver(channel)),
                "it is at work"
            );
        }
    }
    deliver_all(&mut harness);
    assert!(
        harness.preempted < 20,
        "{} were preempted",
        harness.preempted
    );
    check_end(harness);
}

/// Another sequence computes the beginning of a new one, and there is no memory to share it.
/// The new sequence then stops waiting for it, even if the pager has answered before that it
/// has no copy.
#[test]
fn pager_miss_does_not_restart_the_wait_for_a_leader() {
    let (leader, pending_sequence) = (SequenceId(1), SequenceId(2));
    let prompt: Vec<TokenId> = (1..=30).collect();
    let spec = OracleConfig::with_layers(FULL).spec();
    let config = CacheConfig {
        // The leader has all of it.
        device_bytes_max: spec.tail_bytes(prompt.len()),
        share_tokens_min: 4,
        ..CacheConfig::default()
    };
    let mut cache = CacheCore::new(spec, config).with_pager(&PagerConfig::default(), true);
    let mut send = |message: Message| {
        let effects = cache.handle(Duration::ZERO, message).expect("it is valid");
        cache.check_integrity();
        (effects, cache.take_outbox())
    };
    let has_nothing = |sequence| {
        Message::Paged(PagerEvent::Miss {
            sequence,
            copied_tokens: 0,
        })
    };
    send(Message::OpenSlot(OpenSlot::new(leader, prompt.clone(), 0)));
    let (opened, _) = send(has_nothing(leader));
    let is_opened = |effect: &Effect| matches!(effect, Effect::SlotOpened { .. });
    assert!(opened.iter().any(is_opened), "{opened:?}");

    let shared: Vec<TokenId> = (1..=20).collect();
    let (waits, _) = send(Message::OpenSlot(OpenSlot::new(
        pending_sequence,
        shared,
        0,
    )));
    let at = waits.iter().find_map(|effect| match effect {
        Effect::Checkpoint { sequence, at, .. } if *sequence == leader => Some(*at),
        _ => None,
    });
    assert_eq!(at, Some(19), "it waits for the leader's tokens");
    let (_, asked) = send(Message::Reached {
        sequence: leader,
        computed: 24,
    });
    assert!(
        matches!(asked[..], [pager::Message::Lookup(_)]),
        "it could not be shared, and the pager is asked: {asked:?}"
    );
    let (answered, _) = send(has_nothing(pending_sequence));
    let out_of_memory = Effect::OutOfMemory {
        sequence: pending_sequence,
    };
    assert_eq!(answered, [out_of_memory], "it may be submitted again");
}
