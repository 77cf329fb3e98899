//! The cache's core with oracles as devices, without threads and actors.
//!
//! Each row of a sequence is compared with the row of a reference run: a sequence that
//! evaluated exactly the same tokens without a cache. The statement "the slot holds these
//! tokens" is therefore read back from the cached state, layer by layer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use motet::cache::{CacheError, PrefixKey, Salt};
use motet::config::CacheConfig;
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::{SequenceId, TokenId};
use motet_core::cache::{CacheCore, Effect, Message, NodeView, OpenSlot};
use motet_device::Table;
use motet_model::oracle::ReferenceRun;
use motet_model::{OutputKind, SpanOutput};
use motet_protocol::SlotId;
use motet_protocol::{PlannedSpan, PlannedTokens, Work, common_prefix};
use motet_testkit::naive::spelled;

/// A cache, a device, and the reference for each live sequence.
pub(crate) struct CacheHarness {
    pub(crate) oracle: OracleConfig,
    pub(crate) core: CacheCore,
    model: Oracle,
    table: Table<Oracle>,
    prompts: BTreeMap<SequenceId, Arc<[TokenId]>>,
    live: BTreeMap<SequenceId, Live>,
    opened: u64,
    pub(crate) device_bytes_max: usize,
}

struct Live {
    slot: SlotId,
    /// Tokens of the prompt that were not removed.
    known: usize,
    /// Tokens after the prompt that were evaluated and that the cache is to learn.
    generated: Vec<TokenId>,
    cached: usize,
    checkpoints: BTreeSet<usize>,
    reference: ReferenceRun,
}

/// The slot of a new sequence, and its cached tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotOpened {
    pub(crate) sequence: SequenceId,
    /// Tokens that the sequence need not evaluate.
    pub(crate) cached: usize,
}

impl CacheHarness {
    pub(crate) fn new(layers: &[LayerKind]) -> Self {
        Self::with(layers, |_| {})
    }

    /// Creates a harness with changed settings.
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
            prompts: BTreeMap::new(),
            live: BTreeMap::new(),
            opened: 0,
            device_bytes_max,
        }
    }

    /// Opens a slot for a sequence that fits in memory and need not wait.
    pub(crate) fn open_slot(&mut self, tokens: &[TokenId], restore_points: &[usize]) -> SlotOpened {
        self.open_slot_with(tokens, |open_slot| {
            open_slot.restore_points = restore_points.to_vec();
            open_slot.tokens_max += 64;
        })
    }

    pub(crate) fn open_slot_with(
        &mut self,
        tokens: &[TokenId],
        settings: impl FnOnce(&mut OpenSlot),
    ) -> SlotOpened {
        let (sequence, effects) = self.try_open_slot(tokens, settings);
        self.opened(sequence)
            .unwrap_or_else(|| panic!("no slot for {sequence}: {effects:?}"))
    }

    /// Asks for a slot and returns the cache's answer.
    pub(crate) fn try_open_slot(
        &mut self,
        tokens: &[TokenId],
        settings: impl FnOnce(&mut OpenSlot),
    ) -> (SequenceId, Vec<Effect>) {
        self.opened += 1;
        let sequence = SequenceId(self.opened);
        let mut open_slot = OpenSlot::new(sequence, tokens, 0);
        settings(&mut open_slot);
        self.prompts.insert(sequence, Arc::clone(&open_slot.tokens));
        let effects = self.handle(Message::OpenSlot(open_slot));
        (
            sequence,
            effects.expect("a sequence may always ask for a slot"),
        )
    }

    /// The answer with which a live sequence's slot was opened.
    pub(crate) fn opened(&self, sequence: SequenceId) -> Option<SlotOpened> {
        let live = self.live.get(&sequence)?;
        Some(SlotOpened {
            sequence,
            cached: live.cached,
        })
    }

    /// Offsets at which the sequence is still to be sealed.
    pub(crate) fn checkpoints(&self, sequence: SequenceId) -> Vec<usize> {
        self.live[&sequence].checkpoints.iter().copied().collect()
    }

    /// The tokens whose state a sequence's slot holds, as its rows have shown.
    pub(crate) fn tokens(&self, sequence: SequenceId) -> &[TokenId] {
        self.live[&sequence].reference.tokens()
    }

    /// Evaluates tokens, in chunks that end where the cache asks for it.
    pub(crate) fn evaluate(&mut self, sequence: SequenceId, tokens: &[TokenId]) {
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

    /// Runs one step of several sequences and ignores the checkpoints that the cache asked for.
    pub(crate) fn step(&mut self, batch: &[(SequenceId, &[TokenId])]) {
        let span = |(sequence, tokens): &(SequenceId, &[TokenId])| PlannedSpan {
            slot: self.live[sequence].slot,
            token_source: PlannedTokens::Known(tokens.to_vec()),
            output_kind: OutputKind::Logits,
        };
        let work = Work {
            spans: batch.iter().map(span).collect(),
            ..Work::default()
        };
        let span_outputs = self.table.run_work(&mut self.model, work);
        let span_outputs = span_outputs.expect("the device works");
        for ((sequence, tokens), span_output) in batch.iter().zip(span_outputs) {
            let live = self.live.get_mut(sequence).expect("a live sequence");
            let mut reference = Vec::new();
            for &token in *tokens {
                if live.reference.tokens().len() >= live.known {
                    live.generated.push(token);
                }
                live.reference.evaluate(token);
                live.reference.push_logits(&mut reference);
            }
            let held = live.reference.tokens();
            let same = span_output == SpanOutput::Logits(reference);
            assert!(same, "{sequence} does not hold {held:?}");
        }
    }

    /// Reports a sequence's progress to the cache, if the cache waits for it.
    pub(crate) fn reach(&mut self, sequence: SequenceId) {
        let live = self.live.get_mut(&sequence).expect("a live sequence");
        let computed = live.reference.tokens().len();
        let later = live.checkpoints.split_off(&(computed + 1));
        if !std::mem::replace(&mut live.checkpoints, later).is_empty() {
            let reached = Message::Reached { sequence, computed };
            self.handle(reached).expect("a live sequence advances");
        }
    }

    /// Shares the state that a sequence holds, up to `at`, as a fork does.
    pub(crate) fn share(&mut self, sequence: SequenceId, at: usize) {
        let live = &self.live[&sequence];
        let share = Message::Share {
            sequence,
            computed: live.reference.tokens().len(),
            generated: live.generated.clone(),
            at,
        };
        self.handle(share).expect("a live sequence is forked");
    }

    /// Removes tokens from a slot.
    pub(crate) fn remove(
        &mut self,
        sequence: SequenceId,
        removed: Range<usize>,
    ) -> Result<(), CacheError> {
        let live = &self.live[&sequence];
        let remove = Message::Remove {
            sequence,
            computed: live.reference.tokens().len(),
            generated: live.generated.clone(),
            removed: removed.clone(),
        };
        self.handle(remove)?;
        let live = self.live.get_mut(&sequence).expect("a live sequence");
        let computed = live.reference.tokens().len();
        live.reference.remove(removed.clone());
        // The cache forgets the tokens that followed. New tokens are reported from there on.
        live.known = removed.start;
        live.generated = if removed.end < computed {
            live.reference.tokens()[removed.start..].to_vec()
        } else {
            Vec::new()
        };
        Ok(())
    }

    /// Closes a finished or cancelled sequence.
    pub(crate) fn close(&mut self, sequence: SequenceId) {
        let live = self.live.remove(&sequence).expect("a live sequence");
        let close = Message::Close {
            sequence,
            computed: live.reference.tokens().len(),
            generated: live.generated,
        };
        self.handle(close).expect("a live sequence ends");
    }

    /// Runs a whole conversation: evaluates all tokens and frees the slot.
    pub(crate) fn converse(&mut self, tokens: &[TokenId], restore_points: &[usize]) -> SlotOpened {
        let opened = self.open_slot(tokens, restore_points);
        self.evaluate(opened.sequence, &tokens[opened.cached..]);
        self.close(opened.sequence);
        opened
    }

    /// Number of these tokens that the trie knows.
    pub(crate) fn matched(&self, tokens: &[TokenId]) -> usize {
        let nodes = self.nodes();
        let shared = nodes.iter().map(|node| common_prefix(&node.spelt, tokens));
        shared.max().unwrap_or(0)
    }

    pub(crate) fn can_resume(&self, tokens: &[TokenId], at: usize) -> bool {
        self.core.can_resume(&PrefixKey::default(), tokens, at)
    }

    /// The largest number of these tokens that a sequence can start from.
    pub(crate) fn resumable(&self, tokens: &[TokenId]) -> usize {
        let mut ends = (0..=tokens.len()).rev();
        ends.find(|at| self.can_resume(tokens, *at))
            .expect("every sequence can start without cached tokens")
    }

    /// The cached nodes, parents before their children.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let view = self.core.tree(&Salt::default());
        let nodes = spelled(&view).into_iter();
        let node = |(spelt, view): (_, &NodeView)| Node {
            spelt,
            view: view.clone(),
        };
        nodes.map(node).collect()
    }

    /// Discards a sequence: nothing of it is cached.
    pub(crate) fn discard(&mut self, sequence: SequenceId) {
        self.live.remove(&sequence).expect("a live sequence");
        let gone = self.handle(Message::Discard { sequence });
        gone.expect("a live sequence can be discarded");
    }

    /// Device bytes of a tail of so many tokens.
    pub(crate) fn tail_bytes(&self, tokens: usize) -> usize {
        motet::model::Model::spec(&self.model).tail_bytes(tokens)
    }

    /// Checks that only the trie holds state, on either side.
    pub(crate) fn check_no_leak(&self) {
        assert!(self.live.is_empty(), "all sequences have finished");
        let (stats, counts) = (self.core.stats(), self.oracle.counters.now());
        assert_eq!(self.table.held(), (stats.segments, 0));
        assert_eq!(counts.segments_alive, stats.segments);
        assert_eq!((counts.tails_alive, stats.reserved_bytes), (0, 0));
    }

    /// Sends a message to the cache and applies the resulting edits to the device.
    pub(crate) fn handle(&mut self, message: Message) -> Result<Vec<Effect>, CacheError> {
        let effects = self.core.handle(Duration::ZERO, message)?;
        self.core.check_integrity();
        let mut work = Work::default();
        for effect in &effects {
            match effect {
                Effect::Edit(edit) => work.edits.push(edit.clone()),
                Effect::SlotOpened {
                    sequence,
                    slot,
                    cached_tokens,
                    ..
                } => self.record_slot(*sequence, *slot, *cached_tokens),
                Effect::Checkpoint { sequence, at, .. } => {
                    let live = self.live.get_mut(sequence).expect("a live sequence");
                    live.checkpoints.insert(*at);
                }
                Effect::Deferred { .. } | Effect::OutOfMemory { .. } => {}
                Effect::GrantExtended { .. }
                | Effect::GrantDenied { .. }
                | Effect::CachedPrefix { .. }
                | Effect::ReportAt { .. }
                | Effect::Lost { .. }
                | Effect::Fence { .. } => {
                    panic!("no such request: {effect:?}")
                }
            }
        }
        let done = self.table.run_work(&mut self.model, work);
        done.expect("the device can apply the cache's edits");
        Ok(effects)
    }

    fn record_slot(&mut self, sequence: SequenceId, slot: SlotId, cached: usize) {
        let prompt = self.prompts.remove(&sequence).expect("it was asked for");
        let mut reference = ReferenceRun::new(&self.oracle);
        for &token in &prompt[..cached] {
            reference.evaluate(token);
        }
        let live = Live {
            slot,
            known: prompt.len(),
            generated: Vec::new(),
            cached,
            checkpoints: BTreeSet::new(),
            reference,
        };
        self.live.insert(sequence, live);
    }
}

/// A cached token range, with all tokens up to its end.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) spelt: Vec<TokenId>,
    pub(crate) view: NodeView,
}

impl Node {
    /// Start and end of its range.
    pub(crate) fn range(&self) -> Vec<usize> {
        vec![self.view.tokens_before, self.spelt.len()]
    }
}
