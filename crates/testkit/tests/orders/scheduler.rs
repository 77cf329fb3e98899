//! The scheduler's core and the cache's, with the oracle as device: three callers, two of them
//! with a common beginning, a fork, and faults of the device.
//!
//! After each message the cores' own checks and those of `crates/testkit/tests/core_histories` run: no token
//! after the end, one end for each sequence, at most two works at a time. From every state,
//! each sequence ends with the tokens of its reference run, each once, and nothing is left
//! over.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use motet_core::cache::PrefixKey;
use motet_core::cache::{self, CacheCore, Pin};
use motet_core::config::{
    CacheConfig, ChunkingConfig, EvictionPolicy, InterToken, SchedulerConfig,
};
use motet_core::scheduler::{Event, SchedulerCore};
use motet_model::oracle::StepFault;
use motet_model::{LayerKind, Model};
use motet_protocol::WORK_IN_FLIGHT_MAX;
use motet_protocol::{ContextLimit, Priority, ReasoningBudget};
use motet_protocol::{PinId, SequenceId, TokenId, UserId};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::harness::{Caller, HistoryHarness};
use motet_testkit::core_harness::{Answer, CoreHarness};
use motet_testkit::explorer::World;

const CALLERS: usize = 3;
/// The seed of a grammar that forces tokens soon.
const GRAMMAR: u64 = 6;
/// The pin that callers ask for.
const PIN: PinId = PinId(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    layers: &'static [LayerKind],
    /// Device memory for so many tokens.
    budget_tokens: usize,
    /// The third caller continues when its context is full, and computes much.
    shifts: bool,
    /// The first caller has a grammar, and the second a budget for its reasoning.
    appends: bool,
    /// Callers predict their output, with a mistake.
    predicts: bool,
}

pub(crate) const SETUPS: [Setup; 4] = [
    Setup {
        layers: &[LayerKind::Full],
        budget_tokens: 400,
        shifts: false,
        appends: false,
        predicts: false,
    },
    // A sequence must be preempted.
    Setup {
        layers: &[LayerKind::Full],
        budget_tokens: 36,
        shifts: true,
        appends: false,
        predicts: true,
    },
    Setup {
        layers: &[LayerKind::Full, LayerKind::Recurrent],
        budget_tokens: 60,
        shifts: false,
        appends: false,
        predicts: true,
    },
    Setup {
        layers: &[LayerKind::Full],
        budget_tokens: 400,
        shifts: false,
        appends: true,
        predicts: true,
    },
];

/// The explorer tries every order from these beginnings.
pub(crate) const BEGINNINGS: [&[Act]; 4] = [
    &[],
    // Two sequences run, and a step is in flight.
    &[
        Act::Submit(0),
        Act::Submit(1),
        Act::ToCache,
        Act::ToScheduler,
        Act::Device(true),
    ],
    // The model will panic while the cache is asked for another sequence.
    &[
        Act::Panic,
        Act::Submit(0),
        Act::ToCache,
        Act::ToScheduler,
        Act::Device(true),
        Act::Submit(1),
    ],
    // One has left its computed tokens in the cache.
    &[
        Act::Submit(0),
        Act::ToCache,
        Act::ToScheduler,
        Act::Device(true),
        Act::Device(true),
        Act::Device(true),
        Act::Device(true),
        Act::Stop(0),
        Act::Device(true),
        Act::Device(true),
        Act::ToCache,
    ],
];

/// One possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Submit(usize),
    /// The first caller's sequence is forked.
    Fork,
    Stop(usize),
    Pause(usize),
    Resume(usize),
    Pin,
    Clear,
    /// Delivers the oldest message to the cache, or its oldest answer.
    ToCache,
    ToScheduler,
    /// The device does one thing; if it can, it submits before it finishes.
    Device(bool),
    /// The next submitted step fails, or the model panics.
    Fail,
    Panic,
    /// Time passes until the scheduler's next deadline.
    TimePassed,
    Abort,
}

pub(crate) struct SchedulerWorld {
    harness: HistoryHarness,
    setup: Setup,
    /// Ids of the sequences submitted so far.
    names: BTreeMap<usize, SequenceId>,
    paused: [bool; CALLERS],
    forked: bool,
    pinned: bool,
    faulty: bool,
    /// The next step fails.
    armed: bool,
    aborted: bool,
}

impl World for SchedulerWorld {
    type Act = Act;
    type Setup = Setup;

    fn new(setup: Setup) -> Self {
        let mut harness = HistoryHarness::with_context(setup.layers, setup.budget_tokens, 24);
        let spec = harness.model.spec().clone();
        let scheduler = SchedulerConfig {
            sequences_max: 2,
            chunking: ChunkingConfig {
                step_tokens_max: 8,
                inter_token: InterToken::Unbounded,
                ..ChunkingConfig::default()
            },
            step_retries_max: 2,
            ..SchedulerConfig::default()
        };
        let cache = CacheConfig {
            device_bytes_max: crate::harness::budget_bytes(&spec, setup.budget_tokens),
            share_tokens_min: 4,
            eviction: EvictionPolicy::Lru,
            restore_interval_tokens: 16,
            ..CacheConfig::default()
        };
        let scheduler = SchedulerCore::new(spec.clone(), scheduler);
        harness.cores = CoreHarness::new(scheduler, CacheCore::new(spec, cache));
        Self {
            harness,
            setup,
            names: BTreeMap::new(),
            paused: [false; CALLERS],
            forked: false,
            pinned: false,
            faulty: false,
            armed: false,
            aborted: false,
        }
    }

    fn possible(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        for number in 0..CALLERS {
            if !self.names.contains_key(&number) {
                acts.push(Act::Submit(number));
            } else if self.is_inside(number) {
                acts.push(Act::Stop(number));
                acts.push(if self.paused[number] {
                    Act::Resume(number)
                } else {
                    Act::Pause(number)
                });
            }
        }
        let harness = &self.harness;
        acts.extend((!self.forked && self.is_inside(0)).then_some(Act::Fork));
        acts.extend((!self.pinned).then_some(Act::Pin));
        acts.push(Act::Clear);
        acts.extend((!harness.cores.messages().is_empty()).then_some(Act::ToCache));
        acts.extend((!harness.cores.answers().is_empty()).then_some(Act::ToScheduler));
        let in_flight = harness.table.in_flight();
        if !harness.work.is_empty() || in_flight > 0 {
            acts.push(Act::Device(true));
        }
        // Otherwise the device can do only one thing.
        if !harness.work.is_empty() && (1..WORK_IN_FLIGHT_MAX).contains(&in_flight) {
            acts.push(Act::Device(false));
        }
        if !self.faulty {
            acts.extend([Act::Fail, Act::Panic]);
        }
        acts.extend(
            harness
                .cores
                .scheduler()
                .wakes_at()
                .map(|_| Act::TimePassed),
        );
        acts.extend((!self.aborted && !self.names.is_empty()).then_some(Act::Abort));
        acts
    }

    fn happen(&mut self, act: Act) {
        let harness = &mut self.harness;
        let name = |number: usize| self.names[&number];
        match act {
            Act::Submit(number) => {
                let mut caller = caller(self.setup, number, harness.cores.now());
                if self.setup.predicts {
                    caller.prediction = harness.expected_output(&caller);
                    if let Some(token) = caller.prediction.iter_mut().nth_back(1) {
                        *token ^= 1;
                    }
                }
                self.names.insert(number, harness.submit_caller(caller));
            }
            Act::Fork => {
                self.forked = true;
                harness.fork(name(0), prompt(0).len(), &[45]);
            }
            Act::Stop(number) => harness.handle_event(Event::Stop(name(number))),
            Act::Pause(number) => {
                self.paused[number] = true;
                harness.handle_event(Event::Pause(name(number)));
            }
            Act::Resume(number) => {
                self.paused[number] = false;
                harness.handle_event(Event::Resume(name(number)));
            }
            Act::Pin => {
                self.pinned = true;
                harness.cache_command(cache::Message::Pin(Pin {
                    pin: PIN,
                    key: PrefixKey::default(),
                    tokens: prompt(0)[..6].into(),
                    time_to_live: None,
                }));
            }
            Act::Clear => harness.cache_command(cache::Message::Clear { salt: None }),
            Act::ToCache => assert!(harness.deliver(0)),
            Act::ToScheduler => assert!(harness.deliver(1)),
            Act::Device(submits) => {
                let in_flight = harness.table.in_flight();
                // Its order is set for each call.
                harness.eager = !submits;
                harness.deliver(2);
                self.armed &= harness.table.in_flight() <= in_flight;
            }
            Act::Fail | Act::Panic => {
                (self.faulty, self.armed) = (true, true);
                let fault = match act {
                    Act::Fail => StepFault::Fail,
                    _ => StepFault::Panic,
                };
                harness.oracle.faults.next_steps(1, fault);
            }
            Act::TimePassed => {
                let at = harness
                    .cores
                    .scheduler()
                    .wakes_at()
                    .expect("it waits for something");
                harness.cores.pass_until(at);
                harness.handle_event(Event::TimePassed);
            }
            Act::Abort => {
                self.aborted = true;
                harness.abort();
            }
        }
    }

    fn describe(&self, text: &mut String) {
        let harness = &self.harness;
        let device = (harness.table.in_flight(), harness.table.needs_sampling());
        let faults = (self.faulty, self.armed, harness.failures.len());
        let sent = harness
            .callers
            .values()
            .map(|caller| (&caller.sent, &caller.end));
        let sent: Vec<_> = sent.collect();
        let keeping = (
            self.forked,
            self.pinned,
            self.aborted,
            harness.pending_commands.len(),
        );
        write!(
            text,
            "{:?} {:?} {device:?} {faults:?} {sent:?} {keeping:?} {:?} {:?} {:?} {:?}",
            harness.cores.scheduler(),
            harness.cores.cache(),
            harness.cores.messages(),
            harness.work,
            self.names,
            self.paused
        )
        .expect("writing to memory cannot fail");
        for answer in harness.cores.answers() {
            match answer {
                Answer::Asked(answer) => write!(text, "{answer:?}"),
                Answer::Unasked(cache_effects) => write!(text, "{cache_effects:?}"),
            }
            .expect("writing to memory cannot fail");
        }
    }

    fn come_to_rest(mut self) {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for number in 0..CALLERS {
            if self.paused[number] {
                self.happen(Act::Resume(number));
            }
        }
        self.harness.run_until_idle(&mut rng);
        self.harness
            .cache_command(cache::Message::Unpin { pin: PIN });
        self.harness.run_until_idle(&mut rng);
        assert!(
            self.harness.pending_commands.is_empty(),
            "commands are answered"
        );
        self.harness.check_end();
        self.harness.check_peak(self.setup.budget_tokens);
        self.harness.check_empty();
    }
}

impl SchedulerWorld {
    fn is_inside(&self, number: usize) -> bool {
        let name = self.names.get(&number);
        name.is_some_and(|name| self.harness.callers[name].end.is_none())
    }
}

/// The second has the same beginning as the first; the third is urgent, or needs much memory.
fn prompt(number: usize) -> Vec<TokenId> {
    let (shared, own): (TokenId, &[TokenId]) = match number {
        0 => (10, &[]),
        1 => (8, &[20, 21]),
        _ => (3, &[30]),
    };
    (1..=shared).chain(own.iter().copied()).collect()
}

fn caller(setup: Setup, number: usize, now: Duration) -> Caller {
    let shifts = setup.shifts && number == 2;
    Caller {
        prompt: prompt(number),
        output_tokens_max: match (shifts, setup.appends) {
            (true, _) => 30,
            (false, true) => 6,
            (false, false) => 3,
        },
        grammar: (setup.appends && number == 0).then_some(GRAMMAR),
        reasoning: (setup.appends && number == 1).then(|| ReasoningBudget {
            open: Vec::new(),
            close: vec![48, 49],
            is_open: true,
            opens_once: false,
            tokens_max: 1,
        }),
        at_context_limit: if shifts {
            ContextLimit::Shift { keep: 2 }
        } else {
            ContextLimit::Stop
        },
        priority: match number {
            2 => Priority::Urgent,
            _ => Priority::Normal,
        },
        user: Some(UserId(number as u64)),
        finish_by: (number == 1).then(|| now + Duration::from_millis(4)),
        ..Caller::default()
    }
}
