//! The cache's core, with or without the pager's, a device on paper, and three sequences. Two have
//! a common beginning, and the third repeats the first, with the same key, another salt or an adapter.
//!
//! Invariants after each message: both cores' own checks pass. Every path spells its sequence's
//! tokens, of its own salt. Each slot stays within its grant. The device holds what the cache
//! says, within its bytes. From every state, all work finishes with nothing held.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use motet_core::cache::{Message, OpenSlot, Pin};
use motet_core::cache::{PrefixKey, Salt};
use motet_core::config::{CacheConfig, EvictionPolicy, PagerConfig};
use motet_core::pager::PagerEvent;
use motet_model::LayerKind;
use motet_model::oracle::OracleConfig;
use motet_protocol::{ActiveAdapter, AdapterKey};
use motet_protocol::{PinId, SequenceId, TokenId};
use motet_testkit::cache_harness::{CacheHarness, Live};
use motet_testkit::copy_machine::CopyMachine;
use motet_testkit::explorer::World;
use motet_testkit::pager_harness::{PagerHarness, PagerPeer};
use motet_testkit::paper_device::PaperSegment;
use motet_testkit::transfer_queue::PaperTransferQueue;

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

/// The key of the third sequence, beside those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Third {
    /// It has the same.
    Alike,
    /// It has another salt.
    Salted,
    /// It has an adapter.
    Adapted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) paged: bool,
    /// How the third sequence's key differs.
    pub(crate) third: Third,
    pub(crate) eviction: EvictionPolicy,
}

pub(crate) const SETUPS: [Setup; 4] = [
    Setup {
        paged: false,
        third: Third::Alike,
        eviction: EvictionPolicy::Lru,
    },
    Setup {
        paged: false,
        third: Third::Salted,
        eviction: EvictionPolicy::Foresight,
    },
    Setup {
        paged: true,
        third: Third::Alike,
        eviction: EvictionPolicy::Lru,
    },
    Setup {
        paged: true,
        third: Third::Adapted,
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

#[derive(Debug)]
pub(crate) struct CacheWorld {
    setup: Setup,
    cache: CacheHarness,
    pinned: bool,
    pager: Option<PagerHarness<PaperSegment>>,
    to_cache: ToCache,
}

/// The pager's events that the cache has not received.
#[derive(Debug, Default)]
struct ToCache(VecDeque<PagerEvent>);

impl PagerPeer<PaperSegment> for ToCache {
    fn on_event(
        &mut self,
        event: PagerEvent,
        _: &CopyMachine<PaperSegment>,
        _: &mut PaperTransferQueue<PaperSegment>,
    ) {
        self.0.push_back(event);
    }
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
        let copies = CopyMachine::new(pager.host_bytes_max, 0);
        let harness = PagerHarness::new(&spec, &pager, |_| 100, copies, Vec::new());
        Self {
            setup,
            cache: CacheHarness::new(&spec, config, setup.paged.then_some(&pager)),
            pinned: false,
            pager: setup.paged.then_some(harness),
            to_cache: ToCache::default(),
        }
    }

    fn possible(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        for number in 0..SEQUENCES {
            match (self.cache.sequence(name(number)), self.live(number)) {
                (None, _) => acts.push(Act::OpenSlot(number)),
                (Some(_), None) => acts.push(Act::Discard(number)),
                (Some(_), Some(live)) => {
                    if next_step(number, live).is_some() {
                        acts.push(Act::Step(number));
                    }
                    let most = tokens(number).len() + OUTPUT_TOKENS;
                    if !live.is_extending() && live.granted < most {
                        acts.push(Act::ExtendGrant(number));
                    }
                    acts.extend([Act::Share(number), Act::Close(number), Act::Discard(number)]);
                }
            }
        }
        acts.push(if self.pinned { Act::Unpin } else { Act::Pin });
        acts.extend([Act::Clear, Act::Reset]);
        if let Some(pager) = &self.pager {
            acts.extend(self.cache.has_messages().then_some(Act::ToPager));
            acts.extend((!self.to_cache.0.is_empty()).then_some(Act::ToCache));
            acts.extend(self.cache.has_fences().then_some(Act::FencePassed));
            let queue = self.cache.device().transfer_queue();
            let jobs = pager.copies().jobs();
            let ends = (0..jobs.len()).filter(|at| pager.copies().can_end(&jobs[*at], queue));
            acts.extend(ends.flat_map(|at| [true, false].map(|well| Act::End(at, well))));
        }
        acts
    }

    fn happen(&mut self, act: Act) {
        match act {
            Act::OpenSlot(number) => self.open_slot(number, tokens(number).len()),
            Act::Step(number) => {
                let live = self.live(number).expect("it has a slot");
                match next_step(number, live).expect("it can continue") {
                    0 => {
                        let reached = self.cache.reach(name(number));
                        self.cache
                            .expect(reached.expect("it has reached a checkpoint"));
                    }
                    tokens => self.cache.compute(name(number), tokens),
                }
            }
            Act::ExtendGrant(number) => {
                let live = self.live(number).expect("it has a slot");
                let tokens_max = live.granted + 1;
                self.cache.expect(Message::ExtendGrant {
                    sequence: name(number),
                    tokens_max,
                });
            }
            Act::Share(number) => {
                let computed = self.live(number).expect("it has a slot").computed;
                let share = self.cache.share(name(number), computed);
                self.cache.expect(share.expect("it has a slot"));
            }
            Act::Close(number) => {
                let close = self.cache.close(name(number)).expect("it has a slot");
                self.cache.end(close).expect("a sequence may end");
            }
            Act::Discard(number) => {
                let sequence = name(number);
                let discard = Message::Discard { sequence };
                self.cache.end(discard).expect("a sequence may end");
            }
            Act::Pin => {
                let pin = Pin {
                    pin: PinId(1),
                    key: key(self.setup, 0),
                    tokens: tokens(0)[..SHARED / 2].into(),
                    time_to_live: None,
                };
                self.pinned = self.cache.send(Message::Pin(pin)).is_ok();
                // Evictions for a pin that then did not fit are reported with the next message.
                let no_sequences = Vec::new();
                self.cache.expect(Message::ProbePrefix {
                    sequences: no_sequences,
                });
            }
            Act::Unpin => {
                self.pinned = false;
                self.cache.expect(Message::Unpin { pin: PinId(1) });
            }
            Act::Clear => drop(self.cache.expect(Message::Clear { salt: None })),
            Act::Reset => drop(self.cache.reset()),
            Act::ToPager => {
                let message = self.cache.take_message();
                let message = message.expect("a message is in flight");
                let queue = self.cache.device_mut().transfer_queue_mut();
                let pager = self.pager.as_mut().expect("there is a pager");
                pager.send(Duration::ZERO, message, queue, &mut self.to_cache);
            }
            Act::ToCache => {
                let event = self.to_cache.0.pop_front();
                let event = event.expect("a message is in flight");
                self.cache.expect(Message::Paged(event));
            }
            Act::FencePassed => drop(self.cache.pass_fence()),
            Act::End(job, well) => {
                let queue = self.cache.device_mut().transfer_queue_mut();
                let pager = self.pager.as_mut().expect("there is a pager");
                pager.end_job(Duration::ZERO, job, well, queue, &mut self.to_cache);
            }
        }
        assert!(
            self.pager.is_some() || !self.cache.has_messages(),
            "there is no pager"
        );
        self.cache.check();
    }

    fn describe(&self, text: &mut String) {
        let Self {
            setup: _,
            cache,
            pinned,
            pager,
            to_cache,
        } = self;
        write!(text, "{cache:?} {pinned:?} {pager:?} {to_cache:?}")
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
        self.cache.check_empty();
        // No byte is lost: a sequence that needs all of them runs and ends. As a rule it
        // differs from the last one, whose unanswered lookups its own would hide.
        self.open_slot(SEQUENCES - 1, DEVICE_TOKENS);
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
        let left: Vec<SequenceId> = self.cache.sequences().collect();
        assert!(left.is_empty(), "every sequence runs and ends: {left:?}");
        if let Some(pager) = &self.pager {
            let is_quiet = !self.cache.has_messages() && self.to_cache.0.is_empty();
            assert!(is_quiet, "all work finishes: {pager:?}");
            assert!(self.cache.device().transfer_queue().is_empty());
            pager.check_end();
        }
    }

    fn open_slot(&mut self, number: usize, tokens_max: usize) {
        let open_slot = OpenSlot {
            key: key(self.setup, number),
            tokens_max,
            ..OpenSlot::new(name(number), tokens(number), 0)
        };
        let asked = self.cache.open_slot(open_slot, &output(number));
        asked.expect("a sequence may ask for a slot");
    }

    fn live(&self, number: usize) -> Option<&Live> {
        self.cache.live(name(number))
    }
}

/// Number of tokens that its next step computes; `None` if there is none, and 0 if it only
/// reports its offset.
fn next_step(number: usize, live: &Live) -> Option<usize> {
    let checkpoint = live.checkpoint();
    if checkpoint.is_some_and(|at| at <= live.computed) {
        return Some(0);
    }
    let prompt = tokens(number).len();
    let most = if live.computed < prompt {
        prompt.min(live.computed + STEP_TOKENS)
    } else {
        live.computed + 1
    };
    let most = most.min(live.granted).min(prompt + OUTPUT_TOKENS);
    let to = checkpoint.map_or(most, |at| most.min(at));
    (to > live.computed).then_some(to - live.computed)
}

fn name(number: usize) -> SequenceId {
    SequenceId(number as u64 + 1)
}

fn key(setup: Setup, number: usize) -> PrefixKey {
    let mut key = PrefixKey::default();
    match setup.third {
        Third::Salted if number == 2 => key.salt = Salt::new("another"),
        Third::Adapted if number == 2 => {
            key.adapter = Some(ActiveAdapter::whole(AdapterKey {
                digest: [7; 32],
                scale: 1.0_f32.to_bits(),
            }));
        }
        _ => {}
    }
    key
}

/// A sequence's prompt. The third repeats the first.
fn tokens(number: usize) -> Arc<[TokenId]> {
    let own: &[TokenId] = match number {
        1 => &[40, 41, 42, 43, 44, 45],
        _ => &[30, 31, 32, 33],
    };
    (1..=SHARED as TokenId).chain(own.iter().copied()).collect()
}

/// All tokens that it generates.
fn output(number: usize) -> Vec<TokenId> {
    let own = 50 + 10 * number as TokenId;
    (own..own + OUTPUT_TOKENS as TokenId).collect()
}
