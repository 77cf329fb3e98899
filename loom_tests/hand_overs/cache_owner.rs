//! The thread that owns the cache: its core, and a device on paper.

use std::collections::BTreeMap;
use std::time::Duration;

use motet::cache::Salt;
use motet::config::{CacheConfig, EvictionPolicy, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, ModelSpec};
use motet::{CopyId, SegmentId, SequenceId, SlotId, TokenId};
use motet_core::cache::{Begin, CacheCore, Effect, Message};
use motet_core::pager::{self, Told};

use super::paper::{Paper, Written};

/// Room on the device for so many tokens.
pub(super) const DEVICE_TOKENS: usize = 40;

/// A sequence that the owner is asked about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Begin(&'static Prompt),
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
pub(super) enum Place {
    /// The cache was asked, and it waits.
    Waits,
    /// There was no room; it is to ask again when another has ended.
    Refused,
    Live(SlotId),
    Over,
}

/// The cache's core and what belongs to its thread.
pub(super) struct CacheOwner {
    core: CacheCore,
    spec: ModelSpec,
    paper: Paper,
    places: BTreeMap<u64, Place>,
    prompts: BTreeMap<u64, &'static Prompt>,
    /// Closes that came before their sequence had begun.
    closes: Vec<&'static Prompt>,
    /// What the cache wants to hear when edits are carried out.
    clearings: Vec<u64>,
    /// Segments that the pager was offered and has not answered for.
    pub(super) offered: Vec<SegmentId>,
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
            paper: Paper::default(),
            places: BTreeMap::new(),
            prompts: BTreeMap::new(),
            closes: Vec::new(),
            clearings: Vec::new(),
            offered: Vec::new(),
        }
    }

    /// What the model is.
    pub(super) fn spec(&self) -> ModelSpec {
        self.spec.clone()
    }

    pub(super) fn place(&self, prompt: &Prompt) -> Option<Place> {
        self.places.get(&prompt.name).copied()
    }

    /// Does what it is asked. Returns what the pager is to be told.
    pub(super) fn ask(&mut self, ask: Ask) -> Vec<pager::Message> {
        match ask {
            Ask::Begin(prompt) => {
                self.prompts.insert(prompt.name, prompt);
                self.places.insert(prompt.name, Place::Waits);
                self.tell(Message::Begin(Begin {
                    tokens_max: prompt.granted,
                    ..Begin::new(prompt.sequence(), prompt.list(), 0)
                }))
            }
            Ask::Close(prompt) => match self.places[&prompt.name] {
                Place::Live(slot) => self.close(prompt, slot),
                Place::Waits | Place::Refused => {
                    self.closes.push(prompt);
                    Vec::new()
                }
                Place::Over => unreachable!("it is closed once"),
            },
        }
    }

    /// The pager has news.
    pub(super) fn hear(&mut self, told: Told) -> Vec<pager::Message> {
        if let Told::Kept { segment, .. } | Told::Refused { segment } = told {
            self.offered.retain(|offered| *offered != segment);
        }
        let copy = match told {
            Told::Take { segment, copy } => Some((segment, copy)),
            _ => None,
        };
        let outbox = self.tell(Message::Paged(told));
        let withdrawn = |message: &pager::Message| match (message, copy) {
            (pager::Message::Withdraw { copy }, Some((_, taken))) => *copy == taken,
            _ => false,
        };
        if let (true, Some((segment, _))) = (outbox.iter().any(withdrawn), copy) {
            self.offered.retain(|offered| *offered != segment);
        }
        outbox
    }

    /// What the device hands over under this name, if it is to.
    pub(super) fn handed_over(&mut self, copy: CopyId) -> Option<(CopyId, Written)> {
        self.paper.leaving.remove_entry(&copy)
    }

    /// A parcel for the device has come.
    pub(super) fn arrived(&mut self, copy: CopyId, parcel: Written) {
        self.paper.arrived.entry(copy).or_default().push(parcel);
    }

    /// A parcel that has come is thrown away.
    pub(super) fn discarded(&mut self, copy: CopyId) {
        let parcel = self.paper.take_parcel(copy);
        assert!(parcel.is_some(), "what is thrown away had come");
    }

    /// Whether those who wait could begin by now: they ask again.
    pub(super) fn ask_again(&mut self) -> Vec<pager::Message> {
        let refused = self.places.iter().find(|(_, at)| **at == Place::Refused);
        match refused.map(|(name, _)| *name) {
            None => Vec::new(),
            Some(name) => self.ask(Ask::Begin(self.prompts[&name])),
        }
    }

    /// Evicts what nobody holds.
    pub(super) fn clear(&mut self) -> Vec<pager::Message> {
        self.tell(Message::Clear { salt: None })
    }

    /// Nothing is held, by anybody.
    pub(super) fn check_empty(&self) {
        let stats = self.core.stats();
        assert_eq!((stats.segments, stats.reserved_bytes), (0, 0), "{stats:?}");
        assert_eq!(self.paper.held(), (0, 0), "nothing is left on the device");
        assert!(self.paper.arrived.is_empty(), "nor on its way to it");
    }

    fn close(&mut self, prompt: &'static Prompt, slot: SlotId) -> Vec<pager::Message> {
        let (path, _) = self.paper.read(slot, &Salt::default(), &prompt.list());
        let computed = prompt.tokens as usize;
        self.paper.compute(slot, computed - path);
        let mut outbox = self.tell(Message::Close {
            sequence: prompt.sequence(),
            computed,
            generated: Vec::new(),
        });
        self.places.insert(prompt.name, Place::Over);
        outbox.extend(self.ask_again());
        outbox
    }

    fn tell(&mut self, message: Message) -> Vec<pager::Message> {
        let effects = self.core.handle(Duration::ZERO, message);
        for effect in effects.expect("the message makes sense") {
            self.follow(effect);
        }
        self.core.check_integrity();
        let stats = self.core.stats();
        let on_device = self.paper.segment_bytes(&self.spec);
        assert_eq!(
            on_device, stats.sealed_bytes,
            "what the cache says is there"
        );
        let mut outbox = self.core.take_outbox();
        for message in &outbox {
            if let pager::Message::Offer(offer) = message {
                self.offered.push(offer.lease.segment());
            }
        }
        // The device has carried everything out.
        for number in std::mem::take(&mut self.clearings) {
            outbox.extend(self.tell(Message::Cleared { number }));
        }
        // Whoever has begun meanwhile, and was to be closed.
        for prompt in std::mem::take(&mut self.closes) {
            outbox.extend(self.ask(Ask::Close(prompt)));
        }
        outbox
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Begun { sequence, slot, .. } => {
                let before = self.places.insert(sequence.0, Place::Live(slot));
                assert_eq!(before, Some(Place::Waits), "who asked begins, once");
            }
            Effect::NoRoom { sequence } => {
                self.places.insert(sequence.0, Place::Refused);
            }
            Effect::Edit(edit) => {
                let (places, prompts) = (&self.places, &self.prompts);
                self.paper.edit(&edit, |slot| {
                    let has_it = |name: &&u64| places[*name] == Place::Live(slot);
                    let name = places.keys().find(has_it).expect("a slot is somebody's");
                    (Salt::default(), prompts[name].list())
                });
            }
            Effect::Clears { number } => self.clearings.push(number),
            Effect::Waits { .. } | Effect::Checkpoint { .. } => {}
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
