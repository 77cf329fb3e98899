//! What the simulation has found in the cores, each in a history as short as it can be.

use std::time::Duration;

use motet::config::{CacheConfig, PagerConfig, SchedulerConfig};
use motet::model::oracle::{OracleConfig, StepFault};
use motet::model::sampling::Sampling;
use motet::model::{LayerKind, Model};
use motet::request::Priority;
use motet::{SequenceId, TokenId, UserId};
use motet_core::cache::{Begin, CacheCore, Effect, Message};
use motet_core::pager::{self, Told};
use motet_core::scheduler::{Event, SchedulerCore};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::house::{Caller, House};

const FULL: &[LayerKind] = &[LayerKind::Full];

/// A house with room for so many tokens, and so many slots.
fn house(budget_tokens: usize, sequences_max: usize) -> House {
    let mut house = House::with_context(FULL, budget_tokens, 256);
    let config = SchedulerConfig {
        sequences_max,
        ..house.scheduler_config.clone()
    };
    house.scheduler = SchedulerCore::new(house.model.spec().clone(), config);
    house
}

/// Delivers all that is under way. Time does not pass, and nobody does anything.
fn settle(house: &mut House) {
    let ways = house.ways();
    for _ in 0..10_000 {
        if !(0..ways).any(|way| house.deliver(way)) {
            return;
        }
    }
    panic!("work ends: {:?}", house.scheduler);
}

fn check_end(mut house: House) {
    house.run_until_idle(&mut ChaCha8Rng::seed_from_u64(0));
    house.check_end();
    house.check_empty();
}

/// Nothing else happened after the pause, and the slot stayed with who did not use it.
#[test]
fn whoever_waits_has_the_slot_of_who_pauses() {
    let mut house = house(400, 1);
    let first = house.submit(vec![1, 2, 3], 100, Sampling::GREEDY);
    assert!(house.deliver(0) && house.deliver(1), "it has a slot");
    let second = house.submit(vec![7, 8, 9], 3, Sampling::GREEDY);
    house.feed(Event::Pause(first));
    settle(&mut house);
    assert!(house.now < Duration::from_millis(100), "no time has passed");
    assert_eq!(house.callers[&first].end, None);
    assert!(house.callers[&second].end.is_some(), "it had its turn");
    house.feed(Event::Resume(first));
    check_end(house);
}

/// A device to which the next step is there before it has landed one: what was launched on
/// top of a step that failed was dropped, what was launched on top of that as well, and so
/// on, in turns, since each had been lost by the time the next was planned.
#[test]
fn nothing_is_launched_on_top_of_what_may_be_dropped() {
    let mut house = house(400, 4);
    let step = house.scheduler_config.step_tokens_max as TokenId;
    for number in 0..3 {
        let prompt = (0..step).map(|at| 1 + (at + 16 * number) % 48).collect();
        house.submit(prompt, 3, Sampling::GREEDY);
    }
    house.oracle.faults.next_steps(1, StepFault::Fail);
    while house.failures.is_empty() {
        while house.deliver(0) || house.deliver(1) {}
        // It launches wherever it can.
        house.eager = false;
        assert!(house.deliver(2), "a step fails");
    }
    while house.deliver(0) || house.deliver(1) {}
    assert_eq!(house.table.under_way(), 1, "one was launched on top of it");
    assert!(house.work.is_empty(), "nothing is launched on top of that");
    settle(&mut house);
    for (sequence, caller) in &house.callers {
        assert!(caller.end.is_some(), "{sequence} gets on");
    }
    assert_eq!(house.failures.len(), 1);
    check_end(house);
}

/// An urgent one needs nearly all of the room, which two small ones have. The second of
/// them began in the room that the first had made for the urgent one, and the other way
/// round, for ever.
#[test]
fn nobody_small_begins_in_the_room_that_is_made_for_one_who_is_large() {
    let mut house = house(50, 3);
    for (number, prompt_tokens, output_tokens_max, class) in [
        (1, 5, 75, Priority::Normal),
        (2, 2, 23, Priority::Normal),
        (3, 44, 13, Priority::Urgent),
    ] {
        house.submit_caller(Caller {
            prompt: (0..prompt_tokens)
                .map(|at| 1 + (at + 10 * (number - 1)) % 48)
                .collect(),
            output_tokens_max,
            class,
            user: Some(UserId(u64::from(number))),
            ..Caller::default()
        });
        for _ in 0..9 {
            assert!((0..3).any(|way| house.deliver(way)), "it is at work");
        }
    }
    settle(&mut house);
    assert!(house.preempted < 20, "{} gave way", house.preempted);
    check_end(house);
}

/// Another computes what a newcomer begins with, and there is no room to share it: then
/// the newcomer waits for it no more, also not once the pager has said that it has nothing.
#[test]
fn who_is_not_to_wait_for_another_is_not_sent_back_to_it_by_the_pager() {
    let (leader, newcomer) = (SequenceId(1), SequenceId(2));
    let prompt: Vec<TokenId> = (1..=30).collect();
    let spec = OracleConfig::with_layers(FULL).spec();
    let config = CacheConfig {
        // The leader has all of it.
        device_bytes_max: spec.tail_bytes(prompt.len()),
        share_tokens_min: 4,
        ..CacheConfig::default()
    };
    let mut cache = CacheCore::new(spec, config).with_pager(&PagerConfig::default(), true);
    let mut tell = |message: Message| {
        let effects = cache
            .handle(Duration::ZERO, message)
            .expect("it makes sense");
        cache.check_integrity();
        (effects, cache.take_outbox())
    };
    let has_nothing = |sequence| {
        Message::Paged(Told::Nothing {
            sequence,
            copied_tokens: 0,
        })
    };
    tell(Message::Begin(Begin::new(leader, prompt.clone(), 0)));
    let (begun, _) = tell(has_nothing(leader));
    let is_begun = |effect: &Effect| matches!(effect, Effect::Begun { .. });
    assert!(begun.iter().any(is_begun), "{begun:?}");

    let shared: Vec<TokenId> = (1..=20).collect();
    let (waits, _) = tell(Message::Begin(Begin::new(newcomer, shared, 0)));
    let at = waits.iter().find_map(|effect| match effect {
        Effect::Checkpoint { sequence, at } if *sequence == leader => Some(*at),
        _ => None,
    });
    assert_eq!(at, Some(19), "it waits for what the leader computes");
    let (_, asked) = tell(Message::Reached {
        sequence: leader,
        computed: 24,
    });
    assert!(
        matches!(asked[..], [pager::Message::Want(_)]),
        "it could not be shared, and the pager is asked: {asked:?}"
    );
    let (answered, _) = tell(has_nothing(newcomer));
    let no_room = Effect::NoRoom { sequence: newcomer };
    assert_eq!(answered, [no_room], "it may come again");
}
