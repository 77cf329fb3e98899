//! Messages to the cache's core: trie and slots.

use std::collections::BTreeMap;
use std::time::Duration;

use motet::cache::Salt;
use motet::config::{CacheConfig, EvictionPolicy, SlotChoice};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, ModelSpec, SegmentSize};
use motet::{PinId, SegmentId, SequenceId, TokenId};
use motet_core::cache::{CacheCore, Effect, Message, OpenSlot, Pin, ProbePrefix};

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

/// A sequence that the cache was asked to open a slot for.
struct Sequence {
    tokens: Vec<TokenId>,
    /// Set once it has a slot.
    live: Option<Live>,
}

struct Live {
    computed: usize,
    granted: usize,
    checkpoints: Vec<usize>,
    /// Tokens of it were removed: the cache's knowledge of it is no longer tracked.
    moved: bool,
}

struct Caches {
    core: CacheCore,
    now: Duration,
    sequences: BTreeMap<SequenceId, Sequence>,
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
        Self {
            core: CacheCore::new(spec, config),
            now: Duration::ZERO,
            sequences: BTreeMap::new(),
            pins: 0,
        }
    }

    fn send(&mut self, message: Message) {
        self.now += Duration::from_millis(1);
        // A failed message changes nothing.
        let effects = self.core.handle(self.now, message).unwrap_or_default();
        self.core.check_integrity();
        for effect in effects {
            match effect {
                Effect::SlotOpened {
                    sequence,
                    cached_tokens,
                    ..
                } => {
                    let opened = self.of(sequence);
                    assert!(cached_tokens < opened.tokens.len(), "one token is left");
                    opened.live = Some(Live {
                        computed: cached_tokens,
                        granted: opened.tokens.len(),
                        checkpoints: Vec::new(),
                        moved: false,
                    });
                }
                Effect::OutOfMemory { sequence } | Effect::Lost { sequence, .. } => {
                    self.sequences.remove(&sequence);
                }
                Effect::GrantExtended {
                    sequence,
                    tokens_max,
                } => self.live(sequence).granted = tokens_max,
                Effect::Checkpoint { sequence, at } => self.live(sequence).checkpoints.push(at),
                Effect::Deferred { .. }
                | Effect::GrantDenied { .. }
                | Effect::CachedPrefix { .. }
                | Effect::Edit(_)
                | Effect::Fence { .. } => {}
            }
        }
    }

    fn of(&mut self, sequence: SequenceId) -> &mut Sequence {
        let of = self.sequences.get_mut(&sequence);
        of.expect("the cache answers for known sequences")
    }

    fn live(&mut self, sequence: SequenceId) -> &mut Live {
        self.of(sequence).live.as_mut().expect("it has a slot")
    }

    fn message(&mut self, input: &mut FuzzInput<'_>) -> Option<Message> {
        let sequence = SequenceId(input.below(SEQUENCES) as u64);
        match input.below(16) {
            0..=2 => self.open_slot(sequence, input),
            3..=6 => self.step(sequence, input),
            7 => Some(Message::ExtendGrant {
                sequence,
                tokens_max: input.below(64),
            }),
            8 => self.share(sequence, input),
            9 => self.remove(sequence, input),
            10 => self.close(sequence),
            11 => {
                self.sequences.remove(&sequence);
                Some(Message::Discard { sequence })
            }
            12 => {
                self.pins += 1;
                Some(Message::Pin(Pin {
                    pin: PinId(self.pins),
                    salt: salt(input),
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
                    salt: salt(input),
                    tokens: prompt(input).into(),
                }],
            }),
            15 if input.bit() => Some(Message::Lost {
                // Some that exist, and some that never did.
                segments: (0..2).map(|_| SegmentId(input.below(48) as u64)).collect(),
            }),
            _ if input.below(8) == 0 => {
                self.sequences.clear();
                Some(Message::Reset)
            }
            _ => Some(Message::Clear {
                salt: input.bit().then(|| salt(input)),
            }),
        }
    }

    fn open_slot(&mut self, sequence: SequenceId, input: &mut FuzzInput<'_>) -> Option<Message> {
        if self.sequences.contains_key(&sequence) {
            return None;
        }
        let tokens = prompt(input);
        let granted = tokens.len();
        let open_slot = OpenSlot {
            salt: salt(input),
            keep: input.bit().then(|| input.below(granted)),
            restore_points: (0..input.below(3)).map(|_| input.below(64)).collect(),
            priority: input.byte() % 3,
            ..OpenSlot::new(sequence, tokens.clone(), 0)
        };
        let live = None;
        self.sequences.insert(sequence, Sequence { tokens, live });
        Some(Message::OpenSlot(open_slot))
    }

    /// Computes some tokens, and reports them if a sequence waits for them.
    fn step(&mut self, sequence: SequenceId, input: &mut FuzzInput<'_>) -> Option<Message> {
        let live = self.sequences.get_mut(&sequence)?.live.as_mut()?;
        let next = live.checkpoints.iter().min().copied();
        let most = next.map_or(live.granted, |at| at.min(live.granted));
        let more = most.saturating_sub(live.computed);
        live.computed += more.min(1 + input.below(16));
        let computed = live.computed;
        let before = live.checkpoints.len();
        live.checkpoints.retain(|at| *at > computed);
        (live.checkpoints.len() < before).then_some(Message::Reached { sequence, computed })
    }

    fn share(&mut self, sequence: SequenceId, input: &mut FuzzInput<'_>) -> Option<Message> {
        let (computed, generated) = self.known(sequence)?;
        Some(Message::Share {
            sequence,
            computed,
            generated,
            at: 1 + input.below(64),
        })
    }

    fn remove(&mut self, sequence: SequenceId, input: &mut FuzzInput<'_>) -> Option<Message> {
        let (computed, generated) = self.known(sequence)?;
        let start = input.below(64);
        let removed = start..start + input.below(32);
        let fits = !removed.is_empty() && removed.end <= computed;
        let live = self.live(sequence);
        live.moved |= fits;
        Some(Message::Remove {
            sequence,
            computed,
            generated,
            removed,
        })
    }

    fn close(&mut self, sequence: SequenceId) -> Option<Message> {
        let (computed, generated) = self.known(sequence)?;
        self.sequences.remove(&sequence);
        Some(Message::Close {
            sequence,
            computed,
            generated,
        })
    }

    /// Number of tokens whose state it has, and the tokens that the cache does not know.
    fn known(&self, sequence: SequenceId) -> Option<(usize, Vec<TokenId>)> {
        let sequence = self.sequences.get(&sequence)?;
        let live = sequence.live.as_ref().filter(|live| !live.moved)?;
        let new = live.computed.saturating_sub(sequence.tokens.len());
        let generated = (0..new as TokenId).map(|at| 50 + at % 3);
        Some((live.computed, generated.collect()))
    }

    /// Ends all sequences, and checks that nothing is held.
    fn end(mut self) {
        let all: Vec<SequenceId> = self.sequences.keys().copied().collect();
        for sequence in all {
            self.sequences.remove(&sequence);
            // Sequences that waited for it restart.
            self.send(Message::Discard { sequence });
        }
        for pin in 0..=self.pins {
            let pin = PinId(pin);
            self.send(Message::Unpin { pin });
        }
        self.send(Message::Clear { salt: None });
        let stats = self.core.stats();
        assert_eq!(stats.segments, 0, "no segment is leased");
        assert_eq!(stats.reserved_bytes, 0, "no slot is open");
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
