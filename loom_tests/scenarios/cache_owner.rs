//! The thread that owns the cache: its core and a fake device.

use std::collections::BTreeMap;
use std::time::Duration;

use motet::cache::Salt;
use motet::config::{CacheConfig, EvictionPolicy, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, ModelSpec};
use motet::{CopyId, SegmentId, SequenceId, SlotId, TokenId};
use motet_core::cache::{CacheCore, Effect, Message, OpenSlot};
use motet_core::pager::{self, PagerEvent};

use super::fake_device::{FakeDevice, Written};

/// Capacity of the device in tokens.
pub(super) const DEVICE_TOKENS: usize = 40;

/// A request to the owner about a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    OpenSlot(&'static Prompt),
    /// The sequence has finished, with its prompt computed.
    Close(&'static Prompt),
}

/// A sequence: `tokens` tokens from `first` on, and the grant of its slot.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) name: u64,
    pub(super) first: TokenId,
    pub(super) tokens: u32,
    pub(super) granted: usize,
}

/// The state of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceState {
    /// The cache was asked to open a slot and has not answered.
    Deferred,
    /// Memory was short; it asks again when another sequence has finished.
    Rejected,
    Live(SlotId),
    Finished,
}

/// The cache's core and the other state of its thread.
pub(super) struct CacheOwner {
    core: CacheCore,
    spec: ModelSpec,
    fake_device: FakeDevice,
    states: BTreeMap<u64, SequenceState>,
    prompts: BTreeMap<u64, &'static Prompt>,
    /// Closes that arrived before their sequence had a slot.
    closes: Vec<&'static Prompt>,
    /// Fences that the cache wants confirmed when the edits before them are carried out.
    fences: Vec<u64>,
    /// Offload candidates that the pager has not answered.
    pub(super) offloading: Vec<SegmentId>,
}

impl Prompt {
    fn sequence(&self) -> SequenceId {
        SequenceId(self.name)
    }

    fn list(&self) -> Vec<TokenId> {
        (self.first..self.first + self.tokens).collect()
    }
}

impl CacheOwner {
    /// Creates an empty cache with a pager.
    pub(super) fn new() -> Self {
        let oracle = OracleConfig {
            tail_block_tokens: 4,
            ..OracleConfig::with_layers(&[LayerKind::Full])
        };
        let spec = oracle.spec();
        let config = CacheConfig {
            device_bytes_max: spec.tail_bytes(DEVICE_TOKENS),
            share_tokens_min: 4,
            eviction: EvictionPolicy::Lru,
            ..CacheConfig::default()
        };
        Self {
            core: CacheCore::new(spec.clone(), config).with_pager(&pager_config(), false),
            spec,
            fake_device: FakeDevice::default(),
            states: BTreeMap::new(),
            prompts: BTreeMap::new(),
            closes: Vec::new(),
            fences: Vec::new(),
            offloading: Vec::new(),
        }
    }

    /// Returns the model's spec.
    pub(super) fn spec(&self) -> ModelSpec {
        self.spec.clone()
    }

    pub(super) fn state(&self, prompt: &Prompt) -> Option<SequenceState> {
        self.states.get(&prompt.name).copied()
    }

    /// Handles a request and returns messages for the pager.
    pub(super) fn ask(&mut self, ask: Ask) -> Vec<pager::Message> {
        match ask {
            Ask::OpenSlot(prompt) => {
                self.prompts.insert(prompt.name, prompt);
                self.states.insert(prompt.name, SequenceState::Deferred);
                self.send(Message::OpenSlot(OpenSlot {
                    tokens_max: prompt.granted,
                    ..OpenSlot::new(prompt.sequence(), prompt.list(), 0)
                }))
            }
            Ask::Close(prompt) => match self.states[&prompt.name] {
                SequenceState::Live(slot) => self.close(prompt, slot),
                SequenceState::Deferred | SequenceState::Rejected => {
                    self.closes.push(prompt);
                    Vec::new()
                }
                SequenceState::Finished => unreachable!("a sequence is closed once"),
            },
        }
    }

    /// Handles an event of the pager.
    pub(super) fn on_pager_event(&mut self, pager_event: PagerEvent) -> Vec<pager::Message> {
        if let PagerEvent::Offloaded { segment, .. } | PagerEvent::Rejected { segment } =
            pager_event
        {
            self.offloading.retain(|offloading| *offloading != segment);
        }
        let copy = match pager_event {
            PagerEvent::Export { segment, copy } => Some((segment, copy)),
            _ => None,
        };
        let outbox = self.send(Message::Paged(pager_event));
        let is_export_cancelled = |message: &pager::Message| match (message, copy) {
            (pager::Message::CancelExport { copy }, Some((_, exported))) => *copy == exported,
            _ => false,
        };
        if let (true, Some((segment, _))) = (outbox.iter().any(is_export_cancelled), copy) {
            self.offloading.retain(|offloading| *offloading != segment);
        }
        outbox
    }

    /// Removes the exported state with this name, if there is one.
    pub(super) fn take_export(&mut self, copy: CopyId) -> Option<(CopyId, Written)> {
        self.fake_device.exports.remove_entry(&copy)
    }

    /// Adds a detached state for the device.
    pub(super) fn add_import(&mut self, copy: CopyId, detached_state: Written) {
        self.fake_device
            .imports
            .entry(copy)
            .or_default()
            .push(detached_state);
    }

    /// Discards a detached state that was added.
    pub(super) fn discard_import(&mut self, copy: CopyId) {
        let detached_state = self.fake_device.take_detached(copy);
        assert!(detached_state.is_some(), "only an added state is discarded");
    }

    /// Retries a rejected sequence, which may fit by now.
    pub(super) fn retry_rejected(&mut self) -> Vec<pager::Message> {
        let rejected = self
            .states
            .iter()
            .find(|(_, at)| **at == SequenceState::Rejected);
        match rejected.map(|(name, _)| *name) {
            None => Vec::new(),
            Some(name) => self.ask(Ask::OpenSlot(self.prompts[&name])),
        }
    }

    /// Evicts all segments without a lease.
    pub(super) fn clear(&mut self) -> Vec<pager::Message> {
        self.send(Message::Clear { salt: None })
    }

    /// Checks that no state is left.
    pub(super) fn check_empty(&self) {
        let stats = self.core.stats();
        assert_eq!((stats.segments, stats.reserved_bytes), (0, 0), "{stats:?}");
        assert_eq!(
            self.fake_device.held(),
            (0, 0),
            "no state is left on the device"
        );
        assert!(
            self.fake_device.imports.is_empty(),
            "no state is on its way to the device"
        );
    }

    fn close(&mut self, prompt: &'static Prompt, slot: SlotId) -> Vec<pager::Message> {
        let (path, _) = self
            .fake_device
            .read(slot, &Salt::default(), &prompt.list());
        let computed = prompt.tokens as usize;
        self.fake_device.compute(slot, computed - path);
        let mut outbox = self.send(Message::Close {
            sequence: prompt.sequence(),
            computed,
            generated: Vec::new(),
        });
        self.states.insert(prompt.name, SequenceState::Finished);
        outbox.extend(self.retry_rejected());
        outbox
    }

    fn send(&mut self, message: Message) -> Vec<pager::Message> {
        let effects = self.core.handle(Duration::ZERO, message);
        for effect in effects.expect("the message is valid") {
            self.follow(effect);
        }
        self.core.check_integrity();
        let stats = self.core.stats();
        let on_device = self.fake_device.segment_bytes(&self.spec);
        assert_eq!(
            on_device, stats.sealed_bytes,
            "the cache and the device agree on the sealed bytes"
        );
        let mut outbox = self.core.take_outbox();
        for message in &outbox {
            if let pager::Message::OffloadCandidate(candidate) = message {
                self.offloading.push(candidate.lease.segment());
            }
        }
        // The device has carried all edits out.
        for number in std::mem::take(&mut self.fences) {
            outbox.extend(self.send(Message::FencePassed { number }));
        }
        // Sequences that have got a slot meanwhile and were to be closed.
        for prompt in std::mem::take(&mut self.closes) {
            outbox.extend(self.ask(Ask::Close(prompt)));
        }
        outbox
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::SlotOpened { sequence, slot, .. } => {
                let before = self.states.insert(sequence.0, SequenceState::Live(slot));
                assert_eq!(
                    before,
                    Some(SequenceState::Deferred),
                    "a sequence that asked gets its slot once"
                );
            }
            Effect::OutOfMemory { sequence } => {
                self.states.insert(sequence.0, SequenceState::Rejected);
            }
            Effect::Edit(edit) => {
                let (states, prompts) = (&self.states, &self.prompts);
                self.fake_device.edit(&edit, |slot| {
                    let has_it = |name: &&u64| states[*name] == SequenceState::Live(slot);
                    let name = states
                        .keys()
                        .find(has_it)
                        .expect("a slot belongs to a sequence");
                    (Salt::default(), prompts[name].list())
                });
            }
            Effect::Fence { number } => self.fences.push(number),
            Effect::Deferred { .. } | Effect::Checkpoint { .. } => {}
            other => unreachable!("unexpected effect {other:?}"),
        }
    }
}

/// Configuration of a pager with memory for all cached segments, which are all candidates.
pub(super) fn pager_config() -> PagerConfig {
    PagerConfig {
        host_bytes_max: 1 << 20,
        clean_part: 1.0,
        ..PagerConfig::default()
    }
}
