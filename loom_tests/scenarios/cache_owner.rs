//! The thread that owns the cache: its core and a device on paper.

use std::collections::BTreeMap;

use motet::config::{CacheConfig, EvictionPolicy, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, ModelSpec};
use motet::{CopyId, SequenceId, TokenId};
use motet_core::cache::{Effect, Message, OpenSlot};
use motet_core::pager::{self, PagerEvent};
use motet_protocol::SegmentId;
use motet_testkit::cache_harness::CacheHarness;
use motet_testkit::paper_device::PaperSegment;

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
    Live,
    Finished,
}

/// The cache's core and the other state of its thread.
pub(super) struct CacheOwner {
    cache: CacheHarness,
    spec: ModelSpec,
    states: BTreeMap<u64, SequenceState>,
    prompts: BTreeMap<u64, &'static Prompt>,
    /// Closes that arrived before their sequence had a slot.
    closes: Vec<&'static Prompt>,
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
            cache: CacheHarness::new(&spec, config, Some(&pager_config())),
            spec,
            states: BTreeMap::new(),
            prompts: BTreeMap::new(),
            closes: Vec::new(),
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
                let open_slot = OpenSlot {
                    tokens_max: prompt.granted,
                    ..OpenSlot::new(prompt.sequence(), prompt.list(), 0)
                };
                let opened = self.cache.open_slot(open_slot, &[]);
                self.follow(&opened.expect("the message is valid"))
            }
            Ask::Close(prompt) => match self.states[&prompt.name] {
                SequenceState::Live => self.close(prompt),
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
    pub(super) fn take_export(&mut self, copy: CopyId) -> Option<(CopyId, PaperSegment)> {
        let queue = self.cache.device_mut().transfer_queue_mut();
        Some((copy, queue.take_export(copy)?))
    }

    /// Adds a detached state for the device.
    pub(super) fn add_import(&mut self, copy: CopyId, detached_state: PaperSegment) {
        let queue = self.cache.device_mut().transfer_queue_mut();
        queue.import(copy, detached_state);
    }

    /// Discards a detached state that was added.
    pub(super) fn discard_import(&mut self, copy: CopyId) {
        let queue = self.cache.device_mut().transfer_queue_mut();
        let detached_state = queue.take_import(copy);
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
        self.cache.check_empty();
        assert!(
            !self.cache.device().transfer_queue().has_imports(),
            "no state is on its way to the device"
        );
    }

    fn close(&mut self, prompt: &'static Prompt) -> Vec<pager::Message> {
        let sequence = prompt.sequence();
        let cached = self.cache.live(sequence).expect("it has a slot").computed;
        self.cache
            .compute(sequence, prompt.tokens as usize - cached);
        let close = self.cache.close(sequence).expect("it has a slot");
        let closed = self.cache.end(close).expect("the message is valid");
        let mut outbox = self.follow(&closed);
        self.states.insert(prompt.name, SequenceState::Finished);
        outbox.extend(self.retry_rejected());
        outbox
    }

    fn send(&mut self, message: Message) -> Vec<pager::Message> {
        let effects = self.cache.expect(message);
        self.follow(&effects)
    }

    /// Learns the states of sequences from the cache's effects, and does what they cause.
    /// Returns messages for the pager.
    fn follow(&mut self, effects: &[Effect]) -> Vec<pager::Message> {
        for effect in effects {
            let (sequence, state) = match effect {
                Effect::SlotOpened { sequence, .. } => (sequence, SequenceState::Live),
                Effect::OutOfMemory { sequence } => (sequence, SequenceState::Rejected),
                _ => continue,
            };
            self.states.insert(sequence.0, state);
        }
        self.cache.check();
        let messages = std::iter::from_fn(|| self.cache.take_message());
        let mut outbox: Vec<pager::Message> = messages.collect();
        for message in &outbox {
            if let pager::Message::OffloadCandidate(candidate) = message {
                self.offloading.push(candidate.lease.segment());
            }
        }
        // The device has carried all edits out.
        while self.cache.has_fences() {
            let effects = self.cache.pass_fence();
            outbox.extend(self.follow(&effects));
        }
        // Sequences that have got a slot meanwhile and were to be closed.
        for prompt in std::mem::take(&mut self.closes) {
            outbox.extend(self.ask(Ask::Close(prompt)));
        }
        outbox
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
