//! The system under test: the cache's core and the device's table, driven by a minimal
//! scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use motet_core::cache::{CacheCore, CacheError, CacheStats, NodeView};
use motet_core::cache::{Effect, Message, OpenSlot, TreeView};
use motet_device::Table;
use motet_model::oracle::{Oracle, OracleConfig, ReferenceRun};
use motet_model::{Model, ModelSpec};
use motet_protocol::{ActiveAdapter, AdapterKey, Edit, PrefixKey, Salt};
use motet_protocol::{SequenceId, SlotId, TokenId};
use motet_testkit::block_follower::BlockFollower;
use motet_testkit::naive::NaiveCache;
use motet_testkit::paper_device::{PaperDevice, PaperSlot};

use crate::mutant::Mutant;
use crate::setup::{BLOCK_TOKENS, CONTEXT_TOKENS, Setup};

/// Most live sequences.
pub(crate) const SEQUENCES_MAX: usize = 8;

/// How often each kind of operation was carried out, including rejected requests.
pub(crate) type Tally = BTreeMap<&'static str, usize>;

pub(crate) struct System {
    pub(crate) setup: Setup,
    pub(crate) spec: ModelSpec,
    pub(crate) oracle: OracleConfig,
    pub(crate) model: Oracle,
    pub(crate) table: Table<Oracle>,
    pub(crate) cache: Mutant,
    pub(crate) device: PaperDevice,
    pub(crate) naive: NaiveCache,
    pub(crate) block_follower: BlockFollower,
    pub(crate) sequences: BTreeMap<SequenceId, Sequence>,
    pub(crate) sequences_made: u64,
    pub(crate) pins_made: u64,
    /// Answers of the cache that were not read yet.
    pub(crate) answers: Vec<Effect>,
    /// Edits that the device has not carried out.
    pub(crate) pending: Vec<Edit>,
    /// Resets of the device so far.
    pub(crate) resets: u64,
    pub(crate) now: Duration,
    pub(crate) operations: usize,
    pub(crate) tally: Tally,
    /// Their consequences.
    pub(crate) consequences: Tally,
}

/// A live sequence, as its scheduler knows it.
pub(crate) struct Sequence {
    pub(crate) key: usize,
    pub(crate) tokens: Vec<TokenId>,
    /// Tokens that were reported to the cache.
    pub(crate) known: usize,
    pub(crate) computed: usize,
    /// Tokens up to which it may be published.
    pub(crate) exact: usize,
    /// Tokens in its slot's grant, or in the grant that it will start with.
    pub(crate) tokens_max: usize,
    pub(crate) keep: Option<usize>,
    /// The value of `keep` that the cache was sent.
    pub(crate) sent_keep: Option<usize>,
    pub(crate) restore_points: Vec<usize>,
    pub(crate) turn_end: Option<usize>,
    pub(crate) retention: u8,
    pub(crate) phase: Phase,
    pub(crate) checkpoints: BTreeSet<usize>,
    /// Computed tokens at which the cache wants a report.
    pub(crate) report_at: Option<usize>,
    /// Computed tokens when it last could report them.
    pub(crate) reported: usize,
    /// Restore points that it has not reached.
    pub(crate) asked: Vec<usize>,
    pub(crate) reference_run: ReferenceRun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It did not fit, or its state was lost.
    Queued,
    /// The cache has been asked.
    Asked,
    Deferred {
        leader: Option<SequenceId>,
        at: usize,
    },
    Running(SlotId),
}

/// The observable state of the core.
#[derive(Debug, PartialEq)]
pub(crate) struct Snapshot {
    core: String,
    stats: CacheStats,
    trees: [TreeView; KEYS],
}

/// The keys of sequences, by index: of two salts, and of an adapter under the first.
pub(crate) const KEYS: usize = 3;
/// The salts among them come first.
pub(crate) const SALTS: usize = 2;

pub(crate) fn key(index: usize) -> PrefixKey {
    let adapter = AdapterKey {
        digest: [7; 32],
        scale: 1.0_f32.to_bits(),
    };
    PrefixKey {
        salt: match index {
            1 => Salt::new("a tenant"),
            _ => Salt::default(),
        },
        adapter: (index == 2).then(|| ActiveAdapter::whole(adapter)),
    }
}

/// The inverse of [`key`].
pub(crate) fn key_index(of: &PrefixKey) -> usize {
    let index = (0..KEYS).find(|index| key(*index) == *of);
    index.expect("a key of these tests")
}

/// The nodes that are cached under a key.
pub(crate) fn tree(core: &CacheCore, of: usize) -> TreeView {
    let key = key(of);
    let view = core.tree(&key.salt);
    let adapter = key.adapter.map(|adapter| adapter.key);
    let mut places = Vec::new();
    let mut nodes = Vec::new();
    for node in view.nodes {
        places.push(nodes.len());
        if node.adapter == adapter {
            let parent = node.parent.map(|parent| places[parent]);
            nodes.push(NodeView { parent, ..node });
        }
    }
    TreeView { nodes }
}

impl Sequence {
    pub(crate) fn slot(&self) -> Option<SlotId> {
        match self.phase {
            Phase::Running(slot) => Some(slot),
            _ => None,
        }
    }

    pub(crate) fn generated(&self) -> Vec<TokenId> {
        self.tokens[self.known..].to_vec()
    }

    /// Its tokens that may be published.
    pub(crate) fn publishable(&self) -> &[TokenId] {
        &self.tokens[..self.computed.min(self.exact)]
    }

    pub(crate) fn is_full(&self) -> bool {
        self.keep.is_none() && self.tokens.len() >= self.tokens_max
    }
}

impl System {
    pub(crate) fn new(setup: &Setup) -> Self {
        let oracle = setup.oracle();
        let model = Oracle::new(oracle.clone()).expect("a valid oracle");
        let spec = model.spec().clone();
        Self {
            cache: Mutant::new(setup, &spec),
            device: PaperDevice::new(&spec),
            naive: NaiveCache::new(&spec),
            setup: setup.clone(),
            oracle,
            model,
            spec,
            table: Table::new(),
            block_follower: BlockFollower::default(),
            sequences: BTreeMap::new(),
            sequences_made: 0,
            pins_made: 0,
            answers: Vec::new(),
            pending: Vec::new(),
            resets: 0,
            now: Duration::ZERO,
            operations: 0,
            tally: Tally::new(),
            consequences: Tally::new(),
        }
    }

    pub(crate) fn note(&mut self, kind: &'static str) {
        *self.tally.entry(kind).or_insert(0) += 1;
    }

    pub(crate) fn note_consequence(&mut self, kind: &'static str) {
        *self.consequences.entry(kind).or_insert(0) += 1;
    }

    /// Whether the naive model knows exactly what is cached.
    pub(crate) fn is_predictable(&self) -> bool {
        self.setup.has_ample_memory() && self.spec.resumes_anywhere()
    }

    /// An open slot of the device.
    pub(crate) fn slot(&self, slot: SlotId) -> &PaperSlot {
        let slot = self.device.slot(slot);
        slot.expect("a running sequence has a slot")
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let core = self.cache.core();
        Snapshot {
            core: format!("{core:?}"),
            stats: core.stats(),
            trees: std::array::from_fn(|of| tree(core, of)),
        }
    }

    pub(crate) fn send(&mut self, message: Message) -> Result<(), CacheError> {
        self.naive.expire(self.now);
        let handled = self.cache.handle(self.now, message);
        for event in self.cache.block_events() {
            self.block_follower.apply(event, BLOCK_TOKENS);
        }
        self.apply_effects(handled?);
        Ok(())
    }

    /// Sends a message that must fail. The core must not change.
    pub(crate) fn expect_error(&mut self, message: Message) -> CacheError {
        let before = self.snapshot();
        let text = format!("{message:?}");
        let Err(error) = self.send(message) else {
            panic!("a mistake is rejected: {text}");
        };
        assert!(
            before == self.snapshot(),
            "an error ({error}) leaves the core unchanged"
        );
        error
    }

    fn apply_effects(&mut self, effects: Vec<Effect>) {
        let mut owners = BTreeMap::new();
        for effect in &effects {
            if let Effect::SlotOpened { sequence, slot, .. } = effect {
                let pending_sequence = self.sequences.get(sequence);
                owners.insert(
                    *slot,
                    key(pending_sequence.expect("a starting sequence is alive").key),
                );
            }
        }
        let mut waits = None;
        for effect in effects {
            match effect {
                Effect::Edit(edit) => {
                    let owner = match &edit {
                        Edit::Open { slot, .. } => owners.get(slot),
                        _ => None,
                    };
                    self.device.edit(&edit, owner);
                    self.note_consequence(name_of(&edit));
                    self.pending.push(edit);
                }
                Effect::SlotOpened {
                    sequence,
                    slot,
                    cached_tokens,
                    ..
                } => self.slot_opened(sequence, slot, cached_tokens),
                Effect::Deferred { sequence, tokens } => {
                    let pending_sequence = self.answered(sequence);
                    pending_sequence.phase = Phase::Deferred {
                        leader: None,
                        at: tokens,
                    };
                    waits = Some(sequence);
                    self.note_consequence("a new sequence waits");
                }
                Effect::OutOfMemory { sequence } => self.out_of_memory(sequence),
                Effect::Fence { .. } => unreachable!("this cache has no pager"),
                Effect::Lost { .. } => unreachable!("a lost device is reset"),
                Effect::GrantExtended { .. }
                | Effect::GrantDenied { .. }
                | Effect::CachedPrefix { .. } => {
                    self.answers.push(effect);
                }
                Effect::Checkpoint { sequence, at, .. } => {
                    if let Some(pending_sequence) = waits.take() {
                        self.follow(pending_sequence, sequence, at);
                    }
                    let leader = self.sequences.get_mut(&sequence);
                    leader.expect("a leader is alive").checkpoints.insert(at);
                }
                Effect::ReportAt { sequence, at } => {
                    // A late follower's request may cross with the sequence's end.
                    if let Some(sequence) = self.sequences.get_mut(&sequence) {
                        sequence.report_at = Some(at);
                    }
                }
            }
        }
    }

    /// A sequence that the cache now answers for.
    fn answered(&mut self, sequence: SequenceId) -> &mut Sequence {
        let pending_sequence = self
            .sequences
            .get_mut(&sequence)
            .expect("a starting sequence is alive");
        let asked = matches!(
            pending_sequence.phase,
            Phase::Asked | Phase::Deferred { .. }
        );
        assert!(asked, "{sequence} is answered once");
        pending_sequence
    }

    fn slot_opened(&mut self, sequence: SequenceId, slot: SlotId, cached_tokens: usize) {
        if cached_tokens > 0 {
            self.note_consequence("cached tokens are used");
        }
        let mut reference_run = ReferenceRun::new(&self.oracle);
        let pending_sequence = self.answered(sequence);
        let most = (pending_sequence.tokens.len() - 1).min(pending_sequence.tokens_max);
        assert!(
            cached_tokens <= most,
            "at least one token is left to evaluate"
        );
        let cached = pending_sequence.tokens[..cached_tokens].to_vec();
        let reusable = pending_sequence.tokens[..most].to_vec();
        for token in &cached {
            reference_run.evaluate(*token);
        }
        pending_sequence.reference_run = reference_run;
        pending_sequence.phase = Phase::Running(slot);
        pending_sequence.computed = cached_tokens;
        pending_sequence.reported = cached_tokens;
        // Restore points beyond the first grant, or beyond the prompt, are not made.
        pending_sequence.asked = pending_sequence.restore_points.clone();
        let granted = pending_sequence.known.min(pending_sequence.tokens_max);
        pending_sequence.asked.retain(|at| *at <= granted);
        let of = pending_sequence.key;
        let spelled = self.slot(slot).spelled();
        assert_eq!(spelled, cached, "cached tokens are those of the path");
        assert!(
            self.naive.may_be_cached(of, &cached),
            "cached tokens were published under this salt"
        );
        if self.is_predictable() {
            let expected = self.naive.cached_tokens(of, &reusable);
            assert_eq!(cached_tokens, expected, "all cached tokens are used");
        }
    }

    fn out_of_memory(&mut self, sequence: SequenceId) {
        self.note_consequence("no memory to start");
        let alone = self.device.held().1 == 0 && self.naive.pins.is_empty();
        let budget = self.setup.cache(&self.spec).device_bytes_max;
        let spec = self.spec.clone();
        let ample_memory = self.setup.has_ample_memory();
        let pending_sequence = self.answered(sequence);
        pending_sequence.phase = Phase::Queued;
        let fits = spec.tail_bytes(pending_sequence.tokens_max) <= budget;
        assert!(
            !(alone && fits),
            "a sequence that is alone and fits gets a slot"
        );
        assert!(!ample_memory, "everything fits");
    }

    /// The new sequence waits until the leader has computed `at` tokens.
    fn follow(&mut self, sequence: SequenceId, leader: SequenceId, at: usize) {
        let of = &self.sequences[&leader];
        assert!(of.slot().is_some(), "a leader runs");
        let pending_sequence = &self.sequences[&sequence];
        assert_eq!(of.key, pending_sequence.key, "keys never mix");
        assert!(
            at < pending_sequence.tokens.len(),
            "a sequence waits for a part of its prompt"
        );
        assert_eq!(
            of.tokens.get(..at),
            Some(&pending_sequence.tokens[..at]),
            "a sequence waits for tokens of its own prompt"
        );
        let phase = Phase::Deferred {
            leader: Some(leader),
            at,
        };
        self.answered(sequence).phase = phase;
    }

    /// Adds a sequence that the cache does not know yet.
    pub(crate) fn add_sequence(&mut self, sequence: Sequence) -> SequenceId {
        self.sequences_made += 1;
        let id = SequenceId(self.sequences_made);
        self.sequences.insert(id, sequence);
        id
    }

    pub(crate) fn new_sequence(
        &self,
        of: usize,
        tokens: Vec<TokenId>,
        headroom: usize,
    ) -> Sequence {
        Sequence {
            key: of,
            known: 0,
            computed: 0,
            exact: usize::MAX,
            tokens_max: (tokens.len() + headroom).min(CONTEXT_TOKENS),
            tokens,
            keep: None,
            sent_keep: None,
            restore_points: Vec::new(),
            turn_end: None,
            retention: 0,
            phase: Phase::Queued,
            checkpoints: BTreeSet::new(),
            report_at: None,
            reported: 0,
            asked: Vec::new(),
            reference_run: ReferenceRun::new(&self.oracle),
        }
    }

    /// Opens a slot for a queued sequence, with all its tokens.
    pub(crate) fn open_slot(&mut self, id: SequenceId) {
        let sequence = self
            .sequences
            .get_mut(&id)
            .expect("a starting sequence is alive");
        assert_eq!(
            sequence.phase,
            Phase::Queued,
            "a starting sequence is queued"
        );
        sequence.phase = Phase::Asked;
        sequence.sent_keep = sequence.keep.filter(|keep| *keep < sequence.tokens_max);
        sequence.known = sequence.tokens.len();
        sequence.computed = 0;
        sequence.exact = usize::MAX;
        sequence.checkpoints.clear();
        sequence.report_at = None;
        let promised = self.probe_before(id);
        let open_slot = self.open_slot_message(id);
        self.send(open_slot).expect("a new sequence may begin");
        assert_ne!(
            self.sequences[&id].phase,
            Phase::Asked,
            "a new sequence gets an answer"
        );
        self.check_promise(id, promised);
    }

    pub(crate) fn open_slot_message(&self, id: SequenceId) -> Message {
        let sequence = &self.sequences[&id];
        Message::OpenSlot(OpenSlot {
            sequence: id,
            key: key(sequence.key),
            tokens: Arc::from(&sequence.tokens[..]),
            tokens_max: sequence.tokens_max,
            keep: sequence.sent_keep,
            restore_points: sequence.restore_points.clone(),
            turn_end: sequence.turn_end,
            retention: sequence.retention,
            token_time: None,
            ignore_cache: false,
            reuse_max: None,
        })
    }
}

fn name_of(edit: &Edit) -> &'static str {
    match edit {
        Edit::Open { .. } => "edit: open",
        Edit::Seal { .. } => "edit: seal",
        Edit::ShareExisting { .. } => "edit: share existing",
        Edit::Split { .. } => "edit: split",
        Edit::Merge { .. } => "edit: merge",
        Edit::Replace { .. } => "edit: replace",
        Edit::Strip { .. } => "edit: strip",
        Edit::Remove { .. } => "edit: remove",
        Edit::SealInPlace { .. } => "edit: seal in place",
        Edit::Close { .. } => "edit: close",
        Edit::Drop { .. } => "edit: drop",
        Edit::Export { .. } => "edit: export",
        Edit::CopyOut { .. } => "edit: copy out",
        Edit::Import { .. } => "edit: import",
    }
}
