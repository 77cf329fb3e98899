//! The cache's core, with or without the pager's, a fake device, and three sequences. Two have
//! a common beginning, and the third repeats the first, with the same salt or another.
//!
//! Invariants after each message: both cores' own checks pass. Every path spells its sequence's
//! tokens, of its own salt. Each slot stays within its grant. The device holds what the cache
//! says, within its bytes. From every state, all work finishes with nothing held.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use motet::cache::Salt;
use motet::config::{CacheConfig, EvictionPolicy, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, ModelSpec, SegmentSize};
use motet::{CopyId, PinId, SequenceId, SlotId, TokenId};
use motet_core::cache::{CacheCore, Effect, Message, OpenSlot, Pin};
use motet_core::pager::{self, Done, Job, JobError, PagerCore, PagerEvent, Precision, Task};

use crate::explorer::World;
use crate::fake_device::{FakeDevice, Written};

const SEQUENCES: usize = 3;
/// Tokens that sequences have in common.
const SHARED: usize = 20;
/// Tokens that a step computes at most.
const STEP_TOKENS: usize = 12;
/// Tokens that a sequence generates at most.
const OUTPUT_TOKENS: usize = 2;
/// Device memory for about two sequences, in tokens.
const DEVICE_TOKENS: usize = 60;
const PAGE: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) paged: bool,
    /// The third sequence has another salt.
    pub(crate) salted: bool,
    pub(crate) eviction: EvictionPolicy,
}

pub(crate) const SETUPS: [Setup; 4] = [
    Setup {
        paged: false,
        salted: false,
        eviction: EvictionPolicy::Lru,
    },
    Setup {
        paged: false,
        salted: true,
        eviction: EvictionPolicy::Foresight,
    },
    Setup {
        paged: true,
        salted: false,
        eviction: EvictionPolicy::Lru,
    },
    Setup {
        paged: true,
        salted: true,
        eviction: EvictionPolicy::Lru,
    },
];

/// The explorer tries every order from these beginnings.
pub(crate) const BEGINNINGS: [&[Act]; 4] = [
    &[],
    // One sequence has left its computed tokens in the cache.
    &[Act::OpenSlot(0), Act::Step(0), Act::Step(0), Act::Close(0)],
    // One computes tokens that another waits for.
    &[
        Act::OpenSlot(0),
        Act::Step(0),
        Act::OpenSlot(1),
        Act::OpenSlot(2),
    ],
    // The tokens of a finished sequence are in host memory only, and are loaded.
    &[
        Act::OpenSlot(0),
        Act::Step(0),
        Act::Close(0),
        Act::ToPager,
        Act::ToCache,
        Act::End(0, true),
        Act::ToCache,
        Act::Reset,
        Act::ToPager,
        Act::ToCache,
        Act::OpenSlot(0),
        Act::ToPager,
        Act::ToCache,
        Act::FencePassed,
        Act::ToPager,
    ],
];

/// One possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    OpenSlot(usize),
    /// The sequence is part of a step, or reports that it has reached an awaited offset.
    Step(usize),
    ExtendGrant(usize),
    Share(usize),
    Close(usize),
    Discard(usize),
    Pin,
    Unpin,
    Clear,
    Reset,
    /// Delivers the oldest message to the pager, or to the cache.
    ToPager,
    ToCache,
    /// The cache learns that the device has memory for the import.
    FencePassed,
    /// This job ends, with success or failure.
    End(usize, bool),
}

/// Progress of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The cache was asked for a slot, and has not answered.
    Deferred,
    Live(Live),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Live {
    slot: SlotId,
    computed: usize,
    granted: usize,
    grows: bool,
    checkpoints: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct CacheWorld {
    setup: Setup,
    spec: ModelSpec,
    core: CacheCore,
    phases: [Phase; SEQUENCES],
    fake_device: FakeDevice,
    pinned: bool,
    pager_side: Option<PagerSide>,
}

#[derive(Debug)]
struct PagerSide {
    core: PagerCore,
    to_pager: VecDeque<pager::Message>,
    to_cache: VecDeque<PagerEvent>,
    fences: VecDeque<u64>,
    jobs: Vec<Job>,
    host: BTreeMap<CopyId, Written>,
}

impl World for CacheWorld {
    type Act = Act;
    type Setup = Setup;

    fn new(setup: Setup) -> Self {
        let oracle = OracleConfig {
            tail_block_tokens: 4,
            ..OracleConfig::with_layers(&[LayerKind::Full])
        };
        let spec = oracle.spec();
        let config = CacheConfig {
            device_bytes_max: spec.tail_bytes(DEVICE_TOKENS),
            share_tokens_min: 4,
            eviction: setup.eviction,
            ..CacheConfig::default()
        };
        let pager = PagerConfig {
            host_bytes_max: 2 * PAGE,
            label_bytes_max: Some(1 << 20),
            // Everything cached is an offload candidate.
            clean_part: 1.0,
            ..PagerConfig::default()
        };
        let sizes = |_: SegmentSize| (100, Precision::Full);
        let pager_side = || PagerSide {
            core: PagerCore::new(spec.clone(), pager.clone(), Box::new(sizes), Vec::new()),
            to_pager: VecDeque::new(),
            to_cache: VecDeque::new(),
            fences: VecDeque::new(),
            jobs: Vec::new(),
            host: BTreeMap::new(),
        };
        let core = CacheCore::new(spec.clone(), config);
        Self {
            setup,
            pager_side: setup.paged.then(pager_side),
            core: if setup.paged {
                core.with_pager(&pager, false)
            } else {
                core
            },
            spec,
            phases: std::array::from_fn(|_| Phase::Idle),
            fake_device: FakeDevice::default(),
            pinned: false,
        }
    }

    fn possible(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        for (number, phase) in self.phases.iter().enumerate() {
            match phase {
                Phase::Idle => acts.push(Act::OpenSlot(number)),
                Phase::Deferred => acts.push(Act::Discard(number)),
                Phase::Live(live) => {
                    if self.next_step(number, live).is_some() {
                        acts.push(Act::Step(number));
                    }
                    let most = tokens(number).len() + OUTPUT_TOKENS;
                    if !live.grows && live.granted < most {
                        acts.push(Act::ExtendGrant(number));
                    }
                    acts.extend([Act::Share(number), Act::Close(number), Act::Discard(number)]);
                }
            }
        }
        acts.push(if self.pinned { Act::Unpin } else { Act::Pin });
        acts.extend([Act::Clear, Act::Reset]);
        if let Some(pager_side) = &self.pager_side {
            acts.extend((!pager_side.to_pager.is_empty()).then_some(Act::ToPager));
            acts.extend((!pager_side.to_cache.is_empty()).then_some(Act::ToCache));
            acts.extend((!pager_side.fences.is_empty()).then_some(Act::FencePassed));
            let ends = (0..pager_side.jobs.len()).filter(|at| self.can_end(&pager_side.jobs[*at]));
            acts.extend(ends.flat_map(|at| [true, false].map(|well| Act::End(at, well))));
        }
        acts
    }

    fn happen(&mut self, act: Act) {
        match act {
            Act::OpenSlot(number) => {
                self.phases[number] = Phase::Deferred;
                let begin = OpenSlot {
                    salt: self.salt(number),
                    ..OpenSlot::new(name(number), tokens(number), 0)
                };
                self.send(Message::OpenSlot(begin));
            }
            Act::Step(number) => self.step(number),
            Act::ExtendGrant(number) => {
                let live = self.live(number);
                live.grows = true;
                let tokens_max = live.granted + 1;
                self.send(Message::ExtendGrant {
                    sequence: name(number),
                    tokens_max,
                });
            }
            Act::Share(number) => {
                let computed = self.live(number).computed;
                self.send(Message::Share {
                    sequence: name(number),
                    computed,
                    generated: generated(number, computed),
                    at: computed,
                });
            }
            Act::Close(number) => {
                let computed = self.live(number).computed;
                self.send(Message::Close {
                    sequence: name(number),
                    computed,
                    generated: generated(number, computed),
                });
                self.phases[number] = Phase::Idle;
            }
            Act::Discard(number) => {
                self.send(Message::Discard {
                    sequence: name(number),
                });
                self.phases[number] = Phase::Idle;
            }
            Act::Pin => {
                let pin = Pin {
                    pin: PinId(1),
                    salt: self.salt(0),
                    tokens: tokens(0)[..SHARED / 2].into(),
                    time_to_live: None,
                };
                let pinned = self.core.handle(Duration::ZERO, Message::Pin(pin));
                self.pinned = pinned.is_ok();
                self.follow(pinned.unwrap_or_default());
                // Evictions for a pin that then did not fit are reported with the next message.
                let no_sequences = Vec::new();
                self.send(Message::ProbePrefix {
                    sequences: no_sequences,
                });
            }
            Act::Unpin => {
                self.pinned = false;
                self.send(Message::Unpin { pin: PinId(1) });
            }
            Act::Clear => self.send(Message::Clear { salt: None }),
            Act::Reset => {
                self.fake_device.reset();
                self.phases = std::array::from_fn(|_| Phase::Idle);
                self.send(Message::Reset);
            }
            Act::ToPager => {
                let message = self
                    .pager_side()
                    .to_pager
                    .pop_front()
                    .expect("a message is in flight");
                self.send_to_pager(message);
            }
            Act::ToCache => {
                let pager_event = self
                    .pager_side()
                    .to_cache
                    .pop_front()
                    .expect("a message is in flight");
                self.send(Message::Paged(pager_event));
            }
            Act::FencePassed => {
                let number = self.pager_side().fences.pop_front();
                let number = number.expect("the cache waits for it");
                self.send(Message::FencePassed { number });
            }
            Act::End(job, well) => self.end(job, well),
        }
        self.check();
    }

    fn describe(&self, text: &mut String) {
        let Self {
            setup: _,
            spec: _,
            core,
            phases,
            fake_device,
            pinned,
            pager_side,
        } = self;
        write!(
            text,
            "{core:?} {phases:?} {fake_device:?} {pinned:?} {pager_side:?}"
        )
        .expect("writing to memory cannot fail");
    }

    fn come_to_rest(mut self) {
        self.run_to_rest();
        if self.pinned {
            self.happen(Act::Unpin);
        }
        self.run_to_rest();
        self.happen(Act::Clear);
        self.run_to_rest();
        let stats = self.core.stats();
        assert_eq!(
            (stats.segments, stats.reserved_bytes),
            (0, 0),
            "nothing is held"
        );
        assert_eq!(
            self.fake_device.held(),
            (0, 0),
            "nothing is left on the device"
        );
        // No byte is lost: a sequence that needs all of them runs and ends. As a rule it
        // differs from the last one, whose unanswered lookups its own would hide.
        let last = SEQUENCES - 1;
        self.phases[last] = Phase::Deferred;
        let begin = OpenSlot {
            tokens_max: DEVICE_TOKENS,
            ..OpenSlot::new(name(last), tokens(last), 0)
        };
        self.send(Message::OpenSlot(begin));
        self.run_to_rest();
    }
}

impl CacheWorld {
    /// Runs all sequences to their ends, and delivers all messages.
    fn run_to_rest(&mut self) {
        for _ in 0..200 {
            let possible = self.possible();
            let selected = |act: &&Act| match act {
                Act::Step(_)
                | Act::ToPager
                | Act::ToCache
                | Act::FencePassed
                | Act::End(_, true) => true,
                Act::Close(number) => !possible.contains(&Act::Step(*number)),
                _ => false,
            };
            let Some(act) = possible.iter().find(selected) else {
                break;
            };
            self.happen(*act);
        }
        let idle = self.phases.iter().all(|phase| *phase == Phase::Idle);
        assert!(idle, "every sequence runs and ends: {:?}", self.phases);
        if let Some(pager_side) = &self.pager_side {
            let quiet = pager_side.to_pager.is_empty() && pager_side.to_cache.is_empty();
            assert!(
                quiet && pager_side.core.is_idle(),
                "all work finishes: {pager_side:?}"
            );
            assert!(pager_side.jobs.is_empty(), "jobs end: {pager_side:?}");
            assert!(self.fake_device.imports.is_empty() && self.fake_device.exports.is_empty());
            assert_eq!(pager_side.core.stats().host_copies, pager_side.host.len());
        }
    }

    /// Sends a valid message to the cache.
    fn send(&mut self, message: Message) {
        let effects = self.core.handle(Duration::ZERO, message);
        self.follow(effects.expect("the message is valid"));
    }

    fn follow(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.effect(effect);
        }
        let for_pager = self.core.take_outbox();
        match &mut self.pager_side {
            Some(pager_side) => pager_side.to_pager.extend(for_pager),
            None => assert!(for_pager.is_empty(), "there is no such sequence"),
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::SlotOpened {
                sequence,
                slot,
                cached_tokens,
                ..
            } => {
                let number = number(sequence);
                assert_eq!(
                    self.phases[number],
                    Phase::Deferred,
                    "a sequence that asked gets its slot, once"
                );
                let whole = tokens(number);
                assert!(cached_tokens < whole.len(), "one token is left to compute");
                self.phases[number] = Phase::Live(Live {
                    slot,
                    computed: cached_tokens,
                    granted: whole.len(),
                    grows: false,
                    checkpoints: Vec::new(),
                });
            }
            Effect::Deferred { sequence, .. } => {
                assert_eq!(self.phases[number(sequence)], Phase::Deferred);
            }
            Effect::OutOfMemory { sequence } => {
                let phase = &mut self.phases[number(sequence)];
                assert_eq!(
                    *phase,
                    Phase::Deferred,
                    "a sequence that asked is rejected, once"
                );
                *phase = Phase::Idle;
            }
            Effect::GrantExtended {
                sequence,
                tokens_max,
            } => {
                let live = self.live(number(sequence));
                assert!(
                    std::mem::take(&mut live.grows),
                    "a sequence that asked gets its grant, once"
                );
                live.granted = live.granted.max(tokens_max);
            }
            Effect::GrantDenied { sequence } => {
                let live = self.live(number(sequence));
                assert!(
                    std::mem::take(&mut live.grows),
                    "a sequence that asked is rejected, once"
                );
            }
            Effect::Checkpoint { sequence, at } => {
                self.live(number(sequence)).checkpoints.push(at);
            }
            Effect::Edit(edit) => {
                let (phases, setup) = (&self.phases, self.setup);
                self.fake_device.edit(&edit, |slot| {
                    let has_it = |phase: &Phase| matches!(phase, Phase::Live(l) if l.slot == slot);
                    let number = phases.iter().position(has_it);
                    let number = number.expect("each slot has an owner");
                    (salt(setup, number), history(number))
                });
            }
            Effect::Fence { number } => self.pager_side().fences.push_back(number),
            Effect::CachedPrefix { .. } => unreachable!("no probe is pending"),
            Effect::Lost { .. } => unreachable!("nothing is lost"),
        }
    }

    fn live(&mut self, number: usize) -> &mut Live {
        match &mut self.phases[number] {
            Phase::Live(live) => live,
            other => panic!("{number} is {other:?}, and has no slot"),
        }
    }

    fn pager_side(&mut self) -> &mut PagerSide {
        self.pager_side.as_mut().expect("there is a pager")
    }

    fn salt(&self, number: usize) -> Salt {
        salt(self.setup, number)
    }

    /// Number of tokens that its next step computes; `None` if it only reports its offset.
    fn next_step(&self, number: usize, live: &Live) -> Option<usize> {
        let checkpoint = live.checkpoints.iter().min();
        if checkpoint.is_some_and(|at| *at <= live.computed) {
            return Some(0);
        }
        let prompt = tokens(number).len();
        let most = if live.computed < prompt {
            prompt.min(live.computed + STEP_TOKENS)
        } else {
            live.computed + 1
        };
        let most = most.min(live.granted).min(prompt + OUTPUT_TOKENS);
        let to = checkpoint.map_or(most, |at| most.min(*at));
        (to > live.computed).then_some(to - live.computed)
    }

    fn step(&mut self, number: usize) {
        let live = self.live(number).clone();
        match self.next_step(number, &live).expect("it can continue") {
            0 => {
                let computed = live.computed;
                self.live(number).checkpoints.retain(|at| *at > computed);
                self.send(Message::Reached {
                    sequence: name(number),
                    computed,
                });
            }
            tokens => {
                self.live(number).computed += tokens;
                self.fake_device.compute(live.slot, tokens);
            }
        }
    }

    /// An export is packed only after the device has exported it.
    fn can_end(&self, job: &Job) -> bool {
        job.task != Task::Pack || self.fake_device.exports.contains_key(&job.copy)
    }

    fn end(&mut self, at: usize, well: bool) {
        let pager_side = self.pager_side.as_mut().expect("there is a pager");
        let job = pager_side.jobs.remove(at);
        match job.task {
            Task::Pack => {
                let written = self.fake_device.exports.remove(&job.copy);
                let written = written.expect("it was exported");
                if well {
                    let label = &job.label;
                    assert!(
                        label.is_of(label.salt, &written.tokens)
                            && label.end() == written.tokens.len(),
                        "a copy holds the tokens of its label"
                    );
                    pager_side.host.insert(job.copy, written);
                }
            }
            Task::Unpack if well => {
                let written = pager_side.host[&job.copy].clone();
                self.fake_device
                    .imports
                    .entry(job.copy)
                    .or_default()
                    .push(written);
            }
            Task::Unpack => {}
            Task::Read | Task::Write | Task::Remove => unreachable!("there is no disk"),
        }
        let result = if well {
            Ok(())
        } else {
            Err(JobError {
                what: "a fault".into(),
                is_lost: true,
            })
        };
        self.send_to_pager(pager::Message::Done(Done {
            copy: job.copy,
            task: job.task,
            result,
            took: Duration::from_micros(1),
            bytes: 100,
        }));
    }

    fn send_to_pager(&mut self, message: pager::Message) {
        let pager_side = self.pager_side.as_mut().expect("there is a pager");
        for effect in pager_side.core.handle(Duration::ZERO, message) {
            match effect {
                pager::Effect::Notify(pager_event) => pager_side.to_cache.push_back(pager_event),
                pager::Effect::Do(job) => pager_side.jobs.push(job),
                pager::Effect::Forget(copy) => {
                    pager_side.host.remove(&copy);
                    // The export is not packed, and no part is notified.
                    self.fake_device.exports.remove(&copy);
                    let leaves = |job: &Job| job.copy == copy && job.task == Task::Pack;
                    pager_side.jobs.retain(|job| !leaves(job));
                }
                pager::Effect::Discard(copy) => drop(self.fake_device.take_detached(copy)),
                pager::Effect::DiscardAll => self.fake_device.imports.clear(),
            }
        }
        pager_side.core.check_integrity();
        assert!(pager_side.core.stats().host_bytes <= 2 * PAGE);
    }

    fn check(&self) {
        self.core.check_integrity();
        let stats = self.core.stats();
        let live = self
            .phases
            .iter()
            .filter(|phase| matches!(phase, Phase::Live(_)));
        assert_eq!(self.fake_device.held(), (stats.segments, live.count()));
        let sealed = self.fake_device.segment_bytes(&self.spec);
        assert_eq!(sealed, stats.sealed_bytes, "the device and the cache agree");
        for (number, phase) in self.phases.iter().enumerate() {
            let Phase::Live(live) = phase else { continue };
            let (_, held) = self
                .fake_device
                .read(live.slot, &self.salt(number), &history(number));
            assert_eq!(held, live.computed, "a slot holds the computed tokens");
            assert!(held <= live.granted, "and stays within its grant");
        }
    }
}

fn name(number: usize) -> SequenceId {
    SequenceId(number as u64 + 1)
}

fn number(sequence: SequenceId) -> usize {
    sequence.0 as usize - 1
}

fn salt(setup: Setup, number: usize) -> Salt {
    if setup.salted && number == 2 {
        Salt::new("another")
    } else {
        Salt::default()
    }
}

/// A sequence's prompt. The third repeats the first.
fn tokens(number: usize) -> Arc<[TokenId]> {
    let own: &[TokenId] = match number {
        1 => &[40, 41, 42, 43, 44, 45],
        _ => &[30, 31, 32, 33],
    };
    (1..=SHARED as TokenId).chain(own.iter().copied()).collect()
}

/// Its prompt, and all tokens that it generates.
fn history(number: usize) -> Vec<TokenId> {
    let own = 50 + 10 * number as TokenId;
    let output = own..own + OUTPUT_TOKENS as TokenId;
    tokens(number).iter().copied().chain(output).collect()
}

/// Generated tokens that are reported to the cache.
fn generated(number: usize, computed: usize) -> Vec<TokenId> {
    let prompt = tokens(number).len();
    history(number)[prompt..computed.max(prompt)].to_vec()
}
