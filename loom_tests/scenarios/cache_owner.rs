//! The thread that owns the cache: its core, and a device on paper.

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

/// Room on the device for so many tokens.
pub(super) const DEVICE_TOKENS: usize = 40;

/// A sequence that the owner is asked about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    OpenSlot(&'static Prompt),
    /// It is over, with its prompt computed.
    Close(&'static Prompt),
}

/// A sequence's tokens: so many from the first, and how many its slot is granted.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) name: u64,
    pub(super) first: TokenId,
    pub(super) tokens: u32,
    pub(super) granted: usize,
}

/// What became of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceState {
    /// The cache was asked, and it waits.
    Deferred,
    /// There was no room; it is to ask again when another has ended.
    Rejected,
    Live(SlotId),
    Finished,
}

/// The cache's core and what belongs to its thread.
pub(super) struct CacheOwner {
    core: CacheCore,
    spec: ModelSpec,
    fake_device: FakeDevice,
    states: BTreeMap<u64, SequenceState>,
    prompts: BTreeMap<u64, &'static Prompt>,
    /// Closes that came before their sequence had begun.
    closes: Vec<&'static Prompt>,
    /// What the cache wants to hear when edits are carried out.
    fences: Vec<u64>,
    /// Segments that the pager was offered and has not answered for.
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
    /// An empty cache with a pager.
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

    /// What the model is.
    pub(super) fn spec(&self) -> ModelSpec {
        self.spec.clone()
    }

    pub(super) fn state(&self, prompt: &Prompt) -> Option<SequenceState> {
        self.states.get(&prompt.name).copied()
    }

    /// Does what it is asked. Returns what the pager is to be told.
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
                SequenceState::Finished => unreachable!("it is closed once"),
            },
        }
    }

    /// The pager has news.
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

    /// What the device hands over under this name, if it is to.
    pub(super) fn take_export(&mut self, copy: CopyId) -> Option<(CopyId, Written)> {
        self.fake_device.exports.remove_entry(&copy)
    }

    /// A parcel for the device has come.
    pub(super) fn add_import(&mut self, copy: CopyId, detached_state: Written) {
        self.fake_device
            .imports
            .entry(copy)
            .or_default()
            .push(detached_state);
    }

    /// A parcel that has come is thrown away.
    pub(super) fn discard_import(&mut self, copy: CopyId) {
        let detached_state = self.fake_device.take_detached(copy);
        assert!(detached_state.is_some(), "what is thrown away had come");
    }

    /// Whether those who wait could begin by now: they ask again.
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

    /// Evicts what nobody holds.
    pub(super) fn clear(&mut self) -> Vec<pager::Message> {
        self.send(Message::Clear { salt: None })
    }

    /// Nothing is held, by anybody.
    pub(super) fn check_empty(&self) {
        let stats = self.core.stats();
        assert_eq!((stats.segments, stats.reserved_bytes), (0, 0), "{stats:?}");
        assert_eq!(
            self.fake_device.held(),
            (0, 0),
            "nothing is left on the device"
        );
        assert!(self.fake_device.imports.is_empty(), "nor on its way to it");
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
        for effect in effects.expect("the message makes sense") {
            self.follow(effect);
        }
        self.core.check_integrity();
        let stats = self.core.stats();
        let on_device = self.fake_device.segment_bytes(&self.spec);
        assert_eq!(
            on_device, stats.sealed_bytes,
            "what the cache says is there"
        );
        let mut outbox = self.core.take_outbox();
        for message in &outbox {
            if let pager::Message::OffloadCandidate(candidate) = message {
                self.offloading.push(candidate.lease.segment());
            }
        }
        // The device has carried everything out.
        for number in std::mem::take(&mut self.fences) {
            outbox.extend(self.send(Message::FencePassed { number }));
        }
        // Whoever has begun meanwhile, and was to be closed.
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
                    "who asked begins, once"
                );
            }
            Effect::OutOfMemory { sequence } => {
                self.states.insert(sequence.0, SequenceState::Rejected);
            }
            Effect::Edit(edit) => {
                let (states, prompts) = (&self.states, &self.prompts);
                self.fake_device.edit(&edit, |slot| {
                    let has_it = |name: &&u64| states[*name] == SequenceState::Live(slot);
                    let name = states.keys().find(has_it).expect("a slot is somebody's");
                    (Salt::default(), prompts[name].list())
                });
            }
            Effect::Fence { number } => self.fences.push(number),
            Effect::Deferred { .. } | Effect::Checkpoint { .. } => {}
            other => unreachable!("nobody asked for {other:?}"),
        }
    }
}

/// Whatever is cached is offered, and there is room for it.
pub(super) fn pager_config() -> PagerConfig {
    PagerConfig {
        host_bytes_max: 1 << 20,
        clean_part: 1.0,
        ..PagerConfig::default()
    }
}
