//! Saturated classes: which requests start, keep their slots and continue.

use std::time::Duration;

use motet_core::cache::Message;
use motet_core::config::{FairnessConfig, SchedulerConfig};
use motet_core::scheduler::policy::turns::{AGED_TURN, TURN_TOKENS, TURN_WAIT_STEPS_MAX};
use motet_core::scheduler::{Event, MaskGate, SchedulerCore};
use motet_model::oracle::{OracleConfig, StepFault};
use motet_model::{LayerKind, Model};
use motet_protocol::Priority;
use motet_protocol::{SequenceId, TokenId, UserId};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::harness::{Caller, HistoryHarness};

const AGEING: Duration = Duration::from_millis(100);
/// Messages within which the event that a test waits for happens.
const MESSAGES_MAX: usize = 100_000;

/// A harness, and the sequences that have started in it.
struct Load {
    harness: HistoryHarness,
    starts: Vec<SequenceId>,
    /// Urgent requests that wait at any time.
    urgent_waiting: usize,
    prompts: TokenId,
}

impl Load {
    /// Creates a load with so many slots, and memory for so many tokens.
    fn new(sequences_max: usize, budget_tokens: usize) -> Self {
        Self::with_context(sequences_max, budget_tokens, 512)
    }

    /// Two urgent requests run whose prompts fill the next steps; they are named first. A third
    /// would only wait if it started.
    fn with_full_steps() -> (Self, [SequenceId; 2], SequenceId) {
        let mut load = Self::new(8, 2_000);
        let step = load.harness.scheduler_config.chunking.step_tokens_max;
        let first = [0; 2].map(|_| load.submit(Priority::Urgent, 1, (3 * step, 4)));
        load.run_until("two run", |load| {
            first.iter().all(|name| load.has_started(*name))
        });
        let third = load.submit(Priority::Urgent, 1, (10, 4));
        (load, first, third)
    }

    fn with_context(sequences_max: usize, budget_tokens: usize, context_tokens_max: usize) -> Self {
        let oracle = OracleConfig {
            vocab_size: 50,
            context_tokens_max,
            // Outputs have their full length.
            end_tokens: vec![],
            tail_block_tokens: 4,
            ..OracleConfig::with_layers(&[LayerKind::Full])
        };
        let mut harness = HistoryHarness::of(oracle, budget_tokens);
        let config = SchedulerConfig {
            sequences_max,
            fairness: FairnessConfig {
                ageing: Some(AGEING),
                locality_service: 0.0,
                ..FairnessConfig::default()
            },
            ..harness.scheduler_config.clone()
        };
        harness
            .cores
            .replace_scheduler(SchedulerCore::new(harness.model.spec().clone(), config));
        Self {
            harness,
            starts: Vec::new(),
            urgent_waiting: 0,
            prompts: 0,
        }
    }

    fn submit(&mut self, priority: Priority, user: u64, tokens: (usize, usize)) -> SequenceId {
        self.prompts += 1;
        let own = self.prompts;
        let prompt = (0..tokens.0 as TokenId).map(|at| 1 + (own / (1 + at % 3) + at * own) % 49);
        self.harness.submit_caller(Caller {
            prompt: prompt.collect(),
            output_tokens_max: tokens.1,
            priority,
            user: Some(UserId(user)),
            ..Caller::default()
        })
    }

    /// Delivers one message. Time passes only if nothing else is left to do.
    fn deliver(&mut self) {
        let harness = &self.harness;
        let has_started = |name: &SequenceId| self.starts.contains(name);
        let waits = harness.callers.iter().filter(|(name, caller)| {
            caller.priority == Priority::Urgent && caller.end.is_none() && !has_started(name)
        });
        if waits.count() < self.urgent_waiting {
            // They do not end all at once.
            let output_tokens = 2 + self.prompts as usize % 5;
            self.submit(Priority::Urgent, 100, (6, output_tokens));
        }
        if let Some(Message::OpenSlot(begin)) = self.harness.cores.messages().front() {
            self.starts.push(begin.sequence);
        }
        let harness = &mut self.harness;
        if !(0..3).any(|channel| harness.deliver(channel)) {
            harness.cores.pass(Duration::from_millis(10));
            harness.handle_event(Event::TimePassed);
        }
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..MESSAGES_MAX {
            if done(self) {
                return;
            }
            self.deliver();
        }
        panic!("{what}: not after {} starts", self.starts.len());
    }

    fn sent(&self, name: SequenceId) -> usize {
        self.harness.callers[&name].sent.len()
    }

    fn is_finished(&self, name: SequenceId) -> bool {
        self.harness.callers[&name].end.is_some()
    }

    fn has_started(&self, name: SequenceId) -> bool {
        self.starts.contains(&name)
    }

    /// Starts of other sequences since the last start of this one.
    fn starts_since(&self, name: SequenceId) -> usize {
        let others = self.starts.iter().rev().take_while(|start| **start != name);
        others.count()
    }

    fn check_end(mut self) {
        self.harness
            .run_until_idle(&mut ChaCha8Rng::seed_from_u64(0));
        self.harness.check_end();
        self.harness.check_empty();
    }
}

/// Urgent requests saturate one slot. The background request has turns, generates its tokens in
/// each, and finishes.
#[test]
fn a_request_that_starts_by_age_keeps_its_slot_until_it_has_generated_tokens() {
    let mut load = Load::new(1, 2_000);
    load.urgent_waiting = 3;
    load.run_until("urgent requests run", |load| !load.starts.is_empty());
    let patient = load.submit(Priority::Background, 1, (40, 3 * TURN_TOKENS));
    for turn in 1..=2 {
        load.run_until("it has a turn", |load| {
            load.starts.iter().filter(|name| **name == patient).count() == turn
        });
        let preempted = load.harness.preempted;
        load.run_until("it frees its slot", |load| {
            load.harness.preempted > preempted
        });
        let sent = load.sent(patient);
        // One more may be in flight when the turn ends.
        let most = turn * (TURN_TOKENS + 2);
        assert!(
            (turn * TURN_TOKENS..=most).contains(&sent),
            "{sent} tokens after turn {turn}"
        );
    }
    load.run_until("it ends", |load| load.is_finished(patient));
    load.urgent_waiting = 0;
    load.check_end();
}

/// A higher class is not saturated, but its requests arrive each time the background request
/// has started. Those starts are not turns of its class, and it still has turns.
#[test]
fn class_progresses_though_urgent_requests_follow_each_start() {
    let mut load = Load::new(1, 2_000);
    let patient = load.submit(Priority::Background, 1, (40, 2 * TURN_TOKENS));
    for _ in 0..MESSAGES_MAX {
        if load.is_finished(patient) {
            return load.check_end();
        }
        let callers = load.harness.callers.values();
        let mut urgent = callers.filter(|c| c.priority == Priority::Urgent && c.end.is_none());
        if load.starts.last() == Some(&patient) && urgent.next().is_none() {
            load.submit(Priority::Urgent, 100, (6, 4));
        }
        load.deliver();
    }
    panic!("it has {} tokens", load.sent(patient));
}

/// One user's background requests are always the oldest. The normal ones have their turns.
#[test]
fn the_oldest_requests_of_a_greedy_user_do_not_take_the_turns_of_another_class() {
    let mut load = Load::new(2, 2_000);
    load.urgent_waiting = 4;
    let greedy: Vec<SequenceId> = (0..30)
        .map(|_| load.submit(Priority::Background, 1, (10, 30)))
        .collect();
    load.harness.cores.pass(AGEING);
    let normal = load.submit(Priority::Normal, 2, (10, 30));
    load.run_until("the normal one ends", |load| load.is_finished(normal));
    let ended = greedy
        .iter()
        .filter(|name| load.is_finished(**name))
        .count();
    assert!(ended < 5, "{ended} of the greedy user's came first");
    let first = greedy[0];
    load.run_until("and so does one of the others", |load| {
        load.is_finished(first)
    });
    load.urgent_waiting = 0;
    load.check_end();
}

/// In the turns of a class, the user with the least service goes first, not the oldest request.
#[test]
fn a_greedy_user_does_not_take_all_turns_of_its_class() {
    let mut load = Load::new(1, 2_000);
    load.urgent_waiting = 3;
    let greedy: Vec<SequenceId> = (0..20)
        .map(|_| load.submit(Priority::Background, 1, (20, 12)))
        .collect();
    load.run_until("the greedy user has had a turn", |load| {
        greedy.iter().any(|name| load.is_finished(*name))
    });
    let polite = load.submit(Priority::Background, 2, (20, 12));
    load.run_until("the polite user has one", |load| load.is_finished(polite));
    let ended = greedy
        .iter()
        .filter(|name| load.is_finished(**name))
        .count();
    assert!(ended <= 3, "{ended} of the greedy user's came first");
    load.urgent_waiting = 0;
    load.check_end();
}

/// Two urgent prompts fill the next steps, and a third waits for them. The background request
/// does not start in the free slot that it could use.
#[test]
fn no_lower_class_starts_while_a_higher_one_waits_behind_its_own_prompts() {
    let (mut load, _, third) = Load::with_full_steps();
    let background = load.submit(Priority::Background, 2, (10, 4));
    assert!(!load.has_started(third), "it would only wait");
    load.run_until("the background request starts", |load| {
        load.has_started(background)
    });
    assert!(load.has_started(third), "after all urgent requests");
    load.check_end();
}

/// An engine with one slot: a turn whose prompt takes many steps is repaid.
#[test]
fn a_turn_takes_no_more_than_an_eighth_of_the_steps() {
    let mut load = Load::new(1, 4_000);
    load.urgent_waiting = 3;
    let long: Vec<SequenceId> = (0..20)
        .map(|_| load.submit(Priority::Background, 1, (300, 4)))
        .collect();
    let mut steps = [0_usize; 2];
    let mut last = None;
    while long.iter().filter(|name| load.is_finished(**name)).count() < 10 {
        load.deliver();
        let of = load
            .starts
            .last()
            .map(|name| load.harness.callers[name].priority);
        let has_started = load.harness.oracle.counters.now().steps;
        if last
            .replace(has_started)
            .is_some_and(|last| last < has_started)
        {
            steps[usize::from(of == Some(Priority::Background))] += 1;
        }
    }
    let [others, turns] = steps;
    assert!(turns > 100, "{turns} steps in turns, {others} beside them");
    let share = (others + turns) / AGED_TURN as usize;
    // The first turn is not repaid before it comes, and the last not after it.
    let longest = 300 / load.harness.scheduler_config.chunking.step_tokens_max + 1 + TURN_TOKENS;
    assert!(turns <= share + 2 * longest, "{turns} of {others}");
}

/// The large background request does not fit until most of the urgent requests have finished.
/// In its turn all others wait for it; before, they took the memory that it needed again and
/// again.
#[test]
fn large_request_gets_memory_in_its_turn() {
    let mut load = Load::new(8, 100);
    load.urgent_waiting = 3;
    load.run_until("urgent requests run", |load| load.starts.len() > 20);
    let large = load.submit(Priority::Background, 1, (90, 4));
    load.run_until("it has its turn", |load| load.has_started(large));
    let before = load.starts.len();
    load.run_until("it ends", |load| load.is_finished(large));
    let starts = load.starts.len() - before;
    assert!(starts < 40, "{starts} starts before it fit and ended");
    load.urgent_waiting = 0;
    load.check_end();
}

/// For nearly two thousand steps, an urgent output holds the memory that the large background
/// request needs. The others wait for the large one for a bounded number of steps at a time and
/// for an eighth of all steps. It does not hold up another background request.
#[test]
fn a_turn_that_finds_no_memory_is_given_up() {
    let mut load = Load::with_context(3, 2_000, 2_048);
    let long = load.submit(Priority::Urgent, 101, (6, 1_900));
    load.run_until("the long one has a slot", |load| load.sent(long) > 0);
    load.urgent_waiting = 3;
    let large = load.submit(Priority::Background, 1, (1_500, 4));
    let small = load.submit(Priority::Background, 2, (10, 4));
    load.harness.cores.pass(AGEING);
    let is_urgent =
        |load: &Load, name: &SequenceId| load.harness.callers[name].priority == Priority::Urgent;
    let (mut starts, mut last_start) = (0, load.harness.oracle.counters.now().steps);
    let first_step = last_start;
    // Steps between two urgent starts.
    let mut waits = Vec::new();
    while !load.is_finished(long) {
        load.deliver();
        let now = load.harness.oracle.counters.now().steps;
        let urgent = load.starts.iter().filter(|name| is_urgent(&load, name));
        let urgent = urgent.count();
        if urgent > starts {
            starts = urgent;
            waits.push(now - std::mem::replace(&mut last_start, now));
        }
    }
    let longest = waits.iter().max().copied().unwrap_or(0);
    // Until a short output ends, and until the next has its slot.
    let short = 16;
    assert!(
        (TURN_WAIT_STEPS_MAX..=TURN_WAIT_STEPS_MAX + short).contains(&(longest as usize)),
        "{longest} steps without a start"
    );
    let held: u64 = waits.iter().filter(|wait| **wait > short as u64).sum();
    let steps = last_start - first_step;
    let share = steps / u64::from(AGED_TURN) + 2 * TURN_WAIT_STEPS_MAX as u64;
    assert!(held <= share, "{held} of {steps}");
    assert!(load.is_finished(small), "it has had a turn");
    assert!(!load.is_finished(large), "it did not fit");
    load.run_until("the large one ends", |load| load.is_finished(large));
    load.urgent_waiting = 0;
    load.check_end();
}

/// Two urgent prompts fill the next steps. While they wait for their masks they are in no step,
/// so the third starts.
#[test]
fn prompts_that_wait_for_their_masks_hold_no_other_back() {
    let (mut load, first, third) = Load::with_full_steps();
    load.run_until("the cache has answered", |load| {
        load.harness.cores.messages().is_empty() && load.harness.cores.answers().is_empty()
    });
    assert!(!load.has_started(third), "it would only wait");
    for name in first {
        load.harness.handle_event(Event::Mask(name, MaskGate::Shut));
    }
    let mut messages = load.harness.cores.messages().iter();
    let begins = messages.any(|message| match message {
        Message::OpenSlot(begin) => begin.sequence == third,
        _ => false,
    });
    assert!(begins, "at once");
    load.run_until("it ends", |load| load.is_finished(third));
    for name in first {
        assert!(!load.is_finished(name), "its gate is closed");
        load.harness.handle_event(Event::Mask(name, MaskGate::Open));
    }
    load.check_end();
}

/// A step fails in the middle of a turn: the sequence resumes its turn before all others.
#[test]
fn a_turn_outlives_a_failed_step() {
    let mut load = Load::new(1, 2_000);
    load.urgent_waiting = 3;
    let patient = load.submit(Priority::Background, 1, (20, 2 * TURN_TOKENS));
    load.run_until("it has a few tokens", |load| load.sent(patient) == 3);
    load.harness.oracle.faults.next_steps(1, StepFault::Fail);
    load.run_until("a step fails", |load| !load.harness.failures.is_empty());
    let starts = load.starts.len();
    load.run_until("the next starts", |load| load.starts.len() > starts);
    assert_eq!(load.starts.last(), Some(&patient));
    let preempted = load.harness.preempted;
    load.run_until("it frees its slot", |load| {
        load.harness.preempted > preempted
    });
    assert!(load.sent(patient) >= TURN_TOKENS);
    load.urgent_waiting = 0;
    load.check_end();
}

/// A sequence whose caller does not read cannot use its turn.
#[test]
fn a_turn_ends_when_its_caller_does_not_read() {
    let mut load = Load::new(1, 2_000);
    load.urgent_waiting = 3;
    let patient = load.submit(Priority::Background, 1, (20, 2 * TURN_TOKENS));
    load.run_until("it has a few tokens", |load| load.sent(patient) == 3);
    load.harness.handle_event(Event::Pause(patient));
    load.run_until("the others continue", |load| load.starts_since(patient) > 3);
    load.harness.handle_event(Event::Resume(patient));
    load.run_until("it ends", |load| load.is_finished(patient));
    load.urgent_waiting = 0;
    load.check_end();
}
