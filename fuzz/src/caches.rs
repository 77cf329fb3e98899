//! Messages to the cache's core: trie and slots.

use std::time::Duration;

use motet::cache::{ActiveAdapter, AdapterKey, PrefixKey, Salt};
use motet::config::{CacheConfig, EvictionPolicy, SlotChoice};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, ModelSpec, SegmentSize};
use motet::{PinId, SequenceId, TokenId};
use motet_core::cache::{Message, OpenSlot, Pin, ProbePrefix};
use motet_protocol::SegmentId;
use motet_testkit::cache_harness::CacheHarness;

use super::input::FuzzInput;

const KINDS: [&[LayerKind]; 4] = [
    &[LayerKind::Full],
    &[LayerKind::Full, LayerKind::Window { tokens: 5 }],
    &[LayerKind::Recurrent],
    &[
        LayerKind::Full,
        LayerKind::Window { tokens: 7 },
        LayerKind::Recurrent,
    ],
];
const SEQUENCES: usize = 6;
const MESSAGES_MAX: usize = 300;

struct Caches {
    cache: CacheHarness,
    pins: u64,
}

/// The core is consistent after any message that a scheduler may send, and empty after all
/// sequences have ended.
pub fn cache(input: &[u8]) {
    let mut input = FuzzInput(input);
    let mut caches = Caches::new(&mut input);
    for _ in 0..MESSAGES_MAX {
        if input.is_empty() {
            break;
        }
        if let Some(message) = caches.message(&mut input) {
            caches.send(message);
        }
    }
    caches.end();
}

impl Caches {
    fn new(input: &mut FuzzInput<'_>) -> Self {
        let oracle = OracleConfig {
            context_tokens_max: 64,
            tail_block_tokens: 4,
            ..OracleConfig::with_layers(KINDS[input.below(KINDS.len())])
        };
        let spec = oracle.spec();
        let config = CacheConfig {
            device_bytes_max: budget(&spec, 70 + 10 * input.below(16)),
            share_tokens_min: 1 + input.below(8),
            restore_interval_tokens: 8 + input.below(32),
            merge_tokens_max: 8 * input.below(16),
            eviction: if input.bit() {
                EvictionPolicy::Lru
            } else {
                EvictionPolicy::Foresight
            },
            slot_choice: if input.bit() {
                SlotChoice::Best
            } else {
                SlotChoice::Longest
            },
            ..CacheConfig::default()
        };
        // A device could not follow: it would lack the tokens of sequences that were cut, and
        // would have the segments that are reported as lost.
        let cache = CacheHarness::new(&spec, config, None).without_device();
        Self { cache, pins: 0 }
    }

    /// A message that fails changes nothing.
    fn send(&mut self, message: Message) {
        self.cache.pass(Duration::from_millis(1));
        let is_end = matches!(message, Message::Close { .. } | Message::Discard { .. });
        let handled = if is_end {
            self.cache.end(message)
        } else {
            self.cache.send(message)
        };
        drop(handled);
        self.cache.check();
    }

    fn message(&mut self, input: &mut FuzzInput<'_>) -> Option<Message> {
        let sequence = SequenceId(input.below(SEQUENCES) as u64);
        match input.below(16) {
            0..=2 => {
                self.open_slot(sequence, input);
                None
            }
            3..=6 => self.step(sequence, input),
            7 => Some(Message::ExtendGrant {
                sequence,
                tokens_max: input.below(64),
            }),
            8 => self.cache.share(sequence, 1 + input.below(64)),
            9 => self.remove(sequence, input),
            10 => self.cache.close(sequence),
            11 => Some(Message::Discard { sequence }),
            12 => {
                self.pins += 1;
                Some(Message::Pin(Pin {
                    pin: PinId(self.pins),
                    key: key(input),
                    tokens: prompt(input).into(),
                    time_to_live: input.bit().then(|| Duration::from_millis(20)),
                }))
            }
            13 => Some(Message::Unpin {
                pin: PinId(input.below(8) as u64),
            }),
            14 => Some(Message::ProbePrefix {
                sequences: vec![ProbePrefix {
                    sequence,
                    key: key(input),
                    tokens: prompt(input).into(),
                }],
            }),
            15 if input.bit() => Some(Message::Lost {
                // Some that exist, and some that never did.
                segments: (0..2).map(|_| SegmentId(input.below(48) as u64)).collect(),
            }),
            _ if input.below(8) == 0 => {
                self.cache.reset();
                None
            }
            _ => Some(Message::Clear {
                salt: input.bit().then(|| salt(input)),
            }),
        }
    }

    fn open_slot(&mut self, sequence: SequenceId, input: &mut FuzzInput<'_>) {
        if self.cache.sequence(sequence).is_some() {
            return;
        }
        let tokens = prompt(input);
        let granted = tokens.len();
        let open_slot = OpenSlot {
            key: key(input),
            keep: input.bit().then(|| input.below(granted)),
            restore_points: (0..input.below(3)).map(|_| input.below(64)).collect(),
            turn_end: input.bit().then(|| input.below(granted)),
            retention: input.byte() % 3,
            ..OpenSlot::new(sequence, tokens, 0)
        };
        let output: Vec<TokenId> = (0..64).map(|at| 50 + at % 3).collect();
        self.cache.pass(Duration::from_millis(1));
        // A request that is not valid changes nothing.
        drop(self.cache.open_slot(open_slot, &output));
        self.cache.check();
    }

    /// Computes some tokens, and reports them if a sequence waits for them.
    fn step(&mut self, sequence: SequenceId, input: &mut FuzzInput<'_>) -> Option<Message> {
        let live = self.cache.live(sequence)?;
        let most = live
            .checkpoint()
            .map_or(live.granted, |at| at.min(live.granted));
        let more = most.saturating_sub(live.computed);
        self.cache.compute(sequence, more.min(1 + input.below(16)));
        self.cache.reach(sequence)
    }

    fn remove(&mut self, sequence: SequenceId, input: &mut FuzzInput<'_>) -> Option<Message> {
        self.cache.live(sequence)?;
        let start = input.below(64);
        let removed = start..start + input.below(32);
        self.cache.remove(sequence, removed)
    }

    /// Ends all sequences, and checks that nothing is held.
    fn end(mut self) {
        let all: Vec<SequenceId> = self.cache.sequences().collect();
        for sequence in all {
            // Sequences that waited for it restart.
            self.send(Message::Discard { sequence });
        }
        for pin in 0..=self.pins {
            let pin = PinId(pin);
            self.send(Message::Unpin { pin });
        }
        self.send(Message::Clear { salt: None });
        self.cache.check_empty();
    }
}

/// Prompts that often share beginnings.
fn prompt(input: &mut FuzzInput<'_>) -> Vec<TokenId> {
    let shared = input.below(24);
    let family = input.below(2) as TokenId;
    let mut tokens: Vec<TokenId> = (0..shared as TokenId).map(|at| family + at % 5).collect();
    tokens.extend((0..1 + input.below(12)).map(|_| TokenId::from(input.byte() % 3)));
    tokens
}

fn key(input: &mut FuzzInput<'_>) -> PrefixKey {
    let adapter = (input.below(4) == 0).then(|| {
        ActiveAdapter::whole(AdapterKey {
            digest: [3; 32],
            scale: 1,
        })
    });
    PrefixKey {
        salt: salt(input),
        adapter,
    }
}

fn salt(input: &mut FuzzInput<'_>) -> Salt {
    match input.below(4) {
        0 => Salt::new("a tenant"),
        _ => Salt::default(),
    }
}

/// Bytes for about so many tokens, also where a state has the same size for any number.
fn budget(spec: &ModelSpec, tokens: usize) -> usize {
    spec.tail_bytes(tokens) + tokens / 8 * spec.segment_bytes(SegmentSize::whole(1))
}
