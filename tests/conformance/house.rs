//! The cache's core with a device of oracles below it, no threads and no actors.
//!
//! Whatever a sequence is fed, each of its rows is compared with what a sequence gives
//! that evaluated exactly those tokens and has no cache. So "the slot holds these
//! tokens" is not believed but read back, layer by layer, from the cached state.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use motet::cache::{CacheError, Salt};
use motet::config::CacheConfig;
use motet::device::Table;
use motet::model::oracle::{Oracle, OracleConfig, Soloist};
use motet::model::{LayerKind, Readout, Want};
use motet::{SequenceId, SlotId, TokenId};
use motet_core::cache::trie::common_prefix;
use motet_core::cache::{Begin, CacheCore, Effect, Message, NodeView};
use motet_core::protocol::{Input, PlannedSpan, Work};

/// A cache, a device, and the truth about every live sequence.
pub(crate) struct House {
    pub(crate) oracle: OracleConfig,
    pub(crate) core: CacheCore,
    model: Oracle,
    table: Table<Oracle>,
    asked: BTreeMap<SequenceId, Arc<[TokenId]>>,
    live: BTreeMap<SequenceId, Live>,
    begun: u64,
    pub(crate) device_bytes_max: usize,
}

struct Live {
    slot: SlotId,
    /// Tokens of the prompt, or those of them that were not removed.
    known: usize,
    /// Tokens that were evaluated after the prompt, for the cache to learn.
    generated: Vec<TokenId>,
    cached: usize,
    checkpoints: BTreeSet<usize>,
    truth: Soloist,
}

/// What a newcomer was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) sequence: SequenceId,
    /// Tokens that it need not evaluate.
    pub(crate) cached: usize,
}

impl House {
    pub(crate) fn new(layers: &[LayerKind]) -> Self {
        Self::with(layers, |_| {})
    }

    /// A house with some settings of its own.
    pub(crate) fn with(layers: &[LayerKind], settings: impl Fn(&mut CacheConfig)) -> Self {
        let oracle = OracleConfig {
            context_tokens_max: 4096,
            tail_block_tokens: 1,
            can_shift: true,
            ..OracleConfig::with_layers(layers)
        };
        Self::of(oracle, settings)
    }

    pub(crate) fn of(oracle: OracleConfig, settings: impl Fn(&mut CacheConfig)) -> Self {
        let mut config = CacheConfig {
            device_bytes_max: 1 << 15,
            share_tokens_min: 1,
            ..CacheConfig::default()
        };
        settings(&mut config);
        let model = Oracle::new(oracle.clone()).expect("a valid configuration");
        let device_bytes_max = config.device_bytes_max;
        let spec = motet::model::Model::spec(&model).clone();
        Self {
            core: CacheCore::new(spec, config),
            oracle,
            model,
            table: Table::new(),
            asked: BTreeMap::new(),
            live: BTreeMap::new(),
            begun: 0,
            device_bytes_max,
        }
    }

    /// Begins a sequence that finds room and need not wait.
    pub(crate) fn begin(&mut self, tokens: &[TokenId], restore_points: &[usize]) -> Begun {
        self.begin_with(tokens, |begin| {
            begin.restore_points = restore_points.to_vec();
            begin.tokens_max += 64;
        })
    }

    pub(crate) fn begin_with(
        &mut self,
        tokens: &[TokenId],
        settings: impl FnOnce(&mut Begin),
    ) -> Begun {
        let (sequence, effects) = self.try_begin(tokens, settings);
        self.begun(sequence)
            .unwrap_or_else(|| panic!("{sequence} does not begin: {effects:?}"))
    }

    /// Asks for a slot and says what came of it.
    pub(crate) fn try_begin(
        &mut self,
        tokens: &[TokenId],
        settings: impl FnOnce(&mut Begin),
    ) -> (SequenceId, Vec<Effect>) {
        self.begun += 1;
        let sequence = SequenceId(self.begun);
        let mut begin = Begin::new(sequence, tokens, 0);
        settings(&mut begin);
        self.asked.insert(sequence, Arc::clone(&begin.tokens));
        let effects = self.handle(Message::Begin(begin));
        (sequence, effects.expect("a newcomer may always ask"))
    }

    /// What a live sequence was given at its beginning.
    pub(crate) fn begun(&self, sequence: SequenceId) -> Option<Begun> {
        let live = self.live.get(&sequence)?;
        Some(Begun {
            sequence,
            cached: live.cached,
        })
    }

    /// Offsets at which a sequence is still to be sealed.
    pub(crate) fn checkpoints(&self, sequence: SequenceId) -> Vec<usize> {
        self.live[&sequence].checkpoints.iter().copied().collect()
    }

    /// The tokens whose state a sequence's slot holds, as its rows have shown.
    pub(crate) fn tokens(&self, sequence: SequenceId) -> &[TokenId] {
        self.live[&sequence].truth.tokens()
    }

    /// Evaluates tokens, in chunks that end where the cache asks for it.
    pub(crate) fn feed(&mut self, sequence: SequenceId, tokens: &[TokenId]) {
        let mut rest = tokens;
        while !rest.is_empty() {
            let computed = self.tokens(sequence).len();
            let due = self.live[&sequence].checkpoints.range(computed + 1..);
            let until = due.copied().next().unwrap_or(usize::MAX);
            let (chunk, later) = rest.split_at(rest.len().min(until - computed));
            self.step(&[(sequence, chunk)]);
            self.reach(sequence);
            rest = later;
        }
    }

    /// One step of several sequences, whatever anybody has asked for.
    pub(crate) fn step(&mut self, batch: &[(SequenceId, &[TokenId])]) {
        let span = |(sequence, tokens): &(SequenceId, &[TokenId])| PlannedSpan {
            slot: self.live[sequence].slot,
            input: Input::Known(tokens.to_vec()),
            want: Want::Logits,
        };
        let work = Work {
            spans: batch.iter().map(span).collect(),
            ..Work::default()
        };
        let readouts = self.table.carry_out(&mut self.model, work);
        let readouts = readouts.expect("the device works");
        for ((sequence, tokens), readout) in batch.iter().zip(readouts) {
            let live = self.live.get_mut(sequence).expect("a live sequence");
            let mut truth = Vec::new();
            for &token in *tokens {
                if live.truth.tokens().len() >= live.known {
                    live.generated.push(token);
                }
                live.truth.evaluate(token);
                live.truth.push_logits(&mut truth);
            }
            let held = live.truth.tokens();
            let same = readout == Readout::Logits(truth);
            assert!(same, "{sequence} does not hold {held:?}");
        }
    }

    /// Tells the cache how far a sequence has got, if it wants to know.
    pub(crate) fn reach(&mut self, sequence: SequenceId) {
        let live = self.live.get_mut(&sequence).expect("a live sequence");
        let computed = live.truth.tokens().len();
        let later = live.checkpoints.split_off(&(computed + 1));
        if !std::mem::replace(&mut live.checkpoints, later).is_empty() {
            let reached = Message::Reached { sequence, computed };
            self.handle(reached).expect("a live sequence gets on");
        }
    }

    /// Shares what a sequence holds, up to `at`, as a fork does.
    pub(crate) fn share(&mut self, sequence: SequenceId, at: usize) {
        let live = &self.live[&sequence];
        let share = Message::Share {
            sequence,
            computed: live.truth.tokens().len(),
            generated: live.generated.clone(),
            at,
        };
        self.handle(share).expect("a live sequence is forked");
    }

    /// Takes tokens out of a slot.
    pub(crate) fn remove(
        &mut self,
        sequence: SequenceId,
        removed: Range<usize>,
    ) -> Result<(), CacheError> {
        let live = &self.live[&sequence];
        let remove = Message::Remove {
            sequence,
            computed: live.truth.tokens().len(),
            generated: live.generated.clone(),
            removed: removed.clone(),
        };
        self.handle(remove)?;
        let live = self.live.get_mut(&sequence).expect("a live sequence");
        let computed = live.truth.tokens().len();
        live.truth.remove(removed.clone());
        // The cache forgets what followed, and is told of what is new from there on.
        live.known = removed.start;
        live.generated = match removed.end < computed {
            true => live.truth.tokens()[removed.start..].to_vec(),
            false => Vec::new(),
        };
        Ok(())
    }

    /// Ends a sequence, whether it is done or cancelled.
    pub(crate) fn close(&mut self, sequence: SequenceId) {
        let live = self.live.remove(&sequence).expect("a live sequence");
        let close = Message::Close {
            sequence,
            computed: live.truth.tokens().len(),
            generated: live.generated,
        };
        self.handle(close).expect("a live sequence ends");
    }

    /// A whole conversation: all tokens are evaluated, and its slot is given up.
    pub(crate) fn converse(&mut self, tokens: &[TokenId], restore_points: &[usize]) -> Begun {
        let begun = self.begin(tokens, restore_points);
        self.feed(begun.sequence, &tokens[begun.cached..]);
        self.close(begun.sequence);
        begun
    }

    /// How many of these tokens the trie knows.
    pub(crate) fn matched(&self, tokens: &[TokenId]) -> usize {
        let nodes = self.nodes();
        let shared = nodes.iter().map(|node| common_prefix(&node.spelt, tokens));
        shared.max().unwrap_or(0)
    }

    pub(crate) fn can_resume(&self, tokens: &[TokenId], at: usize) -> bool {
        self.core.can_resume(&Salt::default(), tokens, at)
    }

    /// The most of these tokens that a sequence can start from.
    pub(crate) fn resumable(&self, tokens: &[TokenId]) -> usize {
        let mut ends = (0..=tokens.len()).rev();
        ends.find(|at| self.can_resume(tokens, *at))
            .expect("everything starts from nothing")
    }

    /// What is cached, parents before their children.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        for view in self.core.tree(&Salt::default()).nodes {
            let above = view.parent.map(|parent| nodes[parent].spelt.as_slice());
            let spelt = [above.unwrap_or_default(), &view.tokens[..]].concat();
            nodes.push(Node { spelt, view });
        }
        nodes
    }

    /// Ends a sequence, of which nothing is to be cached.
    pub(crate) fn discard(&mut self, sequence: SequenceId) {
        self.live.remove(&sequence).expect("a live sequence");
        let gone = self.handle(Message::Discard { sequence });
        gone.expect("a live sequence leaves");
    }

    /// Device bytes of a tail of so many tokens.
    pub(crate) fn tail_bytes(&self, tokens: usize) -> usize {
        motet::model::Model::spec(&self.model).tail_bytes(tokens)
    }

    /// Nothing is left but what the trie holds, on either side.
    pub(crate) fn check_no_leak(&self) {
        assert!(self.live.is_empty(), "all sequences are over");
        let (stats, counts) = (self.core.stats(), self.oracle.counters.now());
        assert_eq!(self.table.held(), (stats.segments, 0));
        assert_eq!(counts.segments_alive, stats.segments);
        assert_eq!((counts.tails_alive, stats.reserved_bytes), (0, 0));
    }

    /// Hands a message to the cache, and what follows to the device.
    pub(crate) fn handle(&mut self, message: Message) -> Result<Vec<Effect>, CacheError> {
        let effects = self.core.handle(Duration::ZERO, message)?;
        self.core.check_integrity();
        let mut work = Work::default();
        for effect in &effects {
            match effect {
                Effect::Edit(edit) => work.edits.push(edit.clone()),
                Effect::Begun {
                    sequence,
                    slot,
                    cached_tokens,
                    ..
                } => self.seat(*sequence, *slot, *cached_tokens),
                Effect::Checkpoint { sequence, at } => {
                    let live = self.live.get_mut(sequence).expect("a live sequence");
                    live.checkpoints.insert(*at);
                }
                Effect::Waits { .. } | Effect::NoRoom { .. } => {}
                Effect::Grown { .. }
                | Effect::NoGrowth { .. }
                | Effect::Resident { .. }
                | Effect::Lost { .. }
                | Effect::Clears { .. } => {
                    panic!("nobody has asked: {effect:?}")
                }
            }
        }
        let done = self.table.carry_out(&mut self.model, work);
        done.expect("the device can do what the cache asks");
        Ok(effects)
    }

    fn seat(&mut self, sequence: SequenceId, slot: SlotId, cached: usize) {
        let prompt = self.asked.remove(&sequence).expect("it was asked for");
        let mut truth = Soloist::new(&self.oracle);
        for &token in &prompt[..cached] {
            truth.evaluate(token);
        }
        let live = Live {
            slot,
            known: prompt.len(),
            generated: Vec::new(),
            cached,
            checkpoints: BTreeSet::new(),
            truth,
        };
        self.live.insert(sequence, live);
    }
}

/// A cached token range, with all tokens down to its end.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) spelt: Vec<TokenId>,
    pub(crate) view: NodeView,
}

impl Node {
    /// Where its range begins and ends.
    pub(crate) fn range(&self) -> Vec<usize> {
        vec![self.view.tokens_before, self.spelt.len()]
    }
}
