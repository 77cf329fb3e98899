//! The system under test: the cache's core and the device's table, driven by the
//! smallest scheduler that there can be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use motet::cache::{CacheError, CacheStats, Salt};
use motet::device::Table;
use motet::model::oracle::{Oracle, OracleConfig, Soloist};
use motet::model::{Model, ModelSpec};
use motet::{SequenceId, SlotId, TokenId};
use motet_core::cache::{Begin, Effect, Message, TreeView};
use motet_core::protocol::Edit;

use crate::mirror::Mirror;
use crate::mutant::Mutant;
use crate::naive::Naive;
use crate::setup::{BLOCK_TOKENS, CONTEXT_TOKENS, Setup};
use crate::shadow::Shadow;

/// Live sequences at most.
pub(crate) const SEQUENCES_MAX: usize = 8;

/// How often each kind of operation was carried out, refused requests included.
pub(crate) type Tally = BTreeMap<&'static str, usize>;

pub(crate) struct System {
    pub(crate) setup: Setup,
    pub(crate) spec: ModelSpec,
    pub(crate) oracle: OracleConfig,
    pub(crate) model: Oracle,
    pub(crate) table: Table<Oracle>,
    pub(crate) cache: Mutant,
    pub(crate) shadow: Shadow,
    pub(crate) naive: Naive,
    pub(crate) mirror: Mirror,
    pub(crate) sequences: BTreeMap<SequenceId, Sequence>,
    pub(crate) sequences_made: u64,
    pub(crate) pins_made: u64,
    /// Answers of the cache that nobody has looked at.
    pub(crate) answers: Vec<Effect>,
    /// Edits that the device has not carried out.
    pub(crate) pending: Vec<Edit>,
    /// Resets of the device so far.
    pub(crate) resets: u64,
    pub(crate) now: Duration,
    pub(crate) operations: usize,
    pub(crate) tally: Tally,
    /// What came of them.
    pub(crate) consequences: Tally,
}

/// A live sequence, as its scheduler knows it.
pub(crate) struct Sequence {
    pub(crate) salt: usize,
    pub(crate) tokens: Vec<TokenId>,
    /// Of its tokens, those that the cache was told of.
    pub(crate) known: usize,
    pub(crate) computed: usize,
    /// Tokens up to which it may be published.
    pub(crate) exact: usize,
    /// Tokens that its slot was granted, or is to be granted at its start.
    pub(crate) tokens_max: usize,
    pub(crate) keep: Option<usize>,
    /// What of `keep` the cache was told.
    pub(crate) told_keep: Option<usize>,
    pub(crate) restore_points: Vec<usize>,
    pub(crate) priority: u8,
    pub(crate) phase: Phase,
    pub(crate) checkpoints: BTreeSet<usize>,
    /// Restore points that it has not reached.
    pub(crate) asked: Vec<usize>,
    pub(crate) truth: Soloist,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There was no room, or its state was lost.
    Queued,
    /// The cache has been asked.
    Asked,
    Waits {
        leader: Option<SequenceId>,
        at: usize,
    },
    Running(SlotId),
}

/// What can be seen of the core.
#[derive(Debug, PartialEq)]
pub(crate) struct Snapshot {
    core: String,
    stats: CacheStats,
    trees: [TreeView; 2],
}

pub(crate) fn salt(index: usize) -> Salt {
    match index {
        0 => Salt::default(),
        _ => Salt::new("a tenant"),
    }
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

    /// Tokens of it that may be published.
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
            shadow: Shadow::new(&spec),
            setup: setup.clone(),
            oracle,
            model,
            spec,
            table: Table::new(),
            naive: Naive::default(),
            mirror: Mirror::default(),
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
        self.setup.is_roomy() && self.spec.resumes_anywhere()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let core = self.cache.core();
        Snapshot {
            core: format!("{core:?}"),
            stats: core.stats(),
            trees: [core.tree(&salt(0)), core.tree(&salt(1))],
        }
    }

    pub(crate) fn send(&mut self, message: Message) -> Result<(), CacheError> {
        self.naive.expire(self.now);
        let handled = self.cache.handle(self.now, message);
        for event in self.cache.block_events() {
            self.mirror.hear(event, BLOCK_TOKENS);
        }
        self.take_in(handled?);
        Ok(())
    }

    /// Sends what must be refused. The core must be as it was.
    pub(crate) fn refused(&mut self, message: Message) -> CacheError {
        let before = self.snapshot();
        let text = format!("{message:?}");
        let Err(error) = self.send(message) else {
            panic!("a mistake is refused: {text}");
        };
        assert!(
            before == self.snapshot(),
            "a refusal ({error}) leaves the core unchanged"
        );
        error
    }

    fn take_in(&mut self, effects: Vec<Effect>) {
        let mut owners = BTreeMap::new();
        for effect in &effects {
            if let Effect::Begun { sequence, slot, .. } = effect {
                let newcomer = self.sequences.get(sequence);
                owners.insert(*slot, newcomer.expect("who begins is alive").salt);
            }
        }
        let mut waits = None;
        for effect in effects {
            match effect {
                Effect::Edit(edit) => {
                    let owner = match &edit {
                        Edit::Open { slot, .. } => owners.get(slot).copied(),
                        _ => None,
                    };
                    self.shadow.edit(&edit, owner);
                    self.note_consequence(name_of(&edit));
                    self.pending.push(edit);
                }
                Effect::Begun {
                    sequence,
                    slot,
                    cached_tokens,
                    ..
                } => self.begun(sequence, slot, cached_tokens),
                Effect::Waits { sequence, tokens } => {
                    let newcomer = self.answered(sequence);
                    newcomer.phase = Phase::Waits {
                        leader: None,
                        at: tokens,
                    };
                    waits = Some(sequence);
                    self.note_consequence("a newcomer waits");
                }
                Effect::NoRoom { sequence } => self.no_room(sequence),
                Effect::Clears { .. } => unreachable!("this cache has no pager"),
                Effect::Lost { .. } => unreachable!("what is lost is reset"),
                Effect::Grown { .. } | Effect::NoGrowth { .. } | Effect::Resident { .. } => {
                    self.answers.push(effect);
                }
                Effect::Checkpoint { sequence, at } => {
                    if let Some(newcomer) = waits.take() {
                        self.follow(newcomer, sequence, at);
                    }
                    let leader = self.sequences.get_mut(&sequence);
                    leader.expect("a leader is alive").checkpoints.insert(at);
                }
            }
        }
    }

    /// A sequence that the cache has been asked for, and answers for now.
    fn answered(&mut self, sequence: SequenceId) -> &mut Sequence {
        let newcomer = self
            .sequences
            .get_mut(&sequence)
            .expect("who begins is alive");
        let asked = matches!(newcomer.phase, Phase::Asked | Phase::Waits { .. });
        assert!(asked, "{sequence} is answered once");
        newcomer
    }

    fn begun(&mut self, sequence: SequenceId, slot: SlotId, cached_tokens: usize) {
        if cached_tokens > 0 {
            self.note_consequence("cached tokens are used");
        }
        let mut truth = Soloist::new(&self.oracle);
        let newcomer = self.answered(sequence);
        let most = (newcomer.tokens.len() - 1).min(newcomer.tokens_max);
        assert!(
            cached_tokens <= most,
            "at least one token is left to evaluate"
        );
        let cached = newcomer.tokens[..cached_tokens].to_vec();
        let wanted = newcomer.tokens[..most].to_vec();
        for token in &cached {
            truth.evaluate(*token);
        }
        newcomer.truth = truth;
        newcomer.phase = Phase::Running(slot);
        newcomer.computed = cached_tokens;
        // What a later grant, or what follows the prompt, brings within reach is none.
        newcomer.asked = newcomer.restore_points.clone();
        let granted = newcomer.known.min(newcomer.tokens_max);
        newcomer.asked.retain(|at| *at <= granted);
        let of = newcomer.salt;
        let spelled = self.shadow.slots[&slot].spelled();
        assert_eq!(spelled, cached, "cached tokens are those of the path");
        assert!(
            self.naive.may_be_cached(of, &cached),
            "what is cached was published under this salt"
        );
        if self.is_predictable() {
            let expected = self.naive.cached_tokens(of, &wanted);
            assert_eq!(cached_tokens, expected, "all that is cached is used");
        }
    }

    fn no_room(&mut self, sequence: SequenceId) {
        self.note_consequence("no room to begin");
        let alone = self.shadow.slots.is_empty() && self.naive.pins.is_empty();
        let budget = self.setup.cache(&self.spec).device_bytes_max;
        let spec = self.spec.clone();
        let roomy = self.setup.is_roomy();
        let newcomer = self.answered(sequence);
        newcomer.phase = Phase::Queued;
        let fits = spec.tail_bytes(newcomer.tokens_max) <= budget;
        assert!(!(alone && fits), "who is alone and fits has room");
        assert!(!roomy, "there is room for everything");
    }

    /// The newcomer waits for the leader to have computed `at` tokens.
    fn follow(&mut self, sequence: SequenceId, leader: SequenceId, at: usize) {
        let of = &self.sequences[&leader];
        assert!(of.slot().is_some(), "a leader runs");
        let newcomer = &self.sequences[&sequence];
        assert_eq!(of.salt, newcomer.salt, "salts never mix");
        assert!(
            at < newcomer.tokens.len(),
            "one waits for a part of its prompt"
        );
        assert_eq!(
            of.tokens.get(..at),
            Some(&newcomer.tokens[..at]),
            "one waits for what is its own prompt's"
        );
        let phase = Phase::Waits {
            leader: Some(leader),
            at,
        };
        self.answered(sequence).phase = phase;
    }

    /// A new sequence, which the cache has not heard of.
    pub(crate) fn enlist(&mut self, sequence: Sequence) -> SequenceId {
        self.sequences_made += 1;
        let id = SequenceId(self.sequences_made);
        self.sequences.insert(id, sequence);
        id
    }

    pub(crate) fn new_sequence(&self, of: usize, tokens: Vec<TokenId>, room: usize) -> Sequence {
        Sequence {
            salt: of,
            known: 0,
            computed: 0,
            exact: usize::MAX,
            tokens_max: (tokens.len() + room).min(CONTEXT_TOKENS),
            tokens,
            keep: None,
            told_keep: None,
            restore_points: Vec::new(),
            priority: 0,
            phase: Phase::Queued,
            checkpoints: BTreeSet::new(),
            asked: Vec::new(),
            truth: Soloist::new(&self.oracle),
        }
    }

    /// Begins a sequence that is queued, with all tokens that it has.
    pub(crate) fn begin(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id).expect("who begins is alive");
        assert_eq!(sequence.phase, Phase::Queued, "who begins is queued");
        sequence.phase = Phase::Asked;
        sequence.told_keep = sequence.keep.filter(|keep| *keep < sequence.tokens_max);
        sequence.known = sequence.tokens.len();
        sequence.computed = 0;
        sequence.exact = usize::MAX;
        sequence.checkpoints.clear();
        let promised = self.look_before(id);
        let begin = self.begin_message(id);
        self.send(begin).expect("a new sequence may begin");
        assert_ne!(
            self.sequences[&id].phase,
            Phase::Asked,
            "a newcomer is answered"
        );
        self.check_promise(id, promised);
    }

    pub(crate) fn begin_message(&self, id: SequenceId) -> Message {
        let sequence = &self.sequences[&id];
        Message::Begin(Begin {
            sequence: id,
            salt: salt(sequence.salt),
            tokens: Arc::from(&sequence.tokens[..]),
            tokens_max: sequence.tokens_max,
            keep: sequence.told_keep,
            restore_points: sequence.restore_points.clone(),
            priority: sequence.priority,
            token_time: None,
            afresh: false,
        })
    }
}

fn name_of(edit: &Edit) -> &'static str {
    match edit {
        Edit::Open { .. } => "edit: open",
        Edit::Seal { .. } => "edit: seal",
        Edit::Adopt { .. } => "edit: adopt",
        Edit::Split { .. } => "edit: split",
        Edit::Merge { .. } => "edit: merge",
        Edit::Replace { .. } => "edit: replace",
        Edit::Remove { .. } => "edit: remove",
        Edit::Retire { .. } => "edit: retire",
        Edit::Close { .. } => "edit: close",
        Edit::Drop { .. } => "edit: drop",
        Edit::Export { .. } => "edit: export",
        Edit::CopyOut { .. } => "edit: copy out",
        Edit::Import { .. } => "edit: import",
    }
}
